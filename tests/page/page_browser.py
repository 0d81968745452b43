"""A real server and a real browser.

Chromium must be installed (`apt-get install chromium`); without it tests of the page are skipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
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
#: Timeout of every action in the browser.
WAIT_MS = 20_000
# Expectations get the same timeout: the default of five seconds is too short on a busy machine.
expect.set_options(timeout=WAIT_MS)
PHONE = {"width": 390, "height": 800}
DESKTOP = {"width": 1280, "height": 860}
#: The impact levels of axe that a page must not have.
SERIOUS = ("serious", "critical")


class Site:
    """A server, and a browser that can open its page."""

    def __init__(
        self, server: Server, browser: Browser, proxy: CutProxy | None = None, data: str = ""
    ) -> None:
        self.server = server
        #: The data folder of the server, which other processes of the project share.
        self.data = data
        self._browser = browser
        self._proxy = proxy
        self.origin = f"http://127.0.0.1:{proxy.port if proxy else server.port}"

    @property
    def proxy(self) -> CutProxy:
        """The proxy between browser and server, which can cut their connections."""
        assert self._proxy is not None, "the browser calls this server without a proxy"
        return self._proxy

    def with_server(self, server: Server, proxy: CutProxy | None = None) -> Site:
        """Return a site of another server for the same browser, directly or through a proxy."""
        return Site(server, self._browser, proxy)

    @property
    def link(self) -> str:
        """The URL with the token that logs a browser in."""
        return f"{self.origin}/#token={self.server.token}"

    @contextmanager
    def page(
        self, *, dark: bool = False, phone: bool = False, enter: bool = True, lenient: bool = False
    ) -> Iterator[Page]:
        """Open the page in a separate browser context, by the link.

        Fails at the end if the page had an error or sent a request to another origin, unless
        `lenient`.
        """
        context = self._browser.new_context(
            viewport=PHONE if phone else DESKTOP,  # type: ignore[arg-type]  # two numbers
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            has_touch=phone,
        )
        context.set_default_timeout(WAIT_MS)
        foreign: list[str] = []
        errors: list[str] = []
        if not lenient:
            context.route(_outside(self.origin), lambda route: _refuse(route, foreign))
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "console",
            lambda line: errors.append(line.text) if "Security Policy" in line.text else None,
        )
        try:
            if enter:
                page.goto(self.link)
                page.get_by_text("Connected", exact=True).wait_for(state="attached")
            yield page
        finally:
            context.close()
        # pytest explains no assertion of this module.
        assert lenient or errors == [], f"errors in the page: {errors}"
        assert foreign == [], f"requests to other origins: {foreign}"

    def open(self, page: Page, *parts: str) -> None:
        """Navigate to a view."""
        page.evaluate("(hash) => { location.hash = hash; }", "#/" + "/".join(parts))

    def secret(self, page: Page) -> str:
        """Return the session secret of a page from its local storage."""
        return str(page.evaluate("() => localStorage.getItem('substrate.session')"))

    def status(self, secret: str) -> int:
        """Return the HTTP status of a call with this secret."""
        with self.server.call("health.check", **bearer(secret)) as response:
            return response.status

    def call(self, method: str, **params: Any) -> Any:
        """Call a method without the browser, and return its result."""
        with self.server.call(method, params, **bearer(self.server.token)) as response:
            answer = json.loads(response.read())
        assert "result" in answer, answer
        terminal = answer["result"]["terminal"]
        return terminal.get("result", terminal)


def _outside(origin: str) -> re.Pattern[str]:
    """Return a pattern of all URLs but those of an origin and of data.

    The driver matches a pattern itself; a function would be asked for each of the page's modules.
    """
    return re.compile(rf"^(?!{re.escape(origin)}(?:/|$)|data:)")


def _refuse(route: Route, foreign: list[str]) -> None:
    foreign.append(route.request.url)
    route.abort()


@contextmanager
def opened(
    *options: str, variables: Mapping[str, str] | None = None, project: Path = REPOSITORY
) -> Iterator[Site]:
    """Run a server with the showcase, and a browser, for the duration of the block.

    `variables` are further environment variables of the server.
    """
    if not Path(CHROMIUM).exists():
        pytest.skip("Chromium is not installed: `apt-get install chromium`")
    with ExitStack() as stack:
        proxy = stack.enter_context(proxying())
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        settings = {"SUBSTRATE_HOSTS": f"127.0.0.1:{proxy.port}", "XDG_DATA_HOME": folder}
        settings |= variables or {}
        given = ("--activation", str(SHOWCASE), *options)
        server = stack.enter_context(serving(*given, settings=settings, auth="token", cwd=project))
        proxy.target = server.port
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        stack.callback(browser.close)
        yield Site(server, browser, proxy, folder)


def shoot(page: Page, name: str) -> None:
    """Save a screenshot of the page for review by people."""
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(ARTIFACTS / f"{name}.png"))


def violations(page: Page) -> list[str]:
    """Return the accessibility violations of the page with impact serious or above."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {node['html'][:200]} {node.get('failureSummary', '')[:300]}"
        for each in found
        if each["impact"] in SERIOUS
        for node in each["nodes"]
    ]
