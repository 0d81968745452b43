"""The imports between packages, including indented and lazy ones, follow the layers.

plexus       imports none of ours; only plexus.storage imports plexus.storage
activations  import plexus; activations.gateway imports mcp_view.client
mcp_view     imports plexus
native_rpc   imports plexus
substrate    imports all

Only `plexus/registry/lazy.py` imports our own code by name. A string "package.module:attribute"
passed to it counts as an import by the module that contains the string.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

ARROWS: dict[str, set[str]] = {
    "plexus": set(),
    "activations": {"plexus"},
    "mcp_view": {"plexus"},
    "native_rpc": {"plexus"},
    "substrate": {"plexus", "activations", "mcp_view", "native_rpc"},
}

#: Imports between activations; otherwise they call each other with `ctx.call`.
BETWEEN_ACTIVATIONS = {
    "analysis": {"processes"},
    "bash": {"processes"},
    "chat": {"arbor", "processes"},
    "evaluate": {"processes"},
    "templates": {"processes"},
    "gateway": {"processes"},
    "ide": {"processes"},
}
#: Imports that no arrow allows: a package, and the part of another that it may import.
EXCEPTIONS = {"activations.gateway": ("mcp_view.client",)}
#: Parts of a package that the rest of the package does not import.
APART = ("plexus.storage",)

#: Functions that import a module by name.
IMPORTERS = {"__import__", "exec_module", "import_module", "load_module", "run_module", "run_path"}
#: Modules that may import more than a third-party package by a literal name.
DYNAMIC = {
    "plexus.registry.lazy": "the only module that imports our own code by name",
    "plexus.registry.plugins": "plugins, named by the operator",
    "activations.analysis.worker.syntax_tables": "the grammars of tree-sitter, named by a table",
    "activations.evaluate.worker.forms": "it changes how pyplot is loaded, in another process",
}
#: A string that `plexus.registry.lazy` imports.
REFERENCE = re.compile(r"(?:plexus|activations|mcp_view|native_rpc|substrate)(?:\.\w+)*:\w+")

#: Third-party packages that only some of our modules may import.
KEPT_TO = {
    "orjson": ("plexus.rpc.wire", "plexus.rpc.event_encoder", "plexus.rpc.json_values"),
    # The structures of events, of limits and of settings.
    "msgspec": (
        "plexus.event_class",
        "plexus.events",
        "plexus.limits",
        "plexus.rpc.event_encoder",
        "substrate",
    ),
    # Programs that run without our packages.
    "json": (
        "activations.analysis.worker",
        "activations.evaluate.worker",
        "activations.templates.render_worker",
    ),
    "jinja2": ("activations.templates.render_worker",),  # never in the process of the server
    "starlette": ("substrate",),
    "uvicorn": ("substrate",),
    "click": ("substrate",),
    "rich": ("substrate",),
}

#: Modules without an event loop, a clock or a socket.
SANS_IO = ("native_rpc.protocol", "native_rpc.framing", "mcp_view")
IO = {"anyio", "asyncio", "starlette", "uvicorn", "websockets", "socket", "time", "random"}

#: Modules that may catch `Exception` or more: how often, and why.
BROAD_EXCEPTS = {
    "plexus.storage.daemon_threads": (1, "the error is raised to the caller of the thread"),
    "substrate.cli.event_loop": (1, "an interrupt closes the loop, and is raised again"),
    "substrate.run_store.flush_writer": (1, "a defect in one flush must not end recording"),
    "plexus.runtime.pump": (6, "the boundary where an exception becomes a terminal"),
    "activations.gateway.calls": (1, "a session is released, and the exception raised again"),
    "plexus.registry.plugins": (
        2,
        "a plugin's module may raise anything while it is imported",
    ),
    "activations.fastmcp_server": (1, "the exception of another thread is raised to its caller"),
    "plexus.runtime.lifespans": (3, "a plugin's class may raise anything in its hooks"),
    "plexus.runtime.threads": (
        2,
        "the exception of a function is raised to its caller, that of the loop in the thread",
    ),
    "substrate.run_store.requests": (1, "a request of another process is answered in any case"),
    "substrate.server.embedded": (1, "the server that runs the application reports it"),
    "plexus.errors": (1, "an author's exception may raise anything when it is shown as text"),
    "plexus.caller_connection": (1, "a failed listener must not keep the end from the others"),
    "plexus.runtime.watched_resources": (
        1,
        "a failed listener must not keep a client from leaving",
    ),
    "plexus.runtime.calls": (1, "an author's validator may raise anything"),
    "plexus.registry.parameters": (
        1,
        "copying a plugin's default may raise anything",
    ),
    "plexus.registry.schema": (1, "an author's default factory may raise anything"),
    "plexus.registry.activation_tree": (
        3,
        "a plugin's class or type may raise anything when instantiated or described",
    ),
    "plexus.registry.lazy": (1, "an import or a constructor may raise anything at the first call"),
    "plexus.runtime.runs": (3, "a recorder or observer of runs must not change how they end"),
    "plexus.registry.catalogue": (1, "a plugin's list may fail; the lists of the others are shown"),
    "activations.health": (1, "the exception of a health check is its result"),
    "plexus.storage.postgres.writer": (1, "the exception of a job is raised to its caller"),
    "plexus.storage.sqlite.workers": (1, "the exception of a job is raised to its caller"),
    "activations.analysis.worker.complexity": (2, "a parser of any code may raise anything"),
    "activations.bash.activation": (
        1,
        "the process is killed first, then the exception is re-raised",
    ),
    "activations.evaluate.session": (1, "an evaluation is left in order, then it is raised again"),
    "activations.evaluate.worker_process": (1, "the process is closed, then it is raised again"),
    "activations.evaluate.worker.descriptions": (2, "a value may raise anything when it is shown"),
    "activations.evaluate.worker.forms": (1, "a value may raise anything when it is shown"),
    "activations.evaluate.worker.program": (2, "executes any code, and reports what it raises"),
    "activations.evaluate.worker.text": (1, "an exception may raise anything when it is shown"),
    "activations.gateway.connector": (1, "the program is ended first, then it is raised again"),
    "activations.gateway.session_pool": (
        2,
        "the call or the session is released first, then the exception is re-raised",
    ),
    "activations.gateway.transports.streamable_http": (
        1,
        "an exception of a library fails the request, which would otherwise wait for its timeout",
    ),
    "activations.gateway.transports.token_store": (1, "a keyring's backend may raise anything"),
    "activations.processes.process": (
        1,
        "descriptors are closed first, then the exception is re-raised",
    ),
    "substrate.server.ide.endpoint": (
        1,
        "the lock file is removed first, then the exception is re-raised",
    ),
    "activations.templates.project_folder": (
        1,
        "the draft is removed first, then the exception is re-raised",
    ),
    "activations.templates.render_worker": (2, "a template may raise anything, as may its values"),
    "activations.processes.supervisor": (1, "a guard must never return into the supervisor's loop"),
    "activations.chat.providers.keys": (1, "any exception of a keyring means that it has no key"),
    "substrate.server.mailbox": (1, "a failed listener must not keep messages from the others"),
    "substrate.security.credential_watch": (
        2,
        "a credential that cannot be checked is invalid; every stream is closed",
    ),
    "mcp_view.protocol": (
        1,
        "a handler's defect: its request and the rest of its batch are answered",
    ),
    "substrate.connection_tasks": (1, "a defect of the run store: the request is answered"),
    "substrate.driver": (4, "a view's defect: the request is answered nevertheless"),
    "substrate.server.app": (
        2,
        "a route's defect: the request is answered if that is still possible",
    ),
    "substrate.server.direct_calls": (2, "the error boundary of the app answers the request"),
    "substrate.run_store.redaction": (1, "an author's value may raise anything when it is read"),
    "native_rpc.client.call": (3, "the call is left first, then the exception is re-raised"),
}


@dataclasses.dataclass(frozen=True)
class Import:
    """An import of a module."""

    line: int
    #: The full name of the imported module.
    target: str
    inside_function: bool
    for_type_checking: bool
    #: Whether `plexus.registry.lazy` performs it at first use.
    late: bool = False

    @property
    def package(self) -> str:
        return self.target.partition(".")[0]


@dataclasses.dataclass(frozen=True)
class Module:
    """A module with its syntax tree."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    @property
    def parent(self) -> str:
        """The package that a relative import starts from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


def modules_of(root: Path) -> dict[str, Module]:
    modules = {}
    for package in ARROWS:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modules[name] = Module(name, path, ast.parse(path.read_text(), str(path)))
    return modules


def imports_of(module: Module, known: dict[str, Module]) -> list[Import]:
    """Return every import of a module; `from package import module` imports the module."""
    found: list[Import] = []

    def visit(node: Any, inside_function: bool, for_type_checking: bool) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inside_function = True
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                visit(child, inside_function, True)
            for child in node.orelse:
                visit(child, inside_function, for_type_checking)
            return
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.parent.split(".")[: len(module.parent.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            inner = [f"{base}.{alias.name}" for alias in node.names]
            targets = [full if full in known else base for full in inner]
        elif isinstance(node, ast.Constant) and REFERENCE.fullmatch(str(node.value)):
            target = str(node.value).partition(":")[0]
            found.append(Import(node.lineno, target, False, False, late=True))
        found.extend(
            Import(node.lineno, target, inside_function, for_type_checking)
            for target in dict.fromkeys(targets)
        )
        for inner_node in ast.iter_child_nodes(node):
            visit(inner_node, inside_function, for_type_checking)

    visit(module.tree, False, False)
    return found


def dynamic_imports(module: Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of every import by name.

    The name is a literal or a constant of the module, and empty for any other expression.
    """
    constants = {
        ast.unparse(target): node.value
        for node in module.tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name | ast.Attribute | ast.alias) and _last(node) in IMPORTERS:
            yield getattr(node, "lineno", 0), _argument(module.tree, node, constants)


