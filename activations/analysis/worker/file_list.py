"""Lists the source files of a project: what git tracks, or a walk that honours `.gitignore`.

Files that are vendored, generated, ignored or not regular are left out and reported with a reason.
Nested repositories and linked working trees are left out of a repository, so that no copy of a
file counts twice.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from activations.analysis.languages import language_of
from activations.analysis.worker.git import git_command, git_environment

__all__ = ("Entry", "ListOptions", "Selection", "list_files")

#: Folders with code of others, by name.
VENDORED: Final = frozenset(
    {"node_modules", "vendor", "vendored", "_vendor", "third_party", "third-party"}
    | {"site-packages", "bower_components", "Pods", ".venv", "venv", "__pypackages__"}
)
#: Folders without source code, where no `.gitignore` names them.
PRIVATE: Final = frozenset({"__pycache__", ".git", ".hg", ".svn", ".tox", ".nox"})
#: Names that generators give their files.
GENERATED_NAME: Final = re.compile(
    r"(\.min\.(js|mjs|cjs)|\.bundle\.js|_pb2(_grpc)?\.py|\.pb\.(go|cc|h)|[._]generated\.\w+)$"
)
#: Maximum number of files of one analysis. Past it, the others are counted as skipped.
MAX_FILES: Final = 200_000
#: Bytes of a `.gitignore`. A larger one is not read.
IGNORE_BYTES: Final = 256 * 1024
READ_BYTES: Final = 64 * 1024


class Entry(NamedTuple):
    """A file to measure with its language and size, or one to skip with the reason."""

    path: str
    language: str = ""
    size: int = 0
    reason: str = ""


class ListOptions(NamedTuple):
    """Which files of a project are listed."""

    languages: tuple[str, ...]
    #: Maximum number of folders between the project and a file; None for any.
    max_depth: int | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


class Selection:
    """The files that the caller has selected by their paths."""

    def __init__(
        self, max_depth: int | None, include: Sequence[str], exclude: Sequence[str]
    ) -> None:
        self._max_depth = max_depth
        self._include = self._exclude = None
        if include or exclude:
            import pathspec

            if include:
                self._include = pathspec.GitIgnoreSpec.from_lines(include)
            if exclude:
                self._exclude = pathspec.GitIgnoreSpec.from_lines(exclude)

    def reason(self, path: str) -> str:
        """Return why a file is not selected; empty if it is."""
        if self._max_depth is not None and path.count("/") > self._max_depth:
            return "deeper than max_depth"
        if self._include is not None and not self._include.match_file(path):
            return "not in include_patterns"
        if self._exclude is not None and self._exclude.match_file(path):
            return "in exclude_patterns"
        return ""


def list_files(root: Path, options: ListOptions) -> Iterator[Entry]:
    """Yield the source files of a project, and those that are skipped with the reason."""
    selection = Selection(options.max_depth, options.include, options.exclude)
    count = 0
    for found in _git_files(root) if _is_in_git(root) else _walk(root, "", ()):
        path = found.path
        language = language_of(path)
        if found.reason:
            if path.endswith("/") or language in options.languages:
                yield found
            continue
        if language is None or language not in options.languages:
            continue
        reason = selection.reason(path)
        if reason:
            pass
        elif not VENDORED.isdisjoint(path.split("/")[:-1]):
            reason = "vendored"
        elif GENERATED_NAME.search(path):
            reason = "generated"
        elif count >= MAX_FILES:
            reason = f"past the limit of {MAX_FILES:,} files"
        else:
            entry = _inspect(root, path, language)
            count += not entry.reason
            yield entry
            continue
        yield Entry(path, reason=reason)


def _inspect(root: Path, path: str, language: str) -> Entry:
    try:
        facts = os.lstat(root / path)
    except OSError:
        return Entry(path, reason="deleted")
    if stat.S_ISLNK(facts.st_mode):
        return Entry(path, reason="symbolic link")
    if not stat.S_ISREG(facts.st_mode):
        return Entry(path, reason="not a regular file")
    return Entry(path, language, facts.st_size)


# --- git ------------------------------------------------------------------------------------------


def _is_in_git(root: Path) -> bool:
    try:
        done = subprocess.run(
            git_command(root, "rev-parse", "--is-inside-work-tree"),
            env=git_environment(),
            capture_output=True,
            check=False,
        )
    except OSError:  # git is not installed
        return False
    return done.returncode == 0 and done.stdout.strip() == b"true"


def _git_files(root: Path) -> Iterator[Entry]:
    command = git_command(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    last = b""
    with subprocess.Popen(command, env=git_environment(), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        rest = b""
        while data := process.stdout.read1(READ_BYTES):  # type: ignore[attr-defined]  # buffered
            *names, rest = (rest + data).split(b"\0")
            for name in names:
                if name != last:  # a file in conflict is listed once for each side
                    yield _named(name)
                last = name
        if process.wait() != 0:
            raise OSError(f"git ls-files has failed with exit code {process.returncode}")


def _named(name: bytes) -> Entry:
    try:
        path = name.decode()
    except UnicodeDecodeError:
        return Entry(name.decode(errors="backslashreplace"), reason="its name is not UTF-8")
    if path.endswith("/"):
        return Entry(path, reason="nested repository or working tree")
    return Entry(path)


# --- a walk ---------------------------------------------------------------------------------------


def _walk(root: Path, folder: str, ignores: tuple[tuple[str, Any], ...]) -> Iterator[Entry]:
    """Yield the files below a folder. The stack holds the folders, never more than a listing."""
    pending: list[tuple[str, tuple[tuple[str, Any], ...]]] = [(folder, ignores)]
    while pending:
        folder, ignores = pending.pop()
        try:
            with os.scandir(root / folder) as listing:
                entries = sorted(listing, key=lambda each: each.name)
        except OSError as error:
            yield Entry(folder + "/", reason="unreadable: " + (error.strerror or "error"))
            continue
        spec = _read_ignore(root, folder)
        if spec is not None:
            ignores = (*ignores, (folder, spec))
        folders = []
        for each in entries:
            path = f"{folder}/{each.name}" if folder else each.name
            try:
                path.encode()
            except UnicodeEncodeError:
                shown = os.fsencode(path).decode(errors="backslashreplace")
                yield Entry(shown, reason="its name is not UTF-8")
                continue
            is_folder = each.is_dir(follow_symlinks=False)
            if each.name in PRIVATE:
                continue
            if is_folder and each.name in VENDORED:
                yield Entry(path + "/", reason="vendored folder")
            elif _is_ignored(path + "/" if is_folder else path, ignores):
                yield Entry(path + "/" if is_folder else path, reason="ignored by .gitignore")
            elif is_folder and _is_linked_tree(Path(each.path)):
                yield Entry(path + "/", reason="nested repository or working tree")
            elif is_folder:
                folders.append((path, ignores))
            elif each.is_symlink() and each.is_dir():
                yield Entry(path + "/", reason="symbolic link")
            else:
                yield Entry(path)
        pending.extend(reversed(folders))


def _read_ignore(root: Path, folder: str) -> Any:
    import pathspec

    try:
        file = root / folder / ".gitignore"
        if not stat.S_ISREG(os.lstat(file).st_mode) or file.stat().st_size > IGNORE_BYTES:
            return None
        return pathspec.GitIgnoreSpec.from_lines(file.read_text(errors="replace").splitlines())
    except (OSError, ValueError):  # there is none, or it has an invalid pattern
        return None


def _is_ignored(path: str, ignores: tuple[tuple[str, Any], ...]) -> bool:
    """Return whether the nearest `.gitignore` with a matching pattern ignores a path."""
    for folder, spec in reversed(ignores):
        inner = path[len(folder) + 1 :] if folder else path
        include = spec.check_file(inner).include
        if include is not None:
            return bool(include)
    return False


def _is_linked_tree(folder: Path) -> bool:
    """Return whether a folder is a linked working tree: its `.git` is a file that points to one."""
    try:
        with (folder / ".git").open("rb") as file:
            return b"/worktrees/" in file.read(4096)
    except OSError:
        return False
