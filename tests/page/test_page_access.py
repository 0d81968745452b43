"""How a browser loads the page, logs in, and gets from view to view."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from cut_proxy import proxying
from network import REPOSITORY, Server, bearer, serving
from page_browser import Site, opened, shoot, violations
from playwright.sync_api import Error, Route, WebSocket, expect

pytestmark = pytest.mark.timeout(120)


#: HTTP without WebSockets, whose event streams can be ended as by a proxy.
STREAMS_THAT_END = """
window.WebSocket = class { constructor() { setTimeout(() => this.onclose()); } };
window.streams = [];
const fetched = window.fetch;
window.fetch = async (path, options) => {
  const response = await fetched(path, options);
  const type = response.headers.get("content-type") || "";
  if (!type.startsWith("text/event-stream")) return response;
  let end, isOver = false;
  const ended = new Promise((resolve) => { end = resolve; });
  const reader = response.body.getReader();
  const body = new ReadableStream({
    async pull(controller) {
      const found = await Promise.race([reader.read(), ended]).catch(() => ({ done: true }));
      if (!found || found.done) isOver = true;
      if (isOver) controller.close();
      else controller.enqueue(found.value);
    },
  });
  window.streams.push({ end, isLive: () => !isOver && !options.signal.aborted });
  return new Response(body, { status: response.status, headers: response.headers });
};
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(auth="token") as server:
        yield server


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with opened() as site:
        yield site


# --- login ---------------------------------------------------------------------------------------


def test_the_link_of_the_command_logs_a_browser_in(site: Site) -> None:
    port = str(site.server.port)
    command = [sys.executable, "-m", "substrate", "--port", port, "token", "--link"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=True, cwd=REPOSITORY
    )
    link = done.stdout.strip().replace(f":{site.server.port}/", f":{site.proxy.port}/")
    with site.page(enter=False) as page:
        page.goto(link)
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        assert site.server.token not in page.url
        assert page.context.cookies() == []
        assert site.server.token not in page.content()
        kept = page.evaluate("() => JSON.stringify([{...localStorage}, {...sessionStorage}])")
        assert site.server.token not in kept


@pytest.mark.parametrize("fragment", ["", "#token=wrong"])
def test_without_the_token_the_page_says_what_to_do(site: Site, fragment: str) -> None:
    with site.page(enter=False) as page:
        page.goto(f"{site.origin}/{fragment}")
        expect(page.get_by_role("heading", name="Not connected")).to_be_visible()
        expect(page.locator("#state")).to_contain_text("substrate token --link")
        assert violations(page) == []
        shoot(page, "login")
        page.get_by_label("Token").fill("wrong as well")
        page.get_by_role("button", name="Connect").click()
        expect(page.get_by_role("alert")).to_contain_text("unknown, expired or revoked")
        page.get_by_label("Token").fill(site.server.token)
        page.get_by_role("button", name="Connect").click()
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()


def test_the_page_works_through_a_forwarded_port_with_the_token_alone(
    site: Site, server: Server
) -> None:
    """As with `ssh -L`: the server does not know the port that the browser uses."""
    with proxying() as proxy:
        proxy.target = server.port
        forwarded = site.with_server(server, proxy)
        with forwarded.page() as page:
            forwarded.open(page, "tools")
            expect(page.get_by_text("Connected", exact=True)).to_be_visible()
            assert forwarded.status(forwarded.secret(page)) == 200
        with forwarded.page(enter=False) as page:
            page.goto(f"{forwarded.origin}/#token=wrong")
            expect(page.get_by_role("heading", name="Not connected")).to_be_visible()
            status = page.evaluate("() => fetch('/metrics').then((answer) => answer.status)")
            assert status == 421
            page.get_by_label("Token").fill(server.token)
            page.get_by_role("button", name="Connect").click()
            expect(page.get_by_text("Connected", exact=True)).to_be_visible()


def test_the_page_reports_that_its_session_has_ended(site: Site) -> None:
    with site.page() as page:
        secret = site.secret(page)
        assert site.server.status("DELETE", "/session", bearer(secret)) == 204
        site.open(page, "chat")
        expect(page.get_by_role("heading", name="Not connected")).to_be_visible()
        # A new link in the same tab logs it in again.
        page.goto(site.link)
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()


def test_the_page_works_where_no_token_is_required(site: Site) -> None:
    with serving() as open_server, site.with_server(open_server).page(enter=False) as page:
        page.goto(f"http://127.0.0.1:{open_server.port}")
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()


VIEWS = ("tools", "runs", "questions", "tasks", "chat", "trees", "python", "status")


