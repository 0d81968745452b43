"""Files of a workspace: nothing outside it is read or written, and no file blocks the server."""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activations.ide.ignore import is_ignored, parse_ignore
from activations.ide.workspace import DOCUMENT_BYTES, MAX_ENTRIES, Workspace, digest_of
from plexus import Failed, InvalidParams, NotFound, PlexusError
from plexus.errors import TooBig

SECRET = "secret"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "work" / "sub").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text(SECRET)
    (tmp_path / "work" / "a.txt").write_text("text\n")
    return Workspace(tmp_path / "work")


@pytest.mark.parametrize(
    "path",
    [
        *("..", "../outside/file", "sub/../../outside/file", "/etc/passwd", "link", "folder/file"),
        *("folder/../outside/file", "chain", "a\0b", "x" * 5000, "file:///etc/passwd"),
    ],
)
def test_a_path_that_leads_outside_is_refused(workspace: Workspace, path: str) -> None:
    outside = workspace.folder.parent / "outside"
    (workspace.folder / "link").symlink_to(outside / "file")
    (workspace.folder / "folder").symlink_to(outside)
    (workspace.folder / "chain").symlink_to("sub/../folder/file")
    with pytest.raises(InvalidParams):
        workspace.relative(path)


def test_a_link_inside_the_workspace_is_the_file_that_it_leads_to(workspace: Workspace) -> None:
    (workspace.folder / "sub" / "link").symlink_to("../a.txt")
    assert workspace.relative("sub/link") == "a.txt"
    assert workspace.relative(str(workspace.folder / "sub" / "link")) == "a.txt"
    assert workspace.relative(".") == ""


@pytest.mark.parametrize(
    "use",
    [
        lambda workspace: workspace.read("sub/file"),
        lambda workspace: workspace.write("sub/file", "x", digest_of(SECRET)),
        lambda workspace: workspace.write("sub/new", "x", None, force=True),
        lambda workspace: list(workspace.list_folder("sub").entries),
    ],
    ids=["read", "write", "create", "list"],
)
def test_a_folder_that_becomes_a_link_leads_nowhere(
    workspace: Workspace, use: Callable[[Workspace], object]
) -> None:
    # The path was resolved while `sub` was a folder; then another program replaces it.
    (workspace.folder / "sub").rmdir()
    (workspace.folder / "sub").symlink_to(workspace.folder.parent / "outside")
    with pytest.raises(Failed):
        use(workspace)
    outside = workspace.folder.parent / "outside"
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == SECRET


def test_a_race_between_links_and_folders_never_reveals_what_is_outside(
    workspace: Workspace,
) -> None:
    sub, real = workspace.folder / "sub", workspace.folder / "real"
    (sub / "file").write_text("inside")
    stopped = threading.Event()

    def swap() -> None:
        while not stopped.is_set():
            sub.rename(real)
            sub.symlink_to(workspace.folder.parent / "outside")
            sub.unlink()
            real.rename(sub)

    thread = threading.Thread(target=swap)
    thread.start()
    texts = set()
    try:
        for _ in range(3000):
            try:
                texts.add(workspace.read(workspace.relative("sub/file")).text)
            except PlexusError:
                continue
    finally:
        stopped.set()
        thread.join()
    assert texts <= {"inside"}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\xff\xfe", Failed),
        (b"text\0more", Failed),
        (b"\xc3\x28", Failed),
        (b"x" * (DOCUMENT_BYTES + 1), TooBig),
    ],
    ids=["invalid", "NUL", "cut character", "large"],
)
def test_a_file_that_is_no_text_is_not_read(
    workspace: Workspace, data: bytes, error: type[PlexusError]
) -> None:
    (workspace.folder / "a.txt").write_bytes(data)
    with pytest.raises(error):
        workspace.read("a.txt")


