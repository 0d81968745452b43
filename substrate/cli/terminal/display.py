"""Display of a run on stdout and stderr, as readable text or as JSON lines.

As text, the answer goes to stdout chunk by chunk, and everything else to stderr; in a pipe the text
is the same, without colours. With `--json`, each event is a line as on the wire, including the
terminal. Events of unknown types are shown in their own readable form.
"""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, Protocol

import click

from plexus.events import ContentResult
from plexus.rpc import wire
from plexus.text import replace_controls
from substrate.cli.terminal.progress_bar import ProgressBar
from substrate.cli.terminal.tables import format_duration

__all__ = (
    "DIM",
    "TERMINALS",
    "Display",
    "JsonLines",
    "Readable",
    "Streams",
    "choose_display",
    "coloured",
    "format_turn",
    "parameter_errors",
    "pretty_json",
    "stdin_is_terminal",
    "truncate",
)

Event = Mapping[str, Any]

TERMINALS = ("complete", "error", "cancelled")
#: Fields of a terminal that describe how a command ended and are not part of a result.
EXIT_FIELDS = frozenset(("type", "exit_code", "duration_ms", "truncated", "signal"))
#: Fields of the terminal of an evaluation, whose value is an event before it.
EVALUATION_FIELDS = frozenset(("type", "session", "execution", "duration_ms"))
#: Fields of the result of a tool of another server, whose content blocks have the text.
BLOCKS_FIELDS = frozenset(("type", "content", "is_error"))
#: Media types of a displayed value that are text for people.
READABLE_TYPES = frozenset(("text/plain", "text/markdown", "application/json"))
#: Maximum characters shown of a field of an unknown event; `--json` shows everything.
MAX_FIELD_CHARS = 200
#: Colour of secondary text.
DIM = "bright_black"
LEVEL_COLOURS = {"warning": "yellow", "error": "red", "critical": "red", "debug": DIM}
#: What would happen to a generated file that is only shown.
FILE_ACTIONS = {"create": "would be created", "ask": "differs; would be replaced if you agree"}
#: Fields of the terminal of a generated project.
PROJECT_FIELDS = frozenset(("type", "target", "write", "files", "record"))


class Display(Protocol):
    """Output of a run."""

    def show(self, event: Event, text: str | None) -> None:
        """Show an event. `text` is the event's own readable form."""

    def stamp(self, time_ms: int) -> None:
        """Show the time of the next event, in milliseconds since the epoch."""

    def remark(self, message: str, colour: str | None = None) -> None:
        """Print a message that is not part of the run."""

    def finish_line(self) -> None:
        """Hide the progress bar and move the cursor to the start of a line."""

    def end_line(self) -> None:
        """Start a new line after the terminal itself has written, as it does at Ctrl-C."""


class Streams:
    """Stdout and stderr at the start of the command. Methods must not write to them."""

    def __init__(self) -> None:
        self.out: IO[str] = sys.stdout
        self.err: IO[str] = sys.stderr
        for stream in (self.out, self.err):
            if isinstance(stream, io.TextIOWrapper):
                # A character that the terminal cannot encode must not stop the output.
                stream.reconfigure(errors="replace")

    def remark(self, message: str, colour: str | None = None) -> None:
        click.echo(coloured(message, colour), self.err)


class JsonLines:
    """Display that writes each event immediately as a line of JSON."""

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

    def finish_line(self) -> None:
        """Do nothing: there is no progress bar."""

    def end_line(self) -> None:
        """Do nothing: every line is complete."""


