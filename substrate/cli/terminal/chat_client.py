"""Client of a chat session: requests to its methods, and turns displayed at the terminal.

On a terminal Markdown is lightly rendered; piped, stdout gets the answer unchanged. Answers of a
model are untrusted text, so control characters are removed before they reach a terminal.
"""

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
    format_turn,
    truncate,
)
from substrate.cli.terminal.markdown import MarkdownStream
from substrate.cli.terminal.prompter import Prompter
from substrate.cli.terminal.run_follower import FAILED, REASONS, RunFollower

if TYPE_CHECKING:  # rich is imported when there is a terminal to print on
    from rich.console import Console

__all__ = ("ChatClient", "Session", "TurnDisplay", "strip_controls")

Session = dict[str, Any]
Event = Mapping[str, Any]

#: Control characters and bidirectional overrides, except newline and tab.
CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
#: Minimum number of characters shown of a tool's output, however narrow the terminal is.
MIN_WIDTH: Final = 40

#: Advice added to the messages of some errors.
NEXT_STEPS = {
    "turn_under_way": "Wait for it, or cancel it: `substrate runs`, `substrate cancel RUN`.",
    "missing_key": "`substrate doctor` shows which models are ready.",
    "not_installed": "`substrate doctor` shows which models are ready.",
    "unknown_model": "`/model` lists the model providers.",
}


class ChatClient:
    """Client of one session at a time on one target."""

    def __init__(
        self, target: Target, streams: Streams, session: Session, *, as_json: bool
    ) -> None:
        self.target = target
        self.streams = streams
        self.session = session
        self._as_json = as_json

    @property
    def name(self) -> str:
        """Name of the session."""
        return str(self.session["name"])

    def request(self, method: str, **params: Any) -> Any:
        """Call a method for this session and return its result. Raises PlexusError."""
        return self.target.run(result_of(self.target, method, {"session": self.name, **params}))

    def request_any(self, method: str, **params: Any) -> Any:
        """Call a method without a session and return its result. Raises PlexusError."""
        return self.target.run(result_of(self.target, method, params))

    def text_of(self, method: str, **params: Any) -> str:
        """Call a method for this session and return its text. Raises PlexusError."""
        return self.target.run(text_of(self.target, method, {"session": self.name, **params}))

    def run_turn(self, method: str, **params: Any) -> int:
        """Run and show a turn. Returns the exit code. A rejected call is reported, not raised."""
        display: Display = JsonLines(self.streams) if self._as_json else TurnDisplay(self.streams)
        follower = RunFollower(self.target, display, Prompter.at_terminal(self.streams.err))
        try:
            params = {"session": self.name, **params}
            return self.target.run(follower.follow(method, params, detach=False))
        except PlexusError as error:
            self.report_error(error)
            return FAILED
        finally:
            if isinstance(display, TurnDisplay):
                display.end()

    def report_error(self, error: PlexusError) -> None:
        """Print an error, and what to do next."""
        next_step = NEXT_STEPS.get(error.code, "")
        text = f"{error.message.rstrip('.')}. {next_step}" if next_step else error.message
        self.streams.remark(f"Error ({error.code}): {text}", "red")


# --- turns ----------------------------------------------------------------------------------------


def strip_controls(text: str) -> str:
    """Return the text without characters that control a terminal."""
    return CONTROLS.sub("", text)


class TurnDisplay(Readable):
    """Display of a turn: the answer on stdout, the model's other activity on stderr."""

    def __init__(self, streams: Streams) -> None:
        super().__init__(streams)
        self._markdown = MarkdownStream()
        self._console: Console | None = None
        if self._on_terminal:
            from rich.console import Console

            self._console = Console(file=streams.out, highlight=False, soft_wrap=True)
        self._handlers |= {
            "content": self._show_content,
            "tool_start": self._show_nothing,
        }

    def show(self, event: Event, text: str | None) -> None:
        """Show one event."""
        if self._console is not None and event.get("type") == "thinking":
            event = {**event, "text": strip_controls(str(event.get("text", "")))}
        super().show(event, text)

    def finish_line(self) -> None:
        """Print the pending part of the answer, and end the line."""
        self._print(self._markdown.flush())
        self._markdown = MarkdownStream()
        super().finish_line()

    def end(self) -> None:
        """End the turn. In a pipe, also end the last line."""
        self.finish_line()
        if self._in_line:
            self._write("\n")

    def _show_content(self, event: Event) -> None:
        text = str(event["text"])
        if self._console is None:
            self._write(text)
        else:
            self._print(self._markdown.feed(strip_controls(text)))

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
        arguments = wire.encode(event["input"]).decode()
        self._line(f"-> {event['tool_name']} {arguments}", "cyan")

    def _show_tool_result(self, event: Event) -> None:
        mark, colour = ("!!", "red") if event.get("is_error") else ("<-", "cyan")
        first, _, more = str(event["output"]).strip().partition("\n")
        self._line(f"{mark} {first}" + (" ..." if more else ""), colour)

    def _show_complete(self, event: Event) -> None:
        line = format_turn({k: v for k, v in event.items() if k != "position"})
        if line is None:
            super()._show_complete(event)
        else:
            self.remark(line, DIM)

    def _show_cancelled(self, event: Event) -> None:
        reason = event.get("reason")
        why = "" if reason in (None, REASONS[signal.SIGINT]) else f" ({reason})"
        self.remark(f"Stopped{why}. The partial answer is kept.", "yellow")

    def _line(self, text: str, colour: str) -> None:
        """Print a remark, truncated to the width of the terminal."""
        width = max(shutil.get_terminal_size().columns - 1, MIN_WIDTH)
        self.remark(truncate(strip_controls(text), width), colour)
