"""A call: its validated arguments, and the run that it leads to."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from plexus.activation import OnDisconnect
from plexus.errors import Internal, InvalidParams, PlexusError
from plexus.registry import schema
from plexus.registry.signature import MethodSpec
from plexus.registry.validation import invalid_params
from plexus.runtime.run import Run

__all__ = ("TIMES", "Call", "CallOptions", "read_arguments")

#: Named parameters that belong to the call, not to the method.
RUN_KEY: Final = "_run"
AFTER: Final = "_after"
#: Whether the run continues if its caller disconnects; otherwise its method or the server decides.
ON_DISCONNECT: Final = "_on_disconnect"
#: Requests the time of every item from the native view; the hub ignores it.
TIMES: Final = "_times"
#: Whether a read-only call only shows a person something, as the web page does all the time. Its
#: run counts as a control call: it is neither recorded nor listed among the work. Other clients
#: cannot hide their calls so.
LOOKUP: Final = "_lookup"
#: All of them.
RESERVED: Final = frozenset({RUN_KEY, AFTER, ON_DISCONNECT, TIMES, LOOKUP})


class Call(NamedTuple):
    """An accepted call: its run, and the item after which to read it."""

    run: Run
    after: int
    #: Whether the caller owns the run: it started the run, or resumed it by its key.
    owned: bool
    #: Whether this call started the run.
    fresh: bool


class CallOptions(NamedTuple):
    """What the caller requests of its call, in addition to the arguments."""

    #: The caller's key for the run.
    key: str | None = None
    #: The item to read after.
    after: int = 0
    on_disconnect: OnDisconnect | None = None
    #: Whether a read-only call of the page is a control call. Other calls ignore it.
    lookup: bool = False


DEFAULTS: Final = CallOptions()


def read_arguments(
    spec: MethodSpec, params: dict[str, Any] | list[Any] | None, errors_listed: int
) -> tuple[dict[str, Any], CallOptions]:
    """Return the validated arguments by name, and the options of the call.

    Raises InvalidParams with at most `errors_listed` errors.
    """
    arguments = params if params.__class__ is dict else _named(spec, params)
    options = DEFAULTS
    if not RESERVED.isdisjoint(arguments):
        arguments = dict(arguments)
        _flag(TIMES, arguments.pop(TIMES, False))
        options = CallOptions(
            _text_or_none(arguments.pop(RUN_KEY, None)),
            _natural(arguments.pop(AFTER, 0)),
            _keep_or_cancel(arguments.pop(ON_DISCONNECT, None)),
            _flag(LOOKUP, arguments.pop(LOOKUP, False)),
        )
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
    return arguments, options


def _named(spec: MethodSpec, params: dict[str, Any] | list[Any] | None) -> dict[str, Any]:
    """Return parameters by name, whether they were sent by name or by position."""
    if params is None:
        return {}
    if isinstance(params, dict):
        return params
    if len(params) == 1 and isinstance(params[0], dict):
        known = RESERVED.union(spec.names)
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


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidParams(f"{name} must be true or false")
    return value


def _natural(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidParams(f"{AFTER} must be the number of an item, or 0")
    return value


def _keep_or_cancel(value: Any) -> OnDisconnect | None:
    if value not in ("keep", "cancel", None):
        raise InvalidParams(f'{ON_DISCONNECT} must be "keep" or "cancel"')
    chosen: OnDisconnect | None = value
    return chosen
