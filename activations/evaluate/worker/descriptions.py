"""Descriptions of exceptions, variables, names and modules."""

from __future__ import annotations

import ast
import builtins
import inspect
import keyword
import reprlib
import sys
import traceback
import types

from .text import clean, cut, kind_of, message_of

TYPE_CHECKING = False  # `typing` would add to the start
if TYPE_CHECKING:
    from typing import Any

__all__ = (
    "complete",
    "describe_error",
    "describe_module",
    "describe_name",
    "describe_value",
    "list_variables",
)

ERROR_CHARACTERS = 20_000
PREVIEW_CHARACTERS = 200
MAX_VARIABLES = 1000
MAX_MATCHES = 200
MAX_FRAMES = 30
SOURCE_CHARACTERS = 20_000
#: The file name of this program, whose frames are left out of tracebacks.
OWN_FILE = "<substrate worker>"


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return an exception with a traceback that begins in the code of the caller."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == OWN_FILE:
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        trace = None
    try:
        lines = traceback.format_exception(type(error), error, trace, limit=-MAX_FRAMES)
    except Exception:
        lines = [f"{type(error).__name__}\n"]
    lines = [line for line in lines if OWN_FILE not in line]
    return {
        "name": type(error).__name__,
        "value": cut(message_of(error), ERROR_CHARACTERS),
        "traceback": cut("".join(lines), ERROR_CHARACTERS),
    }


def describe_value(value: Any) -> dict[str, Any]:
    """Return the type, the shape or length, and a preview of a value."""
    found: dict[str, Any] = {"type": kind_of(value)}
    if not isinstance(value, type):
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple) and all(isinstance(each, int) for each in shape):
            found["shape"] = list(shape)
        elif isinstance(value, (str, bytes, list, tuple, dict, set, frozenset)):
            found["length"] = len(value)
    preview = reprlib.Repr()
    preview.maxstring = preview.maxother = PREVIEW_CHARACTERS
    try:
        found["preview"] = clean(preview.repr(value).replace("\n", " ")[:PREVIEW_CHARACTERS])
    except Exception as error:
        found["preview"] = f"<its representation raises {type(error).__name__}>"
    return found


def list_variables(variables: dict[str, Any], hidden: set[str], limit: int) -> dict[str, Any]:
    """Return the variables, without modules and names with an underscore."""
    found: list[dict[str, Any]] = []
    total = 0
    for name in sorted(variables):
        value = variables.get(name)  # the code that runs may just have deleted it
        if name.startswith("_") or name in hidden or isinstance(value, types.ModuleType):
            continue
        total += 1
        if len(found) < min(limit, MAX_VARIABLES):
            found.append({"name": name, **describe_value(value)})
    return {"variables": found, "total": total}


def describe_name(variables: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what is known of a variable, an attribute or a function."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        raise NameError(f"{name!r} is not a name; give a variable such as df, or df.columns")
    if parts[0] in variables:
        value = variables[parts[0]]
    elif hasattr(builtins, parts[0]):
        value = getattr(builtins, parts[0])
    else:
        raise NameError(f"name {parts[0]!r} is not defined")
    for part in parts[1:]:
        value = getattr(value, part)
    found = {"name": name, **describe_value(value)}
    found["doc"] = cut(inspect.getdoc(value) or "", SOURCE_CHARACTERS) or None
    for key, read in (("signature", _signature), ("source", _source), ("file", _file)):
        found[key] = read(value)
    return found


def complete(variables: dict[str, Any], code: str, cursor: int) -> dict[str, Any]:
    """Return names that continue the code before the cursor."""
    before = code[:cursor]
    start = len(before)
    while start and (before[start - 1].isalnum() or before[start - 1] in "._"):
        start -= 1
    text = before[start:]
    head, dot, prefix = text.rpartition(".")
    if dot:
        value = variables.get(head.split(".")[0], getattr(builtins, head.split(".")[0], None))
        for part in head.split(".")[1:]:
            value = getattr(value, part)
        names = dir(value)
    else:
        prefix = text
        names = [*variables, *dir(builtins), *keyword.kwlist]
    matches = sorted({name for name in names if name.startswith(prefix)})
    if not prefix.startswith("_"):
        matches = [name for name in matches if not name.startswith("_")]
    return {"matches": matches[:MAX_MATCHES], "start": cursor - len(prefix), "end": cursor}


def describe_module(name: str) -> dict[str, Any]:
    """Return what a module is, from its source, without importing it."""
    import importlib.util

    if not all(part.isidentifier() for part in name.split(".")):
        raise NameError(f"{name!r} is not the name of a module")
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}")
    found: dict[str, Any] = {"name": name, "file": spec.origin, "doc": None}
    found.update(package=spec.submodule_search_locations is not None, classes=[], functions=[])
    source = None
    if spec.origin and spec.origin.endswith(".py"):
        with open(spec.origin, "rb") as file:
            source = file.read()
    elif name in sys.builtin_module_names:
        found["doc"] = inspect.getdoc(sys.modules.get(name))
    if source is not None:
        tree = ast.parse(source)
        found["doc"] = ast.get_docstring(tree)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                methods = [each for each in node.body if isinstance(each, _FUNCTIONS)]
                names = [each.name for each in methods if not each.name.startswith("_")]
                found["classes"].append({**_outline(node), "methods": names})
            elif isinstance(node, _FUNCTIONS):
                found["functions"].append(_outline(node))
    return found


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _outline(node: Any) -> dict[str, Any]:
    doc = ast.get_docstring(node) or ""
    return {"name": node.name, "line": node.lineno, "doc": doc.partition("\n")[0]}


def _signature(value: Any) -> str | None:
    try:
        return str(inspect.signature(value)) if callable(value) else None
    except (TypeError, ValueError):
        return None


def _source(value: Any) -> str | None:
    try:
        return cut(inspect.getsource(value), SOURCE_CHARACTERS)
    except (TypeError, OSError):
        return None


def _file(value: Any) -> str | None:
    try:
        return inspect.getsourcefile(value)
    except TypeError:
        return None
