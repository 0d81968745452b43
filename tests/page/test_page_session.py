"""The session of the page: other programs of the machine cannot get it, and when it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from network import Server, bearer, serving
from page_browser import Site, opened, violations
from playwright.sync_api import Page, Request, expect

from substrate.security.page_sessions import SessionFile

pytestmark = pytest.mark.timeout(120)

#: Every way in which a page can try to send a request. The policy forbids most of them.
SENDS = """async (url) => {
  const follow = () => {
    const link = document.createElement("a");
    Object.assign(link, { href: url + "ping", ping: url + "ping", target: "_blank" });
    document.body.append(link);
    link.click();
  };
  const tries = [
    () => fetch(url + "fetch", { credentials: "include" }),
    () => fetch(url + "opaque", { mode: "no-cors", credentials: "include" }),
    () => navigator.sendBeacon(url + "beacon", "x"),
    () => { new Image().src = url + "image"; },
    () => { new EventSource(url + "events", { withCredentials: true }); },
    () => { new WebSocket(url.replace("http", "ws") + "socket"); },
    follow,
  ];
  for (const each of tries) {
    try { await each(); } catch { /* forbidden */ }
  }
}"""
#: What a page of another port tries on our page.
REACHES = """async (url) => {
  const found = [];
  const attempt = async (act) => {
    try { found.push(await act()); } catch { found.push("blocked"); }
  };
  const post = (path, body, kind) => fetch(url + path, {
    method: "POST", credentials: "include", headers: { "content-type": kind }, body,
  });
  const call = '{"jsonrpc":"2.0","id":1,"method":"plexus.hash"}';
  await attempt(async () => (await post("/rpc", call, "application/json")).status);
  await attempt(async () => (await post("/session", "{}", "text/plain")).status);
  const events = url + "/runs/1/events";
  await attempt(async () => (await fetch(events, { credentials: "include" })).status);
  await attempt(() => new Promise((resolve, reject) => {
    const socket = new WebSocket(url.replace("http", "ws") + "/rpc");
    socket.onopen = () => resolve("open");
    socket.onerror = reject;
  }));
  const frame = document.createElement("iframe");
  frame.src = url;
  const loaded = new Promise((resolve) => { frame.onload = resolve; });
  document.body.append(frame);
  await loaded;
  await attempt(() => frame.contentWindow.localStorage.getItem("substrate.session"));
  await attempt(() => localStorage.getItem("substrate.session"));
  return found;
}"""
#: What an injected script would try first.
INJECTIONS = """async () => {
  const done = {};
  const attempt = async (name, act) => {
    try { await act(); } catch { /* forbidden */ }
    await new Promise((resolve) => setTimeout(resolve, 50));
    done[name] = window.injected === undefined ? "blocked" : "ran";
    delete window.injected;
  };
  const code = "window.injected = 1";
  const add = (name, attributes, text) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(text || "");
    document.body.append(element);
    return element;
  };
  await attempt("inline", () => add("script", {}, code));
  await attempt("data", () => add("script", { src: `data:text/javascript,${code}` }));
  await attempt("handler", () => add("img", { onerror: code, src: "data:x" }));
  await attempt("address", () => add("a", { href: `javascript:${code}` }, "x").click());
  await attempt("eval", () => { (0, eval)(code); });
  await attempt("function", () => { new Function(code)(); });
  await attempt("worker", () => new Promise((resolve, reject) => {
    const worker = new Worker(URL.createObjectURL(new Blob(["postMessage(1)"])));
    worker.onmessage = () => { window.injected = 1; resolve(); };
    worker.onerror = reject;
  }));
  await attempt("markup", () => { document.body.innerHTML = `<img src=x onerror='${code}'>`; });
  return done;
}"""


class Listener:
    """Another program on this machine that records everything it receives."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.requests: list[tuple[str, dict[str, str], str]] = []

    @property
    def paths(self) -> list[str]:
        return [path for path, _, _ in self.requests]


