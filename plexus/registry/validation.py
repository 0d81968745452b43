"""Validating JSON values against Python types, and describing what is wrong within bounds.

pydantic collects every error before it reports one and holds the interpreter meanwhile: a mebibyte
of wrong elements takes seconds and makes an answer of 36 MB. So validators made here stop at the
first wrong element of each list or mapping (`fail_fast`). A small value is then validated again
for the complete list of errors; of a large one, the errors found so far are reported.

What cannot be bounded here is the author's own: a validator function is called as written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, TypeAlias

from plexus.errors import InvalidParams
from plexus.limits import Limits
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

#: pydantic's words where ours are plainer.
_FAULTS = {
    "missing": "is required",
    "extra_forbidden": "is not known here",
}
#: Schemas of pydantic's core that can stop at the first error.
_COLLECTIONS = frozenset({"deque", "dict", "frozenset", "list", "set", "tuple"})
#: Parts of such a schema that hold a class or values, not schemas.
_OPAQUE = frozenset({"cls", "config", "default", "expected", "members", "metadata"})
#: Up to this size, as JSON, a wrong value is validated again for all of its errors. It holds 4,000
#: values at most, whose errors take some 6 ms.
LISTED_BYTES = 8 * 1024
#: Past this many, errors are only counted: pydantic makes all of them at once, at 1.5 us each.
READ_ERRORS = 4_000
#: How many unknown names are compared with the known ones.
SUGGESTED = 3
#: A place or a fault in an error's list, and the whole message. They quote names from the input.
AT_CHARS = 200
FAULT_CHARS = 400
MESSAGE_CHARS = 1000


def fail_fast(schema: Any) -> Any:
    """Return a validator for a schema of pydantic's core that stops at the first error in each
    list and mapping."""
    from pydantic_core import SchemaValidator

    # Without prebuilt validators, which pydantic keeps for each model and which list every error.
    return SchemaValidator(_stopping(schema), _use_prebuilt=False)


def _stopping(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return schema.__class__(map(_stopping, schema))
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if not isinstance(kind, str):  # fields or choices by their names, whatever these are
        return {name: _stopping(inner) for name, inner in schema.items()}
    copy = {key: inner if key in _OPAQUE else _stopping(inner) for key, inner in schema.items()}
    return copy | {"fail_fast": True} if kind in _COLLECTIONS else copy


def validate_strictly(validator: Any, value: Any) -> Any:
    """Validate a decoded value by the rules for JSON, strictly: "5" is no number, and objects
    are closed at every level.

    pydantic is strict *and* reads dates, enums and paths from text only when it validates JSON,
    so the value goes through bytes once more; that costs a fifth of a microsecond.
    """
    return validator.validate_json(wire.encode(value), strict=True, extra="forbid")


def check(subject: str, hint: Any, value: Any) -> Any:
    """Return the value as the type wants it. Raises InvalidParams that lists what is wrong."""
    first, full = _validators_of(hint)
    try:
        return validate_strictly(first, value)
    except ValueError as error:  # pydantic's ValidationError is one
        complete = all_errors(partial(validate_strictly, full), value, error)
        raise invalid_params(subject, complete) from None


#: Making them takes milliseconds, and leaves enough garbage to start a collection.
@lru_cache(maxsize=256)
def _validators_of(hint: Any) -> tuple[Any, Any]:
    """Return the validator for a type that stops at the first error of a list, and the one that
    finds every error."""
    from pydantic import TypeAdapter

    adapter = TypeAdapter(hint)
    return fail_fast(adapter.core_schema), adapter.validator


def all_errors(validate: Validate, value: Any, first: ValueError) -> ValueError:
    """Return the error with everything that is wrong with a small value, found by a validator
    that does not stop; of a large value, return what was found first."""
    if len(wire.encode(value)) > LISTED_BYTES:
        return first
    try:
        validate(value)
    except ValueError as complete:
        return complete
    return first  # an author's validator that changes its mind


def invalid_params(
    subject: str,
    error: ValueError,
    unknown: Sequence[str] = (),
    known: Sequence[str] = (),
    listed: int = Limits.errors_listed,
) -> InvalidParams:
    """Return what is wrong in one line, with the first errors in `data["errors"]` and the number
    of the rest in `data["more"]`.

    `unknown` are the parameters that the method does not have; they come first, each with the
    nearest of the `known` ones.
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
        first = f"{count} values are wrong, too many to list"
    elif unknown:
        first = f"unknown parameter {faults[0]['at']!r}{_suggestion(unknown[0], known)}"
    else:
        at, fault = faults[0]["at"], faults[0]["fault"]
        first = f"{at}: {fault}" if at else fault
    more = f" (and {count - 1} more)" if faults and count > 1 else ""
    return InvalidParams(shorten(f"{subject}: {first}", MESSAGE_CHARS) + more, data=data)


def _is_unknown(fault: dict[str, Any], unknown: Sequence[str]) -> bool:
    """Whether this is one of the parameters that the method does not have."""
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


# --- near matches of a misspelled name --------------------------------------------------------

#: A longer name is no misspelling of anything: names of methods have at most 64 characters.
MAX_NAME_CHARS = 128
#: How alike two names must be: 1 is the same letters, 0 nothing in common.
MIN_SIMILARITY = 0.5


def nearest(name: str, candidates: Iterable[str], limit: int = 3) -> list[str]:
    """Return the candidates that look most like a name, best first."""
    if len(name) > MAX_NAME_CHARS:
        return []
    wanted = _pairs_of(name)
    scored = []
    for candidate in candidates:
        pairs = _pairs(candidate)
        score = 2 * len(wanted & pairs) / (len(wanted) + len(pairs))
        if score >= MIN_SIMILARITY:
            scored.append((-score, candidate))
    return [candidate for _, candidate in sorted(scored)[:limit]]


def _pairs_of(name: str) -> frozenset[str]:
    # The marks at both ends give a name of one letter pairs too, and weight to the first letter.
    marked = f"^{name.lower()}$"
    return frozenset(map("".join, pairwise(marked)))


#: Candidates are names that exist here, so they are few; what clients send is not kept.
_pairs = lru_cache(maxsize=4096)(_pairs_of)
