"""A conversation at the terminal: what is typed is said, or is a command that begins with a slash.

Messages of one's own are numbered from the last one back: 1 is the latest.
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
from substrate.cli.terminal.chat_client import ChatClient, harmless
from substrate.cli.terminal.display import DIM, coloured, short
from substrate.security.private_files import ensure_private_folder

__all__ = (
    "ChatRepl",
    "LineEditor",
)

Message = dict[str, Any]

#: How many messages are shown at the beginning, and by /history unless it is told otherwise.
RECALLED: Final = 2
SHOWN: Final = 20
PAGE: Final = 200


class Quit(Exception):
    """The person wants to go."""


class ReplError(Exception):
    """A command cannot be done; the message says why, and what to do."""


class Command(NamedTuple):
    """What can be typed behind a slash."""

    usage: str
    meaning: str
    do: Callable[[str], None]


class ChatRepl:
    """Reads lines, and does what they say, until the person goes."""

    def __init__(self, client: ChatClient) -> None:
        self._client = client
        self._commands = {
            "help": Command("", "show this", self._help),
            "sessions": Command("[NAME]", "list sessions, or go to one", self._sessions),
            "history": Command("[COUNT]", "show the last messages", self._history),
            "branches": Command("[N]", "list branches, or go to one", self._branches),
            "regenerate": Command("", "have the last message answered again", self._regenerate),
            "edit": Command("N [TEXT]", "say message N of yours otherwise", self._edit),
            "back": Command("[N]", "go on before the last N messages of yours", self._back),
            "model": Command("[MODEL]", "show who answers, or change it", self._model),
            "export": Command("FILE", "write it as Markdown, or as JSON to *.json", self._export),
            "quit": Command("", "leave; Ctrl-D does it too", self._quit),
        }
        self._editor = LineEditor([f"/{name}" for name in self._commands])

    def run(self) -> None:
        """Read and execute lines until the user leaves."""
        session = self._client.session
        self._say(f"{session['name']} with {session['model']}. /help shows what else there is.")
        self._attempt(lambda: self._print_messages(self._messages(RECALLED), RECALLED))
        try:
            while True:
                try:
                    line = self._editor.read(f"{self._client.name}> ")
                except KeyboardInterrupt:
                    self._say("\nCtrl-D or /quit leaves.")
                    continue
                self._attempt(partial(self._obey, line))
        except (EOFError, Quit):
            self._say("")
        finally:
            self._editor.close()

    def _attempt(self, work: Callable[[], None]) -> None:
        """Do something; what goes wrong is told, and the conversation goes on."""
        try:
            work()
        except PlexusError as error:
            self._client.complain(error)
        except (ReplError, OSError) as error:
            self._client.streams.remark(str(error), "red")
        except click.ClickException as error:
            self._client.streams.remark(error.message, "red")
        except (KeyboardInterrupt, click.Abort):
            self._say("\nLeft as it was.")

    def _obey(self, line: str) -> None:
        if not line.strip():
            return
        if not line.startswith("/") or line.startswith("//"):
            text = line[1:] if line.startswith("//") else line
            self._client.play("chat.send", message=text)
            return
        name, _, rest = line[1:].partition(" ")
        command = self._commands.get(name)
        if command is None:
            raise ReplError(
                f"There is no command /{name}; /help shows them. //{name} says it as it is."
            )
        command.do(rest.strip())

    # --- commands -----------------------------------------------------------------------------

    def _help(self, _: str) -> None:
        width = max(len(f"{name} {each.usage}") for name, each in self._commands.items())
        for name, each in self._commands.items():
            click.echo(f"  /{f'{name} {each.usage}':<{width}}  {each.meaning}")
        self._say(
            "Everything else is said. Ctrl-C stops an answer; a \\ at the end continues a line."
        )

    def _quit(self, _: str) -> None:
        raise Quit

    def _sessions(self, name: str) -> None:
        if name:
            self._client.session = self._client.ask("chat.get", session=name)
            self._print_messages(self._messages(RECALLED), RECALLED)
            return
        page = self._client.ask_plain("chat.list", limit=PAGE)
        for each in page["sessions"]:
            mark = "*" if each["name"] == self._client.name else " "
            busy = "  (a turn is under way)" if each["busy"] else ""
            click.echo(f"{mark} {harmless(each['name'])}  {coloured(each['model'], DIM)}{busy}")
        if page.get("next") is not None:
            self._say(f"There are more; these are the first {PAGE}.")

    def _history(self, count: str) -> None:
        most = _number(count, SHOWN)
        self._print_messages(self._messages(most), most)

    def _branches(self, number: str) -> None:
        branches = self._client.ask("chat.branches", limit=PAGE)["branches"]
        if number:
            wanted = _number(number, 1)
            if wanted > len(branches):
                raise ReplError(f"There is no branch {wanted}; /branches shows them.")
            self._go(branches[wanted - 1]["node_id"])
            return
        for index, each in enumerate(branches, 1):
            mark = "*" if each["current"] else " "
            names = ", ".join(n for n in each["sessions"] if n != self._client.name)
            where = f"  (session {names})" if names else ""
            excerpt = harmless(each["excerpt"]).replace("\n", " ")
            click.echo(f"{mark} {index:>3}  {each['messages']:>3} messages  {excerpt}{where}")

    def _regenerate(self, _: str) -> None:
        self._client.play("chat.regenerate")

    def _edit(self, rest: str) -> None:
        number, _, text = rest.partition(" ")
        mine = self._mine(_number(number, 1))
        if not text.strip():
            text = self._editor.read("say instead> ", mine.get("text") or "")
        self._client.play("chat.edit", node_id=mine["node_id"], message=text)

    def _back(self, number: str) -> None:
        node = self._mine(_number(number, 1))["node_id"]
        tree = self._client.ask("chat.get")["position"]["tree_id"]
        while True:
            place = {"tree_id": tree, "node_id": node}
            parent = self._client.ask_plain("arbor.node_get_parent", **place)["parent"]
            node = parent["node_id"]
            # What was attached to a message stands before it, and goes with it.
            if (parent.get("metadata") or {}).get("kind") != "attachment":
                break
        self._go(node)

    def _model(self, model: str) -> None:
        if model:
            self._client.session = self._client.ask("chat.configure", model=model)
            self._say(f"{self._client.session['model']} answers from now on.")
            return
        click.echo(f"* {self._client.session['model']}")
        for each in self._client.ask_plain("chat.models")["providers"]:
            state = "ready" if each["ready"] else f"not ready: {each.get('advice')}"
            click.echo(f"  {each['example']}  {coloured(state, DIM)}")

    def _export(self, file: str) -> None:
        if not file:
            raise ReplError("Say where to: /export FILE.")
        path = Path(file).expanduser()
        if path.exists() and not click.confirm(f"{path} is there already. Replace it?"):
            return
        form = "json" if path.suffix == ".json" else "markdown"
        path.write_text(self._client.text_of("chat.export", format=form))
        self._say(f"Wrote {path}.")

    # --- messages -----------------------------------------------------------------------------

    def _messages(self, at_least: int) -> list[Message]:
        """The last messages, the oldest first: all there are, or at least so many."""
        found: list[Message] = []
        before: dict[str, Any] = {}
        while len(found) < at_least:
            page = self._client.ask("chat.history", limit=min(max(at_least, 1), PAGE), **before)
            found = [*page["messages"], *found]
            if page.get("next") is None:
                break
            before = {"before": page["next"]}
        return found

    def _mine(self, number: int) -> Message:
        """The message of one's own with this number; raises ReplError."""
        wanted = PAGE
        while True:
            messages = self._messages(wanted)
            mine = [each for each in messages if each["kind"] == "user"]
            if len(mine) >= number:
                return mine[-number]
            if len(messages) < wanted:
                there = f"there are {len(mine)}" if mine else "there is none yet"
                raise ReplError(
                    f"There is no message {number} of yours; {there}. /history shows them."
                )
            wanted *= 4

    def _print_messages(self, messages: list[Message], most: int) -> None:
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
            said = short(harmless(text).replace("\n", " "))
            lines.append(f"{number:>3} {each['kind']}{status}: {said}")
        for line in lines[-most:]:
            self._client.streams.remark(line, DIM)

    def _go(self, node: str) -> None:
        self._client.session = self._client.ask("chat.set_head", node_id=node)
        messages = self._messages(RECALLED)
        self._print_messages(messages, RECALLED)
        if not messages:
            self._say("At the beginning; nothing was said here yet.")

    def _say(self, text: str) -> None:
        self._client.streams.remark(text, DIM)


