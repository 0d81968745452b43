"""Lint rules: problems that clients and models would have with a registered activation.

A rule checks one method, or all of them, and yields findings. What cannot be registered at all is
reported by registration itself.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from mcp_view.tool_sets import STANDARD_TOOLS
from plexus.activation import MARK, Activation, MethodMark
from plexus.principal import READ
from plexus.registry.activation_tree import NAME_LENGTH, Node, walk
from plexus.registry.signature import MethodSpec
from substrate.devtools.source_location import (
    SourceLocation,
    location_of_activation,
    location_of_class,
    location_of_function,
)

__all__ = ("Finding", "Level", "check_activation", "check_methods")

Level: TypeAlias = Literal["error", "warning"]

#: Claude Code truncates a description at this length, silently.
DESCRIPTION_BYTES: Final = 2048
#: Above this number models choose worse and some hosts reject the list; each definition also costs
#: context.
TOOLS: Final = 40
#: Method calls that change files, on any object.
WRITES: Final = frozenset({"mkdir", "rmdir", "touch", "unlink", "write_bytes", "write_text"})
#: Functions of these modules that change files.
MODULE_WRITES: Final = {
    "os": {"remove", "unlink", "rmdir", "mkdir", "makedirs", "rename", "replace", "truncate"},
    "shutil": {"rmtree", "move", "copy", "copy2", "copyfile", "copytree"},
}
#: First words of method names that suggest a change.
WRITE_VERBS: Final = frozenset(
    {
        *("add", "append", "archive", "clean", "clear", "create", "delete", "drop", "edit"),
        *("erase", "insert", "kill", "move", "purge", "put", "remove", "rename", "reset"),
        *("save", "send", "set", "store", "update", "upload", "write"),
    }
)


class Finding(NamedTuple):
    """A problem to fix."""

    level: Level
    rule: str
    #: The subject: a method, an event, a source.
    subject: str
    message: str
    #: How to fix it.
    advice: str
    place: SourceLocation | None


Rule: TypeAlias = Callable[[MethodSpec], Iterable[Finding]]


def check_activation(node: Node) -> Iterator[Finding]:
    """Yield the findings for an activation and its children, apart from their methods."""
    for inner in walk(node):
        if inner.description:
            continue
        place = location_of_activation(inner.activation)
        advice = "give the class a docstring that says what its methods are for"
        if type(inner.activation) is Activation:
            advice = "give the module a docstring, or Activation(...) a description"
        yield Finding(
            "warning",
            "docstring-missing",
            inner.path,
            "it has no description, so clients do not know what its methods are for",
            advice,
            place,
        )


def check_methods(methods: Sequence[MethodSpec], server: str) -> list[Finding]:
    """Return the findings of all rules.

    `server` is the name under which a host lists the server.
    """
    found: list[Finding] = []
    for spec in methods:
        found += _check_length(spec, server)
        for rule in RULES:
            found += rule(spec)
    found += _check_events(methods)
    found += _check_number(methods)
    return found


def _finding(spec: MethodSpec, level: Level, rule: str, message: str, advice: str) -> Finding:
    return Finding(level, rule, spec.name, message, advice, location_of_function(spec.source))


# --- names ----------------------------------------------------------------------------------------


def _check_length(spec: MethodSpec, server: str) -> Iterator[Finding]:
    if not spec.listed:
        return
    whole = f"mcp__{server}__{spec.name}"
    if len(whole) > NAME_LENGTH:
        yield _finding(
            spec,
            "error",
            "name-length",
            f"hosts name it {whole}, which has {len(whole)} characters; the maximum is "
            f"{NAME_LENGTH}",
            f"shorten its name, or that of the server, by {len(whole) - NAME_LENGTH}",
        )


def _check_underscores(spec: MethodSpec) -> Iterator[Finding]:
    parts = spec.name.split(".")
    if "__" in spec.name or any(part.endswith("_") for part in parts):
        yield _finding(
            spec,
            "error",
            "name-underscores",
            "hosts separate the names of server and tool by `__`, and would split this name",
            "use single underscores, and none at the end of a name",
        )


# --- descriptions ---------------------------------------------------------------------------------


def _check_description(spec: MethodSpec) -> Iterator[Finding]:
    size = len(spec.description.encode())
    if size > DESCRIPTION_BYTES:
        yield _finding(
            spec,
            "error",
            "description-length",
            f"its description has {size} bytes; Claude Code truncates it at {DESCRIPTION_BYTES}",
            "begin with what a model must know, and move the rest to `Args:` or the README",
        )
    if not spec.description and not inspect.getdoc(spec.source):
        yield _finding(
            spec,
            "warning",
            "docstring-missing",
            "it has no docstring, so models see only its name",
            "add a docstring whose first sentence says what it does",
        )
    elif not spec.description:
        yield _finding(
            spec,
            "error",
            "description-missing",
            "its docstring contains only arguments, so models do not know what it does",
            "begin the docstring with a sentence that says what it does",
        )


def _check_parameters(spec: MethodSpec) -> Iterator[Finding]:
    if spec.given_schema is not None or spec.role == "resource":
        return
    if not inspect.getdoc(spec.source):  # which is a finding already
        return
    for parameter in spec.parameters:
        # An undocumented parameter gets its name as the description.
        if parameter.description != parameter.name.replace("_", " "):
            continue
        if any(getattr(each, "description", None) for each in _annotations(parameter.hint)):
            continue
        yield Finding(
            "warning",
            "parameter-undocumented",
            f"{spec.name}({parameter.name})",
            "it has no description, so models see only its name",
            f"add `{parameter.name}: ...` to an `Args:` section of the docstring",
            location_of_function(spec.source, parameter.name),
        )


def _annotations(hint: Any) -> tuple[Any, ...]:
    return getattr(hint, "__metadata__", ())


# --- scopes and hints -----------------------------------------------------------------------------


def _mark(spec: MethodSpec) -> MethodMark:
    mark: MethodMark = getattr(spec.source, MARK)
    return mark


def _check_scope(spec: MethodSpec) -> Iterator[Finding]:
    if spec.role != "method":
        return
    hints, explicit = spec.hints, _mark(spec).scope or spec.owner.scope
    if hints.read_only and hints.destructive:
        yield _finding(
            spec,
            "error",
            "write-marked-read",
            "it is marked both read_only and destructive",
            "remove one of the two",
        )
    elif not hints.read_only and explicit == READ:
        yield _finding(
            spec,
            "error",
            "write-marked-read",
            f"its scope is {READ!r}, which every token has, but it is not marked read_only",
            "mark it read_only=True if it changes nothing, otherwise give it another scope",
        )
    elif hints.read_only is None and hints.destructive is None:
        yield _finding(
            spec,
            "warning",
            "hints-missing",
            "it does not declare whether it changes anything, so hosts assume the worst",
            "mark it read_only=True, or destructive=True or False",
        )
    elif not hints.read_only and not explicit:
        yield _finding(
            spec,
            "warning",
            "scope-missing",
            f"it changes data, but has only the default scope of its namespace, {spec.scope!r}",
            f'declare the required scope: @method(scope="{spec.scope}.write"), or `scope` of '
            "the activation",
        )


def _check_writes(spec: MethodSpec) -> Iterator[Finding]:
    if not spec.hints.read_only or spec.role != "method":
        return
    place = location_of_function(spec.source)
    for call, line in _calls(spec.source):
        yield Finding(
            "warning",
            "write-marked-read",
            spec.name,
            f"it is marked read_only, but calls {call}",
            "remove read_only if that changes persistent data",
            None if place is None else SourceLocation(place.file, line),
        )
        return
    verb = spec.name.rpartition(".")[2].partition("_")[0]
    if verb in WRITE_VERBS:
        yield _finding(
            spec,
            "warning",
            "write-marked-read",
            f"it is marked read_only, but its name starts with {verb!r}",
            "remove read_only, or rename it after what it reads",
        )


def _calls(function: Callable[..., Any]) -> Iterator[tuple[str, int]]:
    """Yield the calls in a function that change files, with their lines."""
    bare = inspect.unwrap(getattr(function, "__func__", function))
    try:
        lines, first = inspect.getsourcelines(bare)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _writes(node):
            yield f"{ast.unparse(node.func)}()", first + node.lineno - 1


def _writes(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Attribute):
        base = ast.unparse(function.value)
        if base in MODULE_WRITES:
            return function.attr in MODULE_WRITES[base]
        if function.attr == "open":
            return _opens_to_write(call.args[:1], call.keywords)
        return function.attr in WRITES
    if isinstance(function, ast.Name) and function.id == "open":
        return _opens_to_write(call.args[1:2], call.keywords)
    return False


def _opens_to_write(modes: Sequence[ast.expr], keywords: Sequence[ast.keyword]) -> bool:
    given = [*modes, *(keyword.value for keyword in keywords if keyword.arg == "mode")]
    texts = [mode.value for mode in given if isinstance(mode, ast.Constant)]
    return any(isinstance(text, str) and set(text) & set("wax+") for text in texts)


# --- rules for all methods ------------------------------------------------------------------------


def _check_events(methods: Sequence[MethodSpec]) -> Iterator[Finding]:
    """Check each event once, however many methods yield it."""
    for event in {event: None for spec in methods for event in spec.events}:
        if not event.terminal and not event.has_text and event.fields:
            yield Finding(
                "warning",
                "event-without-text",
                event.__name__,
                "it has no text form, so its fields are shown as JSON",
                "add `def as_text(self) -> str`, or `as_line` if it only reports progress",
                location_of_class(event),
            )


def _check_number(methods: Sequence[MethodSpec]) -> Iterator[Finding]:
    tools = [spec for spec in methods if spec.role == "method" and STANDARD_TOOLS.includes(spec)]
    if len(tools) > TOOLS:
        yield Finding(
            "warning",
            "too-many-tools",
            f"{len(tools)} methods",
            f"models choose worse among more than {TOOLS} tools, and each costs context",
            'mark methods that only programs need audience="client", or merge methods that '
            "differ in one argument",
            location_of_activation(tools[0].owner),
        )


RULES: Final[tuple[Rule, ...]] = (
    _check_underscores,
    _check_description,
    _check_parameters,
    _check_scope,
    _check_writes,
)
