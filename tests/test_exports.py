"""`__all__` of every module is complete, exact and sorted."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from pathlib import Path

import pytest

import plexus

ROOT = Path(__file__).parents[1]
PACKAGES = ("plexus", "activations", "mcp_view", "native_rpc", "substrate")

#: Programs that are run by their path and never imported.
PROGRAMS = {"activations.processes.supervisor", "activations.templates.render_worker"}
#: Public names that only their own module uses. Any other name must be exported. The modules of
#: the program are not checked for this, because they are not imported by authors.
NOT_OFFERED = {
    "activations.analysis.worker.program": {"Worker"},
    "activations.evaluate.worker.program": {"Worker"},
    "plexus.runtime.pump": {"Pace"},
    "plexus.rpc.event_encoder": {"EventEncoders"},
    "activations.health": {"LoadReport", "Probe", "Report", "SkippedPlugin", "Status"},
    "native_rpc.client.http": {"HttpResponse"},
    "native_rpc.framing": {"EventStream", "Lines", "Messages"},
}


def public_modules() -> list[str]:
    """Return every public module of the packages."""
    names = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[-1] == "__main__" or any(part.startswith("_") for part in parts[:-1]):
                continue
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return [name for name in names if name not in PROGRAMS]


def text_of(name: str) -> str:
    path = ROOT.joinpath(*name.split("."))
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()


@cache
def source_of(name: str) -> ast.Module:
    return ast.parse(text_of(name))


def exported(tree: ast.Module) -> list[str] | None:
    """Return the names in `__all__`, which must be a literal tuple."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            assert isinstance(node.value, ast.Tuple), "__all__ is a tuple"
            return [ast.literal_eval(element) for element in node.value.elts]
    return None


def defined(tree: ast.Module) -> set[str]:
    """Return the public functions and classes that the module defines."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return {n.name for n in tree.body if isinstance(n, kinds) and not n.name.startswith("_")}


# By the text, because every worker collects the tests, and only one of them runs these.
WITH_EXPORTS = [name for name in public_modules() if "\n__all__ = " in text_of(name)]


@pytest.mark.parametrize("name", WITH_EXPORTS)
def test_everything_exported_is_there_once_and_in_order(name: str) -> None:
    names = exported(source_of(name))
    assert names is not None
    module = importlib.import_module(name)
    for each in names:
        assert hasattr(module, each), each
    assert len(set(names)) == len(names)
    # Constants, then classes, then functions, each by name: the order of ruff.
    assert names == sorted(names, key=lambda each: (rank(each), each))


def rank(name: str) -> int:
    if name.isupper():
        return 0
    return 1 if name[0].isupper() else 2


@pytest.mark.parametrize("name", public_modules())
def test_a_module_that_defines_something_exports_something(name: str) -> None:
    tree = source_of(name)
    if defined(tree):
        assert exported(tree), f"{name} has no __all__"


@pytest.mark.parametrize("name", [n for n in WITH_EXPORTS if not n.startswith("substrate")])
def test_nothing_public_is_missing(name: str) -> None:
    tree = source_of(name)
    missing = defined(tree) - set(exported(tree) or ()) - NOT_OFFERED.get(name, set())
    assert missing == set()


@pytest.mark.parametrize("name", NOT_OFFERED)
def test_every_name_that_is_not_exported_exists(name: str) -> None:
    tree = source_of(name)
    assert NOT_OFFERED[name] <= defined(tree) - set(exported(tree) or ())


@cache
def used_from_outside() -> dict[str, set[str]]:
    """Return the names that our modules import from each other, by the imported module."""
    used: dict[str, set[str]] = {}
    for name in public_modules():
        for node in ast.walk(source_of(name)):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    used.setdefault(node.module, set()).add(alias.name)
    return used


@pytest.mark.parametrize("name", WITH_EXPORTS)
def test_what_others_import_from_a_module_is_exported(name: str) -> None:
    tree = source_of(name)
    wanted = used_from_outside().get(name, set()) & defined(tree)
    assert wanted <= set(exported(tree) or ())


def test_the_package_offers_what_an_author_needs() -> None:
    for name in plexus.__all__:
        assert getattr(plexus, name) is not None
    needed = {"Activation", "Content", "Context", "Event", "Plexus", "method", "Confirm", "Failed"}
    assert needed <= set(plexus.__all__)
    assert len(plexus.__all__) <= 41, "import names that authors do not need from their module"

    assert plexus.__version__ == importlib.import_module("plexus.version").__version__


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_that_it_is_typed(package: str) -> None:
    if list((ROOT / package).rglob("*.py")):
        assert (ROOT / package / "py.typed").is_file()