def _last(node: ast.Name | ast.Attribute | ast.alias) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else node.name


def _argument(tree: ast.Module, function: ast.AST, constants: dict[str, ast.expr | None]) -> str:
    """Return the first argument of a function's call if it is a string, else an empty string."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and call.func is function and call.args:
            first: ast.expr | None = call.args[0]
            if isinstance(first, ast.Name):
                first = constants.get(first.id)
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                return first.value
    return ""


def within(name: str, owners: tuple[str, ...]) -> bool:
    """Return whether a module is one of these modules, or inside one of these packages."""
    return any(name == owner or name.startswith(f"{owner}.") for owner in owners)


def faults_in(root: Path) -> list[str]:
    """Return all faults of the imports under this folder."""
    known = modules_of(root)
    faults: list[str] = []
    graph: dict[str, set[str]] = {}
    for module in known.values():
        for each in imports_of(module, known):
            where = f"{module.name}:{each.line}: imports {each.target}"
            if each.package in ARROWS:
                allowed = ARROWS[module.package] | {module.package}
                if each.package not in allowed and not is_excepted(module.name, each.target):
                    faults.append(f"{where}, which is not allowed by the layers")
                if each.late and each.target not in known:
                    faults.append(f"{where}, which does not exist")
                faults += [f"{where}, {fault}" for fault in inner_faults(module.name, each.target)]
                if each.inside_function:
                    faults.append(f"{where} inside a function")
                if not each.for_type_checking and not each.late:
                    graph.setdefault(module.name, set()).add(each.target)
            keepers = KEPT_TO.get(each.package)
            if keepers is not None and not within(module.name, keepers):
                importers = f"only {keepers}" if keepers else "no module"
                faults.append(f"{where}, which {importers} may import")
            if within(module.name, SANS_IO) and each.package in IO:
                faults.append(f"{where}, though it is sans-IO")
        for line, name in dynamic_imports(module):
            if module.name not in DYNAMIC and (not name or name.partition(".")[0] in ARROWS):
                faults.append(f"{module.name}:{line}: imports {name or 'anything'} by its name")
    faults += [f"a cycle: {' -> '.join(cycle)}" for cycle in cycles_in(graph)]
    return faults


def is_excepted(name: str, target: str) -> bool:
    """Whether a module may import what no arrow allows."""
    return any(
        within(name, (package,)) and within(target, parts) for package, parts in EXCEPTIONS.items()
    )


def inner_faults(name: str, target: str) -> Iterator[str]:
    """What is wrong with an arrow inside a package."""
    for part in APART:
        package = part.partition(".")[0]
        if within(name, (package,)) and within(target, (part,)) and not within(name, (part,)):
            yield f"which is kept apart from the rest of {package}"
    of, to = (f"{each}..".split(".")[:2] for each in (name, target))
    if of[0] == to[0] == "activations" and of[1] and to[1] not in ("", of[1]):  # noqa: SIM102
        if to[1] not in BETWEEN_ACTIVATIONS.get(of[1], ()):
            yield "which is another activation"


def cycles_in(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """Yield the import cycles; the implicit import of a parent package does not count."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> Iterator[list[str]]:
        if name in path:
            yield [*path[path.index(name) :], name]
            return
        if name in done:
            return
        for target in sorted(graph.get(name, ())):
            yield from walk(target, [*path, name])
        done.add(name)

    for name in sorted(graph):
        yield from walk(name, [])


