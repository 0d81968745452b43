"""The real Claude Code CLI with the editor of a real server: every way to answer a change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from claude_screen import ClaudeScreen, open_terminal
from conformance.node import NotInstalled, claude_code
from editor_client import editor_server, lock_of, respond
from model_api import ModelApi, model_api
from network import Server

#: npm may have to fetch the CLI first.
pytestmark = pytest.mark.timeout(400)

PROMPT = "for shortcuts"
ENTER, ESCAPE = "\r", "\x1b"
#: What the CLI puts before its input.
CURSOR = "\N{HEAVY RIGHT-POINTING ANGLE QUOTATION MARK ORNAMENT}"
#: Three lines, from 0.
SELECTED = {"start_line": 0, "start_character": 0, "end_line": 2, "end_character": 3}
LINES = [f"line {number}\n" for number in range(20)]


@pytest.fixture(scope="module", autouse=True)
def _cli() -> None:
    try:
        claude_code()
    except NotInstalled as error:
        pytest.skip(str(error))


class Session:
    """A session of the CLI that is connected to the editor, and the file that it changes."""

    def __init__(self, server: Server, screen: ClaudeScreen, model: ModelApi, file: Path) -> None:
        self.server = server
        self.screen = screen
        self.model = model
        self.file = file

    def call(self, method: str, **params: Any) -> Any:
        with self.server.call(method, params) as response:
            body = json.loads(response.read())
        assert "error" not in body, body
        return body["result"]["terminal"]["result"]

    def is_connected(self) -> bool:
        """Return whether the CLI has connected and said which process it is."""
        found = self.call("ide.status")["connections"]
        return bool(found) and found[0]["claude_code"] and found[0]["pid"] is not None

    def prompt(self, text: str) -> None:
        """Type a prompt and send it."""
        self.screen.wait_until(lambda: self.screen.shows(PROMPT), "prompt")
        self.screen.press_until(text, lambda: self.screen.shows(text), "typed text")
        self.screen.press(ENTER)

    def diff(self) -> dict[str, Any]:
        """Return the change that waits for an answer, and check that the CLI waits for it."""

        def ready() -> bool:
            found = self.call("ide.diffs")
            return bool(found) and not found[0]["approval_id"].endswith(".")

        self.screen.wait_until(ready, "change that waits")
        self.screen.wait_until(lambda: self.screen.shows("in Substrate"), "notice of the CLI")
        [diff] = self.call("ide.diffs")
        assert diff["client"].startswith("claude-code/")
        return dict(diff)

    def answer(self, **answer: Any) -> dict[str, Any]:
        """Answer the change that waits, and return it."""
        diff = self.diff()
        self.call("ide.answer_diff", diff=diff["diff"], **answer)
        return diff

    def contains(self, *lines: str) -> None:
        """Wait until the file has these lines."""
        # Of an accepted change of its Write tool, the CLI drops the last newline, in any editor.
        text = "".join(lines).removesuffix("\n")
        self.screen.wait_until(
            lambda: self.file.read_text().removesuffix("\n") == text, "written file"
        )

    def outcome_of(self, diff: dict[str, Any]) -> dict[str, Any]:
        """Return how a change was closed."""

        def closed() -> Any:
            return self.call("ide.diff", diff=diff["diff"])["answered"]

        self.screen.wait_until(lambda: closed() is not None, "end of the change")
        return dict(closed())


@contextmanager
def open_session(
    folder: Path, calls: Sequence[tuple[str, dict[str, Any]]], *, by_port: bool = False
) -> Iterator[Session]:
    """Run the CLI with a model that makes these calls.

    It finds the editor by its lock file; `by_port`: by the port that a terminal in an editor sets.
    """
    for made in ("work", "home", "claude"):
        (folder / made).mkdir()
    (folder / "home" / ".claude").symlink_to(folder / "claude")
    file = folder / "work" / "notes.txt"
    file.write_text("".join(LINES))
    with (
        editor_server(folder) as server,
        model_api("Read", {"file_path": str(file)}, *calls) as model,
    ):
        variables = {"CLAUDE_CODE_SSE_PORT": str(lock_of(folder)[0])}
        variables["ENABLE_IDE_INTEGRATION"] = "true"
        options = ([], variables) if by_port else (["--ide"], {})
        with open_terminal(folder, model.url, *options) as screen:
            session = Session(server, screen, model, file)
            screen.wait_until(session.is_connected, "connection to the editor")
            yield session


def edit(path: Path, old: str, new: str) -> tuple[str, dict[str, Any]]:
    """Return a call of the CLI's tool that changes a file."""
    return "Edit", {"file_path": str(path), "old_string": old, "new_string": new}