def test_every_view_is_reached_by_keys(site: Site) -> None:
    with site.page() as page:
        for key, view in zip("trqkceps", VIEWS, strict=True):
            page.keyboard.press("g")
            page.keyboard.press(key)
            expect(page).to_have_url(re.compile(f"#/{view}$"))
            expect(page.locator(f"nav a[data-view={view}]")).to_have_attribute(
                "aria-current", "page"
            )
            expect(page.locator("main h1").first).to_be_visible()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
        assert violations(page) == []
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog", name="Keyboard")).to_be_hidden()


def test_addresses_of_earlier_versions_lead_to_the_renamed_views(site: Site) -> None:
    with site.page() as page:
        for old, view in {"explore": "tools", "watch": "runs", "arbor": "trees"}.items():
            site.open(page, old)
            expect(page.locator(f"nav a[data-view={view}]")).to_have_attribute(
                "aria-current", "page"
            )


def test_the_palette_finds_tools_runs_and_views_by_a_few_letters(site: Site) -> None:
    with site.page() as page:
        page.keyboard.press("Control+k")
        palette = page.get_by_role("dialog", name="Command palette")
        expect(palette).to_be_visible()
        shoot(page, "palette")
        assert violations(page) == []
        page.keyboard.type("bash exec")
        expect(palette.get_by_role("option").first).to_contain_text("bash.execute")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("#/tools/bash.execute$"))
        expect(palette).to_be_hidden()
        page.keyboard.press("Control+k")
        page.keyboard.type("no such thing anywhere")
        expect(palette).to_contain_text("Nothing found")
        page.keyboard.press("Escape")
        expect(palette).to_be_hidden()
        page.keyboard.press("Control+k")
        page.keyboard.type("no such thing")
        page.keyboard.press("Enter")  # what is not known here is searched in the history
        expect(page.get_by_role("searchbox", name="Search runs")).to_have_value("no such thing")
        expect(page).to_have_url(re.compile("range=all"))


def test_the_palette_offers_the_last_runs_and_finds_a_run_by_its_number(site: Site) -> None:
    with site.page() as page:
        run = page.evaluate(
            """async () => {
              const { startRun } = await import("/page/tools/start_run.js");
              return startRun("bash.execute", { command: "echo for the palette; exit 3" });
            }"""
        )
        expect(page.locator(".run-row")).to_contain_text("✕ Failed (exit 3)")
        page.keyboard.press("Control+k")
        options = page.get_by_role("dialog", name="Command palette").get_by_role("option")
        last = options.filter(has_text="echo for the palette")
        expect(last).to_contain_text("✕ Failed (exit 3) · bash.execute")
        page.keyboard.type(str(run))
        expect(options.first).to_contain_text("echo for the palette")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(f"#/runs/{run}$"))


def test_a_view_of_an_activation_that_is_switched_off_is_not_offered(site: Site) -> None:
    with (
        serving("--without", "chat", auth="token") as server,
        site.with_server(server).page() as page,
    ):
        expect(page.locator("nav a[data-view=trees]")).to_be_visible()
        expect(page.locator("nav a[data-view=chat]")).to_be_hidden()
        site.open(page, "chat")
        expect(page.get_by_role("heading", name="Chat is switched off")).to_be_visible()


def test_a_server_that_is_away_is_a_banner_and_what_was_read_stays(site: Site) -> None:
    with site.page() as page:
        site.open(page, "status")
        heading = page.locator("main h1").first
        expect(heading).to_be_visible()
        site.proxy.target = 1
        site.proxy.cut()
        banner = page.get_by_role("alert").filter(has_text="not reachable")
        expect(banner).to_be_visible()
        expect(heading).to_be_visible()
        shoot(page, "away")
        site.proxy.target = site.server.port
        page.get_by_role("button", name="Retry now").click()
        expect(banner).to_be_hidden()
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()


def test_a_network_that_is_lost_without_a_word_is_a_banner_within_25_seconds(site: Site) -> None:
    with site.page(enter=False) as page:
        page.clock.install()
        page.goto(site.link)
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        banner = page.get_by_role("alert").filter(has_text="not reachable")
        site.proxy.silent = True
        try:
            page.clock.run_for(9_000)
            expect(banner).to_be_hidden()
            page.clock.run_for(16_000)
            expect(banner).to_be_visible()
        finally:
            site.proxy.silent = False
        # What was sent in between is lost for ever.
        page.get_by_role("button", name="Retry now").click()
        expect(banner).to_be_hidden()
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()


