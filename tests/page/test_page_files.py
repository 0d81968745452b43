"""The files of the page: what is served, how it is checked, and where the libraries come from."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.node import NotInstalled, compiler, installed, node
from network import REPOSITORY, Server, serving

from substrate.server.page.static_files import ASSETS, STYLES_FILE

VENDOR = ASSETS / "vendor"
SCRIPTS = sorted(path for path in ASSETS.rglob("*.js"))
STYLES = sorted(ASSETS.rglob("*.css"))
#: Maximum size of the scripts and styles that the first view loads, in bytes.
MAX_FIRST_BYTES = 250_000
#: Maximum size of the editor, which Files and Diffs load.
MAX_EDITOR_BYTES = 512_000
BUNDLER = REPOSITORY / "packaging" / "codemirror" / "bundle.py"
EDITOR = "codemirror.mjs"
TSCONFIG = {
    "target": "es2023",
    "module": "esnext",
    "moduleResolution": "bundler",
    "checkJs": True,
    "allowJs": True,
    "noEmit": True,
    "strict": True,
    # Parameters of small inner functions have no annotations.
    "noImplicitAny": False,
    "lib": ["es2023", "dom", "dom.iterable", "dom.asynciterable"],
    "types": [],
    "skipLibCheck": True,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(auth="token") as server:
        yield server


def test_the_policy_allows_only_the_servers_own_files(server: Server) -> None:
    with server.request("GET", "/", headers={"Accept": "text/html,*/*;q=0.8"}) as response:
        headers = response.headers
        page = response.read().decode()
    policy = dict(
        part.strip().partition(" ")[::2]
        for part in str(headers["Content-Security-Policy"]).split(";")
    )
    assert policy["default-src"] == "'none'"
    assert re.fullmatch(r"'self' 'sha256-[\w+/]{43}='", policy["script-src"])
    for part in ("style-src", "connect-src"):
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
    types = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css"}
    for path in (*SCRIPTS, *STYLES, *VENDOR.glob("*.mjs"), ASSETS / "icon.svg"):
        name = path.relative_to(ASSETS).as_posix()
        with server.request("GET", f"/page/{name}") as response:
            assert response.status == 200
            assert response.read() == path.read_bytes()
            kind = str(response.headers["Content-Type"])
            tag = str(response.headers["ETag"])
            assert "Content-Security-Policy" in response.headers
        assert kind.startswith(types.get(path.suffix, "image/svg+xml"))
        with server.request("GET", f"/page/{name}", headers={"If-None-Match": tag}) as again:
            assert (again.status, again.read()) == (304, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/page/",
        "/page/none.js",
        "/page/core",
        "/page/../app.py",
        "/page/%2e%2e/serving.py",
        "/page/core/../../static_files.py",
        "/page/vendor/versions.json",
        "/page//app.js",
    ],
)
def test_nothing_else_is_served(server: Server, path: str) -> None:
    assert server.status("GET", path) == 404


def test_a_file_is_only_read(server: Server) -> None:
    with server.request("POST", "/page/app.js", {}) as response:
        assert response.status == 401  # every POST needs a token
    headers = {"Authorization": f"Bearer {server.token}"}
    with server.request("POST", "/page/app.js", {}, headers) as response:
        assert response.status == 405
        assert json.loads(response.read()) == {"error": "Use GET."}


def read(server: Server, path: str) -> bytes:
    with server.request("GET", path, headers={"Accept": "text/html"}) as response:
        assert response.status == 200
        return response.read()


def preloaded(server: Server) -> set[str]:
    """Return the names of all files that the HTML loads."""
    page = read(server, "/").decode()
    return set(re.findall(r'(?:href|src)="/page/([\w./-]+)"', page))


def test_the_first_view_preloads_what_it_imports_and_is_small(server: Server) -> None:
    named = preloaded(server)
    assert STYLES_FILE in named
    for name in named - {STYLES_FILE}:
        assert (ASSETS / name).is_file(), name
    assert {"views/runs.js", "core/connection.js", "vendor/preact.mjs"} <= named
    assert not any(name.startswith(("chat/", "trees/", "views/chat")) for name in named)
    assert not any(name.startswith(("editor/", "files/", "diffs/")) for name in named)
    assert f"vendor/{EDITOR}" not in named
    assert sum(len(read(server, f"/page/{name}")) for name in named) <= MAX_FIRST_BYTES


def test_the_styles_are_one_file_in_the_order_of_their_links(server: Server) -> None:
    linked = re.findall(r'href="/page/(styles/\w+\.css)"', (ASSETS / "index.html").read_text())
    assert {ASSETS / name for name in linked} == set(STYLES)
    parts = [(ASSETS / name).read_bytes() for name in linked]
    assert read(server, f"/page/{STYLES_FILE}") == b"".join(parts)
    assert read(server, "/").count(b"stylesheet") == 1


def test_the_navigation_is_in_the_html_before_scripts_are_loaded(server: Server) -> None:
    page = read(server, "/").decode()
    titles = re.findall(r'<li><a href="#/(\w+)">(\w+)</a></li>', page)
    text = (ASSETS / "core" / "views.js").read_text()
    assert titles == re.findall(r'name: "(\w+)", title: "(\w+)"', text)
    assert len(titles) > 5


@pytest.mark.parametrize(
    ("accepted", "is_compressed"),
    [
        ("gzip, deflate, br", True),
        ("br;q=1.0, GZIP;q=0.5", True),
        ("gzip", True),
        ("", False),
        ("br", False),
        ("x-gzip2", False),
        ("gzip;q=0", False),
        ("gzip ; q=0.000, br", False),
    ],
)
def test_files_are_compressed_for_clients_that_accept_it(
    server: Server, accepted: str, is_compressed: bool
) -> None:
    content = (ASSETS / "vendor" / "preact.mjs").read_bytes()
    headers = {"Accept-Encoding": accepted}
    with server.request("GET", "/page/vendor/preact.mjs", headers=headers) as response:
        body, tag = response.read(), str(response.headers["ETag"])
        assert response.headers["Vary"] == "accept-encoding"
        assert (response.headers["Content-Encoding"] == "gzip") == is_compressed
        assert int(str(response.headers["Content-Length"])) == len(body)
    assert (gzip.decompress(body) if is_compressed else body) == content
    assert (len(body) < len(content) / 2) == is_compressed
    headers["If-None-Match"] = tag
    with server.request("GET", "/page/vendor/preact.mjs", headers=headers) as again:
        assert (again.status, again.read()) == (304, b"")
    # The file in the other encoding is another representation.
    headers["Accept-Encoding"] = "br" if is_compressed else "gzip"
    with server.request("GET", "/page/vendor/preact.mjs", headers=headers) as other:
        assert other.status == 200


def test_scripts_import_only_files_of_the_page_and_the_libraries() -> None:
    index = (ASSETS / "index.html").read_text()
    found = re.search(r'<script type="importmap">(.*?)</script>', index)
    assert found is not None
    libraries = json.loads(found[1])["imports"]
    for path in libraries.values():
        assert (ASSETS / str(path).removeprefix("/page/")).is_file()
    for script in SCRIPTS:
        text = script.read_text()
        for name in re.findall(r'(?:from|import\()\s*"(.+?)"', text):
            if name not in libraries:
                target = (script.parent / name).resolve()
                assert target.is_relative_to(ASSETS), f"{script}: {name}"
                assert target.is_file(), f"{script}: {name}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.relative_to(ASSETS).as_posix())
def test_a_script_is_readable_and_makes_no_markup_from_text(script: Path) -> None:
    text = script.read_text()
    assert text.startswith("// "), "the first line says what the module owns"
    assert len(text.splitlines()) <= 400
    for forbidden in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "dangerouslySetInnerHTML",
        "eval(",
        "document.write",
    ):
        assert forbidden not in text


def test_no_script_imports_a_name_that_it_does_not_use() -> None:
    for script in SCRIPTS:
        text = script.read_text()
        for names in re.findall(r"^import \{ (.+?) \} from", text, re.M):
            for each in names.split(", "):
                name = each.split(" as ")[-1]
                used = len(re.findall(rf"(?<!\w)(?<!\w\.){re.escape(name)}\b", text))
                assert used > 1, f"{script.name}: {name}"


def test_no_module_is_left_that_nothing_imports() -> None:
    imported = {ASSETS / "app.js"}
    for script in SCRIPTS:
        for name in re.findall(r'(?:from|import\()\s*"(\..+?)"', script.read_text()):
            imported.add((script.parent / name).resolve())
    assert set(SCRIPTS) - imported == set()


def test_vendored_libraries_have_their_licences_and_checksums() -> None:
    versions = json.loads((VENDOR / "versions.json").read_text())
    assert set(versions) == {path.name for path in VENDOR.glob("*.mjs")}
    licences = {path.name.removesuffix(".LICENSE") for path in VENDOR.glob("*.LICENSE")}
    for name, entry in versions.items():
        content = (VENDOR / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entry["sha256"], name
        package = entry["package"].removeprefix("@preact/").removesuffix("-core")
        assert package in licences


def test_the_editor_is_small_and_names_the_licence_of_each_package_in_it() -> None:
    entry = json.loads((VENDOR / "versions.json").read_text())[EDITOR]
    licence = (VENDOR / "codemirror.LICENSE").read_text()
    assert len((VENDOR / EDITOR).read_bytes()) <= MAX_EDITOR_BYTES
    assert "@codemirror/merge" in entry["packages"]
    for name in entry["packages"]:
        assert name in licence
    locked = json.loads((BUNDLER.parent / "package-lock.json").read_text())["packages"]
    for name, version in entry["packages"].items():
        assert locked[f"node_modules/{name}"]["version"] == version, "run bundle.py"
    wanted = json.loads((BUNDLER.parent / "package.json").read_text())["dependencies"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in wanted.values())


def test_the_editor_exports_what_its_entry_names() -> None:
    entry = (BUNDLER.parent / "entry.js").read_text()
    named = {
        each.split(" as ")[-1].strip()
        for names in re.findall(r"^export \{ (.+?) \}", entry, re.M)
        for each in names.split(",")
    }
    found = re.search(r"export\{([^{}]+)\};?\s*$", (VENDOR / EDITOR).read_text())
    assert found is not None
    assert {each.split(" as ")[-1] for each in found[1].split(",")} == named, "run bundle.py"


@pytest.mark.node
@pytest.mark.timeout(420)
def test_the_editor_is_what_its_locked_packages_give() -> None:
    _packages()  # npm is there
    done = subprocess.run(
        [sys.executable, str(BUNDLER), "--check"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.node
def test_vendored_libraries_are_those_of_their_packages() -> None:
    packages = _packages()
    for name, entry in json.loads((VENDOR / "versions.json").read_text()).items():
        if name == EDITOR:
            continue  # bundled from several
        folder = packages / entry["package"]
        assert json.loads((folder / "package.json").read_text())["version"] == entry["version"]
        assert (folder / entry["path"]).read_bytes() == (VENDOR / name).read_bytes(), name


@pytest.mark.node
@pytest.mark.timeout(300)
def test_the_types_of_all_scripts_are_correct(tmp_path: Path) -> None:
    packages = _packages()
    program, _ = compiler()
    names = ("preact", "preact/hooks", "@preact/signals", "@preact/signals-core", "htm")
    paths = {name: [str(packages / name)] for name in names}
    # The types of the editor are those of its packages, next to the copy of the entry.
    paths["codemirror"] = [str(_editor_packages() / "entry.js")]
    config = {
        "compilerOptions": TSCONFIG | {"paths": paths},
        "include": [str(ASSETS / "**" / "*.js")],
    }
    (tmp_path / "tsconfig.json").write_text(json.dumps(config))
    done = subprocess.run(
        [str(node()), str(program), "-p", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def _packages() -> Path:
    try:
        return installed("compiler") / "node_modules"
    except NotInstalled as error:
        pytest.skip(str(error))


def _editor_packages() -> Path:
    """Install the packages of the editor next to those of the compiler."""
    folder = _packages().parent.parent / "editor"
    mark = folder / "installed.json"
    wanted = "".join((BUNDLER.parent / name).read_text() for name in ("package.json", "entry.js"))
    if not mark.is_file() or mark.read_text() != wanted:
        command = [sys.executable, str(BUNDLER), "--install", str(folder)]
        subprocess.run(command, check=True, timeout=400)
        mark.write_text(wanted)
    return folder
