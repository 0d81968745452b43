"""Dependency graphs: imports, calls, inheritance, and all of them between files.

Calls and base classes are resolved by name, without types: a name that is defined in several places
leads to each of them, up to a bound, and what the project does not define is counted as external.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any, Final, Literal

__all__ = ("DagType", "DependencyGraph", "FileSyntax", "build_graph")

DagType = Literal["call-graph", "import-graph", "inheritance", "full-dependency"]

#: Definitions of a name past which a use of it is ambiguous and leads to none.
AMBIGUOUS: Final = 4
#: Edges and cycles of a report, and nodes of its drawing.
SHOWN_EDGES: Final = 500
SHOWN_CYCLES: Final = 20
DRAWN_NODES: Final = 40
#: Characters of a name in a drawing.
LABEL_CHARACTERS: Final = 60
WEB_ENDINGS: Final = (
    ".ts",
    ".tsx",
    ".js",
    ".jsx",
    ".mjs",
    ".cjs",
    ".mts",
    "/index.ts",
    "/index.js",
)

#: The measurements of tree-sitter for each file.
FileSyntax = dict[str, dict[str, Any]]
Edge = tuple[str, str, str]


class DependencyGraph:
    """A graph with the number of uses of each edge."""

    def __init__(self, kind: DagType) -> None:
        self.kind = kind
        self.nodes: set[str] = set()
        self.edges: Counter[Edge] = Counter()
        self.external = 0
        self.ambiguous = 0

    def add(self, source: str, targets: Iterable[str], kind: str, uses: int = 1) -> None:
        """Add a use of a name with these definitions."""
        found = [target for target in targets if target != source or kind == "calls"]
        if len(found) > AMBIGUOUS:
            self.ambiguous += uses
            return
        for target in found:
            self.edges[source, target, kind] += uses
            self.nodes.update((source, target))

    def as_object(self) -> dict[str, Any]:
        """Return the graph as a part of a report: the edges with the most uses, and a drawing."""
        cycles = list(itertools.islice(self.cycles(), SHOWN_CYCLES + 1))
        ordered = sorted(self.edges.items(), key=lambda each: (-each[1], each[0]))
        found: dict[str, Any] = {
            "type": self.kind,
            "nodes": len(self.nodes),
            "edges": len(self.edges),
            "external_uses": self.external,
            "ambiguous_uses": self.ambiguous,
        }
        if self.kind in ("import-graph", "full-dependency"):
            found["cycles"] = cycles[:SHOWN_CYCLES]
        rows = [
            {"from": source, "to": target, "kind": kind, "uses": uses}
            for (source, target, kind), uses in ordered[:SHOWN_EDGES]
        ]
        return found | {"top_edges": rows, "mermaid": self._mermaid()}

    def cycles(self) -> Iterator[list[str]]:
        """Yield the groups of files that import each other, each as sorted names."""
        following: dict[str, list[str]] = defaultdict(list)
        for source, target, kind in sorted(self.edges):
            if kind == "imports":
                following[source].append(target)
        for group in _components(following):
            if len(group) > 1:
                yield sorted(group)

    def _mermaid(self) -> str:
        """Draw the nodes with the most edges."""
        degree: Counter[str] = Counter()
        for source, target, _ in self.edges:
            degree[source] += 1
            degree[target] += 1
        drawn = sorted(degree, key=lambda each: (-degree[each], each))[:DRAWN_NODES]
        numbers = {node: f"n{number}" for number, node in enumerate(drawn)}
        lines = ["graph TD"]
        lines += [f'    {number}["{_label(node)}"]' for node, number in numbers.items()]
        arrows = {
            (numbers[source], numbers[target])
            for source, target, _ in self.edges
            if source in numbers and target in numbers
        }
        lines += [f"    {source} --> {target}" for source, target in sorted(arrows)]
        return "\n".join(lines)


def _label(node: str) -> str:
    kept = "".join(each if each.isalnum() or each in " ._-/:" else "_" for each in node)
    return kept if len(kept) <= LABEL_CHARACTERS else "…" + kept[-LABEL_CHARACTERS:]


def _components(following: dict[str, list[str]]) -> Iterator[list[str]]:
    """Yield the strongly connected components (Tarjan), without recursion."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    for start in sorted(following):
        if start in order:
            continue
        work = [(start, iter(following.get(start, ())))]
        order[start] = low[start] = len(order)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in order:
                    order[target] = low[target] = len(order)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(following.get(target, ()))))
                    break
                if target in on_stack:
                    low[node] = min(low[node], order[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    group = []
                    while True:
                        group.append(stack.pop())
                        on_stack.discard(group[-1])
                        if group[-1] == node:
                            break
                    yield group


def build_graph(
    kind: DagType,
    files: FileSyntax,
    python_edges: list[tuple[str, str]] | None,
    package: tuple[str, ...] = (),
) -> DependencyGraph:
    """Build a graph. `python_edges` are imports between Python files that grimp has read.

    `package` is the name of the Python package that the folder of the project is, if it is one.
    """
    graph = DependencyGraph(kind)
    if kind in ("import-graph", "full-dependency"):
        _add_imports(graph, _Resolver(files, package), files, python_edges)
    if kind in ("call-graph", "full-dependency"):
        _add_calls(graph, files, by_file=kind == "full-dependency")
    if kind in ("inheritance", "full-dependency"):
        _add_bases(graph, files, by_file=kind == "full-dependency")
    return graph


def _add_calls(graph: DependencyGraph, files: FileSyntax, *, by_file: bool) -> None:
    places: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for path, found in files.items():
        for symbol in found["symbols"]:
            name = symbol["name"].rpartition(".")[2]
            places[_family(found["language"]), name].append((path, symbol["name"]))
    for path, found in files.items():
        for caller, callee, uses in found["calls"]:
            known = places.get((_family(found["language"]), callee))
            if known is None:
                graph.external += uses
                continue
            here = [each for each in known if each[0] == path]
            source = path if by_file else f"{path}:{caller or '(module)'}"
            targets = [other if by_file else f"{other}:{name}" for other, name in here or known]
            graph.add(source, targets, "calls", uses)


def _add_bases(graph: DependencyGraph, files: FileSyntax, *, by_file: bool) -> None:
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, found in files.items():
        for symbol in found["symbols"]:
            if symbol["kind"] == "class":
                name = symbol["name"].rpartition(".")[2]
                places[_family(found["language"]), name].append(path)
    for path, found in files.items():
        for name, base, _ in found["bases"]:
            last = re.split(r"[.:]+", base)[-1]
            known = places.get((_family(found["language"]), last))
            source = path if by_file else f"{path}:{name}"
            if known is not None:
                known = [path] if path in known else known
                targets = [other if by_file else f"{other}:{last}" for other in known]
                graph.add(source, targets, "inherits")
            elif by_file:
                graph.external += 1
            else:
                graph.add(source, [f"(external):{base}"], "inherits")


def _add_imports(
    graph: DependencyGraph,
    resolver: _Resolver,
    files: FileSyntax,
    python_edges: list[tuple[str, str]] | None,
) -> None:
    read_by_grimp = {source for source, _ in python_edges or ()}
    for source, target in python_edges or ():
        if target:
            graph.add(source, [target], "imports")
    for path, found in files.items():
        if path in read_by_grimp:
            continue
        for name, _ in found["imports"]:
            targets = resolver.resolve(path, found["language"], name)
            if targets:
                graph.add(path, targets, "imports")
            else:
                graph.external += 1


def _family(language: str) -> str:
    """Return the languages whose files can use each other's names, as one word."""
    return {"tsx": "web", "typescript": "web", "javascript": "web", "cpp": "c"}.get(
        language, language
    )


class _Resolver:
    """Finds the file of the project that an import names."""

    def __init__(self, files: FileSyntax, package: tuple[str, ...]) -> None:
        self._files = files
        self._package = package
        self._by_ending: dict[str, list[str]] = defaultdict(list)
        self._folders: dict[str, list[str]] = defaultdict(list)
        for path in files:
            parts = path.split("/")
            for start in range(max(0, len(parts) - 6), len(parts)):
                self._by_ending["/".join(parts[start:])].append(path)
            for start in range(max(0, len(parts) - 6), len(parts) - 1):
                self._folders["/".join(parts[start:-1])].append(path)

    def resolve(self, path: str, language: str, name: str) -> list[str]:
        """Return the files that an import may mean; empty if the project has none."""
        if language == "python":
            return self._python(path, name)
        if language in ("typescript", "tsx", "javascript"):
            return self._web(path, name) if name.startswith(".") else []
        if language == "rust":
            return self._rust(path, name)
        if language == "go":
            return self._first_of_folder(name.strip('"'))
        if language == "java":
            return self._ending(name.replace(".", "/") + ".java")
        near = _join(PurePosixPath(path).parent, name.strip('"'))
        if name.startswith("<"):
            return []
        return [near] if near in self._files else self._ending(name.strip('"'))

    def _ending(self, ending: str) -> list[str]:
        return self._by_ending.get(ending, [])[: AMBIGUOUS + 1]

    def _python(self, path: str, name: str) -> list[str]:
        dots = len(name) - len(name.lstrip("."))
        parts = name[dots:].split(".") if name[dots:] else []
        if dots:
            folder = PurePosixPath(path).parent
            for _ in range(dots - 1):
                folder = folder.parent
            for count in range(len(parts), -1, -1):
                stem = _join(folder, "/".join(parts[:count])) if count else folder.as_posix()
                for found in (f"{stem}.py", f"{stem}/__init__.py"):
                    if found.removeprefix("./") in self._files:
                        return [found.removeprefix("./")]
            return []
        inner = len(self._package)
        if inner and tuple(parts[:inner]) == self._package:
            for count in range(len(parts), inner - 1, -1):
                stem = "/".join(parts[inner:count])
                for found in (f"{stem}.py", f"{stem}/__init__.py"):
                    if found.lstrip("/") in self._files:
                        return [found.lstrip("/")]
            return []
        for count in range(len(parts), 0, -1):  # the last name may be a member of the module
            stem = "/".join(parts[:count])
            for ending in (f"{stem}.py", f"{stem}/__init__.py"):
                if ending in self._files:
                    return [ending]
                # One name alone is most likely a package of others.
                if count > 1 or f"src/{ending}" in self._files:
                    places = self._ending(ending)
                    if places:
                        return places
        return []

    def _web(self, path: str, name: str) -> list[str]:
        stem = _join(PurePosixPath(path).parent, name)
        # TypeScript names the compiled file, `./a.js` for `a.ts`.
        bare = re.sub(r"\.[cm]?jsx?$", "", stem)
        names = [stem, *(f"{each}{end}" for each in (stem, bare) for end in WEB_ENDINGS)]
        return [each for each in names if each in self._files][:1]

    def _rust(self, path: str, name: str) -> list[str]:
        folder = PurePosixPath(path).parent
        if name.startswith("mod "):
            inner = name.removeprefix("mod ")
            stem = PurePosixPath(path).stem
            own = folder if stem in ("mod", "lib", "main") else folder / stem
            names = (_join(own, f"{inner}.rs"), _join(own, f"{inner}/mod.rs"))
            return [each for each in names if each in self._files]
        parts = re.split(r"::", name.partition("{")[0].strip().removesuffix("::"))
        if parts[0] == "crate":
            root = next((str(p) for p in (folder, *folder.parents) if p.name == "src"), "src")
            base = root
        elif parts[0] in ("self", "super"):
            base = (folder if parts[0] == "self" else folder.parent).as_posix()
        else:
            return []
        for count in range(len(parts), 1, -1):
            stem = "/".join(parts[1:count])
            for found in (f"{base}/{stem}.rs", f"{base}/{stem}/mod.rs"):
                if found.removeprefix("./") in self._files:
                    return [found.removeprefix("./")]
        return []

    def _first_of_folder(self, name: str) -> list[str]:
        parts = name.split("/")
        for start in range(len(parts)):
            if found := self._folders.get("/".join(parts[start:])):
                return sorted(found)[:1]
        return []


def _join(folder: PurePosixPath, name: str) -> str:
    parts: list[str] = []
    for each in (*folder.parts, *name.split("/")):
        if each == ".." and parts:
            parts.pop()
        elif each not in ("", ".", ".."):
            parts.append(each)
    return "/".join(parts)
