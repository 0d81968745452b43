"""Validate JSON values against Python types, and describe errors within bounds.

pydantic collects every error before it reports any, and blocks the interpreter meanwhile: a
mebibyte of wrong elements takes seconds and produces an error of 36 MB. Validators built here
therefore stop at the first wrong element of each list or mapping (`fail_fast`). A small value is
then validated again for the complete list of errors; for a large value, the errors found so far are
reported.

Validator functions of an author are called as written; their cost cannot be bounded here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, TypeAlias

from plexus.errors import InvalidParams
from plexus.limits import DEFAULT_LIMITS
from plexus.rpc import wire
from plexus.text import shorten

__all__ = (
    "Validate",
    "all_errors",
    "check",
    "fail_fast",
    "invalid_params",
    "nearest",
    "validate_strictly",
)

Validate: TypeAlias = Callable[[Any], Any]

#: Plainer texts for some of pydantic's error types.
_FAULTS = {
    "missing": "is required",
    "extra_forbidden": "is not known here",
}
#: Schema types of pydantic's core that can stop at the first error.
_COLLECTIONS = frozenset({"deque", "dict", "frozenset", "list", "set", "tuple"})
#: Keys of such a schema that contain a class or values, not schemas.
_OPAQUE = frozenset({"cls", "config", "default", "expected", "members", "metadata"})
#: Up to this size as JSON, an invalid value is validated again for all of its errors. It contains
#: at most 4,000 values, whose errors take about 6 ms.
LISTED_BYTES = 8 * 1024
#: Past this number, errors are only counted: pydantic creates all of them eagerly, at 1.5 us each.
READ_ERRORS = 4_000
#: Number of unknown names that are compared with the known ones.
SUGGESTED = 3
#: Lengths of a place, of a fault and of the whole message, which quote names from the input.
AT_CHARS = 200
FAULT_CHARS = 400
MESSAGE_CHARS = 1000


def fail_fast(schema: Any) -> Any:
    """Return a validator for a core schema that stops at the first error of each collection."""
    from pydantic_core import SchemaValidator

    # Without the prebuilt validators that pydantic keeps for each model, which list every error.
    return SchemaValidator(_stopping(schema), _use_prebuilt=False)


def _stopping(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return schema.__class__(map(_stopping, schema))
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if not isinstance(kind, str):  # a mapping of fields or choices, not a schema
        return {name: _stopping(inner) for name, inner in schema.items()}
    copy = {key: inner if key in _OPAQUE else _stopping(inner) for key, inner in schema.items()}
    return copy | {"fail_fast": True} if kind in _COLLECTIONS else copy


def validate_strictly(validator: Any, value: Any) -> Any:
    """Validate a decoded value by the rules for JSON: "5" is not a number, and objects are closed.

    pydantic is strict *and* reads dates, enums and paths from text only when it validates JSON, so
    the value is encoded once more; that costs a fifth of a microsecond.
    """
    return validator.validate_json(wire.encode(value), strict=True, extra="forbid")


def check(subject: str, hint: Any, value: Any) -> Any:
    """Return the value converted to the type. Raises InvalidParams with a list of errors."""
    first, full = _validators_of(hint)
    try:
        return validate_strictly(first, value)
    except ValueError as error:  # pydantic's ValidationError is one
        complete = all_errors(partial(validate_strictly, full), value, error)
        raise invalid_params(subject, complete) from None


#: Building them takes milliseconds, and creates enough garbage to start a collection.
@lru_cache(maxsize=256)
def _validators_of(hint: Any) -> tuple[Any, Any]:
    """Return two validators for a type.

    The first stops at the first error of a list, the second finds every error.
    """
    from pydantic import TypeAdapter

    adapter = TypeAdapter(hint)
    return fail_fast(adapter.core_schema), adapter.validator


def all_errors(validate: Validate, value: Any, first: ValueError) -> ValueError:
    """Return the error with everything that is wrong with a small value.

    `validate` does not stop at the first error. For a large value, return `first`.
    """
    if len(wire.encode(value)) > LISTED_BYTES:
        return first
    try:
        validate(value)
    except ValueError as complete:
        return complete
    return first  # an author's validator that accepted it this time


def invalid_params(
    subject: str,
    error: ValueError,
    unknown: Sequence[str] = (),
    known: Sequence[str] = (),
    listed: int = DEFAULT_LIMITS.errors_listed,
) -> InvalidParams:
    """Return an error with a summary, and the first errors in `data["errors"]`.

    `data["more"]` is the number of the others. `unknown` are the parameters that the method does
    not have; they come first, each with the nearest of the `known` ones.
    """
    details = getattr(error, "errors", None)
    if details is None:
        return InvalidParams(shorten(f"{subject}: {error}", MESSAGE_CHARS))
    count: int = error.error_count()  # type: ignore[attr-defined]  # pydantic's has it
    faults = [_unknown(name, known) for name in unknown[:SUGGESTED]]
    faults += [_unknown(name, ()) for name in unknown[SUGGESTED:listed]]
    if len(faults) < listed and count <= READ_ERRORS:
        found = details(include_url=False, include_context=False, include_input=False)
        others = [fault for fault in found if not _is_unknown(fault, unknown)]
        faults += map(_fault, others[: listed - len(faults)])
    data: dict[str, Any] = {"errors": faults}
    if count > len(faults):
        data["more"] = count - len(faults)
    if not faults:
        first = f"{count} values are invalid, too many to list"
    elif unknown:
        first = f"unknown parameter {faults[0]['at']!r}{_suggestion(unknown[0], known)}"
    else:
        at, fault = faults[0]["at"], faults[0]["fault"]
        first = f"{at}: {fault}" if at else fault
    more = f" (and {count - 1} more)" if faults and count > 1 else ""
    return InvalidParams(shorten(f"{subject}: {first}", MESSAGE_CHARS) + more, data=data)


def _is_unknown(fault: dict[str, Any], unknown: Sequence[str]) -> bool:
    """Return whether this fault is about a parameter that the method does not have."""
    return bool(unknown) and fault["type"] == "extra_forbidden" and len(fault["loc"]) == 1


def _unknown(name: str, known: Sequence[str]) -> dict[str, str]:
    words = _FAULTS["extra_forbidden"] + _suggestion(name, known)
    return {"at": shorten(name, AT_CHARS), "fault": shorten(words, FAULT_CHARS)}


def _suggestion(name: str, known: Sequence[str]) -> str:
    near = nearest(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _fault(fault: dict[str, Any]) -> dict[str, str]:
    words = _FAULTS.get(fault["type"]) or fault["msg"]
    at = ".".join(str(part) for part in fault["loc"])
    return {"at": shorten(at, AT_CHARS), "fault": shorten(words, FAULT_CHARS)}


# --- similar names ----------------------------------------------------------------------------
#
# Two names are compared by the letter pairs that they share (the Dice coefficient). That takes
# linear time, where the edit distances of `difflib` are quadratic: a batch of a hundred unknown
# methods must not block the event loop.

#: A longer name is not a misspelling: names of methods have at most 64 characters.
MAX_NAME_CHARS = 128
#: Similarity of two names: 1 for the same letter pairs, 0 for none in common.
MIN_SIMILARITY = 0.5


def nearest(name: str, candidates: Iterable[str], limit: int = 3) -> list[str]:
    """Return the candidates that are most similar to a name, best first."""
    if len(name) > MAX_NAME_CHARS:
        return []
    own_pairs = _pairs_of(name)
    scored = []
    for candidate in candidates:
        pairs = _pairs(candidate)
        score = 2 * len(own_pairs & pairs) / (len(own_pairs) + len(pairs))
        if score >= MIN_SIMILARITY:
            scored.append((-score, candidate))
    return [candidate for _, candidate in sorted(scored)[:limit]]


def _pairs_of(name: str) -> frozenset[str]:
    # With marks at both ends a single letter has pairs too, and the first letter counts more.
    marked = f"^{name.lower()}$"
    return frozenset(map("".join, pairwise(marked)))


#: Cached for candidates only: they are registered names and few; input is not cached.
_pairs = lru_cache(maxsize=4096)(_pairs_of)
