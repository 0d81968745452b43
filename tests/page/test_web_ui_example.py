"""The example web UI: a page of another origin, in a real browser, over three transports."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from network import REPOSITORY, bearer
from page_browser import Site, opened
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.timeout(120)

WAYS = ("fetch", "events", "socket")


class Quiet(SimpleHTTPRequestHandler):
    """File server without a log."""

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def hosting() -> Iterator[str]:
    """Serve the example at a separate origin."""
    handler = partial(Quiet, directory=REPOSITORY / "examples" / "web_ui")
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    with hosting() as origin:
        yield origin


@pytest.fixture(scope="module")
def site(origin: str) -> Iterator[Site]:
    with opened("--allow-origin", origin) as site:
        yield site


def log_in(page: Page, site: Site, origin: str) -> None:
    page.goto(origin)
    page.get_by_label("Server").fill(site.origin)
    page.get_by_label("Token").fill(site.server.token)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("#state")).to_have_text("Logged in")


def start(page: Page, method: str, params: str) -> None:
    page.get_by_label("Method").fill(method)
    page.get_by_label("Parameters").fill(params)
    page.get_by_role("button", name="Run").click()


def numbers(page: Page, way: str) -> list[int]:
    """Return the numbers of the items that one transport has shown."""
    found: list[int] = page.evaluate(
        "(way) => [...document.getElementById(way).children].map((line) => line.value)", way
    )
    return found


def test_a_page_of_an_allowed_origin_sees_a_run_in_three_ways(site: Site, origin: str) -> None:
    with site.page(enter=False, lenient=True) as page:
        log_in(page, site, origin)
        start(page, "demo.count", '{"to": 5}')
        expect(page.locator("#state")).to_have_text("Ended: 7, 7, 7 items")
        texts = [page.locator(f"#{way} li").all_text_contents() for way in WAYS]
        assert texts[0] == texts[1] == texts[2]
        assert [numbers(page, way) for way in WAYS] == [list(range(1, 8))] * 3
        assert page.context.cookies() == []
        # Still logged in after a reload, and logged out after logging out.
        kept = page.evaluate("() => JSON.stringify({ ...localStorage })")
        assert site.server.token not in kept
        page.reload()
        page.get_by_label("Server").fill(site.origin)
        page.get_by_label("Method").focus()
        expect(page.locator("#state")).to_have_text("Logged in")
        secret = page.evaluate("() => Object.values({ ...localStorage })[0]")
        assert site.status(secret) == 200
        page.get_by_role("button", name="Log out").click()
        expect(page.locator("#state")).to_have_text("Not logged in")
        assert site.status(secret) == 401


def test_each_way_continues_exactly_after_a_cut_with_a_new_ticket(site: Site, origin: str) -> None:
    with site.page(enter=False, lenient=True) as page:
        tickets: list[str] = []
        page.on(
            "request",
            lambda request: tickets.append(request.url) if "ticket=" in request.url else None,
        )
        page.on("websocket", lambda socket: tickets.append(socket.url))
        log_in(page, site, origin)
        start(page, "showcase.steady", '{"count": 60, "pause_s": 0.1}')
        for cut in (5, 20):
            for way in WAYS:
                page.wait_for_function(
                    "([way, least]) => document.getElementById(way).childElementCount >= least",
                    arg=[way, cut],
                )
            assert site.proxy.cut() >= 3
        expect(page.locator("#state")).to_contain_text("Ended")
        seen = [numbers(page, way) for way in WAYS]
        assert seen[0] == seen[1] == seen[2] == list(range(1, len(seen[0]) + 1))
        assert len(seen[0]) > 60
        given = [url.partition("ticket=")[2] for url in tickets]
        assert len(given) >= 6
        assert len(set(given)) == len(given), "each connection has a separate ticket"


def test_a_page_of_another_origin_sees_nothing(site: Site) -> None:
    with hosting() as stranger, site.page(enter=False, lenient=True) as page:
        page.goto(stranger)
        page.get_by_label("Server").fill(site.origin)
        page.get_by_label("Token").fill(site.server.token)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("#state")).to_have_text("Failed to fetch")
        # A ticket obtained by another client does not help either.
        with site.server.request("POST", "/tickets", {}, bearer(site.server.token)) as response:
            ticket = response.read().decode().split('"')[3]
        opened = page.evaluate(
            """(url) => new Promise((resolve) => {
              const socket = new WebSocket(url);
              socket.onopen = () => resolve("open");
              socket.onerror = () => resolve("refused");
            })""",
            f"{site.origin.replace('http', 'ws')}/rpc?ticket={ticket}",
        )
        assert opened == "refused"
