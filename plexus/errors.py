"""All errors that this project raises on purpose, as one tree.

    PlexusError
    |-- RegistrationError      an activation is invalid; raised before anything runs
    |-- PluginError            a plugin could not be loaded
    |-- UnknownMethod          no such method; `data` contains the nearest names
    |-- InvalidParams          the arguments do not match the method's schema
    |-- InvalidEvent           an event or a result contains a value that JSON cannot represent
    |-- NotFound               a run, request or subscription is missing or not visible
    |-- Denied                 the principal lacks the permission
    |-- Busy                   a limit on concurrent work is reached; retry later
    |-- TooBig                 a size limit is exceeded; `data` contains the limit
    |-- DeadlineExceeded       a run or an answer timed out
    |-- Declined               a person declined to answer a question
    |-- Unsupported            the caller cannot answer this kind of question
    |-- Failed                 an activation could not do its work
    `-- Internal               a defect; the details are only in the server's log

Each error has a `code`, a word that programs can rely on. Each view maps codes to the error numbers
of its protocol in one table.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from plexus.text import escape_controls, shorten

__all__ = (
    "Busy",
    "DeadlineExceeded",
    "Declined",
    "Denied",
    "Failed",
    "Internal",
    "InvalidEvent",
    "InvalidParams",
    "NotFound",
    "PlexusError",
    "PluginError",
    "RegistrationError",
    "TooBig",
    "UnknownMethod",
    "Unsupported",
)

logger = logging.getLogger("plexus.defects")

#: Maximum characters of the text of an exception.
MAX_TEXT_CHARS: Final = 2000


class PlexusError(Exception):
    """Root of the tree: `code` for programs, `message` for people, `data` for both."""

    default_code: ClassVar[str] = "failed"

    def __init__(self, message: str, *, code: str | None = None, data: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.data = data


class RegistrationError(PlexusError):
    """An activation is invalid; the message names class, method and argument."""

    default_code = "registration"


class PluginError(PlexusError):
    """A plugin could not be found, imported or instantiated."""

    default_code = "plugin"


class UnknownMethod(PlexusError):
    """No method has this name; `data["nearest"]` lists similar names."""

    default_code = "unknown_method"


class InvalidParams(PlexusError):
    """The arguments are invalid; `data["errors"]` lists each place and its fault."""

    default_code = "invalid_params"

    @classmethod
    def at(cls, place: str, fault: str, *, code: str | None = None) -> Self:
        """Return the error for a single argument: its name and its fault."""
        errors = [{"at": place, "fault": fault}]
        return cls(f"{place}: {fault}", code=code, data={"errors": errors})


class InvalidEvent(PlexusError, ValueError):
    """An event or a result contains a value without a JSON form; the message says where.

    Its code is `invalid_event`, or `invalid_result` for the return value of a method. It is also a
    ValueError, as pydantic and callers of an event's constructor expect of a wrong value.
    """

    default_code = "invalid_event"


class NotFound(PlexusError):
    """Missing, or not visible to this principal. Callers cannot tell which."""

    default_code = "not_found"


class Denied(PlexusError):
    """This principal does not have the permission."""

    default_code = "denied"


class Busy(PlexusError):
    """A limit on concurrent work is reached; `data["limit"]` is the limit."""

    default_code = "busy"


class TooBig(PlexusError):
    """Larger than allowed; `data["limit"]` is the limit."""

    default_code = "too_big"


class DeadlineExceeded(PlexusError):
    """Timed out; `data["limit_s"]` is the timeout in seconds."""

    default_code = "deadline"


class Declined(PlexusError):
    """The person declined to answer."""

    default_code = "declined"


class Unsupported(PlexusError):
    """Not available here, such as a kind of question that the caller cannot answer.

    `data["kind"]` is the kind of such a question.
    """

    default_code = "unsupported"


class Failed(PlexusError):
    """An activation could not do its work; set `code` where programs need to tell causes apart."""

    default_code = "failed"


class Internal(PlexusError):
    """A defect. The traceback is in the server's log under `data["log_id"]`."""

    default_code = "internal"

    @classmethod
    def report(cls, subject: str, error: BaseException, *, shows_text: bool = False) -> Self:
        """Log a defect, and return an error for the peer that only refers to the log entry.

        With `shows_text`, the error also has the text of the exception and where it was raised.
        """
        log_id = os.urandom(4).hex()
        logger.error("%s failed [%s]", subject, log_id, exc_info=error)
        reason = type(error).__name__
        if shows_text:
            reason += _text_and_place(error)
        return cls(
            f"{subject} failed with {reason}; see {log_id} in the server's log",
            data={"log_id": log_id},
        )


def _text_and_place(error: BaseException) -> str:
    """Return the text of an exception, and the last line of code outside this package."""
    import traceback

    try:
        text = shorten(str(error), MAX_TEXT_CHARS)
    except Exception:  # noqa: BLE001 - an exception of an author may have no text
        text = ""
    # As in the log: a text with a control character or a lone surrogate is shown escaped.
    found = f": {escape_controls(text)}" if text else ""
    folder = str(Path(__file__).parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((folder, "<")):
            return f"{found} ({Path(frame.filename).name}:{frame.lineno})"
    return found