class Readable:
    """Display of a run as text."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._on_terminal = streams.out.isatty()
        self._bar = ProgressBar(streams.err) if streams.err.isatty() else None
        #: Whether the cursor is after text without a final newline.
        self._in_line = False
        #: Whether that text is a model's thinking, on stderr.
        self._thinking = False
        self._handlers: dict[str, Callable[[Event], None]] = {
            "start": self._show_nothing,
            "content": lambda event: self._write(str(event["text"])),
            "data": lambda event: self._write_line(pretty_json(event["value"])),
            "stdout": lambda event: self._write(str(event["data"])),
            "stderr": lambda event: self._write_error(str(event["data"])),
            "progress": self._show_progress,
            "log": self._show_log,
            "request": self._show_nothing,  # the prompter shows it
            "answered": self._show_nothing,  # as above
            "image": lambda event: self._write_line(f"[image {event['mime_type']}]"),
            "audio": lambda event: self._write_line(f"[audio {event['mime_type']}]"),
            "display": self._show_display,
            "file": self._show_file,
            "finding": self._show_finding,
            "found": lambda event: self.remark(f"source files found: {event['files']}", DIM),
            "summary": lambda event: self._show_nothing(event["analysis"]),  # the report has it
            "result": self._show_value,
            "gap": lambda event: self.remark(
                f"[items {event['from']} to {event['to']} are no longer available]", "yellow"
            ),
            "restarted": lambda _: self.remark("[restarted]", "yellow"),
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
        """Show an event."""
        if self._thinking and event.get("type") != "thinking":
            self._end_thinking()
        show = self._handlers.get(str(event.get("type")))
        try:
            if show is not None:
                show(event)
                return
        except KeyError:
            pass  # an event type of the same name with other fields
        self._show_unknown(event, text)

    def stamp(self, time_ms: int) -> None:
        """Show the time at the start of a line only."""
        if not self._in_line:
            at = time.strftime("%H:%M:%S", time.localtime(time_ms // 1000))
            at = f"{at}.{time_ms % 1000:03d} "
            self._write(coloured(at, DIM) if self._on_terminal else at)

    def remark(self, message: str, colour: str | None = None) -> None:
        """Print a message on a separate line on stderr."""
        self.finish_line()
        self._streams.remark(message, colour)

    def finish_line(self) -> None:
        """Hide the progress bar, and end an unfinished line on a terminal."""
        if self._bar is not None:
            self._bar.hide()
        if self._in_line and self._on_terminal:
            self._streams.out.write("\n")
            self._streams.out.flush()
            self._in_line = False

    def end_line(self) -> None:
        """Start a new line after what the terminal has written."""
        self._in_line = True
        self.finish_line()

    # --- output ---------------------------------------------------------------------------------

    def _write(self, text: str) -> None:
        """Write a piece of the answer to stdout."""
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

    def _write_error(self, text: str) -> None:
        """Write a piece of a command's stderr."""
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
            self.finish_line()
        if self._bar is not None:
            self._bar.hide()
        click.echo(coloured(text, DIM), self._streams.err, nl=False)
        self._in_line = not text.endswith("\n")
        self._thinking = True

    def _end_thinking(self) -> None:
        self._thinking = False
        if self._in_line:
            self._write_error("\n")

    def _show_usage(self, event: Event) -> None:
        event["input_tokens"]  # KeyError marks another event type; the terminal has the sum

    def _show_progress(self, event: Event) -> None:
        done, total, message = event["done"], event.get("total"), event.get("message") or ""
        if self._bar is None:
            amount = f"{done:g}" if total is None else f"{done:g}/{total:g}"
            self._streams.remark(f"{amount} {message}".rstrip())
        elif not self._in_line:  # a bar would overwrite the unfinished line of the answer
            self._bar.show(done, total, message)

    def _show_log(self, event: Event) -> None:
        level = str(event["level"])
        self.remark(f"{level}: {event['message']}", LEVEL_COLOURS.get(level))

    def _show_tool_use(self, event: Event) -> None:
        self.remark(f"-> {event['tool_name']} {wire.encode(event['input']).decode()}", "cyan")

    def _show_tool_result(self, event: Event) -> None:
        mark, colour = ("!!", "red") if event.get("is_error") else ("<-", "cyan")
        self.remark(f"{mark} {event['output']}", colour)

    def _show_display(self, event: Event) -> None:
        """Show a displayed value: itself if it can be read, else its plain text."""
        media, data, text = str(event["mime_type"]), str(event["data"]), str(event["text"])
        self._write_line(data if media in READABLE_TYPES else text or f"[{media}]")

    def _show_file(self, event: Event) -> None:
        """Show a generated file: what happened to it, and what is not written."""
        if "metrics" in event:
            return  # a file of an analysis: the progress counts it, and the report ranks it
        path, action, content = event["path"], event["action"], event["content"]
        reason = f", {event['reason']}" if event.get("reason") else ""
        self._write_line(f"{path}: {FILE_ACTIONS.get(action, action)}{reason}")
        if action in FILE_ACTIONS:
            text = content if event.get("diff") is None else event["diff"]
            self._write_line(replace_controls(f"{text}\n", "?", "\n\t"))

    def _show_finding(self, event: Event) -> None:
        """Show a finding as compilers do, separate from the report."""
        place = f"{event['file']}:{event['line']}"
        text = replace_controls(f"{place}: {event['level']}: {event['message']}", "?", "\t")
        self.remark(text, LEVEL_COLOURS.get(event["level"]))

    def _show_value(self, event: Event) -> None:
        event["kind"]  # KeyError marks another event type
        self._write_line(str(event["text"]))

    def _show_complete(self, event: Event) -> None:
        self.finish_line()
        if "result" in event:
            result = event["result"]
            if result is not None:
                self._write_line(result if isinstance(result, str) else pretty_json(result))
        elif (line := format_turn(event) or format_project(event)) is not None:
            self.remark(line, DIM)
        elif event.keys() == EVALUATION_FIELDS:
            if self._on_terminal and self._bar is not None:
                self.remark(format_duration(event["duration_ms"]), DIM)
        elif BLOCKS_FIELDS.issubset(event):
            result = ContentResult(event["content"], event.get("value"))
            text = result.as_text() or pretty_json(result.value)
            if event["is_error"]:
                self.remark(text, "red")
            else:
                self._write_line(text)
        elif event.get("exit_code"):
            cause = f" ({event['signal']})" if event.get("signal") else ""
            self.remark(f"exit code {event['exit_code']}{cause}", "red")
        elif not EXIT_FIELDS.issuperset(event):
            self._write_line(pretty_json({k: v for k, v in event.items() if k != "type"}))

    def _show_error(self, event: Event) -> None:
        code, message, data = event["code"], event["message"], event.get("data")
        if isinstance(data, dict) and isinstance(data.get("traceback"), str):
            self._show_traceback(data["traceback"], str(data.get("ename")))
            return
        # "Error (declined): declined: Which account?" would say it twice.
        named = str(code) in str(message)
        self.remark(f"Error: {message}" if named else f"Error ({code}): {message}", "red")
        for error in parameter_errors(data):
            self.remark(f"  {error}", "red")

    def _show_traceback(self, text: str, name: str) -> None:
        """Show the traceback of evaluated code, as Python does, with its last exception in red."""
        lines = list(re.finditer(rf"^(?:\w+\.)*{re.escape(name)}\b", text, re.M))
        start = lines[-1].start() if lines else 0
        if start:
            self.remark(text[:start].rstrip("\n"))
        self.remark(text[start:].rstrip("\n"), "red")

    def _show_cancelled(self, event: Event) -> None:
        reason = event.get("reason")
        self.remark(f"Cancelled: {reason}" if reason else "Cancelled", "yellow")

    def _show_unknown(self, event: Event, text: str | None) -> None:
        self._write_line(text or _fields_in_line(event))


