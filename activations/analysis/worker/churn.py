"""The changes of files in a git history, from one pass of `git log --numstat`.

The history is read as a stream, from the newest commit to the oldest. Changes before a renaming
belong to the new name. Merges are not counted: their changes are in the merged commits.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from activations.analysis.worker.file_list import Selection
from activations.analysis.worker.git import git_command, git_environment

__all__ = ("read_churn",)

READ_BYTES: Final = 256 * 1024
#: Seconds between two reports about the progress.
PROGRESS_S: Final = 0.2
DAY_S: Final = 24 * 3600
#: Maximum number of intervals in which changes are counted over time.
INTERVALS: Final = 90
#: Rows of one report.
ROWS: Final = 500
#: Characters that begin a commit, and that separate its fields.
COMMIT: Final = b"\x01"
FIELD: Final = b"\x02"
FORMAT: Final = "--format=%x01%ct%x02%aE"

Report = dict[str, Any]


class _File:
    """The changes of one file."""

    __slots__ = ("additions", "authors", "binary", "commits", "deletions", "first", "last")

    def __init__(self, at: int) -> None:
        self.commits = self.additions = self.deletions = self.binary = 0
        self.authors: set[int] = set()
        self.first = self.last = at


class _History:
    """The changes so far."""

    def __init__(self, since: int, until: int, selection: Selection) -> None:
        self.files: dict[str, _File] = {}
        self.commits = 0
        self._selection = selection
        self.additions = self.deletions = self.binary = 0
        self.unreadable = 0
        self._since = since
        self._authors: dict[bytes, int] = {}
        self._names: dict[str, str] = {}
        self._at = 0
        self._author = 0
        self._name = b""
        self._is_counted = False
        days = max(1, -(-(until - since) // DAY_S))
        self.interval_s = -(-days // INTERVALS) * DAY_S
        self.intervals = [[0, 0, 0] for _ in range(-(-days * DAY_S // self.interval_s))]

    @property
    def authors(self) -> int:
        return len(self._authors)

    def begin(self, header: bytes) -> None:
        at, _, author = header[1:].partition(FIELD)
        self._at = int(at or b"0")
        self._name = author
        self._is_counted = False

    def _count(self) -> None:
        """Count the commit and its author, at the first file that is selected."""
        self._is_counted = True
        self.commits += 1
        self._author = self._authors.setdefault(self._name, len(self._authors))
        self._interval()[0] += 1

    def _interval(self) -> list[int]:
        number = (self._at - self._since) // self.interval_s
        return self.intervals[max(0, min(number, len(self.intervals) - 1))]

    def add(self, added: bytes, deleted: bytes, old: bytes, new: bytes) -> None:
        try:
            path = new.decode()
            former = old.decode()
        except UnicodeDecodeError:
            self.unreadable += 1
            return
        current = self._names.get(path, path)
        if former != path:
            self._names[former] = current
        path = current
        if self._selection.reason(path):
            return
        if not self._is_counted:
            self._count()
        file = self.files.get(path)
        if file is None:
            file = self.files[path] = _File(self._at)
        file.commits += 1
        file.authors.add(self._author)
        file.first, file.last = min(file.first, self._at), max(file.last, self._at)
        if added == b"-":  # git counts no lines of a binary file
            file.binary += 1
            self.binary += 1
            return
        plus, minus = int(added), int(deleted)
        file.additions += plus
        file.deletions += minus
        self.additions += plus
        self.deletions += minus
        interval = self._interval()
        interval[1] += plus
        interval[2] += minus


def read_churn(root: Path, since: int, until: int, selection: Selection) -> Iterator[Report]:
    """Yield the progress, rows of files by the number of their commits, and the totals.

    Commits count that change a selected file. The only report is `absent` if there is no history.
    """
    if absent := _absence(root):
        yield {"op": "absent", "reason": absent}
        return
    history = _History(since, until, selection)
    command = git_command(
        root,
        *("log", "-z", "--numstat", "--no-merges", "--full-history", "-M", "--relative"),
        *("--no-ext-diff", "--no-textconv", "--no-show-signature", "--no-notes", FORMAT),
        # `--since` finds nothing at all if it is a number of seconds before 1973.
        *(f"--max-age={max(since, 0)}", f"--min-age={until}", *_paths(root)),
    )
    shown = time.monotonic()
    with subprocess.Popen(command, env=git_environment(), stdout=subprocess.PIPE) as process:
        for token in _parse(process, history):
            if time.monotonic() - shown > PROGRESS_S:
                shown = time.monotonic()
                yield {"op": "progress", "commits": token}
        if process.wait() != 0:
            raise OSError(f"git log has failed with exit code {process.returncode}")
    yield from _rows(root, history)
    yield {
        "op": "totals",
        "commits": history.commits,
        "files": len(history.files),
        "authors": history.authors,
        "additions": history.additions,
        "deletions": history.deletions,
        "binary_changes": history.binary,
        "unreadable_names": history.unreadable,
        "interval_days": history.interval_s // DAY_S,
        "intervals": history.intervals,
        "shallow": _ask(root, "rev-parse", "--is-shallow-repository") == "true",
        "version": _ask(root, "--version").removeprefix("git version "),
    }


def _parse(process: subprocess.Popen[bytes], history: _History) -> Iterator[int]:
    """Read the output of git, and yield the number of commits after each part of it."""
    rest = b""
    tokens: list[bytes] = []
    assert process.stdout is not None
    while data := process.stdout.read1(READ_BYTES):  # type: ignore[attr-defined]  # buffered
        *parts, rest = (rest + data).split(b"\0")
        tokens += parts
        tokens = _consume(tokens, history)
        yield history.commits
    _consume([*tokens, rest], history)


def _consume(tokens: list[bytes], history: _History) -> list[bytes]:
    """Add the changes of complete records, and return the tokens of an incomplete one."""
    place = 0
    while place < len(tokens):
        token = tokens[place].lstrip(b"\n")
        if token.startswith(COMMIT):
            history.begin(token)
        elif token:
            added, deleted, path = token.split(b"\t", 2)
            if path:
                history.add(added, deleted, path, path)
            elif place + 2 >= len(tokens):  # a renaming: the names are the next two tokens
                return tokens[place:]
            else:
                history.add(added, deleted, tokens[place + 1], tokens[place + 2])
                place += 2
        place += 1
    return []


def _rows(root: Path, history: _History) -> Iterator[Report]:
    ordered = sorted(history.files.items(), key=lambda each: (-each[1].commits, each[0]))
    for start in range(0, len(ordered), ROWS):
        rows = []
        for path, file in ordered[start : start + ROWS]:
            row: Report = {
                "file": path,
                "commits": file.commits,
                "additions": file.additions,
                "deletions": file.deletions,
                "authors": len(file.authors),
                "first_changed": _day(file.first),
                "last_changed": _day(file.last),
            }
            if file.binary:
                row["binary_changes"] = file.binary
            if not os.path.lexists(root / path):
                row["deleted"] = True
            rows.append(row)
        yield {"op": "rows", "rows": rows}


def _day(at: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def _absence(root: Path) -> str:
    """Return why there is no history; empty if there is one."""
    try:
        if _ask(root, "rev-parse", "--is-inside-work-tree") != "true":
            return "the folder is not in a git repository"
        if not _ask(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}"):
            return "the repository has no commits"
    except FileNotFoundError:
        return "git is not installed"
    return ""


def _paths(root: Path) -> tuple[str, ...]:
    """Return the arguments that limit a history to the folder.

    For a whole repository there are none: with a path, git compares the trees of each commit twice.
    """
    return ("--", ".") if _ask(root, "rev-parse", "--show-prefix") else ()


def _ask(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        git_command(root, *arguments), env=git_environment(), capture_output=True, check=False
    )
    return done.stdout.decode(errors="replace").strip()
