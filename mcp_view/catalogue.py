"""What the server offers, as ready bytes: tools, prompts and resource templates, under their names
outside and in pages.

Made from the hub when first asked for, once for each revision and each set of scopes that a client
has, and dropped when the hub changes: listing a thousand tools is then only joining bytes.

Methods are called with dots outside, or in a spelling that stricter hosts take. Every spelling is
accepted on the way in. The hub refuses two methods that differ only in dots and underscores, so no
spelling is ever ambiguous.

A cursor is opaque to clients; to us it is the key of the last entry they have had, so that a
list which changes between two pages neither repeats nor skips what was there all the time.
"""

from __future__ import annotations

import binascii
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from mcp_view.errors import ProtocolError
from mcp_view.revisions import Revision
from plexus.errors import NotFound
from plexus.principal import Principal
from plexus.registry import schema
from plexus.registry.signature import MethodSpec, Parameter
from plexus.rpc import wire
from plexus.runtime.changes import Change
from plexus.runtime.hub import Plexus

__all__ = (
    "SPELLINGS",
    "Catalogue",
    "Entries",
    "Names",
    "Spelling",
    "SpellingName",
    "cursor_after",
    "cursor_key",
    "output_schema",
    "page_of",
)

#: Which list a change of the hub is one of.
LISTS: Final = {"methods": "tools", "prompts": "prompts", "resources": "templates"}
#: How many forms of one list are kept.
MAX_VARIANTS: Final = 64
#: Claude Code's key for the size of a tool's results, above what size it moves a result that does
#: not have the key to a file, and the largest size that it accepts.
MAX_RESULT_KEY: Final = "anthropic/maxResultSizeChars"
HOST_RESULT_CHARS: Final = 50_000
HOST_MAX_RESULT_CHARS: Final = 500_000
#: What the revisions call the three answers of a method about running on its own.
TASK_SUPPORT: Final = {"optional": "optional", "required": "required", "never": "forbidden"}
#: What every cursor of ours begins with, under its encoding.
CURSOR_PREFIX: Final = "after:"

SpellingName: TypeAlias = Literal["dot", "underscore", "dash"]


class Names(Protocol):
    """What tools and prompts are called by."""

    def name_of(self, method: str) -> str:
        """What this method is called outside."""
        ...

    def method_of(self, name: str) -> str:
        """The method that is meant by this name, as the hub knows it or would."""
        ...


class Spelling:
    """Names that put one character between the parts."""

    def __init__(self, separator: str) -> None:
        self._separator = separator

    def name_of(self, method: str) -> str:
        """The dots of the method's name, written as this spelling has them."""
        return method.replace(".", self._separator)

    def method_of(self, name: str) -> str:
        """Dashes as dots, which no method's name has; underscores are known to the hub."""
        return name.replace("-", ".")


SPELLINGS: Final[dict[SpellingName, Spelling]] = {
    "dot": Spelling("."),
    "underscore": Spelling("_"),
    "dash": Spelling("-"),
}


class Entries(NamedTuple):
    """One list: the sorted keys and, beside each, its entry as JSON."""

    keys: list[str]
    encoded: list[bytes]