def broad_excepts(module: Module) -> int:
    """Return the number of handlers that catch `Exception` or more."""
    count = 0
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler):
            kinds = "BaseException" if node.type is None else ast.unparse(node.type)
            words = {word.strip("() ") for word in kinds.split(",")}
            count += bool(words & {"Exception", "BaseException"})
    return count


# --- ours ----------------------------------------------------------------------------------------


def test_every_import_follows_the_layers() -> None:
    assert faults_in(ROOT) == []


def test_every_package_is_read() -> None:
    read = Counter(module.package for module in modules_of(ROOT).values())
    for package in ("plexus", "activations", "native_rpc", "substrate"):
        assert read[package] > 1, package


def test_every_broad_except_is_listed() -> None:
    counted = {name: broad_excepts(module) for name, module in modules_of(ROOT).items()}
    allowed = {name: count for name, (count, _) in BROAD_EXCEPTS.items()}
    assert {n: c for n, c in counted.items() if c > allowed.get(n, 0)} == {}


def test_every_exception_is_still_needed() -> None:
    known = modules_of(ROOT)
    assert [name for name in BROAD_EXCEPTS if not broad_excepts(known[name])] == []
    assert [name for name in DYNAMIC if not list(dynamic_imports(known[name]))] == []
    arrows: dict[str, set[str]] = {}
    for module in known.values():
        for each in imports_of(module, known):
            of, to = (f"{name}.".split(".")[:2] for name in (module.name, each.target))
            if of[0] == to[0] == "activations" and to[1] not in ("", of[1]):
                arrows.setdefault(of[1], set()).add(to[1])
    assert arrows == BETWEEN_ACTIVATIONS


