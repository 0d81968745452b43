"""`substrate chat`: interactive, with a single message, and through a pipe."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import (
    WAIT_S,
    Terminal,
    lines,
    run,
    server,
    terminal,
    without_colours,
)


@pytest.fixture(params=["here", "server"])
def flags(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """Yield flags for a conversation in its own process, or on a server."""
    if request.param == "here":
        yield ["--database", str(tmp_path / "trees.db")]
    else:
        with server(tmp_path, "--database", str(tmp_path / "trees.db")) as port:
            yield ["--port", port]


@pytest.fixture
def own(tmp_path: Path) -> list[str]:
    """Return flags for a conversation in its own process with a separate store."""
    return ["--database", str(tmp_path / "trees.db")]


class Screen:
    """A conversation on a terminal, read incrementally."""

    def __init__(self, screen: Terminal) -> None:
        self._terminal = screen
        self._read = 0

    def see(self, pattern: str) -> str:
        """Wait for a pattern after the last match. Returns the text up to its end."""
        found = self._terminal.screen.wait_for(rf"(?s)^.{{{self._read}}}.*?{pattern}")
        seen = self._terminal.screen.text[self._read : found.end()]
        self._read = found.end()
        return without_colours(seen)

    def say(self, line: str) -> None:
        """Type a line at the prompt."""
        self.see(r"tea> ")
        self._terminal.type(line + "\n")

    def type(self, text: str) -> None:
        self._terminal.type(text)

    def press(self, key: str, pattern: str) -> None:
        """Press a key until a pattern appears.

        Python's readline misses a signal that arrives just before it waits for a character.
        """
        whole = rf"(?s)^.{{{self._read}}}.*?{pattern}"
        end = time.monotonic() + WAIT_S
        self._terminal.type(key)
        while not self._terminal.screen.matches_within(whole, 1.0):
            assert time.monotonic() < end, f"pressed {key!r} without effect"
            self._terminal.type(key)
        self.see(pattern)

    def leave(self) -> int:
        self.see(r"tea> ")
        self._terminal.type("\x04")
        return self._terminal.end()[0]


# --- single message -------------------------------------------------------------------------------


def test_a_single_message_prints_only_its_answer(flags: list[str], tmp_path: Path) -> None:
    first = run(*flags, "chat", "tea", "--new", "-m", "Green?", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("You said: Green?")
    piped = run(*flags, "chat", "tea", cwd=tmp_path, stdin="a **b**\nc\n")
    assert piped.stdout == "You said: a **b**\nc\n"
    assert "end_turn" in piped.stderr
    events = lines(run(*flags, "chat", "tea", "--json", cwd=tmp_path, stdin="once more").stdout)
    assert (events[0]["type"], events[-1]["type"]) == ("start", "complete")
    # Without a name, the most recently used session is selected.
    assert run(*flags, "chat", "-m", "you?", cwd=tmp_path).stdout == "You said: you?\n"


def test_an_unknown_session_is_not_created_by_mistake(own: list[str], tmp_path: Path) -> None:
    assert run(*own, "chat", "tea", "--new", "-m", "x", cwd=tmp_path).returncode == 0
    missing = run(*own, "chat", "teas", "-m", "x", cwd=tmp_path)
    assert missing.returncode == 1
    assert "Unknown session 'teas'. Did you mean tea? Use --new to create it." in missing.stderr
    taken = run(*own, "chat", "tea", "--new", "-m", "x", cwd=tmp_path)
    assert taken.returncode == 1
    assert "session 'tea' already exists" in taken.stderr


def test_model_errors_come_with_the_next_step(own: list[str], tmp_path: Path) -> None:
    wrong = run(*own, "chat", "--new", "--model", "nobody:x", "-m", "x", cwd=tmp_path)
    assert wrong.returncode == 1
    assert "unknown_model" in wrong.stderr
    nothing = run(*own, "chat", cwd=tmp_path, stdin="\n")
    assert nothing.returncode == 2
    assert "stdin is empty" in nothing.stderr


def test_thinking_and_tool_calls_go_to_stderr(own: list[str], tmp_path: Path) -> None:
    thought = run(*own, "chat", "--new", "-m", "/think deep thoughts", cwd=tmp_path)
    assert thought.stdout.startswith("You said: deep thoughts")
    assert "deep thoughts\n" in thought.stderr
    call = ["call", "chat.create", "tools", "--tools", "health.*", "--approve", "none"]
    assert run(*own, *call, cwd=tmp_path).returncode == 0
    used = run(*own, "chat", "tools", "-m", "/tool health.check {}", cwd=tmp_path)
    assert used.returncode == 0, used.stderr
    shown = used.stderr.splitlines()
    assert "-> health.check {}" in shown
    assert any(line.startswith("<- ") and len(line) < 200 for line in shown)


# --- a conversation -------------------------------------------------------------------------------


def test_a_conversation_streams_is_rendered_and_continues(flags: list[str], tmp_path: Path) -> None:
    with terminal(*flags, "chat", "tea", "--model", "echo:slow", cwd=tmp_path) as opened:
        screen = Screen(opened)
        screen.see(r"Session 'tea' does not exist\. Create it\? \[Y/n\]: ")
        screen.type("\n")
        screen.see("Session tea with echo:slow")
        screen.say("the **third** `word`")
        answer = screen.see("tokens in, ")
        assert "You said: the third word" in answer
        assert "\x1b[1mthird\x1b[0m" in opened.screen.text
        # An unknown command, and a message that looks like a command.
        screen.say("/think about")
        screen.see(r"Unknown command /think\. /help lists the commands; //think sends it as text\.")
        screen.say("//think about it")
        screen.see(r"\x1b\[90mabout ")
        screen.see("You said: about it")
        assert screen.leave() == 0
    exported = run(*flags, "call", "--json", "chat.history", "tea", cwd=tmp_path)
    kinds = [each["kind"] for each in lines(exported.stdout)[-1]["result"]["messages"]]
    assert kinds == ["user", "assistant", "user", "thinking", "assistant"]


def test_ctrl_c_stops_the_answer_and_keeps_it(flags: list[str], tmp_path: Path) -> None:
    run(*flags, "chat", "tea", "--new", "--model", "echo:slow", "-m", "hi", cwd=tmp_path)
    with terminal(*flags, "chat", "tea", cwd=tmp_path) as opened:
        screen = Screen(opened)
        screen.say(" ".join(f"word{n}" for n in range(200)))
        screen.see("You said: word0 word1 word2 ")
        screen.type("\x03")
        screen.see(r"Stopped\. The partial answer is kept\.")
        # At the prompt, Ctrl-C only prints how to leave.
        screen.see("tea> ")
        screen.type("half a line")
        screen.see("half a line")
        screen.press("\x03", "Press Ctrl-D or type /quit to leave")
        screen.say("/history")
        seen = screen.see(r"assistant \(cancelled\): You said: word0 [^\n]*")
        assert "word199" not in seen.rpartition("assistant")[2]
        screen.say("/quit")
        assert opened.end()[0] == 0


def test_tool_approval_is_prompted_during_a_turn(flags: list[str], tmp_path: Path) -> None:
    call = ["call", "chat.create", "tea", "--tools", "bash.execute"]
    assert run(*flags, *call, cwd=tmp_path).returncode == 0
    with terminal(*flags, "chat", "tea", cwd=tmp_path) as opened:
        screen = Screen(opened)
        screen.say('//tool bash.execute {"command": "echo from the tool"}')
        screen.see(r"-> bash\.execute ")
        screen.see(r"\[y/n\] $")
        screen.type("y\n")
        screen.see(r"<- [^\n]*from the tool")
        screen.see("returned: ")
        assert screen.leave() == 0


def test_branches_are_created_listed_and_selected(own: list[str], tmp_path: Path) -> None:
    run(*own, "chat", "tea", "--new", "-m", "first", cwd=tmp_path)
    with terminal(*own, "chat", "tea", cwd=tmp_path) as opened:
        screen = Screen(opened)
        screen.see("1 user: first")
        screen.say("second")
        screen.see("You said: second")
        screen.say("/edit 2 another first")
        screen.see("You said: another first")
        screen.say("/branches")
        listed = screen.see(r"2 +\d+ messages +You said: second")
        assert "*   1" in listed
        screen.say("/branches 2")
        screen.see("1 user: second")
        screen.say("/regenerate")
        screen.see("You said: second")
        # The prompt is pre-filled with the old message.
        screen.say("/edit")
        screen.see("edit> .*second")
        screen.type(" thoughts\n")
        screen.see("You said: second thoughts")
        screen.say("/back 2")
        screen.see("There are no messages")
        for line, complaint in [
            ("/back", "you have sent 0"),
            ("/branches 99", "Unknown branch 99"),
            ("/edit x", "'x' is not a positive number"),
            ("/export", "Pass a file name"),
            ("/model nope", r"unknown_model.*`/model` lists"),
        ]:
            screen.say(line)
            screen.see(complaint)
        assert screen.leave() == 0


def test_it_is_exported_and_the_model_changed(own: list[str], tmp_path: Path) -> None:
    run(*own, "chat", "tea", "--new", "-m", "first", cwd=tmp_path)
    run(*own, "chat", "other", "--new", "-m", "elsewhere", cwd=tmp_path)
    with terminal(*own, "chat", "tea", cwd=tmp_path) as opened:
        screen = Screen(opened)
        screen.say("/export talk.md")
        screen.see(r"Wrote talk\.md")
        screen.say("/export talk.json")
        screen.see(r"Wrote talk\.json")
        screen.say("/export talk.md")
        screen.see(r"Replace it\? \[y/N\]: ")
        screen.type("n\n")
        screen.say("/model echo:slow")
        screen.see("Model changed to echo:slow")
        screen.say("/model")
        screen.see(r"\* echo:slow")
        screen.say("/sessions")
        screen.see(r"\* tea")
        screen.say("/help")
        screen.see("/regenerate")
        screen.say("/sessions other")
        screen.see("user: elsewhere")
        screen.see("other> ")
        screen.type("/quit\n")
        assert opened.end()[0] == 0
    assert "You said: first" in (tmp_path / "talk.md").read_text()
    assert json.loads((tmp_path / "talk.json").read_text())["session"]["name"] == "tea"


def test_only_the_user_can_read_the_line_history(
    own: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("readline")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run(*own, "chat", "tea", "--new", "-m", "x", cwd=tmp_path)
    with terminal(*own, "chat", "tea", cwd=tmp_path) as opened:
        screen = Screen(opened)
        screen.say("remember this")
        screen.see("You said: remember this")
        assert screen.leave() == 0
    history = tmp_path / "state" / "substrate" / "chat_history"
    assert "remember this" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    with terminal(*own, "chat", "tea", cwd=tmp_path) as opened:
        screen = Screen(opened)
        screen.see("tea> ")
        screen.type("\x1b[A")  # the up arrow key
        screen.see("remember this$")
        screen.type("\n")
        screen.see("You said: remember this")
        assert screen.leave() == 0


def test_a_message_of_several_lines_is_typed_with_backslashes(
    own: list[str], tmp_path: Path
) -> None:
    run(*own, "chat", "tea", "--new", "-m", "x", cwd=tmp_path)
    with terminal(*own, "chat", "tea", cwd=tmp_path) as opened:
        screen = Screen(opened)
        screen.say("one\\")
        screen.see(r"\.\.\. ")
        screen.type("two\n")
        screen.see("You said: one\r\ntwo")
        assert screen.leave() == 0


def test_model_output_cannot_control_the_terminal(own: list[str], tmp_path: Path) -> None:
    run(*own, "chat", "tea", "--new", "-m", "x", cwd=tmp_path)
    with terminal(*own, "chat", "tea", "-m", "a\x1b]0;owned\x07b", cwd=tmp_path) as opened:
        code, text = opened.end()
    assert code == 0
    assert "You said: a]0;ownedb" in text
    assert "\x1b]0" not in text


# --- `substrate call` -----------------------------------------------------------------------------


def test_the_end_of_a_turn_is_one_dim_line_for_call_too(own: list[str], tmp_path: Path) -> None:
    run(*own, "chat", "tea", "--new", "-m", "x", cwd=tmp_path)
    with terminal(*own, "call", "chat.send", "tea", "/think hm", cwd=tmp_path) as opened:
        code, text = opened.end()
    assert code == 0
    thought, answer, last = without_colours(text).splitlines()
    assert (thought, answer) == ("hm", "You said: hm")
    assert last.startswith("end_turn, ")
    assert "tokens in, " in last
    assert "\x1b[90mend_turn" in text