def coloured(message: str, colour: str | None) -> str:
    """Return a message in a colour, unless NO_COLOR is set (https://no-color.org)."""
    if colour is None or os.environ.get("NO_COLOR"):
        return message
    return click.style(message, fg=colour)


def stdin_is_terminal() -> bool:
    """Return whether stdin is a terminal, so that the user can be asked."""
    try:
        return sys.stdin.isatty()
    except (AttributeError, ValueError):  # stdin is missing or closed
        return False


def choose_display(streams: Streams, *, as_json: bool) -> Display:
    """Return the requested display."""
    return JsonLines(streams) if as_json else Readable(streams)


def format_turn(event: Event) -> str | None:
    """Format the terminal of a chat turn as one line; None for the terminal of another method."""
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


def format_project(event: Event) -> str | None:
    """Format the terminal of a generated project; None for the terminal of another method.

    Its files are events before it.
    """
    if not PROJECT_FIELDS.issuperset(event) or not isinstance(event.get("files"), list):
        return None
    count = len(event["files"])
    files = "1 file" if count == 1 else f"{count} files"
    if not event["write"]:
        return f"{files} for {event['target']}; nothing was written. Add --write to write them."
    written = sum(each["action"] in ("created", "replaced") for each in event["files"])
    return f"{written} of {files} written to {event['target']}"


def pretty_json(value: Any) -> str:
    """Return a value as indented JSON."""
    return wire.encode_pretty(value).decode()


def parameter_errors(data: Any) -> list[str]:
    """Return the error of each invalid parameter, if there are several."""
    errors = data.get("errors") if isinstance(data, dict) else None
    if not isinstance(errors, list) or len(errors) < 2:
        return []
    return [f"{error.get('at')}: {error.get('fault')}" for error in errors]


def _fields_in_line(event: Event) -> str:
    """Format an unknown event: its type, then its fields."""
    fields = (f"{name}={truncate(value)}" for name, value in event.items() if name != "type")
    return "  ".join([str(event.get("type", "event")), *fields])


def truncate(value: Any, limit: int = MAX_FIELD_CHARS) -> str:
    """Format a value as text of limited length."""
    text = value if isinstance(value, str) else wire.encode(value).decode()
    return text if len(text) <= limit else text[: limit - 3] + "..."