# --- the checker ---------------------------------------------------------------------------------

PLANTED = {
    "an import of a higher layer": (
        "plexus/x.py",
        "import substrate.cli.main",
        "not allowed by the layers",
    ),
    "an import between views": (
        "mcp_view/x.py",
        "from native_rpc import errors",
        "not allowed by the layers",
    ),
    "an import of an activation by a view": (
        "mcp_view/x.py",
        "import activations",
        "not allowed by the layers",
    ),
    "an indented import": (
        "plexus/x.py",
        "if True:\n    try:\n        import activations.bash\n    finally:\n        pass",
        "not allowed by the layers",
    ),
    "an import for type checking": (
        "plexus/x.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import substrate",
        "not allowed by the layers",
    ),
    "a lazy import": (
        "plexus/x.py",
        "LATE = {'serve': 'substrate.y:main'}",
        "not allowed by the layers",
    ),
    "a lazy import within a function": (
        "native_rpc/x.py",
        "def f():\n    resolve('mcp_view.y:Y')",
        "not allowed by the layers",
    ),
    "a lazy import of a missing module": ("substrate/x.py", "f('plexus.z:Z')", "does not exist"),
    "an import by name": (
        "substrate/x.py",
        "import importlib\nimportlib.import_module('substrate.y')",
        "imports substrate.y by its name",
    ),
    "an import by the name of a constant": (
        "activations/x.py",
        "import importlib\nY: Final = 'plexus.y'\ndef f():\n    importlib.import_module(Y)",
        "imports plexus.y by its name",
    ),
    "an import by any name": (
        "substrate/x.py",
        "import importlib\ndef f(name):\n    importlib.import_module(name)",
        "imports anything by its name",
    ),
    "an importer that is passed on": (
        "substrate/x.py",
        "import importlib\nasyncio.to_thread(importlib.import_module, 'plexus.y')",
        "imports anything by its name",
    ),
    "an importer under its own name": (
        "substrate/x.py",
        "from importlib import import_module as load",
        "imports anything by its name",
    ),
    "__import__": ("mcp_view/x.py", "__import__('plexus.y')", "imports plexus.y by its name"),
    "a module from a specification": (
        "substrate/x.py",
        "spec.loader.exec_module(module)",
        "imports anything by its name",
    ),
    "storage in the core": ("plexus/x.py", "import plexus.storage.y", "kept apart"),
    "an import between activations": ("activations/bash/x.py", "import activations.y", "another"),
    "a lazy import between activations": (
        "activations/arbor/x.py",
        "resolve('activations.y:Y')",
        "another activation",
    ),
    "orjson": ("native_rpc/x.py", "import orjson", "which only ('plexus.rpc.wire'"),
    "json": (
        "plexus/rpc/wire.py",
        "import json",
        f"which only {KEPT_TO['json']}",
    ),
    "json within a function": (
        "substrate/x.py",
        "def f():\n    from json import dumps",
        f"which only {KEPT_TO['json']}",
    ),
    "click": ("plexus/x.py", "import click", "which only ('substrate'"),
    "starlette": ("activations/x.py", "from starlette.responses import Response", "which only"),
    "a loop": ("native_rpc/protocol.py", "import asyncio", "sans-IO"),
    "a clock in a view": ("mcp_view/x.py", "import time", "sans-IO"),
    "a loop in framing": ("native_rpc/framing.py", "from anyio import sleep", "sans-IO"),
    "an import within a function": (
        "plexus/x.py",
        "def f():\n    from plexus import y",
        "inside a function",
    ),
    "a cycle": ("plexus/x.py", "import plexus.y", "cycle: plexus.x -> plexus.y -> plexus.x"),
    "a relative cycle": ("plexus/x.py", "from . import y", "cycle: plexus.x -> plexus.y"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_the_checker_finds_what_is_planted(kind: str, tmp_path: Path) -> None:
    place, source, fault = PLANTED[kind]
    sources = {f"{package}/__init__.py": "" for package in ARROWS} | {
        "plexus/y.py": "from plexus import x" if "cycle" in kind else "",
        "plexus/storage/y.py": "",
        "activations/y.py": "",
        "mcp_view/y.py": "",
        "substrate/y.py": "",
        place: source,
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    found = faults_in(tmp_path)
    assert len(found) == 1
    assert fault in found[0]


def test_the_checker_accepts_a_clean_tree(tmp_path: Path) -> None:
    for package, arrows in ARROWS.items():
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("".join(f"import {a}\n" for a in arrows))
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from plexus.y import Y\n"
    (tmp_path / "plexus" / "x.py").write_text(typed)
    (tmp_path / "plexus" / "y.py").write_text("from plexus.x import X\nY = X\n")
    others = "import importlib\nK = 'keyring'\nimportlib.import_module(K)\n"
    (tmp_path / "substrate" / "x.py").write_text(others + "resolve('plexus.y:Y')\n")
    assert faults_in(tmp_path) == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("try: pass\nexcept Exception: pass", 1),
        ("try: pass\nexcept: pass", 1),
        ("try: pass\nexcept (OSError, Exception) as e: pass", 1),
        ("try: pass\nexcept BaseException: raise", 1),
        ("try: pass\nexcept (OSError, ExceptionGroup): pass", 0),
    ],
)
def test_the_checker_counts_broad_excepts(source: str, count: int) -> None:
    assert broad_excepts(Module("x", Path("x.py"), ast.parse(source))) == count
