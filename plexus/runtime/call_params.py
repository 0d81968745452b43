"""The parameters of a call: by name, and those that belong to the call and not to the method."""

from __future__ import annotations

from typing import Any

from plexus.errors import InvalidParams
from plexus.registry.signature import MethodSpec

__all__ = ("TIMES", "read_params")

#: Named parameters that belong to the call and not to the method.
RUN_KEY = "_run"
AFTER = "_after"
#: Asks a native view for the time of every item; the hub has nothing to do with it.
TIMES = "_times"


def read_params(
    spec: MethodSpec, params: dict[str, Any] | list[Any] | None
) -> tuple[dict[str, Any], str | None, int]:
    """Return the arguments of the method by name, the caller's key for the run, and the item to
    read on after. Raises InvalidParams."""
    arguments = params if params.__class__ is dict else _named(spec, params)
    if RUN_KEY not in arguments and AFTER not in arguments and TIMES not in arguments:
        return arguments, None, 0
    arguments = dict(arguments)
    _flag(arguments.pop(TIMES, False))
    key = _text_or_none(arguments.pop(RUN_KEY, None))
    return arguments, key, _natural(arguments.pop(AFTER, 0))


def _named(spec: MethodSpec, params: dict[str, Any] | list[Any] | None) -> dict[str, Any]:
    """Parameters by name, however they were given."""
    if params is None:
        return {}
    if isinstance(params, dict):
        return params
    if len(params) == 1 and isinstance(params[0], dict):
        known = {*spec.names, RUN_KEY, AFTER, TIMES}
        if known.issuperset(params[0]):
            return params[0]
    if len(params) > len(spec.names):
        raise InvalidParams(
            f"{spec.name} takes at most {len(spec.names)} parameters, not {len(params)}"
        )
    return dict(zip(spec.names, params, strict=False))


def _text_or_none(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and 0 < len(value) <= 128):
        raise InvalidParams(f"{RUN_KEY} must be a text of 1 to 128 characters")
    return value


def _flag(value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidParams(f"{TIMES} must be true or false")


def _natural(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidParams(f"{AFTER} must be the number of an item, or 0")
    return value
