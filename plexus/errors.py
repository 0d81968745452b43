"""Every error this project raises on purpose: one tree, one file.

    PlexusError
    |-- RegistrationError      an activation is written wrongly; raised before anything runs
    |-- PluginError            a plugin could not be loaded
    |-- UnknownMethod          no such method; `data` carries the nearest names
    |-- InvalidParams          the arguments do not fit the method's schema
    |-- InvalidEvent           an event or a result holds what JSON cannot, such as NaN
    |-- NotFound               a run, request or subscription that is not there, or not yours
    |-- Denied                 the principal may not do this
    |-- Busy                   a bound on work under way is reached; try again
    |-- TooBig                 a bound on size is reached; `data` carries the limit
    |-- DeadlineExceeded       a run or an answer took longer than it may
    |-- Declined               a person was asked and said no
    |-- Unsupported            the caller cannot be asked this; `data` carries the kind
    |-- Failed                 what an activation raises when it could not do its work
    `-- Internal               a defect of ours or of an activation; the text stays in the log

Each error has a `code`, a word that programs may rely on. How a code becomes a number on some
wire is the business of that view's one table.
"""

from __future__ import annotations

import logging
import os
from typing import Any, ClassVar, Self

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


class PlexusError(Exception):
    """The root of the tree; `code` is for programs, `message` for people, `data` for both."""

    default_code: ClassVar[str] = "failed"

    def __init__(self, message: str, *, code: str | None = None, data: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.data = data


class RegistrationError(PlexusError):
    """An activation cannot be registered; the message names class, method and argument."""

    default_code = "registration"


class PluginError(PlexusError):
    """A plugin could not be found, imported or made."""

    default_code = "plugin"


class UnknownMethod(PlexusError):
    """No method of this name; `data["nearest"]` lists the names that look like it."""

    default_code = "unknown_method"


class InvalidParams(PlexusError):
    """The arguments do not fit; `data["errors"]` lists each place and what is wrong there."""

    default_code = "invalid_params"

    @classmethod
    def at(cls, place: str, fault: str, *, code: str | None = None) -> Self:
        """Return the error for one place: the name of an argument, and what is wrong with it."""
        errors = [{"at": place, "fault": fault}]
        return cls(f"{place}: {fault}", code=code, data={"errors": errors})


class InvalidEvent(PlexusError, ValueError):
    """An event or a result holds what JSON cannot; the message names the place and the cure.

    Its code is `invalid_event`, or `invalid_result` for what a method returns. It is a ValueError
    too, as every wrong value is for pydantic and for callers of an event's constructor.
    """

    default_code = "invalid_event"


class NotFound(PlexusError):
    """Not there, or not visible to this principal: the two are told apart by nobody."""

    default_code = "not_found"


class Denied(PlexusError):
    """This principal may not do this."""

    default_code = "denied"


class Busy(PlexusError):
    """As much is under way as is allowed; `data["limit"]` says how much that is."""

    default_code = "busy"


class TooBig(PlexusError):
    """Larger than allowed; `data["limit"]` says how large it may be."""

    default_code = "too_big"


class DeadlineExceeded(PlexusError):
    """It took longer than it may; `data["limit_s"]` says how long that is."""

    default_code = "deadline"


class Declined(PlexusError):
    """The person who was asked said no."""

    default_code = "declined"


class Unsupported(PlexusError):
    """The caller has no way to be asked this; `data["kind"]` says what kind of question it is."""

    default_code = "unsupported"


class Failed(PlexusError):
    """An activation could not do its work; give `code` a word of its own where programs care."""

    default_code = "failed"


class Internal(PlexusError):
    """A defect. What really happened is in the server's log under `data["log_id"]`."""

    default_code = "internal"

    @classmethod
    def report(cls, subject: str, error: BaseException) -> Self:
        """Log a defect, and make the error that says where to find it and nothing else."""
        log_id = os.urandom(4).hex()
        logger.error("%s failed [%s]", subject, log_id, exc_info=error)
        return cls(
            f"{subject} failed with {type(error).__name__}; the server's log has it as {log_id}",
            data={"log_id": log_id},
        )
