"""Events for a person, or for a program: how a run looks on stdout and stderr.

For a program each event is a line of JSON, as it is on the wire, the terminal included. For a
person the answer goes to stdout as it comes, chunk by chunk, and everything beside the answer to
stderr. What an event says of itself is used where nothing better is known here.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any, Protocol

import click

from plexus.rpc import wire

if TYPE_CHECKING:  # rich is imported when there is progress to be shown on a terminal
    from rich.progress import Progress

__all__ = (
    "DIM",
    "TERMINALS",
    "Display",
    "JsonLines",
    "ProgressBar",
    "Readable",
    "Streams",
    "choose_display",
    "coloured",
    "faults_in",
    "pretty_json",
    "short",
    "stdin_is_terminal",
    "turn_in_line",
)

Event = Mapping[str, Any]

TERMINALS = ("complete", "error", "cancelled")
#: Fields of a terminal that are no result: they say how a command ended.
EXIT_FIELDS = frozenset(("type", "exit_code", "duration_ms", "truncated", "signal"))
#: How much of a field is shown of an event that nobody knows; `--json` shows everything.
SHORT = 200
#: What stays in the background.
DIM = "bright_black"
LEVEL_COLOURS = {"warning": "yellow", "error": "red", "critical": "red", "debug": DIM}


class Display(Protocol):
    """Where a run is shown."""

    def show(self, event: Event, text: str | None) -> None:
        """Show one event; `text` is how it says itself that a person would read it."""

    def stamp(self, time_ms: int) -> None:
        """Show when the next event was written, in milliseconds since the epoch."""

    def remark(self, message: str, colour: str | None = None) -> None:
        """Say something beside the run."""

    def settle(self) -> None:
        """Take away what moves, and leave the cursor at the beginning of a line."""

    def end_line(self) -> None:
        """The terminal itself has written into the line, as it does at Ctrl-C."""


class Streams:
    """Stdout and stderr as they are when the command begins: methods may not write to them."""

    def __init__(self) -> None:
        self.out: IO[str] = sys.stdout
        self.err: IO[str] = sys.stderr
        for stream in (self.out, self.err):
            if isinstance(stream, io.TextIOWrapper):
                # A terminal that cannot show a letter is no reason to stop.
                stream.reconfigure(errors="replace")

    def remark(self, message: str, colour: str | None = None) -> None:
        click.echo(coloured(message, colour), self.err)


class JsonLines:
    """One JSON object a line, each written out at once."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._time: dict[str, int] = {}

    def show(self, event: Event, text: str | None) -> None:  # noqa: ARG002 - for people
        self._streams.out.write(wire.encode({**event, **self._time}).decode() + "\n")
        self._streams.out.flush()

    def stamp(self, time_ms: int) -> None:
        self._time = {"time_ms": time_ms}

    def remark(self, message: str, colour: str | None = None) -> None:
        self._streams.remark(message, colour)

    def settle(self) -> None:
        """Nothing moves."""

    def end_line(self) -> None:
        """Lines are whole."""


