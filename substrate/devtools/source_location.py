"""Source locations of classes, functions and errors, for messages to authors.

Lines are read from the current file, and not from Python's cache: a file that is being edited
changes after it was loaded.
"""

from __future__ import annotations

import ast
import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from plexus.activation import Activation

__all__ = (
    "SourceLocation",
    "display_path",
    "location_of_activation",
    "location_of_class",
    "location_of_error",
    "location_of_function",
    "outline",
)

#: How registration errors begin: the class or namespace, usually the method, sometimes the
#: argument.
SUBJECT = re.compile(r"(\w+)(?:\.(\w+))?: (?:argument '(\w+)')?")


class SourceLocation(NamedTuple):
    """A line of a file."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{display_path(self.file)}:{self.line}"


def display_path(file: Path) -> str:
    """Return a path relative to the current folder, if it is inside it."""
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)


def outline(file: Path) -> dict[str, int]:
    """Return the line of every class, function and argument in a file; empty if it cannot be read.

    Keys are as in `Words`, `Words.count` and `Words.count.path`.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    return dict(_named(tree, ""))


def _named(node: ast.AST, path: str) -> Iterator[tuple[str, int]]:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{path}{inner.name}"
            yield name, inner.lineno
            if not isinstance(inner, ast.ClassDef):
                arguments = (*inner.args.posonlyargs, *inner.args.args, *inner.args.kwonlyargs)
                yield from ((f"{name}.{each.arg}", each.lineno) for each in arguments)
            yield from _named(inner, f"{name}.")
        else:
            yield from _named(inner, path)


def location_of_class(cls: type) -> SourceLocation | None:
    """Return where a class is defined; None if not in a file."""
    try:
        file = Path(inspect.getfile(cls))
    except (OSError, TypeError):
        return None
    line = outline(file).get(cls.__qualname__.replace("<locals>.", ""))
    return None if line is None else SourceLocation(file, line)


def location_of_activation(activation: Activation | type[Activation]) -> SourceLocation | None:
    """Where an activation is written: its class, or the first of its functions."""
    if isinstance(activation, type) or type(activation) is not Activation:
        return location_of_class(activation if isinstance(activation, type) else type(activation))
    first = next(iter(activation.functions), None)
    return None if first is None else location_of_function(first)


def location_of_function(function: Callable[..., Any], argument: str = "") -> SourceLocation | None:
    """Return where a function, or one of its arguments, is defined; None if not in a file."""
    bare = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(bare, "__code__", None)
    if code is None:
        return None
    file = Path(code.co_filename)
    lines = outline(file)
    name = code.co_qualname.replace("<locals>.", "")
    line = lines.get(f"{name}.{argument}") or lines.get(name)
    return None if line is None else SourceLocation(file, line)


def location_of_error(error: BaseException, files: Iterable[Path]) -> SourceLocation | None:
    """Return the line of these files that caused the error, if it can be determined."""
    known = {file.resolve(): file for file in files}
    for each in _causes(error):
        if isinstance(each, SyntaxError) and each.filename and each.lineno:
            return SourceLocation(Path(each.filename), each.lineno)
        frames = traceback.extract_tb(each.__traceback__)
        for frame in reversed(frames):
            file = Path(frame.filename).resolve()
            if file in known and frame.lineno is not None:
                return SourceLocation(known[file], frame.lineno)
    return _location_of_subject(str(error), known.values())


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the chain of causes, the root cause first."""
    if error is not None:
        yield from _causes(error.__cause__)
        yield error


def _location_of_subject(message: str, files: Iterable[Path]) -> SourceLocation | None:
    """Return the line that a registration error refers to."""
    subject = SUBJECT.match(message)
    if subject is None:
        return None
    cls, function, argument = subject.groups()
    for file in files:
        lines = outline(file)
        methods = (f"{cls}.{function}.{argument}", f"{cls}.{function}", cls)
        functions = (f"{function}.{argument}", f"{function}")
        for name in (*methods, *functions):
            if name in lines:
                return SourceLocation(file, lines[name])
    return None
