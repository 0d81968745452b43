"""A turn of a conversation for a reader: the answer, and beside it what the model does.

On a terminal Markdown is lightly rendered; piped, stdout gets the answer as it is. What a model
says is somebody else's text: characters that steer a terminal are not passed on to one.
"""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from plexus.rpc import wire
from substrate.cli.terminal.display import DIM, Readable, Streams, short, turn_in_line
from substrate.cli.terminal.markdown import MarkdownStream
from substrate.cli.terminal.run_follower import REASONS

if TYPE_CHECKING:  # rich is imported when there is a terminal to print on
    from rich.console import Console

__all__ = ("TurnDisplay", "harmless")

Event = Mapping[str, Any]

#: Characters that move the cursor, change colours or worse; not the end of a line, nor a tab.
STEERING: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
#: The first line of what a tool gave is shown, however narrow the terminal is, up to this.
LEAST: Final = 40


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
