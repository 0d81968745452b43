"""A call: its validated arguments, and the run that it leads to."""

from __future__ import annotations

from typing import Any, NamedTuple

from plexus.errors import Internal, InvalidParams, PlexusError
from plexus.registry import schema
from plexus.registry.signature import MethodSpec
from plexus.registry.validation import invalid_params
from plexus.runtime.run import Run

__all__ = ("TIMES", "Call", "read_arguments")

#: Named parameters that belong to the call, not to the method.
RUN_KEY = "_run"
AFTER = "_after"
#: Requests the time of every item from the native view; the hub ignores it.
TIMES = "_times"


class Call(NamedTuple):
    """An accepted call: its run, and the item after which to read it."""

    run: Run
    after: int
    #: Whether the caller owns the run: it started the run, or resumed it by its key.
    owned: bool
    #: Whether this call started the run.
    fresh: bool


def read_arguments(
    spec: MethodSpec, params: dict[str, Any] | list[Any] | None, errors_listed: int
) -> tuple[dict[str, Any], str | None, int]:
    """Return the validated arguments by name, the caller's key, and the item to read after.

    Raises InvalidParams with at most `errors_listed` errors.
    """
    arguments = params if params.__class__ is dict else _named(spec, params)
    key, after = None, 0
    if RUN_KEY in arguments or AFTER in arguments or TIMES in arguments:
        arguments = dict(arguments)
        _flag(arguments.pop(TIMES, False))
        key = _text_or_none(arguments.pop(RUN_KEY, None))
        after = _natural(arguments.pop(AFTER, 0))
    try:
        arguments = (spec.validate or schema.build_validator(spec))(arguments)
    except ValueError as error:
        unknown = [each for each in arguments if each not in spec.names]
        if len(unknown) < errors_listed:
            error = schema.errors_in(spec, arguments, error)
        raise invalid_params(spec.name, error, unknown, spec.names, errors_listed) from None
    except PlexusError:
        raise
    # An author's validator may raise any exception.
    except Exception as error:
        raise Internal.report(f"validating the parameters of {spec.name}", error) from error
    return arguments, key, after


def _named(spec: MethodSpec, params: dict[str, Any] | list[Any] | None) -> dict[str, Any]:
    """Return parameters by name, whether they were sent by name or by position."""
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
        raise InvalidParams(f"{RUN_KEY} must be a string of 1 to 128 characters")
    return value


def _flag(value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidParams(f"{TIMES} must be true or false")


def _natural(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidParams(f"{AFTER} must be the number of an item, or 0")
    return value
