"""A real server and a real browser in front of it.

Chromium must be installed (`apt-get install chromium`); without it whoever asks for a page is
skipped and told so.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cut_proxy import CutProxy, proxying
from network import REPOSITORY, Server, bearer, serving
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SHOWCASE = REPOSITORY / "tests" / "page" / "page_activation.py"
ARTIFACTS = REPOSITORY / "artifacts" / "page"
#: How long anything in the browser may take.
WAIT_MS = 20_000
# What is expected of a page is waited for as long: five seconds are too few on a busy machine.
expect.set_options(timeout=WAIT_MS)
PHONE = {"width": 390, "height": 800}
DESKTOP = {"width": 1280, "height": 860}
#: The kinds of trouble that a page must not have, in the words of axe.
SERIOUS = ("serious", "critical")


class Site:
    """A server, and a browser that can open its page."""

    def __init__(self, server: Server, browser: Browser, proxy: CutProxy | None = None) -> None:
        self.server = server
        self._browser = browser
        self._proxy = proxy
        self.origin = f"http://127.0.0.1:{proxy.port if proxy else server.port}"

    @property
    def proxy(self) -> CutProxy:
        """What is between the two, to cut their connections with."""
        assert self._proxy is not None, "the browser calls this server directly"
        return self._proxy

    def beside(self, server: Server, proxy: CutProxy | None = None) -> Site:
        """Another server for the same browser, called directly or through this proxy."""
        return Site(server, self._browser, proxy)

    @property
    def link(self) -> str:
        """The address that lets a browser in."""
        return f"{self.origin}/#token={self.server.token}"

    @contextmanager
    def page(
        self, *, dark: bool = False, phone: bool = False, enter: bool = True, lenient: bool = False
    ) -> Iterator[Page]:
        """A page in a browser context of its own, opened by the link. It has no error when it is
        closed, and has sent no request to another origin; a `lenient` one may do both."""
        context = self._browser.new_context(
            viewport=PHONE if phone else DESKTOP,  # type: ignore[arg-type]  # two numbers
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            has_touch=phone,
        )
        context.set_default_timeout(WAIT_MS)
        elsewhere: list[str] = []
        errors: list[str] = []
        if not lenient:
            context.route("**/*", lambda route: _pass(route, self.origin, elsewhere))
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "console",
            lambda said: errors.append(said.text) if "Security Policy" in said.text else None,
        )
        try:
            if enter:
                page.goto(self.link)
                page.get_by_text("Connected", exact=True).wait_for()
            yield page
        finally:
            context.close()
        assert lenient or errors == []
        assert elsewhere == []

    def open(self, page: Page, *parts: str) -> None:
        """Go to a view."""
        page.evaluate("(hash) => { location.hash = hash; }", "#/" + "/".join(parts))

    def secret(self, page: Page) -> str:
        """The session of a page, as every script of its origin can read it."""
        return str(page.evaluate("() => localStorage.getItem('substrate.session')"))

    def status(self, secret: str) -> int:
        """How the server answers a call with this secret."""
        with self.server.call("health.check", **bearer(secret)) as response:
            return response.status

    def call(self, method: str, **params: Any) -> Any:
        """Call a method from elsewhere, and give what it returns."""
        with self.server.call(method, params, **bearer(self.server.token)) as response:
            answer = json.loads(response.read())
        assert "result" in answer, answer
        terminal = answer["result"]["terminal"]
        return terminal.get("result", terminal)


def _pass(route: Route, origin: str, elsewhere: list[str]) -> None:
    if route.request.url.startswith((origin, "data:")):
        route.continue_()
    else:
        elsewhere.append(route.request.url)
        route.abort()


@contextmanager
def opened(*options: str) -> Iterator[Site]:
    """A server with the showcase, and a browser, for as long as the block lasts."""
    if not Path(CHROMIUM).exists():
        pytest.skip("Chromium is not installed: `apt-get install chromium`")
    with ExitStack() as stack:
        proxy = stack.enter_context(proxying())
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        settings = {"SUBSTRATE_HOSTS": f"127.0.0.1:{proxy.port}", "XDG_DATA_HOME": folder}
        server = stack.enter_context(
            serving("--activation", str(SHOWCASE), *options, settings=settings, auth="token")
        )
        proxy.target = server.port
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        stack.callback(browser.close)
        yield Site(server, browser, proxy)


def shoot(page: Page, name: str) -> None:
    """A picture of the page, for people to look at."""
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(ARTIFACTS / f"{name}.png"))


def violations(page: Page) -> list[str]:
    """What axe has against the page, of level serious or above."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {node['html'][:200]} {node.get('failureSummary', '')[:300]}"
        for each in found
        if each["impact"] in SERIOUS
        for node in each["nodes"]
    ]
