"""Where in a source file something stands, so that a person can go there.

Lines are read from the file as it is now, and not from what Python remembers of it: a file that
is being written changes under a program that has loaded it.
"""

from __future__ import annotations

import ast
import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

__all__ = (
    "SourceLocation",
    "location_of_class",
    "location_of_error",
    "location_of_function",
    "outline",
    "shown",
)

#: How registration names what is wrong: the class, mostly the method, sometimes the argument.
SUBJECT = re.compile(r"(\w+)(?:\.(\w+))?: (?:argument '(\w+)')?")


class SourceLocation(NamedTuple):
    """A line of a file."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{shown(self.file)}:{self.line}"


def shown(file: Path) -> str:
    """A path as a person in the current folder would write it."""
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)


def outline(file: Path) -> dict[str, int]:
    """The line of every class (`Words`), function (`Words.count`) and argument of one
    (`Words.count.path`); nothing if the file cannot be read."""
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
    """Where a class is written; None if that is in no file."""
    try:
        file = Path(inspect.getfile(cls))
    except (OSError, TypeError):
        return None
    line = outline(file).get(cls.__qualname__.replace("<locals>.", ""))
    return None if line is None else SourceLocation(file, line)


def location_of_function(function: Callable[..., Any], argument: str = "") -> SourceLocation | None:
    """Where a function, or an argument of it, is written; None if that is in no file."""
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
    """The line of these files that is to blame, as far as it can be told."""
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
    """The first cause first: the later ones only say what came of it."""
    if error is not None:
        yield from _causes(error.__cause__)
        yield error


def _location_of_subject(message: str, files: Iterable[Path]) -> SourceLocation | None:
    """The line that a message of registration is about."""
    subject = SUBJECT.match(message)
    if subject is None:
        return None
    cls, function, argument = subject.groups()
    for file in files:
        lines = outline(file)
        for name in (f"{cls}.{function}.{argument}", f"{cls}.{function}", cls):
            if name in lines:
                return SourceLocation(file, lines[name])
    return None
