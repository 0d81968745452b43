"""Interactive chat at the terminal: a line is a message, or a command that starts with a slash.

The user's messages are numbered backwards: 1 is the latest.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import click

from plexus.errors import PlexusError
from plexus.private_files import open_private, state_folder
from substrate.cli.terminal.chat_client import ChatClient, strip_controls
from substrate.cli.terminal.display import DIM, coloured, truncate
from substrate.security.private_files import ensure_private_folder

__all__ = (
    "ChatRepl",
    "LineEditor",
)

Message = dict[str, Any]

#: Number of messages shown at the start, and by /history without a count.
INITIAL_MESSAGES: Final = 2
HISTORY_MESSAGES: Final = 20
PAGE: Final = 200


class Quit(Exception):
    """The user leaves the chat."""


class ReplError(Exception):
    """A command failed. The message contains the reason and what to do."""


class Command(NamedTuple):
    """A slash command."""

    usage: str
    meaning: str
    do: Callable[[str], None]


class ChatRepl:
    """Read-eval-print loop of a chat."""

    def __init__(self, client: ChatClient) -> None:
        self._client = client
        self._commands = {
            "help": Command("", "show this help", self._help),
            "sessions": Command("[NAME]", "list sessions, or switch to one", self._sessions),
            "history": Command("[COUNT]", "show the last messages", self._history),
            "branches": Command("[N]", "list branches, or switch to one", self._branches),
            "regenerate": Command("", "answer the last message again", self._regenerate),
            "edit": Command("N [TEXT]", "replace your message N and answer it", self._edit),
            "back": Command("[N]", "continue before your last N messages", self._back),
            "model": Command("[MODEL]", "show the model, or change it", self._model),
            "export": Command(
                "FILE", "export the chat as Markdown, or as JSON to *.json", self._export
            ),
            "quit": Command("", "leave (also Ctrl-D)", self._quit),
        }
        self._editor = LineEditor([f"/{name}" for name in self._commands])

    def run(self) -> None:
        """Read and execute lines until the user leaves."""
        session = self._client.session
        self._say(f"Session {session['name']} with {session['model']}. /help lists the commands.")
        self._try(lambda: self._print_messages(self._messages(INITIAL_MESSAGES), INITIAL_MESSAGES))
        try:
            while True:
                try:
                    line = self._editor.read(f"{self._client.name}> ")
                except KeyboardInterrupt:
                    self._say("\nPress Ctrl-D or type /quit to leave.")
                    continue
                self._try(partial(self._execute, line))
        except (EOFError, Quit):
            self._say("")
        finally:
            self._editor.close()

    def _try(self, work: Callable[[], None]) -> None:
        """Run a function and report its errors, so that the chat continues."""
        try:
            work()
        except PlexusError as error:
            self._client.report_error(error)
        except (ReplError, OSError) as error:
            self._client.streams.remark(str(error), "red")
        except click.ClickException as error:
            self._client.streams.remark(error.message, "red")
        except (KeyboardInterrupt, click.Abort):
            self._say("\nCancelled.")

    def _execute(self, line: str) -> None:
        if not line.strip():
            return
        if not line.startswith("/") or line.startswith("//"):
            text = line[1:] if line.startswith("//") else line
            self._client.run_turn("chat.send", message=text)
            return
        name, _, rest = line[1:].partition(" ")
        command = self._commands.get(name)
        if command is None:
            raise ReplError(
                f"Unknown command /{name}. /help lists the commands; //{name} sends it as text."
            )
        command.do(rest.strip())

    # --- commands -----------------------------------------------------------------------------

    def _help(self, _: str) -> None:
        width = max(len(f"{name} {each.usage}") for name, each in self._commands.items())
        for name, each in self._commands.items():
            click.echo(f"  /{f'{name} {each.usage}':<{width}}  {each.meaning}")
        self._say(
            "Any other line is sent as a message. Ctrl-C stops an answer. "
            "A \\ at the end continues the line."
        )

    def _quit(self, _: str) -> None:
        raise Quit

    def _sessions(self, name: str) -> None:
        if name:
            self._client.session = self._client.request("chat.get", session=name)
            self._print_messages(self._messages(INITIAL_MESSAGES), INITIAL_MESSAGES)
            return
        page = self._client.request_any("chat.list", limit=PAGE)
        for each in page["sessions"]:
            mark = "*" if each["name"] == self._client.name else " "
            busy = "  (a turn is under way)" if each["busy"] else ""
            click.echo(
                f"{mark} {strip_controls(each['name'])}  {coloured(each['model'], DIM)}{busy}"
            )
        if page.get("next") is not None:
            self._say(f"Only the first {PAGE} sessions are shown.")

    def _history(self, count: str) -> None:
        limit = _number(count, HISTORY_MESSAGES)
        self._print_messages(self._messages(limit), limit)

    def _branches(self, number: str) -> None:
        branches = self._client.request("chat.branches", limit=PAGE)["branches"]
        if number:
            index = _number(number, 1)
            if index > len(branches):
                raise ReplError(f"Unknown branch {index}. /branches lists the branches.")
            self._move_to(branches[index - 1]["node_id"])
            return
        for index, each in enumerate(branches, 1):
            mark = "*" if each["current"] else " "
            names = ", ".join(n for n in each["sessions"] if n != self._client.name)
            where = f"  (session {names})" if names else ""
            excerpt = strip_controls(each["excerpt"]).replace("\n", " ")
            click.echo(f"{mark} {index:>3}  {each['messages']:>3} messages  {excerpt}{where}")

    def _regenerate(self, _: str) -> None:
        self._client.run_turn("chat.regenerate")

    def _edit(self, rest: str) -> None:
        number, _, text = rest.partition(" ")
        mine = self._own_message(_number(number, 1))
        if not text.strip():
            text = self._editor.read("edit> ", mine.get("text") or "")
        self._client.run_turn("chat.edit", node_id=mine["node_id"], message=text)

    def _back(self, number: str) -> None:
        node = self._own_message(_number(number, 1))["node_id"]
        tree = self._client.request("chat.get")["position"]["tree_id"]
        while True:
            place = {"tree_id": tree, "node_id": node}
            parent = self._client.request_any("arbor.node_get_parent", **place)["parent"]
            node = parent["node_id"]
            # Attachments of a message are its parents, and belong to it.
            if (parent.get("metadata") or {}).get("kind") != "attachment":
                break
        self._move_to(node)

    def _model(self, model: str) -> None:
        if model:
            self._client.session = self._client.request("chat.configure", model=model)
            self._say(f"Model changed to {self._client.session['model']}.")
            return
        click.echo(f"* {self._client.session['model']}")
        for each in self._client.request_any("chat.models")["providers"]:
            state = "ready" if each["ready"] else f"not ready: {each.get('advice')}"
            click.echo(f"  {each['example']}  {coloured(state, DIM)}")

    def _export(self, file: str) -> None:
        if not file:
            raise ReplError("Pass a file name: /export FILE.")
        path = Path(file).expanduser()
        if path.exists() and not click.confirm(f"{path} already exists. Replace it?"):
            return
        form = "json" if path.suffix == ".json" else "markdown"
        path.write_text(self._client.text_of("chat.export", format=form))
        self._say(f"Wrote {path}.")

    # --- messages -----------------------------------------------------------------------------

    def _messages(self, at_least: int) -> list[Message]:
        """Return the last messages, oldest first: all, or at least this number."""
        found: list[Message] = []
        before: dict[str, Any] = {}
        while len(found) < at_least:
            page = self._client.request("chat.history", limit=min(max(at_least, 1), PAGE), **before)
            found = [*page["messages"], *found]
            if page.get("next") is None:
                break
            before = {"before": page["next"]}
        return found

    def _own_message(self, number: int) -> Message:
        """Return the user's message with this number. Raises ReplError."""
        limit = PAGE
        while True:
            messages = self._messages(limit)
            mine = [each for each in messages if each["kind"] == "user"]
            if len(mine) >= number:
                return mine[-number]
            if len(messages) < limit:
                raise ReplError(
                    f"Unknown message {number}: you have sent {len(mine)}. /history shows them."
                )
            limit *= 4

    def _print_messages(self, messages: list[Message], limit: int) -> None:
        mine = sum(each["kind"] == "user" for each in messages)
        lines = []
        for each in messages:
            number = ""
            if each["kind"] == "user":
                number, mine = str(mine), mine - 1
            text = (
                each.get("text") or each.get("tool_name") or f"({each.get('size', 0)} characters)"
            )
            status = f" ({each['status']})" if each.get("status") else ""
            excerpt = truncate(strip_controls(text).replace("\n", " "))
            lines.append(f"{number:>3} {each['kind']}{status}: {excerpt}")
        for line in lines[-limit:]:
            self._client.streams.remark(line, DIM)

    def _move_to(self, node: str) -> None:
        self._client.session = self._client.request("chat.set_head", node_id=node)
        messages = self._messages(INITIAL_MESSAGES)
        self._print_messages(messages, INITIAL_MESSAGES)
        if not messages:
            self._say("At the start of the session. There are no messages.")

    def _say(self, text: str) -> None:
        self._client.streams.remark(text, DIM)


