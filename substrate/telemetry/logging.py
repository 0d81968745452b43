"""Logging: what a line looks like, and that writing one never holds the server up.

Rules:
- A record is one line, whatever is in it: control characters are written as `\\u000a` and the like,
  so nothing that a peer sends can forge a line or reach the terminal. Only a traceback has more
  lines in the text form, and those are marked.
- Whoever reads stderr may stop reading: then lines are lost and counted, and the server goes on.
- Below `info` only our own modules speak. Libraries write whole requests there, with the tokens.
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
#: What begins each further line of a traceback in the text form.
MARGIN: Final = "\n  | "
#: What a value must be to stand in a text line without quotes.
BARE: Final = r"(?a:[\w.:/@+-]+)"
#: How long the rest of a long line may wait for a reader that has taken its beginning.
PATIENCE_MS: Final = 50


def set_up_logging(level: str, form: Format) -> None:
    """Log to stderr from now on: our own modules from this level on, all others from `info`."""
    root = logging.getLogger()
    for handler in root.handlers.copy():
        root.removeHandler(handler)
    root.addHandler(_handler(form))
    number = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(max(number, logging.INFO))
    for name in OURS:
        logging.getLogger(name).setLevel(number)
    # A warning would be text among lines of JSON.
    logging.captureWarnings(form == "json")


def announce(text: str, level: Literal["INFO", "WARNING"] = "INFO", **fields: Any) -> None:
    """Write something for the person who starts the program, whatever the log level is: as plain
    text, or as a line of JSON, with fields, where all lines are that."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, JsonFormatter):
            handler.handle(_record(level, "substrate", text, **fields))
            return
    click.echo(f"Warning: {text}" if level == "WARNING" else text, err=True)


def _record(level: str, name: str, message: str, **fields: Any) -> logging.LogRecord:
    """A record that is written whatever the level is."""
    return logging.makeLogRecord(
        {"levelname": level, "name": name, "msg": message, "fields": fields}
    )


def _handler(form: Format) -> logging.Handler:
    if sys.stderr is None:  # whoever started us has closed it
        return logging.NullHandler()
    try:
        stream: TextIO | LogStream = LogStream(sys.stderr.fileno())
    except OSError:  # it is no real one: somebody in this process collects what is written
        stream = sys.stderr
    handler = LineHandler(stream)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    return handler


# --- lines ------------------------------------------------------------------------------------


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):  # the record's own author has miscounted
        return f"{record.msg} {record.args!r}"


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """What a record says beside its message, by name: `extra={"fields": {...}}`."""
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, Mapping) else {}


class TextFormatter(logging.Formatter):
    """A line for a person: time, level, logger, message, and fields as `name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        when = self.formatTime(record)
        line = f"{when} {record.levelname} {record.name}: {_message(record)}"
        line = escape_controls(line) + "".join(
            f" {name}={_bare(value)}" for name, value in _fields(record).items()
        )
        if record.exc_info:
            for each in self.formatException(record.exc_info).split("\n"):
                line += MARGIN + escape_controls(each)
        return line


def _bare(value: Any) -> str:
    text = str(value)
    return text if re.fullmatch(BARE, text) else escape_controls(_json(text))


class JsonFormatter(logging.Formatter):
    """A line for a program: one JSON object."""

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
        # What JSON itself lets stand can be escaped afterwards: it occurs inside of strings only.
        return escape_controls(_json(dict(sorted(body.items(), key=_place))))


#: These come first in a line, in this order; the rest as it was given.
FIRST: Final = ("time", "level", "logger", "message")


def _place(entry: tuple[str, Any]) -> int:
    return FIRST.index(entry[0]) if entry[0] in FIRST else len(FIRST)


def _utc(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


def _json(value: dict[str, Any] | str) -> str:
    try:
        return wire.encode(value).decode()
    except TypeError:  # half a character, or no JSON form
        if isinstance(value, dict):
            return wire.encode(
                {name: escape_controls(str(each)) for name, each in value.items()}
            ).decode()
        return wire.encode(escape_controls(value)).decode()


# --- writing ----------------------------------------------------------------------------------


class LogStream:
    """A descriptor that is written to only as far as its reader takes it.

    A pipe that is ready takes `PIPE_BUF` bytes without anybody waiting, so a line goes in such
    pieces, each when the descriptor is ready.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        #: Whether the last line was left in the middle.
        self._torn = False
        #: How many lines nobody took.
        self.lost = 0

    @property
    def ready(self) -> bool:
        """Whether a line can be written now."""
        return bool(self._poll.poll(0))

    def write(self, text: str) -> int:
        """Write a line, or lose it."""
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        if not self.ready:
            self.lost += 1
            return 0
        if self._torn:
            data = memoryview(b"\n" + data)
        whole = data
        try:
            while data and self._poll.poll(0 if data is whole else PATIENCE_MS):
                data = data[os.write(self._fd, data[: select.PIPE_BUF]) :]
        except OSError:  # nobody is there any more, or somebody else filled it first
            pass
        if data:
            self.lost += 1
        # Nothing of it is as good as all of it.
        self._torn = bool(data) and data is not whole
        return len(text)

    def flush(self) -> None:
        """Nothing is held here."""


class LineHandler(logging.StreamHandler[Any]):
    """Writes records, and says how many were lost once there is somebody again to read it."""

    def emit(self, record: logging.LogRecord) -> None:
        stream = self.stream
        lost = stream.lost if isinstance(stream, LogStream) else 0
        if lost and stream.ready:
            notice = "lines were lost, because nobody read them"
            stream.lost = 0
            super().emit(_record("WARNING", "substrate.telemetry.logging", notice, lost=lost))
        super().emit(record)
