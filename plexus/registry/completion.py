"""Suggesting values for an argument while a person is typing it."""

from __future__ import annotations

from typing import Any

from plexus.errors import InvalidParams
from plexus.principal import Principal
from plexus.registry.roles import choices
from plexus.registry.signature import MethodSpec

__all__ = ("complete",)

#: No list that a person looks through while typing needs to be longer.
MOST = 100


async def complete(
    spec: MethodSpec, argument: str, value: str, given: dict[str, str], principal: Principal
) -> dict[str, Any]:
    """What the method's completer suggests or, without one, the values that its type lists."""
    parameter = next((each for each in spec.parameters if each.name == argument), None)
    if parameter is None:
        raise InvalidParams(f"{spec.name} has no argument {argument!r}")
    completer = spec.completers.get(argument)
    if completer is not None:
        values = list(await completer.suggest(value, given, principal))
    else:
        typed = value.lower()
        values = [each for each in choices(parameter.hint) if each.lower().startswith(typed)]
    return {"values": values[:MOST], "total": len(values), "has_more": len(values) > MOST}
