"""The page's views of all runs and of the server's health."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from network import bearer
from page_browser import SHOWCASE, Site, opened, shoot, violations
from playwright.sync_api import Page, expect
from stdio_process import Server as StdioProcess
from stdio_process import serving as on_stdio

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with opened() as site:
        yield site


@pytest.fixture
def page(site: Site) -> Iterator[Page]:
    with site.page() as page:
        yield page


def start_run(site: Site, method: str, **params: object) -> http.client.HTTPResponse:
    """Start a run from another program."""
    headers = bearer(site.server.token) | {"Accept": "text/event-stream"}
    stream: http.client.HTTPResponse = site.server.call(method, params, **headers)
    return stream


def test_a_run_of_another_program_is_shown_followed_and_cancelled(site: Site, page: Page) -> None:
    site.open(page, "watch")
    with start_run(site, "showcase.steady", count=10_000) as stream:
        row = page.locator("tr", has_text="showcase.steady").filter(has_text="running")
        expect(row).to_be_visible()
        # The progress is updated automatically.
        expect(row.locator("td.number").nth(1)).to_have_text(re.compile(r"^\d{2,}$"))
        shoot(page, "watch")
        row.get_by_role("link").click()
        expect(page.locator(".terminal").first).to_contain_text("<1>")
        expect(page.locator(".b-output .seq").first).to_contain_text("#1")
        page.go_back()
        row.get_by_role("button", name=re.compile("^Stop")).click()
        expect(
            page.locator("tr", has_text="showcase.steady").filter(has_text="cancelled").first
        ).to_be_visible()
        assert b"stopped in the browser" in stream.read()


def test_a_command_that_failed_is_shown_as_failed_with_its_exit_code(
    site: Site, page: Page
) -> None:
    with start_run(site, "bash.execute", command="echo broken; exit 7") as stream:
        assert b'"exit_code":7' in stream.read()
    site.open(page, "watch")
    state = page.locator("tr", has_text="bash.execute").first.locator("td.state")
    expect(state).to_have_text("failed (7)")
    expect(state).to_have_attribute("data-state", "error")
    page.locator("tr", has_text="bash.execute").first.get_by_role("link").click()
    expect(page.locator("section.run .state")).to_have_text("failed (7)")


def test_times_are_those_of_the_server_and_not_of_arrival(site: Site, page: Page) -> None:
    with start_run(site, "bash.execute", command="echo one; sleep 0.4; echo two") as stream:
        found = re.search(rb'"subscription":(\d+)', stream.read())
    assert found is not None
    run = int(found[1])
    site.open(page, "run", str(run))
    page.locator(".b-complete").wait_for()
    times = page.evaluate(
        """async (run) => {
          const { openRun } = await import("/page/runs.js");
          return openRun(run).items.map((item) => item.at);
        }""",
        run,
    )
    # The page has read all of them in one batch, long after they were written.
    assert times[-1] - times[0] >= 350


def test_leaving_a_run_of_another_program_does_not_stop_it(site: Site, page: Page) -> None:
    with start_run(site, "showcase.steady", count=60, pause_s=0.05) as stream:
        site.open(page, "watch")
        row = page.locator("tr", has_text="showcase.steady").filter(has_text="running")
        row.get_by_role("link").click()
        page.locator(".terminal").first.wait_for()
        site.open(page, "explore")
        page.locator(".namespaces").wait_for()
        assert b'"total":60' in stream.read()


def test_a_question_to_another_program_can_be_answered_in_the_page(site: Site, page: Page) -> None:
    with start_run(site, "demo.delete") as stream:
        badge = page.locator("#badge")
        expect(badge).to_have_text("1 question")
        badge.click()
        question = page.locator(".question")
        expect(question).to_contain_text("Delete 3 files?")
        assert violations(page) == []
        question.get_by_role("button", name="Yes").click()
        expect(question).to_contain_text("Where?")
        question.get_by_label("there").check()
        question.get_by_role("button", name="Answer").click()
        assert b"deleted there" in stream.read()
        expect(badge).to_be_hidden()


# --- runs of other processes of the project -------------------------------------------------------


@contextmanager
def stdio_process(site: Site) -> Iterator[StdioProcess]:
    """Run a process on stdio in the project of the server."""
    with on_stdio("--activation", str(SHOWCASE), XDG_DATA_HOME=site.data) as process:
        yield process


def test_a_run_of_another_process_is_shown_live_followed_and_stopped(
    site: Site, page: Page
) -> None:
    site.open(page, "watch")
    page.get_by_text("ended lately").wait_for()
    with stdio_process(site) as process:
        subscription = process.start("showcase.steady", {"count": 10_000})
        row = page.locator("tr", has_text="showcase.steady").filter(has_text="running")
        expect(row).to_be_visible()
        expect(row.locator("td.number").nth(1)).to_have_text(re.compile(r"^\d{2,}$"))
        row.get_by_role("link").click()
        expect(page.locator(".terminal").first).to_contain_text("<1>")
        expect(page.locator(".b-output .seq").first).to_contain_text("#1")
        page.go_back()
        row.get_by_role("button", name=re.compile("^Stop")).click()
        ended = page.locator("tr", has_text="showcase.steady").filter(has_text="cancelled")
        expect(ended.first).to_be_visible()
        assert process.terminal(subscription)["reason"] == "stopped in the browser"


def test_a_question_and_a_permission_of_another_process_are_answered(
    site: Site, page: Page
) -> None:
    badge = page.locator("#badge")
    with stdio_process(site) as process:
        permit = process.start("approvals.permit", {"tool_name": "Write", "input": {"a": 1}})
        expect(badge).to_have_text("1 question")
        badge.click()
        question = page.locator(".question")
        expect(question).to_contain_text("Allow Write?")
        question.get_by_role("button", name="Yes").click()
        assert '"allow"' in process.terminal(permit)["result"]
        expect(badge).to_be_hidden()
        deletion = process.start("demo.delete")
        expect(question).to_contain_text("Delete 3 files?")
        question.get_by_role("button", name="Yes").click()
        expect(question).to_contain_text("Where?")
        question.get_by_label("there").check()
        question.get_by_role("button", name="Answer").click()
        process.read_until(lambda message: "deleted there" in str(message))
        assert process.terminal(deletion)["type"] == "complete"
        expect(badge).to_be_hidden()


def test_the_end_of_a_process_that_was_killed_is_shown_with_its_output(
    site: Site, page: Page
) -> None:
    with stdio_process(site) as process:
        process.start("showcase.steady", {"count": 10_000})
        process.start("demo.delete")
        site.open(page, "watch")
        row = page.locator("tr", has_text="showcase.steady").filter(has_text="running")
        row.get_by_role("link").click()
        expect(page.locator(".terminal").first).to_contain_text("<1>")
        expect(page.locator("#badge")).to_have_text("1 question")
        process.process.kill()
        expect(page.locator("section.run")).to_contain_text("has ended")
        expect(page.locator(".terminal").first).to_contain_text("<1>")
        expect(page.locator("#badge")).to_be_hidden()


# --- the list -------------------------------------------------------------------------------------


def test_runs_can_be_filtered(site: Site, page: Page) -> None:
    site.call("demo.echo", text="x")
    site.open(page, "watch")
    expect(page.locator("tbody tr", has_text="demo.echo").first).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("steady")
    expect(page.locator("tbody tr", has_text="demo.echo")).to_have_count(0)
    page.locator("#search").fill("plexus.")
    expect(page.locator("tbody tr")).to_have_count(0)
    page.get_by_label("also what only looks").check()
    expect(page.locator("tbody tr", has_text="plexus.watch").first).to_be_visible()


def test_the_page_reconnects_when_the_server_is_reachable_again(site: Site, page: Page) -> None:
    site.open(page, "watch")
    page.get_by_text("ended lately").wait_for()
    site.proxy.down = True
    site.proxy.cut()
    expect(page.get_by_text("is not heard")).to_be_visible()
    site.proxy.down = False
    expect(page.get_by_text("ended lately")).to_be_visible(timeout=15_000)


def test_polling_does_not_evict_ended_runs(site: Site, page: Page) -> None:
    site.open(page, "watch")
    page.get_by_text("ended lately").wait_for()
    before = len(site.call("plexus.runs", limit=1000))
    page.wait_for_timeout(2500)
    # One more run: this call of `plexus.runs`.
    assert len(site.call("plexus.runs", limit=1000)) - before <= 1


def test_health_is_live(site: Site, page: Page) -> None:
    site.open(page, "health")
    expect(page.get_by_text("Healthy")).to_be_visible()
    expect(page.locator("tr", has_text="showcase")).to_contain_text("well")
    expect(page.locator("tr", has_text="runs_in_flight")).to_contain_text("1024")
    for _ in range(20):
        site.call("demo.echo", text="x")
    ended = page.get_by_role("img", name=re.compile("Runs ended: .* most [1-9]"))
    expect(ended).to_be_visible()
    expect(page.locator(".plot-line").first).to_have_attribute("points", re.compile(r"\d.* .*\d"))


@pytest.mark.parametrize("view", ["watch", "health"])
@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, False), (False, True)])
def test_the_views_of_the_server_are_accessible(
    site: Site, view: str, dark: bool, phone: bool
) -> None:
    with site.page(dark=dark, phone=phone) as page:
        site.open(page, view)
        page.locator("tbody tr").first.wait_for()
        if view == "health":
            page.wait_for_timeout(3000)
        assert violations(page) == []
        shoot(page, f"{view}{'-dark' if dark else ''}{'-phone' if phone else ''}")
