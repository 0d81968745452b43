"""What clients and models would stumble over in an activation that registers: rules, one each.

A rule looks at one method, or at all of them, and gives findings. What cannot be registered at
all is found by registration itself.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from plexus.activation import MARK, MethodMark
from plexus.principal import READ
from plexus.registry.activation_tree import NAME_LENGTH
from plexus.registry.signature import MethodSpec
from substrate.devtools.source_location import (
    SourceLocation,
    location_of_class,
    location_of_function,
)

__all__ = ("Finding", "Level", "check_methods")

Level: TypeAlias = Literal["error", "warning"]

#: What Claude Code shows of a description; the rest is cut off without a word.
DESCRIPTION_BYTES: Final = 2048
#: From here on models choose worse and some hosts take no more; each definition costs context too.
TOOLS: Final = 40
#: Calls that change files, whatever they are called on.
WRITES: Final = frozenset({"mkdir", "rmdir", "touch", "unlink", "write_bytes", "write_text"})
#: Calls that do in these modules.
MODULE_WRITES: Final = {
    "os": {"remove", "unlink", "rmdir", "mkdir", "makedirs", "rename", "replace", "truncate"},
    "shutil": {"rmtree", "move", "copy", "copy2", "copyfile", "copytree"},
}
#: First words of the names of methods that hardly only read.
WRITING: Final = frozenset(
    {
        *("add", "append", "archive", "clean", "clear", "create", "delete", "drop", "edit"),
        *("erase", "insert", "kill", "move", "purge", "put", "remove", "rename", "reset"),
        *("save", "send", "set", "store", "update", "upload", "write"),
    }
)


class Finding(NamedTuple):
    """Something to put right."""

    level: Level
    rule: str
    #: What it is about: a method, an event, a source.
    subject: str
    message: str
    #: What to do about it.
    advice: str
    place: SourceLocation | None


Rule: TypeAlias = Callable[[MethodSpec], Iterable[Finding]]


def check_methods(methods: Sequence[MethodSpec], server: str) -> list[Finding]:
    """All that the rules find; `server` is what a host calls the server."""
    found: list[Finding] = []
    for spec in methods:
        found += _check_length(spec, server)
        for rule in RULES:
            found += rule(spec)
    found += _check_events(methods)
    found += _check_number(methods)
    return found


def _of(spec: MethodSpec, level: Level, rule: str, message: str, advice: str) -> Finding:
    return Finding(level, rule, spec.name, message, advice, location_of_function(spec.function))


# --- names ----------------------------------------------------------------------------------------


def _check_length(spec: MethodSpec, server: str) -> Iterator[Finding]:
    if not spec.listed:
        return
    whole = f"mcp__{server}__{spec.name}"
    if len(whole) > NAME_LENGTH:
        yield _of(
            spec,
            "error",
            "name-length",
            f"hosts call it {whole}, which is {len(whole)} characters; {NAME_LENGTH} is the most",
            f"make its name shorter by {len(whole) - NAME_LENGTH}, or that of the server",
        )


def _check_underscores(spec: MethodSpec) -> Iterator[Finding]:
    parts = spec.name.split(".")
    if "__" in spec.name or any(part.endswith("_") for part in parts):
        yield _of(
            spec,
            "error",
            "name-underscores",
            "hosts put `__` between the names of a server and a tool, and would part it there",
            "use single underscores, and none at the end of a name",
        )


# --- descriptions ---------------------------------------------------------------------------------


def _check_description(spec: MethodSpec) -> Iterator[Finding]:
    size = len(spec.description.encode())
    if size > DESCRIPTION_BYTES:
        yield _of(
            spec,
            "error",
            "description-length",
            f"its description is {size} bytes; Claude Code cuts it off at {DESCRIPTION_BYTES}",
            "say what a model must know first, and move the rest into `Args:` or the README",
        )
    if not spec.description:
        yield _of(
            spec,
            "error",
            "description-missing",
            "its docstring has nothing but arguments, so nobody knows what it does",
            "begin the docstring with a sentence that says what it does",
        )


def _check_parameters(spec: MethodSpec) -> Iterator[Finding]:
    if spec.given_schema is not None or spec.role == "resource":
        return
    for parameter in spec.parameters:
        # What nobody has described is described by its own name.
        if parameter.description != parameter.name.replace("_", " "):
            continue
        if any(getattr(each, "description", None) for each in _annotations(parameter.hint)):
            continue
        yield Finding(
            "warning",
            "parameter-undocumented",
            f"{spec.name}({parameter.name})",
            "models have only its name to go by",
            f"add `{parameter.name}: ...` to an `Args:` section of the docstring",
            location_of_function(spec.function, parameter.name),
        )


def _annotations(hint: Any) -> tuple[Any, ...]:
    return getattr(hint, "__metadata__", ())


# --- what it may do -------------------------------------------------------------------------------


def _mark(spec: MethodSpec) -> MethodMark:
    mark: MethodMark = getattr(spec.function, MARK)
    return mark


def _check_scope(spec: MethodSpec) -> Iterator[Finding]:
    if spec.role != "method":
        return
    hints, explicit = spec.hints, _mark(spec).scope or type(spec.owner).scope
    if hints.read_only and hints.destructive:
        yield _of(
            spec,
            "error",
            "write-marked-read",
            "it says both that it changes nothing and that it may delete or overwrite",
            "leave one of read_only and destructive out",
        )
    elif not hints.read_only and explicit == READ:
        yield _of(
            spec,
            "error",
            "write-marked-read",
            f"its scope is {READ!r}, which everybody has, and it does not say that it only reads",
            "mark it read_only=True if it changes nothing, else give it a scope of its own",
        )
    elif hints.read_only is None and hints.destructive is None:
        yield _of(
            spec,
            "warning",
            "hints-missing",
            "it does not say whether it changes anything, so hosts take it for the worst",
            "mark it read_only=True, or destructive=True or False",
        )
    elif not hints.read_only and not explicit:
        yield _of(
            spec,
            "warning",
            "scope-missing",
            f"it changes things, and has no scope but that of its namespace, {spec.scope!r}",
            f'say what a caller must have: @method(scope="{spec.scope}.write"), or `scope` in '
            "the class",
        )


def _check_writes(spec: MethodSpec) -> Iterator[Finding]:
    if not spec.hints.read_only or spec.role != "method":
        return
    place = location_of_function(spec.function)
    for call, line in _calls(spec.function):
        yield Finding(
            "warning",
            "write-marked-read",
            spec.name,
            f"it is marked read_only, and calls {call}",
            "leave read_only out, if that changes what others see",
            None if place is None else SourceLocation(place.file, line),
        )
        return
    verb = spec.name.rpartition(".")[2].partition("_")[0]
    if verb in WRITING:
        yield _of(
            spec,
            "warning",
            "write-marked-read",
            f"it is marked read_only, and its name says {verb!r}",
            "leave read_only out, or give it a name that says what it reads",
        )


def _calls(function: Callable[..., Any]) -> Iterator[tuple[str, int]]:
    """The calls in a function that change files, and their lines."""
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


# --- all of them ----------------------------------------------------------------------------------


def _check_events(methods: Sequence[MethodSpec]) -> Iterator[Finding]:
    """Each event once, however many methods yield it."""
    for event in {event: None for spec in methods for event in spec.events}:
        if not event.terminal and not event.has_text and event.fields:
            yield Finding(
                "warning",
                "event-without-text",
                event.__name__,
                "it does not say how a person would read it, so its fields are shown as JSON",
                "give it `def as_text(self) -> str`, or `as_line` if it is only progress",
                location_of_class(event),
            )


def _check_number(methods: Sequence[MethodSpec]) -> Iterator[Finding]:
    tools = [spec for spec in methods if spec.listed and spec.role == "method"]
    if len(tools) > TOOLS:
        yield Finding(
            "warning",
            "too-many-tools",
            f"{len(tools)} methods",
            f"models choose worse among more than {TOOLS} tools, and each costs context",
            "join methods that differ in one argument, or mark some listed=False",
            location_of_class(type(tools[0].owner)),
        )


RULES: Final[tuple[Rule, ...]] = (
    _check_underscores,
    _check_description,
    _check_parameters,
    _check_scope,
    _check_writes,
)
