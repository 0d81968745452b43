"""What to run, in the form in which the supervisor reads it, and why it could not be run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

__all__ = ("CannotStart", "Command")


class CannotStart(Exception):
    """The command did not start; `step` says what was being done and `errno` what went wrong."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(f"{step}: {os.strerror(number)}")
        self.step = step
        self.errno = number


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """What to run. The first argument is the path of the program."""

    arguments: tuple[str, ...]
    directory: str
    environment: Mapping[str, str]
    #: Resource limits by name, as in {"CORE": 0}.
    limits: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def encoded(self) -> bytes:
        """The request as the supervisor reads it; ValueError if something cannot be passed on."""
        fields = [
            self.directory,
            str(len(self.limits)),
            *(f"{name} {value}" for name, value in self.limits.items()),
            str(len(self.arguments)),
            *self.arguments,
            *(f"{name}={value}" for name, value in self.environment.items()),
        ]
        for field in fields:
            if "\0" in field:
                raise ValueError(f"a NUL character in {field[:40]!r}")
        body = b"\0".join(os.fsencode(field) for field in fields)
        return len(body).to_bytes(4, "big") + body
