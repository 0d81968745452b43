"""A chat session at the terminal: requests about it, and turns that are displayed."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from plexus.errors import PlexusError
from plexus.rpc import wire
from substrate.cli.target.protocol import Target, result_of, text_of
from substrate.cli.terminal.display import (
    DIM,
    Display,
    JsonLines,
    Readable,
    Streams,
    short,
    turn_in_line,
)
from substrate.cli.terminal.markdown import MarkdownStream
from substrate.cli.terminal.prompter import Prompter
from substrate.cli.terminal.run_follower import FAILED, REASONS, RunFollower

if TYPE_CHECKING:  # rich is imported when there is a terminal to print on
    from rich.console import Console

__all__ = ("ChatClient", "Session", "TurnDisplay", "harmless")

Session = dict[str, Any]
Event = Mapping[str, Any]

#: Characters that move the cursor, change colours or worse; not the end of a line, nor a tab.
STEERING: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
#: The first line of what a tool gave is shown, however narrow the terminal is, up to this.
LEAST: Final = 40

#: What to do about some errors, besides what they say themselves.
NEXT_STEPS = {
    "turn_under_way": "Wait for it, or stop it: `substrate runs`, `substrate cancel RUN`.",
    "missing_key": "`substrate doctor` shows which models can be asked.",
    "not_installed": "`substrate doctor` shows which models can be asked.",
    "unknown_model": "`/model` shows where models come from.",
}


class ChatClient:
    """The client of one session at a time on one target."""

    def __init__(
        self, target: Target, streams: Streams, session: Session, *, as_json: bool
    ) -> None:
        self.target = target
        self.streams = streams
        self.session = session
        self._as_json = as_json

    @property
    def name(self) -> str:
        """The session's name."""
        return str(self.session["name"])

    def ask(self, method: str, **params: Any) -> Any:
        """What a method says of this session; raises PlexusError."""
        return self.target.run(result_of(self.target, method, {"session": self.name, **params}))

    def ask_plain(self, method: str, **params: Any) -> Any:
        """What a method says that is about no session; raises PlexusError."""
        return self.target.run(result_of(self.target, method, params))

    def text_of(self, method: str, **params: Any) -> str:
        """All the text that a method gives for this session; raises PlexusError."""
        return self.target.run(text_of(self.target, method, {"session": self.name, **params}))

    def play(self, method: str, **params: Any) -> int:
        """Show a turn; the exit code. What is refused is told and is no exception."""
        display: Display = JsonLines(self.streams) if self._as_json else TurnDisplay(self.streams)
        follower = RunFollower(self.target, display, Prompter.at_terminal(self.streams.err))
        try:
            params = {"session": self.name, **params}
            return self.target.run(follower.play(method, params, follows=False))
        except PlexusError as error:
            self.complain(error)
            return FAILED
        finally:
            if isinstance(display, TurnDisplay):
                display.end()

    def complain(self, error: PlexusError) -> None:
        """Say what went wrong, and what to do next."""
        next_step = NEXT_STEPS.get(error.code, "")
        said = f"{error.message.rstrip('.')}. {next_step}" if next_step else error.message
        self.streams.remark(f"Error ({error.code}): {said}", "red")


# --- turns ----------------------------------------------------------------------------------------


def harmless(text: str) -> str:
    """The text without what would steer a terminal."""
    return STEERING.sub("", text)


class TurnDisplay(Readable):
    """A turn of a conversation."""

    def __init__(self, streams: Streams) -> None:
        super().__init__(streams)
        self._markdown = MarkdownStream()
        self._console: Console | None = None
        if self._on_terminal:
            from rich.console import Console

            self._console = Console(file=streams.out, highlight=False, soft_wrap=True)
        self._shows |= {
            "content": self._show_content,
            "tool_start": self._show_nothing,
        }

    def show(self, event: Event, text: str | None) -> None:
        """Show one event."""
        if self._console is not None and event.get("type") == "thinking":
            event = {**event, "text": harmless(str(event.get("text", "")))}
        super().show(event, text)

    def settle(self) -> None:
        """End the answer so far, with what was held back of it."""
        self._print(self._markdown.rest())
        self._markdown = MarkdownStream()
        super().settle()

    def end(self) -> None:
        """The turn is over. In a pipe, the last line is ended too."""
        self.settle()
        if self._in_line:
            self._write("\n")

    def _show_content(self, event: Event) -> None:
        text = str(event["text"])
        if self._console is None:
            self._write(text)
        else:
            self._print(self._markdown.feed(harmless(text)))

    def _print(self, pieces: Iterable[tuple[str, str]]) -> None:
        if self._console is None:
            return
        from rich.text import Text

        for piece, style in pieces:
            if self._bar is not None:
                self._bar.hide()
            self._console.print(Text(piece, style=style), end="")
            self._in_line = not piece.endswith("\n")

    def _show_tool_use(self, event: Event) -> None:
        given = wire.encode(event["input"]).decode()
        self._line(f"-> {event['tool_name']} {given}", "cyan")

    def _show_tool_result(self, event: Event) -> None:
        mark, colour = ("!!", "red") if event.get("is_error") else ("<-", "cyan")
        first, _, more = str(event["output"]).strip().partition("\n")
        self._line(f"{mark} {first}" + (" ..." if more else ""), colour)

    def _show_complete(self, event: Event) -> None:
        line = turn_in_line({k: v for k, v in event.items() if k != "position"})
        if line is None:
            super()._show_complete(event)
        else:
            self.remark(line, DIM)

    def _show_cancelled(self, event: Event) -> None:
        reason = event.get("reason")
        why = "" if reason in (None, REASONS[signal.SIGINT]) else f" ({reason})"
        self.remark(f"Stopped{why}; what there is of the answer is kept.", "yellow")

    def _line(self, text: str, colour: str) -> None:
        """A remark that fits into one line of the terminal."""
        width = max(shutil.get_terminal_size().columns - 1, LEAST)
        self.remark(short(harmless(text), width), colour)
