"""Checking JSON values against Python types, and saying well what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plexus import wire
from plexus.errors import InvalidParams

__all__ = ("check", "invalid_params", "validator_of")

#: pydantic's words where ours are plainer.
_FAULTS = {
    "missing": "is required",
    "extra_forbidden": "is not known here",
}


def validator_of(hint: Any) -> Any:
    """A validator for any type that pydantic knows."""
    from pydantic import TypeAdapter

    return TypeAdapter(hint).validator


def check(subject: str, validator: Any, value: Any) -> Any:
    """The value as the type wants it; raises InvalidParams that lists every fault."""
    try:
        return wire.validate(validator, value)
    except ValueError as error:  # pydantic's ValidationError is one
        raise invalid_params(subject, error) from None


def invalid_params(subject: str, error: ValueError) -> InvalidParams:
    """What pydantic found wrong, in one line, and each fault in `data`."""
    listing: Callable[..., list[dict[str, Any]]] | None = getattr(error, "errors", None)
    if listing is None:
        return InvalidParams(f"{subject}: {error}")
    faults = [
        {
            "at": ".".join(str(part) for part in fault["loc"]),
            "fault": _FAULTS.get(fault["type"]) or fault["msg"],
        }
        for fault in listing(include_url=False, include_context=False, include_input=False)
    ]
    first = faults[0]
    at = f"{first['at']}: " if first["at"] else ""
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return InvalidParams(f"{subject}: {at}{first['fault']}{more}", data={"errors": faults})
