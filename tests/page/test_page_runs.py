"""The list of runs: live and recorded runs, filters, search, keyboard, groups, long histories."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from network import REPOSITORY, bearer, serving
from page_browser import SHOWCASE, Site, opened, shoot, violations
from playwright.sync_api import Locator, Page, expect
from stdio_process import Server as StdioProcess
from stdio_process import serving as on_stdio

from plexus.storage.engine import Transaction, open_engine
from substrate.run_store.schema import RUNS

pytestmark = pytest.mark.timeout(180)

COLUMNS = (
    "id, method, scope, principal, project, process, pid, host, client, agent_session, state,"
    " outcome, epoch, cancel_requested, started_ms, ended_ms, last_seq, bytes, recorded, arguments,"
    " summary, kept_until, pinned, restart, indexed"
)
MANY_RUNS = 100_000
BATCH = 5_000
PHONE_WIDTH = 390


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with opened() as site:
        yield site


@pytest.fixture
def page(site: Site) -> Iterator[Page]:
    with site.page() as page:
        site.open(page, "runs")
        page.get_by_role("heading", name="Runs", exact=True).wait_for()
        yield page


@contextmanager
def running(
    site: Site, method: str, **params: object
) -> Iterator[tuple[int, http.client.HTTPResponse]]:
    """Start a run from another program, and stop it at the end. Returns its number and stream."""
    headers = bearer(site.server.token) | {"Accept": "text/event-stream"}
    with site.server.call(method, params, **headers) as stream:
        run = read_number(stream)
        try:
            yield run, stream
        finally:
            stop(site, run)


def read_number(stream: http.client.HTTPResponse) -> int:
    for line in stream:
        if line.startswith(b"data:"):
            return int(json.loads(line[5:])["result"])
    raise AssertionError("the server has not started the run")


def execute(site: Site, command: str) -> int:
    """Run a command to its end, and return the number of its run."""
    with running(site, "bash.execute", command=command) as (run, stream):
        stream.read()
    return run


def stop(site: Site, *runs: int) -> None:
    for run in runs:
        site.call("plexus.cancel", run=run)


@contextmanager
def stdio_process(site: Site, session: str = "") -> Iterator[StdioProcess]:
    """Run a process on stdio in the project of the server, in this session of an agent."""
    variables = {"XDG_DATA_HOME": site.data, "CLAUDE_CODE_SESSION_ID": session}
    with on_stdio("--activation", str(SHOWCASE), **variables) as process:  # type: ignore[arg-type]  # all are variables
        yield process


def row(page: Page, run: int) -> Locator:
    return page.locator(f'.run-row[data-run="{run}"]')


def search(page: Page) -> Locator:
    return page.get_by_role("searchbox", name="Search runs")


def overflow(page: Page) -> int:
    """Return the pixels by which the page is wider than the window."""
    return int(page.evaluate("() => document.scrollingElement.scrollWidth - innerWidth"))


# --- live -----------------------------------------------------------------------------------------


def test_a_run_of_another_program_appears_is_updated_and_stopped(site: Site, page: Page) -> None:
    with running(site, "showcase.steady", count=10_000) as (run, stream):
        shown = row(page, run)
        expect(shown.locator(".outcome")).to_contain_text("Running")
        expect(shown).to_contain_text("showcase.steady")
        expect(page.get_by_role("status").filter(has_text="running")).to_contain_text("1 running")
        took = shown.locator(".took").inner_text()
        expect(shown.locator(".took")).not_to_have_text(took)  # it is live
        shoot(page, "runs-live")
        shown.hover()
        shown.get_by_role("button", name="Stop").click()
        expect(shown.locator(".outcome")).to_contain_text("Stopped")
        expect(shown.get_by_role("button")).to_have_count(0)
        assert b"stopped in the browser" in stream.read()


def test_a_command_that_failed_is_red_with_its_exit_code_and_last_line(
    site: Site, page: Page
) -> None:
    run = execute(site, "echo begin; echo 'no module vite' >&2; exit 3")
    outcome = row(page, run).locator(".outcome")
    expect(outcome).to_contain_text("Failed (exit 3)")
    expect(outcome).to_have_attribute("data-kind", "failed")
    red = page.evaluate("(part) => getComputedStyle(part).color", outcome.element_handle())
    assert red == "rgb(180, 35, 24)"
    expect(row(page, run)).to_contain_text("no module vite")
    # The store knows the size once the run has ended.
    expect(row(page, run).locator(".size")).to_have_text(re.compile(r"^\d+ B$"))


def test_a_question_cannot_look_like_another_one(site: Site, page: Page) -> None:
    """A character that turns the text, and markup, are shown as what they are."""
    with running(site, "showcase.confirm", message="Open \u202egpj.exe <b>now</b>?") as (run, _):
        shown = r"Open \u202egpj.exe <b>now</b>?"
        expect(page.locator(".open-questions h3")).to_have_text(shown)
        expect(row(page, run)).to_contain_text(shown)
        site.open(page, "runs", str(run))
        expect(page.locator(".e-asked")).to_contain_text(shown)
        expect(page.locator(".timeline")).to_contain_text(shown)
        assert "\u202e" not in page.locator("#app").inner_text()


def test_a_row_is_a_link_to_its_run(site: Site, page: Page) -> None:
    run = execute(site, "echo linked")
    row(page, run).locator(".when").click()
    expect(page).to_have_url(re.compile(rf"#/runs/{run}$"))
    page.go_back()
    with page.context.expect_page() as tab:
        row(page, run).locator(".what").click(button="middle")
    assert tab.value.url.endswith(f"#/runs/{run}")


def test_the_list_survives_a_lost_connection_and_shows_what_was_missed(
    site: Site, page: Page
) -> None:
    with running(site, "showcase.steady", count=10_000) as (run, _):
        expect(row(page, run)).to_contain_text("Running")
        site.proxy.down = True
        site.proxy.cut()
        expect(page.locator(".banner")).to_be_visible()
        expect(row(page, run)).to_be_visible()  # the list is not blank
        shoot(page, "runs-lost")
        stop(site, run)
        missed = execute(site, "echo missed")
        site.proxy.down = False
        expect(page.locator(".banner")).to_be_hidden()
        expect(row(page, missed)).to_contain_text("Done")
        expect(row(page, run)).to_contain_text("Stopped")


def test_the_list_itself_adds_no_runs_to_the_server(site: Site, page: Page) -> None:
    page.locator(".run-row").first.wait_for()
    page.wait_for_timeout(1500)  # until the counts have arrived
    before = len(site.call("plexus.runs", limit=1000))
    page.wait_for_timeout(4000)
    # One more run: this call of `plexus.runs`.
    assert len(site.call("plexus.runs", limit=1000)) - before <= 1


# --- runs of other processes of the project -------------------------------------------------------


def test_a_run_of_another_process_is_listed_live_and_stopped(site: Site, page: Page) -> None:
    with stdio_process(site) as process:
        run = process.start("showcase.steady", {"count": 10_000})
        expect(row(page, run).locator(".outcome")).to_contain_text("Running")
        expect(row(page, run).locator(".source")).to_contain_text(f"pid {process.process.pid}")
        row(page, run).hover()
        row(page, run).get_by_role("button", name="Stop").click()
        expect(row(page, run).locator(".outcome")).to_contain_text("Stopped")
        assert process.terminal(run)["reason"] == "stopped in the browser"


def test_a_question_of_another_process_is_answered_above_the_list(site: Site, page: Page) -> None:
    with stdio_process(site) as process:
        run = process.start("demo.delete")
        card = page.locator(".open-questions .question")
        expect(card).to_contain_text("Delete 3 files?")
        expect(row(page, run).locator(".outcome")).to_contain_text("Asking")
        assert violations(page) == []
        shoot(page, "runs-question")
        card.get_by_role("button", name="Yes").click()
        expect(card).to_contain_text("Where?")
        card.get_by_label("there").check()
        card.get_by_role("button", name="Answer").click()
        process.read_until(lambda message: "deleted there" in str(message))
        expect(card).to_have_count(0)


def test_runs_of_a_process_that_was_killed_are_shown_as_lost(site: Site, page: Page) -> None:
    with stdio_process(site) as process:
        run = process.start("showcase.steady", {"count": 10_000})
        process.start("demo.delete")
        expect(row(page, run)).to_contain_text("Running")
        expect(page.locator(".open-questions .question")).to_have_count(1)
        process.process.kill()
        expect(row(page, run).locator(".outcome")).to_contain_text(re.compile("Owner lost|Failed"))
        expect(page.locator(".open-questions .question")).to_have_count(0)


def test_runs_are_grouped_by_the_session_of_their_agent(site: Site, page: Page) -> None:
    execute(site, "echo without a session")
    with stdio_process(site, "abcd1234-5678") as process:
        runs = [process.start("demo.echo", {"text": "x"}) for _ in range(2)]
        expect(row(page, runs[0])).to_be_visible()
        page.get_by_label("Group by session").check()
        expect(page).to_have_url(re.compile("group=session"))
        header = page.get_by_role("button", name="session abcd1234")
        expect(header).to_contain_text("2 runs")
        expect(page.get_by_role("button", name="Without an agent session")).to_be_visible()
        assert violations(page) == []
        shoot(page, "runs-grouped")
        header.click()
        expect(row(page, runs[0])).to_have_count(0)
        expect(header).to_have_attribute("aria-expanded", "false")
        header.click()
        expect(row(page, runs[0])).to_be_visible()


def test_a_run_of_another_process_shows_its_progress_and_who_called_it(
    site: Site, page: Page
) -> None:
    with stdio_process(site) as process:
        run = process.start("showcase.steps")
        expect(row(page, run).locator(".outcome")).to_have_text("● Running 30 %")
        expect(row(page, run).get_by_role("img", name="30 of 100")).to_be_visible()
        expect(row(page, run)).to_contain_text("packing")
        called = page.locator(".run-row", has_text="called by showcase.steps")
        expect(called).to_contain_text("demo.echo")
        stop(site, run)
        expect(row(page, run).locator(".outcome")).to_have_text("■ Stopped")


# --- filters and search ---------------------------------------------------------------------------


def test_filters_are_kept_in_the_address(site: Site, page: Page) -> None:
    done, failed = execute(site, "echo fine"), execute(site, "exit 4")
    other = site_echo(site)
    expect(row(page, done)).to_be_visible()
    page.get_by_role("button", name=re.compile("^Failed")).click()
    expect(row(page, failed)).to_be_visible()
    expect(row(page, done)).to_have_count(0)
    page.get_by_label("Method").select_option("bash.execute")
    page.get_by_label("Time range").select_option("7d")
    expect(page).to_have_url(re.compile(r"\?state=failed&method=bash\.execute&range=7d$"))
    page.reload()
    expect(row(page, failed)).to_be_visible()
    expect(row(page, done)).to_have_count(0)
    shoot(page, "runs-filtered")
    page.get_by_role("button", name="All", exact=True).click()
    expect(row(page, done)).to_be_visible()
    expect(row(page, other)).to_have_count(0)


def site_echo(site: Site) -> int:
    with running(site, "demo.echo", text="an echo") as (run, stream):
        stream.read()
    return run


def test_runs_in_progress_and_runs_that_ask_have_their_filters(site: Site, page: Page) -> None:
    done = execute(site, "echo fine")
    with (
        running(site, "showcase.steady", count=10_000) as (steady, _),
        running(site, "demo.delete") as (asking, _),
    ):
        page.get_by_role("button", name="Running 2").click()
        expect(row(page, steady)).to_be_visible()
        expect(row(page, asking)).to_be_visible()
        expect(row(page, done)).to_have_count(0)
        page.get_by_role("button", name="Needs answer 1").click()
        expect(row(page, steady)).to_have_count(0)
        expect(row(page, asking)).to_be_visible()
        stop(site, steady, asking)
        # A run leaves the list when it no longer matches.
        expect(page.get_by_text("No run matches")).to_be_visible()
        shoot(page, "runs-no-match")
        page.get_by_role("button", name="Clear filters").click()
        expect(row(page, done)).to_be_visible()


def test_the_source_of_runs_can_be_filtered(site: Site, page: Page) -> None:
    params = {"jsonrpc": "2.0", "id": 1, "method": "demo.echo", "params": {"text": "x"}}
    headers = bearer(site.server.token) | {"Substrate-Client": "claude-code/2.1"}
    with site.server.request("POST", "/rpc", params, headers) as response:
        response.read()
    execute(site, "echo local")
    expect(page.locator(".source", has_text="Claude Code").first).to_be_visible()
    page.get_by_label("Source").select_option("Claude Code")
    expect(page.locator(".run-row").filter(has_not_text="Claude Code")).to_have_count(0)
    expect(page.locator(".run-row").filter(has_text="Claude Code").first).to_be_visible()


def test_a_run_is_found_by_its_command_its_output_and_its_id(site: Site, page: Page) -> None:
    wanted = execute(site, "printf 'pine%s\\n' apple")  # the word is only in the output
    other = execute(site, "echo unrelated")
    expect(row(page, other)).to_be_visible()
    page.keyboard.press("/")
    expect(search(page)).to_be_focused()
    page.keyboard.type("pineapple")
    expect(row(page, other)).to_have_count(0)
    expect(row(page, wanted)).to_be_visible()
    shoot(page, "runs-search")
    for text in ("printf", str(wanted), f"{wanted:x}"[-4:]):
        search(page).fill(text)
        expect(page).to_have_url(re.compile(f"q={text}"))
        expect(row(page, wanted)).to_be_visible()
    search(page).fill(str(wanted))
    search(page).press("Enter")
    expect(page).to_have_url(re.compile(rf"#/runs/{wanted}$"))
    site.open(page, "runs")
    search(page).fill("nowhere-to-be-found")
    expect(page.get_by_text("No run matches")).to_be_visible()
    search(page).press("Escape")
    expect(row(page, other)).to_be_visible()


def test_what_the_page_reads_for_its_own_views_is_no_run(site: Site, page: Page) -> None:
    listed = page.locator(".run-row", has_text=re.compile("arbor.tree_list|chat.list|health.check"))
    for view in ("trees", "chat", "status"):
        site.open(page, view)
        page.get_by_role("heading", level=1).wait_for()
    page.keyboard.press("Control+k")
    page.keyboard.press("Escape")
    site.open(page, "runs")
    # The same call of another client is listed, even if it asks not to be.
    site.call("arbor.tree_list", _lookup=True)
    expect(listed).to_have_count(1)
    names = [each["method"] for each in site.call("plexus.history", limit=1000)]
    assert not {"chat.list", "health.check", "health.history"} & set(names)


def test_system_calls_are_shown_on_request(site: Site, page: Page) -> None:
    site_echo(site)
    page.locator(".run-row").first.wait_for()
    watch = page.locator(".run-row", has_text="approvals.watch")
    expect(watch).to_have_count(0)
    page.get_by_label("Show system calls").check()
    expect(watch.first).to_be_visible()


# --- keyboard -------------------------------------------------------------------------------------


def test_the_list_is_used_with_the_keyboard_alone(site: Site, page: Page) -> None:
    runs = [execute(site, f"echo {number}") for number in range(3)]
    with running(site, "showcase.steady", count=10_000) as (steady, stream):
        expect(row(page, steady)).to_be_visible()
        page.locator("main").focus()
        page.keyboard.press("j")
        expect(row(page, steady).get_by_role("link")).to_be_focused()
        expect(row(page, steady)).to_have_attribute("data-current", "true")
        page.keyboard.press("Tab")
        expect(row(page, steady).get_by_role("button", name="Stop")).to_be_focused()
        page.keyboard.press("Enter")
        expect(row(page, steady)).to_contain_text("Stopped")
        stream.read()
    page.locator("main").focus()
    page.keyboard.press("j")
    expect(row(page, runs[2]).get_by_role("link")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("k")
    expect(row(page, runs[1]).get_by_role("link")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"#/runs/{runs[1]}$"))
    page.go_back()
    expect(row(page, runs[1])).to_have_attribute("data-current", "true")


# --- two tabs -------------------------------------------------------------------------------------


def test_two_tabs_with_ten_runs_each_stay_live(site: Site, page: Page) -> None:
    """A browser opens six connections to a server; the tabs must not use one for each run."""
    other = page.context.new_page()
    other.goto(f"{site.origin}/#/runs")
    other.get_by_text("Connected", exact=True).wait_for()
    follow = """async (runs) => {
      const { subscribe, whenOpen } = await import("/page/core/connection.js");
      await whenOpen();
      window.items = {}; window.faults = [];
      for (const run of runs) subscribe("plexus.attach", { run }, {
        onItem: ({ result }) => { window.items[run] = (window.items[run] || 0) + 1; },
        onError: (error) => window.faults.push(error.message),
      });
    }"""
    live = "() => Object.values(window.items).filter((count) => count > 20).length === 10"
    with ExitStack() as stack:
        started = [
            stack.enter_context(running(site, "showcase.steady", count=100_000, pause_s=0.05))[0]
            for _ in range(20)
        ]
        page.evaluate(follow, started[:10])
        other.evaluate(follow, started[10:])
        for tab in (page, other):
            tab.wait_for_function(live)
            assert tab.evaluate("() => window.faults") == []
            # A call is answered at once, and each tab knows the runs of the other.
            expect(tab.locator(".heading")).to_contain_text("20 running")
        # A run that one tab follows is found and followed by the other.
        site.open(other, "runs", str(started[0]))
        expect(other.locator("main")).to_contain_text(re.compile(r"<\d+>"))
        expect(other.locator("main")).not_to_contain_text("not found")
        shoot(other, "runs-second-tab")
        other.evaluate(
            "async (run) => { const { call } = await import('/page/core/connection.js');"
            " await call('plexus.cancel', { run }); }",
            started[0],
        )
        expect(page.locator(".heading")).to_contain_text("19 running")
        stop(site, *started[1:])
    other.close()


# --- long lists -----------------------------------------------------------------------------------


def test_recorded_runs_are_loaded_in_pages_while_scrolling(site: Site, page: Page) -> None:
    oldest = site_echo(site)
    for _ in range(350):
        site.call("demo.echo", text="filler")
    page.get_by_label("Method").select_option("demo.echo")
    page.reload()
    page.locator(".run-row").first.wait_for()
    scroll_to(page, row(page, oldest))
    numbers = page.evaluate(
        "() => [...document.querySelectorAll('.run-row')].map((row) => row.dataset.run)"
    )
    assert len(numbers) == len(set(numbers))
    # New runs do not move the rows in view.
    top = row(page, oldest).bounding_box()
    site.call("demo.echo", text="new")
    page.wait_for_timeout(1200)
    assert row(page, oldest).bounding_box() == top
    # Going back to the list restores the position.
    row(page, oldest).click()
    expect(page).to_have_url(re.compile(rf"#/runs/{oldest}$"))
    page.go_back()
    expect(row(page, oldest)).to_be_in_viewport()


def scroll_to(page: Page, wanted: Locator, within_s: float = 60) -> None:
    """Scroll to the end until a row is in the document."""
    end = time.monotonic() + within_s
    while wanted.count() == 0:
        assert time.monotonic() < end, "the row was not reached"
        page.evaluate(
            """async () => {
              const list = document.querySelector(".fixed-list");
              list.scrollTop = list.scrollHeight;
              await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 20)));
            }"""
        )
    wanted.scroll_into_view_if_needed()


async def fill(database: Path, runs: int) -> int:
    """Write many runs of the project into the store; return the number of the oldest."""
    engine = await open_engine(str(database), RUNS)
    now_ms = time.time_ns() // 1_000_000
    marks = ", ".join("?" * 25)
    for start in range(0, runs, BATCH):
        rows: list[list[Any]] = []
        for number in range(start, min(start + BATCH, runs)):
            at_ms, failed = now_ms - (runs - number) * 5000, number % 20 == 0
            project = str(REPOSITORY)
            made: list[Any] = [number + 1, "bash.execute", "bash", "local", project, 1, 1, "host"]
            made += ["claude-code/2.1", f"session-{number % 50}", 3]
            made += ["failed" if failed else "succeeded", 0, 0, at_ms, at_ms + 100, 3, 4000]
            made += ["all", "{}", f"make test-{number}", now_ms * 2, 0, "never", 1]
            rows.append(made)

        def write(tx: Transaction, rows: list[list[Any]] = rows) -> None:
            tx.many(f"INSERT INTO runs ({COLUMNS}) VALUES ({marks})", rows)

        await engine.write(write)
    await engine.close()
    return 1


def test_a_hundred_thousand_runs_scroll_to_the_end(site: Site) -> None:
    database = Path(site.data) / "substrate" / "runs.db"
    with ThreadPoolExecutor() as thread:  # the main thread has the event loop of the browser
        oldest = thread.submit(lambda: asyncio.run(fill(database, MANY_RUNS))).result()
    with site.page() as page:
        site.open(page, "runs?range=all&method=bash.execute")
        page.locator(".run-row").first.wait_for()
        scroll_to(page, row(page, oldest), within_s=120)
        expect(row(page, oldest)).to_contain_text("make test-0")
        assert page.locator(".run-row").count() < 60
        page.get_by_label("Group by session").check()
        expect(page.get_by_role("button", name="session session-").first).to_contain_text("2,000")
        shoot(page, "runs-many-grouped")


# --- states of the view ---------------------------------------------------------------------------


def test_an_empty_list_says_what_to_do_next(site: Site, tmp_path: Path) -> None:
    settings = {"XDG_DATA_HOME": str(tmp_path)}
    with (
        serving(settings=settings, auth="token") as server,
        site.with_server(server).page() as page,
    ):
        site.open(page, "runs")
        expect(page.get_by_text("substrate mcp install")).to_be_visible()
        expect(page.get_by_role("link", name="Run a tool")).to_be_visible()
        shoot(page, "runs-empty")
        page.get_by_role("link", name="Show all runs").click()
        expect(page.get_by_text("No runs yet")).to_be_visible()


def test_an_error_of_the_history_can_be_retried(site: Site, page: Page) -> None:
    """The search text is too long for the server."""
    site.open(page, f"runs?q={'x' * 1001}")
    expect(page.get_by_text("The runs could not be loaded")).to_be_visible()
    expect(page.get_by_role("button", name="Retry")).to_be_visible()
    shoot(page, "runs-error")


@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, False), (False, True)])
def test_the_list_is_accessible_and_fits_the_screen(site: Site, dark: bool, phone: bool) -> None:
    execute(site, "echo a long command that does not fit; " * 10 + "exit 5")
    with (
        running(site, "showcase.steady", count=10_000) as (steady, _),
        running(site, "demo.delete") as (asking, _),
        site.page(dark=dark, phone=phone) as page,
    ):
        site.open(page, "runs")
        expect(row(page, steady)).to_be_visible()
        expect(page.locator(".open-questions .question")).to_be_visible()
        assert overflow(page) <= 0
        assert violations(page) == []
        shoot(page, f"runs{'-dark' if dark else ''}{'-phone' if phone else ''}")
        stop(site, steady, asking)