class Catalogue:
    """The lists of one hub under one spelling."""

    def __init__(
        self, hub: Plexus, names: Names, result_chars: Callable[[MethodSpec], int]
    ) -> None:
        self._hub = hub
        self._names = names
        self._result_chars = result_chars
        #: Each list, by its revision and the scopes of its reader.
        self._lists: dict[str, dict[tuple[str, frozenset[str]], Entries]] = {
            kind: {} for kind in LISTS.values()
        }
        self._headers: dict[str, dict[str, str]] | None = None

    def on_change(self, change: Change) -> None:
        """Drop the lists that a change of the hub is about."""
        if change.uri is None:
            self._lists[LISTS[change.kind]].clear()
        if change.kind == "methods":
            self._headers = None

    def tools(self, revision: Revision, principal: Principal) -> Entries:
        """Every tool that this principal may call, sorted by name."""
        return self._list("tools", revision, principal, self._tool)

    def prompts(self, revision: Revision, principal: Principal) -> Entries:
        """Every prompt for this principal that is always there, sorted by name."""
        return self._list("prompts", revision, principal, self._prompt)

    def prompt_entry(self, listed: dict[str, Any], revision: Revision) -> dict[str, Any]:
        """The entry of a prompt in the hub's list: one that comes and goes is called as it is."""
        name = listed["name"]
        try:
            spec, known = self._hub.find_prompt(name)
        except NotFound:  # an activation lists what no method makes; getting it fails
            return _prompt_entry(name, listed, (), revision)
        if not known:
            name = self._names.name_of(name)
        given = {"title": spec.title, "description": spec.description} | listed
        parameters = [each for each in spec.parameters if each.name not in known]
        return _prompt_entry(name, given, parameters, revision)

    def templates(self, revision: Revision, principal: Principal) -> Entries:
        """Every resource template for this principal, sorted by its text."""
        return self._list("templates", revision, principal, _template)

    def headers_of(self, tool: str) -> dict[str, str]:
        """Which arguments of a tool are repeated in HTTP headers: the header by the argument."""
        if self._headers is None:
            self._headers = {}
        if tool not in self._headers:
            self._headers[tool] = self._read_headers(tool)
        return self._headers[tool]

    def _read_headers(self, tool: str) -> dict[str, str]:
        spec = self._hub.resolve(self._names.method_of(tool))
        properties = schema.parameters_schema(spec).get("properties", {})
        return {
            name: described["x-mcp-header"]
            for name, described in properties.items()
            if isinstance(described, dict) and isinstance(described.get("x-mcp-header"), str)
        }

    def _list(
        self,
        kind: str,
        revision: Revision,
        principal: Principal,
        describe: Callable[[MethodSpec, Revision], tuple[str, dict[str, Any]] | None],
    ) -> Entries:
        key = revision.name, self._hub.scopes(principal)
        forms = self._lists[kind]
        entries = forms.get(key)
        if entries is None:
            described = (describe(spec, revision) for spec in self._hub.methods(principal))
            found = sorted(
                (entry for entry in described if entry is not None), key=lambda entry: entry[0]
            )
            entries = Entries([key for key, _ in found], [wire.encode(entry) for _, entry in found])
            if len(forms) >= MAX_VARIANTS:
                forms.clear()
            forms[key] = entries
        return entries

    # --- entries ------------------------------------------------------------------------------

    def _tool(self, spec: MethodSpec, revision: Revision) -> tuple[str, dict[str, Any]] | None:
        if spec.role != "method" or not spec.listed:
            return None
        name = self._names.name_of(spec.name)
        tool: dict[str, Any] = {"name": name, "description": spec.description}
        if spec.title and revision.titles:
            tool["title"] = spec.title
        tool["inputSchema"] = _without_null(schema.parameters_schema(spec))
        if revision.structured:
            output = output_schema(spec)
            if output is not None:
                tool["outputSchema"] = output
        if revision.tool_hints:
            hints = _hints(spec)
            if hints:
                tool["annotations"] = hints
        if revision.tool_meta:
            chars = self._result_chars(spec)
            if chars > HOST_RESULT_CHARS:
                tool["_meta"] = {MAX_RESULT_KEY: min(chars, HOST_MAX_RESULT_CHARS)}
        if revision.tasks == "core":
            tool["execution"] = {"taskSupport": TASK_SUPPORT[spec.background]}
        return name, tool

    def _prompt(self, spec: MethodSpec, revision: Revision) -> tuple[str, dict[str, Any]] | None:
        if spec.role != "prompt" or not spec.listed:
            return None
        name = self._names.name_of(spec.name)
        given = {"title": spec.title, "description": spec.description}
        return name, _prompt_entry(name, given, spec.parameters, revision)