def test_a_change_is_answered_in_the_editor_or_in_either_terminal(tmp_path: Path) -> None:
    path, new = tmp_path / "work" / "notes.txt", tmp_path / "work" / "sub" / "new.txt"
    changed = "".join(["first\n", *LINES[1:19], "last\n"])
    calls = [
        edit(path, "line 0", "line zero"),
        edit(path, "line zero", "line 0"),
        ("Write", {"file_path": str(path), "content": changed}),
        edit(path, "last", "the end"),
        edit(path, "last", "end"),
        edit(path, "end", "END"),
        ("Write", {"file_path": str(new), "content": "new\n"}),
    ]
    with open_session(tmp_path, calls) as session:
        session.prompt("begin")

        accepted = session.diff()
        assert (accepted["path"], accepted["added"], accepted["removed"]) == ("notes.txt", 1, 1)
        assert path.read_text() == "".join(LINES), "the editor never writes the file"
        session.answer(accept=True)
        session.contains("line zero\n", *LINES[1:])

        session.answer(accept=True, text="edited\n" + "".join(LINES[1:]))
        session.contains("edited\n", *LINES[1:])

        # Of a change in two places, only the second one is wanted.
        assert session.answer(accept=True, hunks=[1])["hunks"] == 2
        session.contains("edited\n", *LINES[1:19], "last\n")

        rejected = session.answer(accept=False, reason="keep the last line")
        session.screen.wait_until(lambda: session.screen.shows("rejected update"), "rejection")
        assert session.outcome_of(rejected)["reason"] == "keep the last line"
        session.contains("edited\n", *LINES[1:19], "last\n")

        session.prompt("continue")
        session.diff()
        assert "Approved" in respond(session.server, "last", "--yes")
        session.contains("edited\n", *LINES[1:19], "end\n")

        # In the terminal of the CLI, Enter takes its first choice, which is yes.
        answered = session.diff()
        session.screen.press_until(ENTER, lambda: not session.call("ide.diffs"), "withdrawal")
        session.contains("edited\n", *LINES[1:19], "END\n")
        assert session.outcome_of(answered)["outcome"] == "closed"
        assert session.call("approvals.pending")["approvals"] == []

        created = session.answer(accept=True)
        assert (created["path"], created["new_file"]) == ("sub/new.txt", True)
        session.screen.wait_until(new.exists, "new file")
        assert new.read_text().removesuffix("\n") == "new"
        session.screen.wait_until(lambda: len(session.model.results) == 8, "results of all calls")
        assert "modified your proposed changes" in str(session.model.results[2])


def test_a_mention_and_a_selection_arrive_and_escape_in_the_terminal_closes_the_change(
    tmp_path: Path,
) -> None:
    path = tmp_path / "work" / "notes.txt"
    with open_session(tmp_path, [edit(path, "line 0", "zero")], by_port=True) as session:
        screen = session.screen
        screen.wait_until(lambda: screen.shows(PROMPT), "prompt")
        session.call("ide.open_document", path="notes.txt")
        # The CLI misses what it is notified of before it has drawn its prompt.
        screen.repeat_until(
            lambda: session.call("ide.select", path="notes.txt", **SELECTED),
            lambda: screen.shows("3 lines selected"),
            "selection",
        )
        session.call("ide.mention", path="notes.txt")
        screen.wait_until(lambda: screen.shows(f"{CURSOR} @notes.txt"), "mention of the file")
        session.call("ide.mention", path="notes.txt", line_start=2, line_end=4)
        screen.wait_until(lambda: screen.shows("@notes.txt @notes.txt#L3-5"), "mention of lines")
        screen.press(ENTER)
        diff = session.diff()
        screen.press_until(ESCAPE, lambda: not session.call("ide.diffs"), "withdrawal")
        assert session.outcome_of(diff)["outcome"] == "closed"
        session.contains(*LINES)