def _number(text: str, default: int) -> int:
    """Parse a positive number. Raises ReplError."""
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise ReplError(f"{text!r} is not a positive number.")
    return int(text)


# --- lines ----------------------------------------------------------------------------------------


#: Maximum number of lines in the history file.
HISTORY_LINES: Final = 1000
#: At the end of a line: the message continues on the next line.
CONTINUATION: Final = "\\"


class LineEditor:
    """Line input with history and completion. Only one per process, because readline is global."""

    def __init__(self, words: Sequence[str]) -> None:
        """`words` are completed with Tab at the beginning of a line."""
        self._words = words
        self._readline: ModuleType | None = None
        self._on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        if self._on_terminal:
            with contextlib.suppress(ImportError):  # some Pythons are built without it
                self._readline = importlib.import_module("readline")
        if self._readline is not None:
            self._readline.set_completer(self._complete)
            self._readline.set_completer_delims("")
            self._readline.parse_and_bind("tab: complete")
            self._readline.set_history_length(HISTORY_LINES)
            with contextlib.suppress(OSError):
                self._readline.read_history_file(str(self._file))

    @property
    def _file(self) -> Path:
        return state_folder() / "chat_history"

    def read(self, prompt: str, text: str = "") -> str:
        """Read a line, pre-filled with `text` if readline is available.

        A line that ends with a backslash continues on the next line. Raises EOFError at Ctrl-D and
        KeyboardInterrupt at Ctrl-C.
        """
        lines = [self._line(prompt, text)]
        while lines[-1].endswith(CONTINUATION):
            lines[-1] = lines[-1].removesuffix(CONTINUATION)
            lines.append(self._line("... ", ""))
        return "\n".join(lines)

    def close(self) -> None:
        """Save the history in a file that only the user can read."""
        if self._readline is None:
            return
        with contextlib.suppress(OSError):
            ensure_private_folder(self._file.parent)
            os.close(open_private(self._file, os.O_WRONLY))
            self._readline.write_history_file(str(self._file))
            self._file.chmod(0o600)

    def _line(self, prompt: str, text: str) -> str:
        if not self._on_terminal:
            sys.stderr.write(prompt)
            sys.stderr.flush()
            line = sys.stdin.readline()
            if not line:
                raise EOFError
            return line.removesuffix("\n")
        if self._readline is None:
            return input(prompt)
        insert: Callable[[str], None] = self._readline.insert_text
        self._readline.set_startup_hook(lambda: insert(text) if text else None)
        try:
            return input(_bold(prompt))
        finally:
            self._readline.set_startup_hook(None)

    def _complete(self, text: str, state: int) -> str | None:
        matches = [word for word in self._words if word.startswith(text)]
        return matches[state] if text and state < len(matches) else None


def _bold(prompt: str) -> str:
    """Return a bold prompt, with the invisible characters marked for readline."""
    if os.environ.get("NO_COLOR"):
        return prompt
    return f"\001\033[1m\002{prompt}\001\033[0m\002"
