"""Secret parameters: their marker, which parameters are secret, and arguments without them.

    @vault.method
    async def unlock(name: str, password: Annotated[str, Secret()]) -> bool: ...

The method receives the value as it was sent. What is stored or logged of a call is not the value
but `REDACTED`, and JSON Schema says `"writeOnly": true`. pydantic's `SecretStr` and `SecretBytes`
are secret too, and so is every part of a schema that says `writeOnly`. A parameter that contains a
secret anywhere, such as a field of a model, is secret as a whole: the rest of its value is not
stored either. pydantic is imported only for types that are not plain JSON types.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

if TYPE_CHECKING:  # imported for annotations only: signature imports this module
    from plexus.registry.signature import MethodSpec

__all__ = (
    "REDACTED",
    "Secret",
    "is_bare_secret",
    "is_secret",
    "redact_arguments",
    "secret_properties",
)

#: Stored and logged in place of a secret value.
REDACTED: Final = "[redacted]"
#: Methods that call another: the parameters with its name and with its arguments.
_FORWARDING: Final = {"plexus.call": ("method", "params")}
_PLAIN: Final = frozenset({str, int, float, bool, type(None), Any, list, dict})


class Secret:
    """A marker for a value that is neither stored nor logged: `Annotated[str, Secret()]`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret)

    def __hash__(self) -> int:
        return hash(Secret)

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        """Mark the JSON Schema of the value, for pydantic."""
        return self.described(handler(core_schema))

    def described(self, described: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON Schema of the value, marked."""
        choices = described.get("anyOf", [described])
        if any(choice.get("type") == "string" for choice in choices):
            described.setdefault("format", "password")
        return described | {"writeOnly": True}


def is_secret(hint: Any) -> bool:
    """Return whether a value of this type is secret, or contains a secret."""
    if _is_marked(hint):
        return True
    if _is_plain(hint):
        return False
    from pydantic import TypeAdapter

    return _has_write_only(TypeAdapter(hint).json_schema())


def is_bare_secret(hint: Any) -> bool:
    """Return whether a hint has the class where an instance, `Secret()`, is needed."""
    return hint is Secret or (
        typing.get_origin(hint) is Annotated and Secret in typing.get_args(hint)[1:]
    )


def secret_properties(schema: Mapping[str, Any]) -> set[str]:
    """Return the names of the secret properties of an object schema that an author gave."""
    properties = schema.get("properties", {})
    return {name for name, described in properties.items() if _has_write_only(described)}


def redact_arguments(
    spec: MethodSpec | None,
    arguments: Mapping[str, Any],
    find_method: Callable[[str], MethodSpec | None],
) -> dict[str, Any]:
    """Return the arguments of a call with `REDACTED` in place of secret values.

    The arguments that `plexus.call` passes on are redacted as those of the method that it calls.
    Without a specification the secrets are unknown, and every value is replaced.
    """
    if spec is None:
        return dict.fromkeys(arguments, REDACTED)
    secrets = spec.secret_names
    redacted = {name: REDACTED if name in secrets else arguments[name] for name in arguments}
    if spec.name in _FORWARDING:
        method_name, params_name = _FORWARDING[spec.name]
        params = redacted.get(params_name)
        if isinstance(params, dict):
            target = find_method(str(redacted.get(method_name)))
            redacted[params_name] = redact_arguments(target, params, find_method)
    return redacted


def _is_marked(hint: Any) -> bool:
    """Return whether the type itself, or one that it is composed of, has the marker."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return False
    if typing.get_origin(hint) is Annotated:
        return any(isinstance(each, Secret) for each in arguments[1:]) or _is_marked(arguments[0])
    return any(map(_is_marked, arguments))


def _is_plain(hint: Any) -> bool:
    """Return whether a type is composed of JSON types only."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return True
    if origin is Annotated:
        return _is_plain(arguments[0])
    if origin in (types.UnionType, typing.Union, list, dict):
        return all(map(_is_plain, arguments))
    return (isinstance(hint, type) or hint is Any) and hint in _PLAIN


def _has_write_only(schema: Any) -> bool:
    if isinstance(schema, dict):
        return schema.get("writeOnly") is True or any(map(_has_write_only, schema.values()))
    return isinstance(schema, list) and any(map(_has_write_only, schema))
