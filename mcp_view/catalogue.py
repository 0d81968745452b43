"""The lists that the server offers, encoded: tools, prompts and resource templates.

A list is encoded at its first use, once per revision and set of client scopes, and dropped when the
hub changes. Listing a thousand tools then only joins bytes.

Tools are named like methods, with dots, or in a spelling that stricter hosts accept. All spellings
are accepted in requests. The hub rejects methods that differ only in dots and underscores, so no
spelling is ambiguous.

A cursor is opaque to clients. It contains the key of the last entry sent, so that a list that
changes between two pages neither repeats nor skips entries that remain in it.
"""

from __future__ import annotations

import binascii
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias

from mcp_view.errors import ProtocolError
from mcp_view.revisions import Revision
from mcp_view.tool_sets import ALL_TOOLS, ToolSet
from plexus.errors import NotFound
from plexus.principal import Principal
from plexus.registry import schema
from plexus.registry.lean_schema import lean_schema
from plexus.registry.signature import MethodSpec
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

#: The list that each kind of hub change affects.
LISTS: Final = {"methods": "tools", "prompts": "prompts", "resources": "templates"}
#: Maximum number of encoded variants kept of one list.
MAX_VARIANTS: Final = 64
#: Claude Code's key for the maximum size of a tool's results, the size above which it moves results
#: of tools without that key to a file, and the largest value that it accepts.
MAX_RESULT_KEY: Final = "anthropic/maxResultSizeChars"
HOST_RESULT_CHARS: Final = 50_000
#: Claude Code's key for a tool that it asks the person about at every call.
NEEDS_PERSON_KEY: Final = "anthropic/requiresUserInteraction"
HOST_MAX_RESULT_CHARS: Final = 500_000
#: The protocol's words for a method's support of background execution.
TASK_SUPPORT: Final = {"optional": "optional", "required": "required", "never": "forbidden"}
#: The prefix of every decoded cursor.
CURSOR_PREFIX: Final = "after:"

SpellingName: TypeAlias = Literal["dot", "underscore", "dash"]


class Names(Protocol):
    """Mapping between methods and the names of tools and prompts."""

    def name_of(self, method: str) -> str:
        """Return the name of the tool or prompt for this method."""
        ...

    def method_of(self, name: str) -> str:
        """Return the method for this name. It may not exist."""
        ...


class Spelling:
    """Names with one separator character between their parts."""

    def __init__(self, separator: str) -> None:
        self._separator = separator

    def name_of(self, method: str) -> str:
        """Return the name with its dots replaced by the separator."""
        return method.replace(".", self._separator)

    def method_of(self, name: str) -> str:
        """Replace dashes, which no method name contains. The hub resolves underscores itself."""
        return name.replace("-", ".")


SPELLINGS: Final[dict[SpellingName, Spelling]] = {
    "dot": Spelling("."),
    "underscore": Spelling("_"),
    "dash": Spelling("-"),
}


class Entries:
    """One list: sorted keys, and the encoded entry of each."""

    __slots__ = ("encoded", "keys", "pages")

    def __init__(self, keys: list[str], encoded: list[bytes]) -> None:
        self.keys = keys
        self.encoded = encoded
        #: The results that were sent, by the index of their first entry and their time to live.
        #: Only for pages that follow one another, so that no client can add more bytes than the
        #: entries have for each of the two times.
        self.pages: dict[tuple[int, int], bytes] = {}