def _number(text: str, default: int) -> int:
    """The number that was typed; raises ReplError."""
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise ReplError(f"{text!r} is no number from 1 on.")
    return int(text)


# --- lines ----------------------------------------------------------------------------------------


#: How many lines are remembered.
REMEMBERED: Final = 1000
#: What a line ends with that goes on in the next.
CONTINUED: Final = "\\"


class LineEditor:
    """The person's line. One at a time: readline belongs to the process."""

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
            self._readline.set_history_length(REMEMBERED)
            with contextlib.suppress(OSError):
                self._readline.read_history_file(str(self._file))

    @property
    def _file(self) -> Path:
        return state_folder() / "chat_history"

    def read(self, prompt: str, text: str = "") -> str:
        """What the person types, with this text there to begin with where that can be.

        A line that ends with a backslash goes on in the next. Raises EOFError at Ctrl-D and
        KeyboardInterrupt at Ctrl-C.
        """
        lines = [self._line(prompt, text)]
        while lines[-1].endswith(CONTINUED):
            lines[-1] = lines[-1].removesuffix(CONTINUED)
            lines.append(self._line("... ", ""))
        return "\n".join(lines)

    def close(self) -> None:
        """Keep the history, for its owner alone."""
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
        fitting = [word for word in self._words if word.startswith(text)]
        return fitting[state] if text and state < len(fitting) else None


def _bold(prompt: str) -> str:
    """A prompt that stands out; readline is told which characters take no room."""
    if os.environ.get("NO_COLOR"):
        return prompt
    return f"\001\033[1m\002{prompt}\001\033[0m\002"
