"""How a browser loads the page and logs in, and the files of the page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from cut_proxy import proxying
from network import REPOSITORY, Server, bearer, serving
from page_browser import Site, opened, shoot, violations
from playwright.sync_api import expect

from substrate.server.page.static_files import ASSETS

pytestmark = pytest.mark.timeout(120)

SCRIPTS = sorted(path.name for path in ASSETS.glob("*.js"))


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
        expect(page.locator(".fault")).to_contain_text("unknown, expired or revoked")
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
            forwarded.open(page, "methods", "demo.echo")
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


def test_every_view_is_reached_by_keys(site: Site) -> None:
    with site.page() as page:
        for letter, view in zip(
            "rwache", ["run", "watch", "arbor", "chat", "health", "explore"], strict=True
        ):
            page.keyboard.press("g")
            page.keyboard.press(letter)
            expect(page).to_have_url(re.compile(f"#/{view}$"))
            expect(page.locator(f"nav a[data-view={view}]")).to_have_attribute(
                "aria-current", "page"
            )
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
        assert violations(page) == []
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()


def test_nothing_is_wider_than_a_phone(site: Site) -> None:
    with site.page(phone=True) as page:
        for view in ("explore/bash.execute", "run", "watch", "arbor", "chat", "health"):
            site.open(page, view)
            page.wait_for_timeout(700)
            width = page.evaluate("() => document.documentElement.scrollWidth")
            assert width <= 390, view


# --- files ---------------------------------------------------------------------------------------


def test_the_policy_allows_only_the_servers_own_files(server: Server) -> None:
    with server.request("GET", "/", headers={"Accept": "text/html,*/*;q=0.8"}) as response:
        headers = response.headers
        page = response.read().decode()
    policy = dict(
        part.strip().partition(" ")[::2]
        for part in str(headers["Content-Security-Policy"]).split(";")
    )
    assert policy["default-src"] == "'none'"
    for part in ("script-src", "style-src", "connect-src"):
        assert policy[part] == "'self'"
    assert policy["script-src-attr"] == policy["worker-src"] == "'none'"
    assert policy["img-src"] == "'self' data:"
    assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in str(policy)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert server.token not in page
    assert not re.search(r"<script>|<style|https?://|\bon\w+=|style=", page)


def test_every_file_is_served_with_its_type_and_kept_until_it_changes(server: Server) -> None:
    for path in sorted(ASSETS.iterdir()):
        with server.request("GET", f"/page/{path.name}") as response:
            assert response.status == 200
            assert response.read() == path.read_bytes()
            kind = response.headers["Content-Type"]
            tag = str(response.headers["ETag"])
            assert "Content-Security-Policy" in response.headers
        if path.suffix == ".js":
            assert kind == "text/javascript; charset=utf-8"
        if path.name == "index.html":
            continue
        with server.request("GET", f"/page/{path.name}", headers={"If-None-Match": tag}) as again:
            assert (again.status, again.read()) == (304, b"")


@pytest.mark.parametrize(
    "path", ["/page/", "/page/none.js", "/page/../app.py", "/page/%2e%2e/serving.py", "/page/a/b"]
)
def test_nothing_else_is_served(server: Server, path: str) -> None:
    assert server.status("GET", path) == 404


def test_a_file_is_only_read(server: Server) -> None:
    with server.request("POST", "/page/main.js", {}) as response:
        assert response.status == 401  # every POST needs a token
    headers = {"Authorization": f"Bearer {server.token}"}
    with server.request("POST", "/page/main.js", {}, headers) as response:
        assert response.status == 405
        assert json.loads(response.read()) == {"error": "Use GET."}


def test_every_script_is_preloaded_and_none_is_missing() -> None:
    page = (ASSETS / "index.html").read_text()
    named = re.findall(r'(?:href|src)="/page/([\w.]+)"', page)
    assert sorted(name for name in named if name.endswith(".js")) == SCRIPTS
    for name in named:
        assert (ASSETS / name).is_file()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_readable_small_and_has_no_dependencies(name: str) -> None:
    text = (ASSETS / name).read_text()
    assert len(text.splitlines()) <= 300
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "document.write"):
        assert forbidden not in text
    for imported in re.findall(r'from "(.+?)"', text):
        assert re.fullmatch(r"\./\w+\.js", imported)
        assert (ASSETS / imported).is_file()
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    done = subprocess.run(
        [node, "--check", "--input-type=module"],
        input=text,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_nothing_that_a_script_imports_is_left_unused() -> None:
    for name in SCRIPTS:
        text = (ASSETS / name).read_text()
        for names in re.findall(r"^import \{ (.+?) \} from", text, re.M):
            for each in names.split(", "):
                used = len(re.findall(rf"(?<!\w)(?<!\w\.){re.escape(each)}\b", text))
                assert used > 1, f"{name}: {each}"


def test_the_files_are_in_the_package() -> None:
    assert {"index.html", "main.js", "style.css", "views.css", "icon.svg"} <= {
        path.name for path in ASSETS.iterdir()
    }