class Catalogue:
    """The lists of one hub with one spelling."""

    def __init__(
        self, hub: Plexus, names: Names, result_chars: Callable[[MethodSpec], int]
    ) -> None:
        self._hub = hub
        self._names = names
        self._result_chars = result_chars
        #: The variants of each list, by revision, scopes of the client and tool set.
        self._lists: dict[str, dict[tuple[str, frozenset[str], str], Entries]] = {
            kind: {} for kind in LISTS.values()
        }
        self._headers: dict[str, dict[str, str]] | None = None

    def on_change(self, change: Change) -> None:
        """Drop the lists that a change of the hub affects."""
        if change.uri is None:
            self._lists[LISTS[change.kind]].clear()
        if change.kind == "methods":
            self._headers = None

    def tools(self, revision: Revision, principal: Principal, tools: ToolSet) -> Entries:
        """Return the tools of a set that this principal may call, sorted by name."""
        return self._list("tools", revision, principal, self._tool, tools)

    def prompts(self, revision: Revision, principal: Principal) -> Entries:
        """Return the static prompts for this principal, sorted by name."""
        return self._list("prompts", revision, principal, self._prompt)

    def prompt_entry(self, listed: dict[str, Any], revision: Revision) -> dict[str, Any]:
        """Return the entry of a prompt listed by the hub. Dynamic prompts keep their names."""
        name = listed["name"]
        try:
            spec, known = self._hub.find_prompt(name)
        except NotFound:  # listed, but no method provides it; getting it fails
            return _prompt_entry(name, listed, [], revision)
        if not known:
            name = self._names.name_of(name)
        fields = {"title": spec.title, "description": spec.description} | listed
        return _prompt_entry(name, fields, _arguments(spec, known), revision)

    def templates(self, revision: Revision, principal: Principal) -> Entries:
        """Return the resource templates for this principal, sorted by URI template."""
        return self._list("templates", revision, principal, _template)

    def headers_of(self, tool: str) -> dict[str, str]:
        """Return the HTTP headers that repeat arguments of a tool, by argument."""
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
        tools: ToolSet = ALL_TOOLS,
    ) -> Entries:
        key = revision.name, self._hub.scopes(principal), tools.key
        forms = self._lists[kind]
        entries = forms.get(key)
        if entries is None:
            methods = self._hub.methods(principal)
            if kind == "tools":
                methods = [spec for spec in methods if tools.includes(spec)]
            described = (describe(spec, revision) for spec in methods)
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
        parameters = schema.parameters_schema(spec)
        tool["inputSchema"] = parameters if spec.has_given_schema else lean_schema(parameters)
        if revision.structured:
            output = output_schema(spec)
            if output is not None:
                lean = output if spec.given_result else lean_schema(output, keeps_null=True)
                tool["outputSchema"] = lean
        if revision.tool_hints:
            hints = _hints(spec)
            if hints:
                tool["annotations"] = hints
        if revision.tool_meta:
            meta = self._meta(spec)
            if meta:
                tool["_meta"] = meta
        if spec.icons and revision.titles:
            tool["icons"] = spec.icons
        if revision.tasks == "core":
            tool["execution"] = {"taskSupport": TASK_SUPPORT[spec.background]}
        return name, tool

    def _meta(self, spec: MethodSpec) -> dict[str, Any]:
        """Return the keys that Claude Code reads."""
        meta: dict[str, Any] = {**(spec.meta or {})}
        chars = self._result_chars(spec)
        if chars > HOST_RESULT_CHARS:
            meta[MAX_RESULT_KEY] = min(chars, HOST_MAX_RESULT_CHARS)
        if spec.needs_person:
            meta[NEEDS_PERSON_KEY] = True
        return meta

    def _prompt(self, spec: MethodSpec, revision: Revision) -> tuple[str, dict[str, Any]] | None:
        if spec.role != "prompt" or not spec.listed:
            return None
        name = self._names.name_of(spec.name)
        fields = {"title": spec.title, "description": spec.description}
        return name, _prompt_entry(name, fields, _arguments(spec, ()), revision)


def _arguments(spec: MethodSpec, known: Collection[str]) -> list[dict[str, Any]]:
    """Return the arguments of a prompt, from its schema, which does not import a built-in class."""
    parameters = schema.parameters_schema(spec)
    required = parameters.get("required", ())
    return [
        {"name": name, "description": described["description"], "required": name in required}
        for name, described in parameters["properties"].items()
        if name not in known
    ]


def _prompt_entry(
    name: str, fields: dict[str, Any], arguments: list[dict[str, Any]], revision: Revision
) -> dict[str, Any]:
    prompt: dict[str, Any] = {"name": name}
    if fields.get("description"):
        prompt["description"] = fields["description"]
    if fields.get("title") and revision.titles:
        prompt["title"] = fields["title"]
    if arguments:
        prompt["arguments"] = arguments
    return prompt


def output_schema(spec: MethodSpec) -> dict[str, Any] | None:
    """Return the schema of a method's result if it is an object with named properties."""
    if spec.given_result is not None:
        return spec.given_result
    if spec.kind != "plain":
        return None
    if spec.returns_media:
        return None  # hosts would show the structured data instead of the image
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
    """Return the cursor for the entries after this key."""
    return binascii.b2a_base64((CURSOR_PREFIX + key).encode(), newline=False).decode()


def cursor_key(params: dict[str, Any]) -> str | None:
    """Return the key in a request's cursor; None for the first page. Raises ProtocolError."""
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
    """Return the slice of these sorted keys on the page, and the cursor of the next page."""
    start = 0 if after is None else bisect_right(keys, after)
    end = start + size
    return slice(start, end), cursor_after(keys[end - 1]) if end < len(keys) else None
