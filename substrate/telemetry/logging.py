"""Logging to stderr: the format of lines, and writes that never block the server.

Rules:
- A record is one line. Control characters are escaped as `\\u000a` and so on, so text from a peer
  can neither forge a line nor control the terminal. Only a traceback has more lines in the text
  format, and those are marked.
- If the reader of stderr stops reading, lines are dropped and counted, and the server continues.
- Below `info` only our own modules log. Libraries log complete requests there, including tokens.
"""

from __future__ import annotations

import logging
import os
import re
import select
import sys
import time
from collections.abc import Mapping
from typing import Any, Final, Literal, TextIO

import click

from plexus.rpc import wire
from plexus.text import escape_controls

__all__ = (
    "JsonFormatter",
    "LineHandler",
    "LogStream",
    "TextFormatter",
    "announce",
    "set_up_logging",
)

Format = Literal["text", "json"]

#: Loggers of this project.
OURS: Final = ("activations", "arbor", "mcp_view", "native_rpc", "plexus", "substrate")
#: The prefix of each line of a traceback in the text format.
TRACEBACK_PREFIX: Final = "\n  | "
#: Matches values that need no quotes in a text line.
UNQUOTED: Final = r"(?a:[\w.:/@+-]+)"
#: Timeout for each further part of a long line whose first part was written.
PART_TIMEOUT_MS: Final = 50


def set_up_logging(level: str, form: Format) -> None:
    """Configure logging to stderr: our modules at this level, all others at `info` or above."""
    root = logging.getLogger()
    for handler in root.handlers.copy():
        root.removeHandler(handler)
    root.addHandler(_handler(form))
    number = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(max(number, logging.INFO))
    for name in OURS:
        logging.getLogger(name).setLevel(number)
    # Otherwise a warning would be plain text among lines of JSON.
    logging.captureWarnings(form == "json")


def announce(text: str, level: Literal["INFO", "WARNING"] = "INFO", **fields: Any) -> None:
    """Print a message for the person who starts the program, at any log level.

    It is plain text, or a line of JSON with the fields if the log format is JSON.
    """
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, JsonFormatter):
            handler.handle(_record(level, "substrate", text, **fields))
            return
    click.echo(f"Warning: {text}" if level == "WARNING" else text, err=True)


def _record(level: str, name: str, message: str, **fields: Any) -> logging.LogRecord:
    """Return a record that is written at any log level."""
    return logging.makeLogRecord(
        {"levelname": level, "name": name, "msg": message, "fields": fields}
    )


def _handler(form: Format) -> logging.Handler:
    if sys.stderr is None:  # closed by the parent process
        return logging.NullHandler()
    try:
        stream: TextIO | LogStream = LogStream(sys.stderr.fileno())
    except OSError:  # not a file: captured within this process
        stream = sys.stderr
    handler = LineHandler(stream)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    return handler


# --- lines ------------------------------------------------------------------------------------


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):  # the arguments do not match the format
        return f"{record.msg} {record.args!r}"


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """Return the named fields of a record, from `extra={"fields": {...}}`."""
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, Mapping) else {}


class TextFormatter(logging.Formatter):
    """Formats a line for people: time, level, logger, message, and fields as `name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        when = self.formatTime(record)
        line = f"{when} {record.levelname} {record.name}: {_message(record)}"
        line = escape_controls(line) + "".join(
            f" {name}={_format_value(value)}" for name, value in _fields(record).items()
        )
        if record.exc_info:
            for each in self.formatException(record.exc_info).split("\n"):
                line += TRACEBACK_PREFIX + escape_controls(each)
        return line


def _format_value(value: Any) -> str:
    text = str(value)
    return text if re.fullmatch(UNQUOTED, text) else escape_controls(_json(text))


class JsonFormatter(logging.Formatter):
    """Formats a line for programs: one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        body: dict[str, Any] = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        body = dict(_fields(record)) | body
        if record.exc_info:
            body["exception"] = self.formatException(record.exc_info)
        # JSON leaves some control characters unescaped. They occur only inside strings, so they can
        # be escaped afterwards.
        return escape_controls(_json(dict(sorted(body.items(), key=_field_position))))


#: The first fields of a line, in this order. The others keep theirs.
FIRST: Final = ("time", "level", "logger", "message")


def _field_position(entry: tuple[str, Any]) -> int:
    return FIRST.index(entry[0]) if entry[0] in FIRST else len(FIRST)


def _utc(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


def _json(value: dict[str, Any] | str) -> str:
    try:
        return wire.encode(value).decode()
    except TypeError:  # a lone surrogate, or not encodable
        if isinstance(value, dict):
            return wire.encode(
                {name: escape_controls(str(each)) for name, each in value.items()}
            ).decode()
        return wire.encode(escape_controls(value)).decode()


# --- writing ----------------------------------------------------------------------------------


class LogStream:
    """A file descriptor that is written without blocking.

    A pipe that is ready accepts `PIPE_BUF` bytes without blocking, so a line is written in parts of
    that size, each when the descriptor is ready.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        #: Whether the last line was written only in part.
        self._is_partial = False
        #: The number of dropped lines.
        self.lost = 0

    @property
    def ready(self) -> bool:
        """Whether a line can be written now."""
        return bool(self._poll.poll(0))

    def write(self, text: str) -> int:
        """Write a line, or drop it if the reader is too slow."""
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        if not self.ready:
            self.lost += 1
            return 0
        if self._is_partial:
            data = memoryview(b"\n" + data)
        whole = data
        try:
            while data and self._poll.poll(0 if data is whole else PART_TIMEOUT_MS):
                data = data[os.write(self._fd, data[: select.PIPE_BUF]) :]
        except OSError:  # the reader is gone, or another writer filled the pipe
            pass
        if data:
            self.lost += 1
        # A line of which nothing was written leaves no partial line.
        self._is_partial = bool(data) and data is not whole
        return len(text)

    def flush(self) -> None:
        """Do nothing: there is no buffer."""


class LineHandler(logging.StreamHandler[Any]):
    """Writes records, and reports dropped lines once the reader reads again."""

    def emit(self, record: logging.LogRecord) -> None:
        stream = self.stream
        lost = stream.lost if isinstance(stream, LogStream) else 0
        if lost and stream.ready:
            notice = "log lines were dropped because stderr was not read"
            stream.lost = 0
            super().emit(_record("WARNING", "substrate.telemetry.logging", notice, lost=lost))
        super().emit(record)
