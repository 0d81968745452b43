"""Every code block of the documents is run by a test, or states why it is not."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from child_processes import clean_environment
from document_blocks import Block, Reader, blocks, matches, parse_faults, unchecked, write_programs
from documents import DOCUMENTS, ROOT

from native_rpc.client import connect
from native_rpc.client.local_server import find_local_server
from substrate.build_hub import RECORDING_MARKER

pytestmark = pytest.mark.timeout(300)

PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *DOCUMENTS]
#: Pages that another test follows from the first block to the last.
FOLLOWED = {"docs/tutorial.md": "test_tutorial.py"}
#: Pages whose Python blocks another test runs; their other blocks are checked here.
IMPORTED = {
    "docs/from-fastmcp.md": "test_from_fastmcp.py",
    "docs/writing-an-activation.md": "test_guide.py",
}
#: Blocks that cannot be run, at most; a bound against markers for convenience.
MOST_NOT_RUN = 70


class Site(NamedTuple):
    """The server that all documents use, and what their commands need."""

    environment: dict[str, str]
    words: dict[str, str]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


OURS = [page for page in PAGES if name_of(page) not in FOLLOWED]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    project = tmp_path_factory.mktemp("project")
    programs = write_programs(project / "bin")
    # Some programs of the documents start a server without XDG_STATE_HOME. It would announce that
    # runs are recorded, as every first start does.
    state = project / "home" / ".local" / "state" / "substrate"
    state.mkdir(parents=True, mode=0o700)
    (state / RECORDING_MARKER).touch()
    environment = clean_environment(
        PATH=f"{programs}{os.pathsep}{os.environ['PATH']}",
        HOME=str(project / "home"),
        XDG_STATE_HOME=os.environ["XDG_STATE_HOME"],
        TERM="dumb",
        COLUMNS="200",
    )
    with subprocess.Popen(
        [sys.executable, "-m", "substrate", "--port", "0"],
        cwd=project,
        env=environment,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline().decode()
            [port] = re.findall(r"http://127\.0\.0\.1:(\d+)", line)
            tree = asyncio.run(called(project, "arbor.tree_create"))["result"]["tree_id"]
            words = {"TREE": tree, "4444": port}
            yield Site(environment | {"SUBSTRATE_PORT": port}, words)
        finally:
            process.kill()


async def called(project: Path, method: str, **params: Any) -> dict[str, Any]:
    """Call a method on the server of a project, and return its terminal and its run."""
    server = find_local_server(project)
    async with asyncio.timeout(30), connect(server.url, token=server.token) as plexus:
        async with plexus.call(method, params) as call:
            [*_, last] = [item async for item in call]
        newest = (await plexus.call("plexus.history", {"limit": 1, "method": method}))[0]
        return dict(last) | {"run": newest["run"]}


@pytest.mark.parametrize("page", OURS, ids=name_of)
def test_every_block_has_a_check_or_a_reason(page: Path) -> None:
    found = blocks(page.read_text())
    if name_of(page) not in FOLLOWED:
        ours = [
            each for each in found if name_of(page) not in IMPORTED or each.language != "python"
        ]
        faults = {each.line: unchecked(each, ROOT / "tests") for each in ours}
        assert {line: fault for line, fault in faults.items() if fault} == {}


@pytest.mark.parametrize("page", OURS, ids=name_of)
def test_the_blocks_of_a_page_work(page: Path, site: Site) -> None:
    text = page.read_text()
    if name_of(page) in IMPORTED:
        text = re.sub(r"^```python\n.*?^```$", "", text, flags=re.S | re.M)
    words = dict(site.words)
    project = Path(site.environment["HOME"]).parent
    # In the project of the server, so that programs find it.
    folder = project / "pages" / name_of(page)
    folder.mkdir(parents=True)
    if re.search(r"\bRUN\b", text):
        # One for each page, because a page may delete its run.
        run = asyncio.run(called(project, "bash.execute", command="echo hello"))["run"]
        words["RUN"] = str(run)
    faults = Reader(folder, site.environment, words).read(text)
    assert faults == [], "\n".join(faults)


def test_few_blocks_are_not_run() -> None:
    found = [each for page in PAGES for each in blocks(page.read_text()) if each.reason is not None]
    assert len(found) <= MOST_NOT_RUN


# --- the check -----------------------------------------------------------------------------------


def block_of(text: str) -> Block:
    [found] = blocks(text)
    return found


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```python\nx = 1\n```\n", "file name"),
        ("```yaml\na: 1\n```\n", "needs a comment"),
        ("```\ntext\n```\n", "nameless"),
        ("```console\noutput\n```\n", "begins with"),
        ("<!-- tested by: test_nothing.py -->\n```js\n1\n```\n", "does not exist"),
        ("<!-- not run: a server starts -->\n```sh\nsubstrate\n```\n", None),
        ("<!-- tested by: test_guide.py -->\n```js\n1\n```\n", None),
    ],
)
def test_a_block_without_a_check_is_found(text: str, fault: str | None) -> None:
    found = unchecked(block_of(text), ROOT / "tests")
    assert (fault is None and found is None) or (fault or "-") in str(found)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```console\n$ echo one; echo two\none\n...\n```\n", None),
        ("```console\n$ echo one\ntwo\n```\n", "instead of"),
        ("```console\n$ echo 17 s\n4 s\n```\n", None),
        ("```sh\nfalse\n```\n", "exits with 1"),
        ("```sh\ntrue # a comment\nfalse\n```\n", "exits with 1"),
        ("```python\n# a.py\nprint(1)\n```\n", None),
        ("```python\n# a.py\nraise SystemExit(3)\n```\n", "exits with 3"),
        ("<!-- not run: it ends -->\n```sh\nsubstrate runs --sinse 1h\n```\n", "No such option"),
        ("<!-- not run: it ends -->\n```sh\nsubstrate nothing\n```\n", "Unknown command"),
        ("<!-- not run: it ends -->\n```sh\nA=1 substrate runs --since 1h | cat\n```\n", None),
    ],
)
def test_a_wrong_block_is_found(text: str, fault: str | None, tmp_path: Path) -> None:
    programs = write_programs(tmp_path / "bin")
    environment = clean_environment(PATH=f"{programs}{os.pathsep}{os.environ['PATH']}")
    faults = Reader(tmp_path, environment, {}).read(text)
    assert (faults == []) == (fault is None)
    assert (fault or "") in "".join(faults)


def test_the_output_of_a_block_may_leave_lines_out() -> None:
    assert matches("a\n...\nc", "a\nb\nb\nc\n")
    assert not matches("a\n...\nc", "a\nb\n")
    assert matches('{"data":"..."}', '{"data":"abc"}\n')
    assert list(parse_faults(block_of("```sh\nls\n```\n"))) == []