@contextmanager
def listening(port: int = 0) -> Iterator[Listener]:
    """Run such a program for the duration of the block."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            listener.requests.append((self.path, headers, body.decode("latin-1")))
            self.send_response(200)
            self.send_header("Connection", "close")
            self.send_header("Content-Type", "text/html")
            self.send_header("Access-Control-Allow-Origin", self.headers.get("Origin", "*"))
            self.send_header("Access-Control-Allow-Credentials", "true")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>other</title><body>other</body>")

        do_GET = do_POST = do_OPTIONS = answer  # noqa: N815 - names of the library

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    listener = Listener(server.server_port)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield listener
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with opened() as site:
        yield site


def connected(page: Page) -> None:
    expect(page.get_by_text("Connected", exact=True)).to_be_visible()


def logged_out(page: Page) -> None:
    expect(page.get_by_role("heading", name="Not connected")).to_be_visible()


# --- other programs ------------------------------------------------------------------------------


def test_no_other_port_of_the_machine_receives_a_credential(site: Site) -> None:
    with listening() as other, site.page(lenient=True) as page:
        secret = site.secret(page)
        assert site.status(secret) == 200
        assert page.context.cookies() == []
        for host in ("127.0.0.1", "localhost"):
            url = f"http://{host}:{other.port}/"
            page.evaluate(SENDS, url)
            with page.context.new_page() as tab:
                tab.goto(f"{url}tab")
                found = tab.evaluate(REACHES, site.origin)
                assert found == ["blocked"] * 5 + [None]
            # The page itself navigates there and back.
            page.evaluate("(url) => { location.href = url; }", f"{url}left")
            page.wait_for_url(f"{url}left")
            page.goto(site.origin)
            connected(page)
        assert other.paths.count("/tab") == other.paths.count("/left") == 2
        assert not {"/fetch", "/opaque", "/beacon", "/image", "/events", "/socket"} & set(
            other.paths
        )
        values: set[str] = set()
        for path, headers, body in other.requests:
            assert not {"cookie", "authorization"} & set(headers), path
            assert site.origin not in headers.get("referer", ""), path
            assert secret not in f"{path}{headers}{body}"
            values |= {path, body, *headers.values()}
        assert page.context.cookies() == []
    for value in values:
        assert site.status(value) == 401
        cookie = {"Cookie": f"substrate_{site.server.port}={value.split(chr(10))[0]}"}
        with site.server.call("health.check", **cookie) as response:
            assert response.status == 401


#: Simulates that another tab is shown, or this one again.
TURN = """(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.mark.parametrize("hidden", [False, True])
def test_a_program_that_takes_the_port_of_a_stopped_server_gets_no_session(
    site: Site, hidden: bool
) -> None:
    """The page requests a proof that the other program cannot provide, and sends it nothing.

    A hidden page does not notice that the server is gone, and requests a proof when shown again.
    """
    server = Server(auth="token")
    again: Server | None = None
    try:
        with site.with_server(server).page() as page:
            secret = site.secret(page)
            if hidden:
                page.evaluate(TURN, True)
            else:
                site.open(page, "status")
            server.stop()
            if not hidden:
                expect(page.get_by_text("Server not reachable")).to_be_visible()
            with listening(server.port) as impostor:
                if hidden:
                    page.evaluate(TURN, False)
                for _ in range(600):
                    page.wait_for_timeout(50)
                    if sum("/session/proof" in path for path in impostor.paths) >= 4:
                        break
                assert sum("/session/proof" in path for path in impostor.paths) >= 4
            for path, headers, body in impostor.requests:
                assert path.startswith(("/session/proof?session=session:", "/page/")), path
                assert not {"cookie", "authorization"} & set(headers)
                assert secret not in f"{path}{headers}{body}"
            again = Server("--port", str(server.port), auth="token")
            connected(page)
            assert site.secret(page) == secret
    finally:
        for each in (server, again):
            if each is not None:
                each.stop()


def test_every_call_carries_the_session_in_its_header_and_files_carry_nothing(site: Site) -> None:
    with site.page(enter=False) as page:
        sent: list[Request] = []
        page.on("request", lambda request: sent.append(request))
        page.goto(site.link)
        connected(page)
        site.open(page, "tools", "bash.execute")
        expect(page.get_by_text("bash.execute").first).to_be_visible()
        secret = site.secret(page)
        started = tickets = 0
        for request in sent:
            headers = request.all_headers()
            place = request.url.removeprefix(site.origin)
            assert "cookie" not in headers
            assert "referer" not in headers
            assert secret not in place
            assert site.server.token not in place
            if place == "/session":
                started += 1
                assert headers["authorization"] == f"Bearer {site.server.token}"
            elif place == "/tickets":
                tickets += 1
                assert headers["authorization"] == f"Bearer {secret}"
            else:
                assert place == "/" or place.startswith("/page/"), place
                assert "authorization" not in headers
        assert (started, tickets) == (1, 1)


def test_no_script_gets_into_the_page_and_nothing_gets_out_of_it(site: Site) -> None:
    with site.page(lenient=True) as page:
        assert set(page.evaluate(INJECTIONS).values()) == {"blocked"}
        with listening() as other:
            page.evaluate(SENDS, f"http://127.0.0.1:{other.port}/")
            # A followed link, which carries no data; the browser may request the icon of that page.
            assert set(other.paths) <= {"/ping", "/favicon.ico"}


# --- end of a session ----------------------------------------------------------------------------


def test_the_page_stays_logged_in_when_the_server_is_restarted(site: Site) -> None:
    server = Server(auth="token")
    again: Server | None = None
    try:
        with site.with_server(server).page() as page:
            former = server.token
            server.stop()
            expect(page.get_by_text("Server not reachable")).to_be_visible()
            again = Server("--port", str(server.port), auth="token")
            assert again.token != former
            connected(page)
            site.open(page, "status")
            expect(page.get_by_text("healthy").first).to_be_visible()
            page.reload()
            connected(page)
    finally:
        for each in (server, again):
            if each is not None:
                each.stop()


def test_logging_out_revokes_the_session_in_every_tab(site: Site) -> None:
    with site.page() as page, page.context.new_page() as tab:
        tab.goto(site.origin)
        connected(tab)
        secret = site.secret(page)
        page.get_by_role("button", name="Log out").click()
        logged_out(page)
        logged_out(tab)
        expect(page.get_by_role("button", name="Log out")).to_be_hidden()
        assert site.secret(page) == "None"
        assert site.status(secret) == 401
        assert violations(page) == []
        page.reload()
        logged_out(page)
        # The other tab is logged in with this one.
        page.goto(site.link)
        connected(page)
        connected(tab)


def test_a_new_link_replaces_the_session_and_the_other_tab_continues(site: Site) -> None:
    with site.page() as page, page.context.new_page() as tab:
        tab.goto(site.origin)
        connected(tab)
        former = site.secret(page)
        page.goto("about:blank")
        page.goto(site.link)
        connected(page)
        assert site.secret(page) != former
        assert eventually_refused(site, former)
        site.open(tab, "status")
        expect(tab.get_by_text("healthy").first).to_be_visible()
        connected(tab)


def eventually_refused(site: Site, secret: str) -> bool:
    """Wait until a session is revoked, which the page does in the background."""
    waiting = threading.Event()
    return any(site.status(secret) == 401 or waiting.wait(0.05) for _ in range(100))


def test_a_wrong_token_in_the_address_does_not_end_the_session(site: Site) -> None:
    with site.page() as page:
        secret = site.secret(page)
        page.goto("about:blank")
        page.goto(f"{site.origin}/#token=wrong")
        connected(page)
        assert site.secret(page) == secret
        assert "token" not in page.url


@pytest.mark.parametrize("ending", ["revoke", "rotate"])
def test_the_page_notices_that_its_session_was_revoked(site: Site, ending: str) -> None:
    with serving(auth="token") as server, site.with_server(server).page() as page:
        before = {session.name for session in SessionFile().read() if session.port == server.port}
        if ending == "revoke":
            [name] = before
            assert SessionFile().revoke(name)
        else:
            with server.request("POST", "/token/rotate", {}, bearer(server.token)) as response:
                assert response.status == 200
        site.open(page, "trees")
        logged_out(page)
        page.reload()
        logged_out(page)


def test_the_link_logs_in_a_browser_without_storage(site: Site) -> None:
    with site.page(enter=False) as page:
        page.add_init_script(
            "Object.defineProperty(window, 'localStorage', { get() { throw new Error('no'); } })"
        )
        page.goto(site.link)
        connected(page)
        page.reload()
        logged_out(page)
        page.get_by_label("Token").fill(site.server.token)
        page.get_by_role("button", name="Connect").click()
        expect(page.get_by_role("alert")).to_contain_text("does not store anything")


def test_the_page_offers_no_log_out_where_no_token_is_needed(site: Site) -> None:
    with serving() as server, site.with_server(server).page(enter=False) as page:
        page.goto(f"http://127.0.0.1:{server.port}/#token=any")
        connected(page)
        expect(page.get_by_role("button", name="Log out")).to_be_hidden()
        stored: Any = page.evaluate("() => localStorage.length")
        assert stored == 0