class Readable:
    """A run as a person reads it."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._on_terminal = streams.out.isatty()
        self._bar = ProgressBar(streams.err) if streams.err.isatty() else None
        #: Whether the cursor stands after text that did not end its line.
        self._in_line = False
        #: Whether that text is what a model thinks, on stderr.
        self._thinking = False
        self._shows: dict[str, Callable[[Event], None]] = {
            "start": self._show_nothing,
            "content": lambda event: self._write(str(event["text"])),
            "stdout": lambda event: self._write(str(event["data"])),
            "stderr": lambda event: self._write_beside(str(event["data"])),
            "progress": self._show_progress,
            "log": self._show_log,
            "request": self._show_nothing,  # whoever asks the person shows it
            "image": lambda event: self._write_line(f"[image {event['mime_type']}]"),
            "audio": lambda event: self._write_line(f"[audio {event['mime_type']}]"),
            "gap": lambda event: self.remark(
                f"[items {event['from']} to {event['to']} are no longer kept]", "yellow"
            ),
            "thinking": self._show_thinking,
            "tool_use": self._show_tool_use,
            "tool_start": lambda event: self.remark(f"   run {event['run']}", DIM),
            "tool_result": self._show_tool_result,
            "usage": self._show_usage,
            "complete": self._show_complete,
            "error": self._show_error,
            "cancelled": self._show_cancelled,
        }

    def show(self, event: Event, text: str | None) -> None:
        """Show one event."""
        if self._thinking and event.get("type") != "thinking":
            self._end_thinking()
        show = self._shows.get(str(event.get("type")))
        try:
            if show is not None:
                show(event)
                return
        except KeyError:
            pass  # another event of the same name, with other fields
        self._show_unknown(event, text)

    def stamp(self, time_ms: int) -> None:
        """Show the time at the beginning of a line, and not in the middle of one."""
        if not self._in_line:
            at = time.strftime("%H:%M:%S", time.localtime(time_ms // 1000))
            self._write(click.style(f"{at}.{time_ms % 1000:03d} ", fg=DIM))

    def remark(self, message: str, colour: str | None = None) -> None:
        """Say something on a line of its own, on stderr."""
        self.settle()
        self._streams.remark(message, colour)

    def settle(self) -> None:
        """Take the progress away, and end the line that is open on a terminal."""
        if self._bar is not None:
            self._bar.hide()
        if self._in_line and self._on_terminal:
            self._streams.out.write("\n")
            self._streams.out.flush()
            self._in_line = False

    def end_line(self) -> None:
        """Begin a new line after what the terminal has written."""
        self._in_line = True
        self.settle()

    # --- what there is to write -----------------------------------------------------------------

    def _write(self, text: str) -> None:
        """A piece of the answer."""
        if not text:
            return
        if self._bar is not None:
            self._bar.hide()
        self._streams.out.write(text)
        self._streams.out.flush()
        self._in_line = not text.endswith("\n")

    def _write_line(self, text: str) -> None:
        if self._in_line:
            self._write("\n")
        self._write(text if text.endswith("\n") else text + "\n")

    def _write_beside(self, text: str) -> None:
        """A piece of what a command writes to its stderr."""
        if self._bar is not None:
            self._bar.hide()
        self._streams.err.write(text)
        self._streams.err.flush()
        self._in_line = bool(text) and not text.endswith("\n")

    def _show_nothing(self, event: Event) -> None:
        pass

    def _show_thinking(self, event: Event) -> None:
        text = str(event["text"])
        if not self._thinking:
            self.settle()
        if self._bar is not None:
            self._bar.hide()
        click.echo(coloured(text, DIM), self._streams.err, nl=False)
        self._in_line = not text.endswith("\n")
        self._thinking = True

    def _end_thinking(self) -> None:
        self._thinking = False
        if self._in_line:
            self._write_beside("\n")

    def _show_usage(self, event: Event) -> None:
        event["input_tokens"]  # else it is another event; the terminal sums up those of a turn

    def _show_progress(self, event: Event) -> None:
        done, total, message = event["done"], event.get("total"), event.get("message") or ""
        if self._bar is None:
            amount = f"{done:g}" if total is None else f"{done:g}/{total:g}"
            self._streams.remark(f"{amount} {message}".rstrip())
        elif not self._in_line:  # a bar would wipe out the line that the answer has begun
            self._bar.show(done, total, message)

    def _show_log(self, event: Event) -> None:
        level = str(event["level"])
        self.remark(f"{level}: {event['message']}", LEVEL_COLOURS.get(level))

    def _show_tool_use(self, event: Event) -> None:
        self.remark(f"-> {event['tool_name']} {wire.encode(event['input']).decode()}", "cyan")

    def _show_tool_result(self, event: Event) -> None:
        mark, colour = ("!!", "red") if event.get("is_error") else ("<-", "cyan")
        self.remark(f"{mark} {event['output']}", colour)

    def _show_complete(self, event: Event) -> None:
        self.settle()
        if "result" in event:
            result = event["result"]
            if result is not None:
                self._write_line(result if isinstance(result, str) else pretty_json(result))
        elif (line := turn_in_line(event)) is not None:
            self.remark(line, DIM)
        elif event.get("exit_code"):
            cause = f" ({event['signal']})" if event.get("signal") else ""
            self.remark(f"exit code {event['exit_code']}{cause}", "red")
        elif not EXIT_FIELDS.issuperset(event):
            self._write_line(pretty_json({k: v for k, v in event.items() if k != "type"}))

    def _show_error(self, event: Event) -> None:
        self.remark(f"Error ({event['code']}): {event['message']}", "red")
        for fault in faults_in(event.get("data")):
            self.remark(f"  {fault}", "red")

    def _show_cancelled(self, event: Event) -> None:
        reason = event.get("reason")
        self.remark(f"Cancelled: {reason}" if reason else "Cancelled", "yellow")

    def _show_unknown(self, event: Event, text: str | None) -> None:
        self._write_line(text or _fields_in_line(event))


def coloured(message: str, colour: str | None) -> str:
    """A remark in its colour, unless the person wants none (https://no-color.org)."""
    if colour is None or os.environ.get("NO_COLOR"):
        return message
    return click.style(message, fg=colour)


def stdin_is_terminal() -> bool:
    """Whether a person can type an answer."""
    try:
        return sys.stdin.isatty()
    except (AttributeError, ValueError):  # there is no stdin, or it is closed
        return False


def choose_display(streams: Streams, *, as_json: bool, as_text: bool) -> Display:
    """What was asked for, or else what suits stdout; raises UsageError."""
    if as_json and as_text:
        raise click.UsageError("--json and --text exclude each other.")
    if as_json or (not as_text and not streams.out.isatty()):
        return JsonLines(streams)
    return Readable(streams)


def turn_in_line(event: Event) -> str | None:
    """The terminal of a chat's turn in one line; None if it is that of something else."""
    usage, place = event.get("usage"), event.get("position")
    if not isinstance(usage, dict) or "stop_reason" not in event:
        return None
    parts = [
        str(event["stop_reason"]),
        f"{usage.get('input_tokens', 0)} tokens in",
        f"{usage.get('output_tokens', 0)} out",
    ]
    if usage.get("cost_usd") is not None:
        parts.append(f"{usage['cost_usd']:.4f} USD")
    if isinstance(place, dict):
        parts.append(f"at {place.get('node_id')}")
    return ", ".join(parts)


def pretty_json(value: Any) -> str:
    """Indented JSON for a person."""
    return wire.encode_pretty(value).decode()


def faults_in(data: Any) -> list[str]:
    """What was wrong with each parameter, if there was more than the message says already."""
    errors = data.get("errors") if isinstance(data, dict) else None
    if not isinstance(errors, list) or len(errors) < 2:
        return []
    return [f"{fault.get('at')}: {fault.get('fault')}" for fault in errors]


def _fields_in_line(event: Event) -> str:
    """An event that nobody knows: its type, then its fields."""
    fields = (f"{name}={short(value)}" for name, value in event.items() if name != "type")
    return "  ".join([str(event.get("type", "event")), *fields])


def short(value: Any, most: int = SHORT) -> str:
    """The beginning of a value, as it fits into a line."""
    text = value if isinstance(value, str) else wire.encode(value).decode()
    return text if len(text) <= most else text[: most - 3] + "..."


class ProgressBar:
    """How far a run is, at the bottom of the terminal; gone as soon as anything is written."""

    def __init__(self, err: IO[str]) -> None:
        self._err = err
        self._progress: Progress | None = None

    def show(self, done: float, total: float | None, message: str) -> None:
        """Show or move the bar; a total that is not known makes it swing."""
        if self._progress is None:
            self._progress = _make_progress(self._err)
            self._progress.add_task("", of="")
            self._progress.start()
        task = self._progress.task_ids[0]
        of = "" if total is None else f"/{total:g}"
        self._progress.update(task, completed=done, total=total, description=message, of=of)

    def hide(self) -> None:
        """Take it away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _make_progress(stream: IO[str]) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:g}{task.fields[of]}", markup=False),
        TimeElapsedColumn(),
        console=Console(file=stream),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