def test_pipes_sockets_and_folders_are_not_opened(workspace: Workspace) -> None:
    os.mkfifo(workspace.folder / "pipe")
    for name in ("pipe", "sub"):
        with pytest.raises(InvalidParams):
            workspace.read(name)
        with pytest.raises((InvalidParams, Failed)):
            workspace.write(name, "x", None, force=True)


def test_a_file_is_replaced_whole_with_its_mode_and_only_if_it_is_unchanged(
    workspace: Workspace,
) -> None:
    file = workspace.folder / "a.txt"
    file.chmod(0o750)
    digest = workspace.read("a.txt").digest
    written = workspace.write("a.txt", "new\n", digest)
    assert file.read_text() == "new\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o750
    assert written == workspace.read("a.txt").digest
    with pytest.raises(Failed, match="changed on the disk") as conflict:
        workspace.write("a.txt", "mine\n", digest)
    assert conflict.value.code == "conflict"
    file.unlink()
    with pytest.raises(Failed, match="deleted on the disk"):
        workspace.write("a.txt", "mine\n", written)
    workspace.write("a.txt", "mine\n", None)
    with pytest.raises(Failed, match="exists already"):
        workspace.write("a.txt", "again\n", None)
    with pytest.raises(NotFound):
        workspace.write("missing/a.txt", "x", None)
    assert sorted(path.name for path in workspace.folder.iterdir()) == ["a.txt", "sub"]


@pytest.mark.parametrize("text", ["\ud800", "x" * (DOCUMENT_BYTES + 1)], ids=["surrogate", "size"])
def test_what_no_file_can_contain_is_refused(workspace: Workspace, text: str) -> None:
    with pytest.raises(PlexusError):
        workspace.write("a.txt", text, None, force=True)
    assert (workspace.folder / "a.txt").read_text() == "text\n"


def test_a_large_folder_is_listed_in_part(workspace: Workspace) -> None:
    for number in range(MAX_ENTRIES + 5):
        (workspace.folder / "sub" / f"{number:05}").touch()
    (workspace.folder / "sub" / os.fsdecode(b"\xff")).touch()  # a name that is no text
    found = workspace.list_folder("sub")
    assert len(found.entries) == MAX_ENTRIES
    assert found.more == 5
    assert workspace.find_files("00042", 10) == (["sub/00042"], False)


NAMES = st.sampled_from(["a", "b", "a.py", "build", "x y", "doc.txt", "[a]"])
PATTERNS = st.sampled_from(
    [
        *("a", "*.py", "/a", "build/", "!a.py", "**/b", "a/**", "doc.*", "# a", "\\#a", "x y"),
        *("a/*", "!a/b", "?", "[ab]", "[!a]", "**/build/**", "/*/b", "\\[a\\]", "b/**/a.py", "*"),
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    patterns=st.lists(PATTERNS, max_size=6),
    paths=st.lists(st.lists(NAMES, min_size=1, max_size=3), min_size=1, max_size=8),
)
def test_ignored_files_are_those_that_git_ignores(
    tmp_path_factory: pytest.TempPathFactory, patterns: list[str], paths: list[list[str]]
) -> None:
    folder = tmp_path_factory.mktemp("repository")
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "-q"], cwd=folder, env=environment, check=True, timeout=60)
    (folder / ".gitignore").write_text("\n".join(patterns) + "\n")
    names = []
    for parts in paths:
        file = folder.joinpath(*parts)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        except OSError:  # a folder of that path is a file
            continue
        if file.is_file():
            names.append("/".join(parts))
    asked = subprocess.run(
        ["git", "-c", "core.quotePath=false", "check-ignore", "--no-index", "--stdin", "-z"],
        cwd=folder,
        env=environment,
        input="\0".join(names),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    rules = [parse_ignore((folder / ".gitignore").read_text())]

    def ours(name: str) -> bool:
        parts = name.split("/")
        return any(
            is_ignored(rules, parts[:depth], is_folder=depth < len(parts))
            for depth in range(1, len(parts) + 1)
        )

    assert {name for name in names if ours(name)} == set(filter(None, asked.stdout.split("\0")))
