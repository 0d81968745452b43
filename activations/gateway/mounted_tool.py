"""A tool of another server as a method.

Nothing of a definition is trusted: one that has another form than it should is put right, so that
lists, search and schemas of all other methods work.

What only lists, schemas and calls need is read from the definition at first use: for ten mounts of
thirty tools that took 2 ms of each start.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from activations.gateway.argument_schema import Check, compile_schema
from activations.gateway.catalogue import Definition
from activations.gateway.mount_config import MountConfig
from activations.gateway.names import rewrite_meta
from activations.gateway.visible_text import show_invisible
from plexus.activation import Audience, Hints
from plexus.registry.parameters import Parameter
from plexus.registry.signature import MethodSpec

if TYPE_CHECKING:  # imported for annotations only: it imports this module
    from activations.gateway.mount import Mount
    from plexus.runtime.run import LocalRun

__all__ = ("CONTEXT", "MountedTool", "describe", "parameters_of", "summarise", "title_of")

#: The name under which the context of a call is passed: no tool can have an argument like it.
CONTEXT: Final = "\0context"
#: Characters of a description. Claude Code shows the first 2 KB of one.
MAX_DESCRIPTION: Final = 16_000
MAX_TITLE: Final = 200
#: Keys of a schema whose texts models read.
_TEXT_KEYS: Final = ("description", "title")
MAX_DEPTH: Final = 32
#: The fields that all tools have in common.
COMMON: Final = {
    "kind": "stream",
    "events": (),
    "data": Any,
    "yields": (),
    "is_open": True,
    "returns": None,
    "context_name": CONTEXT,
    "principal_name": None,
    "role": "method",
    "background": "optional",
    "max_result_chars": None,
    "resource": None,
    "template": None,
    "name_template": None,
}


class _LateFields:
    """The fields of a tool that are read from its definition at first use."""

    name: str

    def __init__(self, config: MountConfig, tool: str, definition: Definition) -> None:
        self._config = config
        self._tool = tool
        self._definition = definition

    @cached_property
    def audience(self) -> Audience:
        return "model" if self._config.exposes(self._tool, self.name) else "client"

    @cached_property
    def title(self) -> str | None:
        return title_of(self._definition.get("title") or self._annotations.get("title"))

    @cached_property
    def description(self) -> str:
        described = self._definition.get("description", "")
        return describe(self._config.describe.get(self._tool, described))

    @cached_property
    def summary(self) -> str:
        return summarise(self.description)

    @cached_property
    def hints(self) -> Hints:
        given = self._annotations
        return Hints(
            read_only=_flag(given.get("readOnlyHint")),
            destructive=_flag(given.get("destructiveHint")),
            idempotent=_flag(given.get("idempotentHint")),
            open_world=_flag(given.get("openWorldHint")),
        )

    @cached_property
    def given_schema(self) -> dict[str, Any]:
        return _object_schema(self._definition.get("inputSchema"))

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(parameters_of(self.given_schema))

    @cached_property
    def validate(self) -> Check:
        return compile_schema(self.name, self.given_schema)

    @cached_property
    def given_result(self) -> dict[str, Any] | None:
        output = self._definition.get("outputSchema")
        if not isinstance(output, dict) or output.get("type") != "object":
            return None
        visible: dict[str, Any] = _visible(output)
        return visible

    @cached_property
    def meta(self) -> dict[str, Any] | None:
        return rewrite_meta(self._config.name, self._definition.get("_meta"))

    @cached_property
    def icons(self) -> list[dict[str, Any]] | None:
        icons = self._definition.get("icons")
        return icons if isinstance(icons, list) else None

    @property
    def _annotations(self) -> dict[str, Any]:
        given = self._definition.get("annotations")
        return given if isinstance(given, dict) else {}


class MountedTool(_LateFields, MethodSpec):  # type: ignore[misc, override]  # they can be set
    """The specification of a tool of another server."""

    def __init__(
        self, mount: Mount, name: str, tool: str, definition: Definition, *, is_held: bool
    ) -> None:
        config = mount.config
        super().__init__(config, tool, definition)
        vars(self).update(COMMON)
        self.name = name
        self.owner = mount
        self.function = self.source = partial(_call_tool, mount, tool)
        self.deadline_s = config.timeout_s or "default"
        self.scope = config.required_scope
        self.listed = not is_held
        plain = f"{config.name}.{tool}"
        self.alias = plain if plain != name else None
        self.allows_indirect_call = config.call == "all"
        self.start = partial(_start_tool, mount, tool)
        self.completers = {}


def _start_tool(mount: Mount, tool: str, run: LocalRun, arguments: dict[str, Any]) -> bool:
    return mount.is_started and mount.calls.start_tool(run, tool, arguments)


def _call_tool(mount: Mount, tool: str, /, **arguments: Any) -> Any:
    ctx = arguments.pop(CONTEXT)
    return mount.calls.call_tool(ctx, tool, arguments)


# --- texts --------------------------------------------------------------------------------------


def title_of(title: Any) -> str | None:
    """Return a title as people and models may see it; None for another value than a text."""
    return show_invisible(title)[:MAX_TITLE] if isinstance(title, str) else None


def describe(description: Any) -> str:
    """Return a description as people and models may see it; empty if it is no text."""
    return show_invisible(description)[:MAX_DESCRIPTION] if isinstance(description, str) else ""


def summarise(description: str) -> str:
    """Return the first paragraph of a description as one line."""
    return description.partition("\n\n")[0].replace("\n", " ")


# --- schemas ------------------------------------------------------------------------------------


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _object_schema(schema: Any) -> dict[str, Any]:
    """Return the schema of arguments: an object whose properties are schemas."""
    given = _visible(schema) if isinstance(schema, dict) else {}
    listed = given.get("properties")
    properties = {
        name: each if isinstance(each, dict) else ({} if each is not False else {"not": {}})
        for name, each in (listed.items() if isinstance(listed, dict) else ())
    }
    return {**given, "type": "object", "properties": properties}


def _visible(value: Any, depth: int = 0) -> Any:
    """Return a schema with the invisible characters of its texts made visible."""
    if depth > MAX_DEPTH:
        return value
    if isinstance(value, list):
        return [_visible(each, depth + 1) for each in value]
    if not isinstance(value, dict):
        return value
    shown: dict[str, Any] = {}
    for key, each in value.items():
        if key in _TEXT_KEYS and isinstance(each, str):
            shown[key] = show_invisible(each)
        elif key == "description" and not isinstance(each, dict):
            continue  # of a wrong type, which readers of the schema do not expect
        else:
            shown[key] = _visible(each, depth + 1)
    return shown


def parameters_of(schema: dict[str, Any]) -> Iterable[Parameter]:
    """Yield the arguments in their order, for calls with arguments by position."""
    required = schema.get("required")
    names = required if isinstance(required, list) else []
    for name, each in schema["properties"].items():
        default = inspect.Parameter.empty if name in names else None
        yield Parameter(name, Any, default, each.get("description", ""))
