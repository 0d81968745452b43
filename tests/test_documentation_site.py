"""The documentation site builds without warnings, and loads nothing from other servers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]

#: What a browser loads: attributes of HTML elements, and addresses in style sheets.
LOADED = re.compile(
    r"<(?:script|img|iframe|source|audio|video)\b[^>]*?\bsrc=[\"']([^\"']+)"
    r"|<link\b(?![^>]*\brel=[\"'](?:canonical|next|prev|author|index|search))[^>]*?\bhref=[\"']([^\"']+)"
)
IN_STYLES = re.compile(r"(?:url\(|@import\s+)[\"']?([^\"')]+)")
FOREIGN = re.compile(r"(?:https?:)?//")


def build(folder: Path, source: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Build the site as `make docs` does."""
    options = ["--quiet", "--fail-on-warning", "--keep-going"]
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            *options,
            "-c",
            str(ROOT / "docs"),
            str(source),
            str(folder),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_document_is_a_page_with_a_link_from_the_first(built: Path) -> None:
    first = (built / "docs" / "index.html").read_text()
    pages = [page.stem for page in (ROOT / "docs").glob("*.md") if page.stem != "index"]
    assert [page for page in pages if not (built / "docs" / f"{page}.html").is_file()] == []
    assert [page for page in pages if f'href="{page}.html"' not in first] == []
    assert "url=docs/index.html" in (built / "index.html").read_text()


def test_the_search_index_is_part_of_the_site(built: Path) -> None:
    index = (built / "searchindex.js").read_text()
    assert all(word in index for word in ("checkpoint", "elicit", "bubblewrap"))
    assert 'src="_static/searchtools.js' in (built / "search.html").read_text()


def test_the_api_has_the_docstrings_and_the_events_their_fields(built: Path) -> None:
    api = (built / "docs" / "api.html").read_text()
    for name in ("plexus.Activation.method", "plexus.Context.ask", "plexus.testing.local"):
        assert f'id="{name}"' in api
    assert "Return a client for this target" in api
    events = (built / "docs" / "events.html").read_text()
    assert "Amount that is done, in any unit." in events


def test_nothing_is_loaded_from_other_servers(built: Path) -> None:
    found = []
    for file in [*built.rglob("*.html"), *built.rglob("*.css")]:
        pattern = LOADED if file.suffix == ".html" else IN_STYLES
        for match in pattern.finditer(file.read_text(errors="replace")):
            address = next(each for each in match.groups() if each is not None)
            if FOREIGN.match(address):
                found.append(f"{file.relative_to(built)}: {address}")
    assert found == []
    assert LOADED.search('<script src="https://cdn.example/x.js">')


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "docs").mkdir(parents=True)
    (source / "docs" / "_static").symlink_to(ROOT / "docs" / "_static")
    (source / "docs" / "index.md").write_text("# A\n\n[b](missing.md) [c](index.md#missing)\n")
    done = build(tmp_path / "built", source)
    assert done.returncode != 0
    assert "missing.md" in done.stderr
    assert "index.md" in done.stderr