def _prompt_entry(
    name: str, given: dict[str, Any], parameters: Sequence[Parameter], revision: Revision
) -> dict[str, Any]:
    prompt: dict[str, Any] = {"name": name}
    if given.get("description"):
        prompt["description"] = given["description"]
    if given.get("title") and revision.titles:
        prompt["title"] = given["title"]
    if parameters:
        prompt["arguments"] = [
            {
                "name": parameter.name,
                "description": parameter.description,
                "required": parameter.required,
            }
            for parameter in parameters
        ]
    return prompt


def _without_null(described: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in which optional parameters do not name null as a type.

    Models and validators read `anyOf` with null as a union to choose from; leaving the parameter
    out says the same. Null is still accepted.
    """
    required = described.get("required", ())
    properties = {
        name: entry if name in required else _not_null(entry)
        for name, entry in described.get("properties", {}).items()
    }
    return described | {"properties": properties}


def _not_null(entry: dict[str, Any]) -> dict[str, Any]:
    choices = entry.get("anyOf")
    if not isinstance(choices, list) or {"type": "null"} not in choices:
        return entry
    rest = [choice for choice in choices if choice != {"type": "null"}]
    others = {
        key: value
        for key, value in entry.items()
        if key != "anyOf" and not (key == "default" and value is None)
    }
    return rest[0] | others if len(rest) == 1 else {"anyOf": rest} | others


def output_schema(spec: MethodSpec) -> dict[str, Any] | None:
    """The schema of what a method returns, if that is an object with named properties."""
    if spec.kind != "plain":
        return None
    if spec.returns_media:
        return None  # it is shown as what it is: hosts show data in place of a picture
    output = schema.result_schema(spec)
    return output if output.get("type") == "object" and "properties" in output else None


def _hints(spec: MethodSpec) -> dict[str, Any]:
    hints = spec.hints
    named = {
        "title": spec.title,
        "readOnlyHint": hints.read_only,
        "destructiveHint": hints.destructive,
        "idempotentHint": hints.idempotent,
        "openWorldHint": hints.open_world,
    }
    return {key: value for key, value in named.items() if value is not None}


def _template(spec: MethodSpec, revision: Revision) -> tuple[str, dict[str, Any]] | None:
    resource = spec.resource
    if resource is None or "{" not in resource.uri:
        return None
    template: dict[str, Any] = {
        "uriTemplate": resource.uri,
        "name": resource.name or spec.name,
        "description": spec.description,
    }
    if resource.mime_type is not None:
        template["mimeType"] = resource.mime_type
    if resource.title and revision.titles:
        template["title"] = resource.title
    return resource.uri, template


# --- pages ------------------------------------------------------------------------------------


def cursor_after(key: str) -> str:
    """The cursor for what comes after this key."""
    return binascii.b2a_base64((CURSOR_PREFIX + key).encode(), newline=False).decode()


def cursor_key(params: dict[str, Any]) -> str | None:
    """The key in a request's cursor; None for the first page. Raises ProtocolError."""
    cursor = params.get("cursor")
    if cursor is None:
        return None
    try:
        text = binascii.a2b_base64(cursor, strict_mode=True).decode()
    except (TypeError, ValueError):
        text = ""
    if not text.startswith(CURSOR_PREFIX):
        raise ProtocolError(wire.INVALID_PARAMS, "Invalid cursor", {"cursor": cursor})
    return text.removeprefix(CURSOR_PREFIX)


def page_of(keys: Sequence[str], after: str | None, size: int) -> tuple[slice, str | None]:
    """Which of these sorted keys are on the page, and the cursor of the next one."""
    start = 0 if after is None else bisect_right(keys, after)
    end = start + size
    return slice(start, end), cursor_after(keys[end - 1]) if end < len(keys) else None