def test_a_network_that_is_lost_is_noticed_without_websockets_too(site: Site) -> None:
    with site.page(enter=False) as page:
        page.clock.install()
        page.add_init_script(
            "window.WebSocket = class { constructor() { setTimeout(() => this.onclose()); } }"
        )
        page.goto(site.link)
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        site.proxy.silent = True
        try:
            page.clock.run_for(25_000)
            expect(page.get_by_role("alert").filter(has_text="not reachable")).to_be_visible()
        finally:
            site.proxy.silent = False
            site.proxy.cut()


@pytest.mark.parametrize("has_sockets", [True, False])
def test_a_connection_on_which_nothing_happens_is_kept(site: Site, has_sockets: bool) -> None:
    with site.page(enter=False) as page:
        page.clock.install()
        if not has_sockets:
            page.add_init_script(
                "window.WebSocket = class { constructor() { setTimeout(() => this.onclose()); } }"
            )
        page.goto(site.link)
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        page.evaluate(
            """() => { window.states = new Set(); new MutationObserver(() => window.states.add(
              document.querySelector(".connection").dataset.state)).observe(
              document.querySelector(".connection"), { attributes: true }); }"""
        )
        for _ in range(10):
            page.clock.run_for(5_000)
            page.wait_for_timeout(300)  # for the answer of the server
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        assert page.evaluate("() => [...window.states]") in ([], ["open"])


def test_one_connection_is_opened_however_often_one_retries(site: Site) -> None:
    with site.page() as page:
        banner = page.get_by_role("alert").filter(has_text="not reachable")
        held: list[Route] = []
        page.route("**/tickets", lambda route: held.append(route))
        sockets: list[WebSocket] = []
        page.on("websocket", lambda each: sockets.append(each))
        site.proxy.cut()
        expect(banner).to_be_visible()
        for count in (1, 2, 3):
            page.get_by_role("button", name="Retry now").click()
            for _ in range(100):
                if len(held) >= count:
                    break
                page.wait_for_timeout(50)
        assert len(held) >= 3
        page.unroute("**/tickets")
        for route in held:
            with contextlib.suppress(Error):  # of an attempt that was given up
                route.continue_()
        expect(banner).to_be_hidden()
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        page.wait_for_timeout(500)
        assert len(sockets) == 1


def test_a_page_without_websockets_works_over_http(site: Site) -> None:
    with site.page(enter=False) as page:
        page.add_init_script(
            "window.WebSocket = class { constructor() { setTimeout(() => this.onclose()); } }"
        )
        page.goto(site.link)
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        site.call("bash.execute", command="echo over http")
        site.open(page, "runs")
        expect(page.get_by_text("echo over http").first).to_be_visible()


def test_a_websocket_that_a_proxy_never_opens_is_replaced_by_http(site: Site) -> None:
    with site.page(enter=False) as page:
        page.add_init_script("window.WebSocket = class { close() { this.onclose(); } }")
        page.goto(site.link)
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()


def test_a_response_that_ends_early_is_continued_and_the_others_are_closed(site: Site) -> None:
    with site.page(enter=False) as page:
        page.add_init_script(STREAMS_THAT_END)
        page.goto(site.link)
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        run = page.evaluate(
            """async () => (await import("/page/tools/start_run.js"))
              .startRun("showcase.steady", { count: 80 })"""
        )
        site.open(page, "runs", str(run))
        log = page.locator(".log")
        expect(log).to_contain_text("<5>")
        before = page.evaluate("() => window.streams.length")
        page.evaluate("() => window.streams.filter((each) => each.isLive()).at(-1).end()")
        expect(log).to_contain_text("total: 80")
        page.wait_for_function(
            "(count) => window.streams.slice(0, count).every((each) => !each.isLive())",
            arg=before,
        )
        rows = log.locator(".log-row").all_inner_texts()
        numbers = [row.split("<")[1].split(">")[0] for row in rows if "<" in row]
        assert numbers == [str(number) for number in range(int(numbers[0]), 81)]


def test_a_phone_shows_the_current_view_in_its_navigation_and_reaches_what_is_beside_it(
    site: Site,
) -> None:
    with site.page(phone=True) as page:
        site.open(page, "status")
        link = page.locator("nav a[data-view=status]")
        expect(link).to_have_attribute("aria-current", "page")
        expect(link).to_be_in_viewport(ratio=0.9)
        page.get_by_role("button", name="palette").click()
        expect(page.get_by_role("dialog", name="Command palette")).to_be_visible()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("heading", name="Not connected")).to_be_visible()


def test_nothing_is_wider_than_a_phone(site: Site) -> None:
    with site.page(phone=True) as page:
        for view in (*VIEWS, "tools/bash.execute"):
            site.open(page, view)
            expect(page.locator("main h1").first).to_be_visible()
            width = page.evaluate("() => document.documentElement.scrollWidth")
            assert width <= 390, view
