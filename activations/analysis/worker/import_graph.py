"""The imports of Python packages, as grimp reads them.

grimp finds a package by its name, so it runs in another process, in which none of our packages is
imported: the project may have a package with the same name. It reads the files and executes none.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

__all__ = ("read_import_graph",)

#: Seconds for a graph. The command that asked waits longer.
GRAPH_S: Final = 60
#: The folders of the packages come last, so that no file of the project replaces a module.
PROGRAM: Final = """
import importlib.util, json, os, sys
import grimp
folder, names = sys.argv[1], sys.argv[2:]
sys.path.append(folder)
for name in names:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.origin or not os.path.realpath(spec.origin).startswith(
        os.path.join(folder, "")
    ):
        sys.exit(f"the package {name!r} is found elsewhere")
graph = grimp.build_graph(*names, include_external_packages=False, cache_dir=None)
edges = [
    (module, imported)
    for module in sorted(graph.modules)
    for imported in sorted(graph.find_modules_directly_imported_by(module))
]
json.dump({"modules": sorted(graph.modules), "edges": edges}, sys.stdout)
"""

Report = dict[str, Any]


def read_import_graph(root: Path, packages: list[list[str]]) -> Iterator[Report]:
    """Yield the graph of the packages in each folder, or the reason why there is none."""
    by_folder: dict[str, list[str]] = {}
    for folder, name in packages:
        by_folder.setdefault(folder, []).append(name)
    for folder, names in by_folder.items():
        place = str(root / folder) if folder else str(root)
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", PROGRAM, place, *names],
                capture_output=True,
                timeout=GRAPH_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            yield {"op": "absent", "folder": folder, "reason": f"no graph within {GRAPH_S} s"}
            continue
        if done.returncode != 0:
            *_, reason = done.stderr.decode(errors="replace").strip().splitlines() or [
                "grimp failed"
            ]
            yield {"op": "absent", "folder": folder, "reason": reason[:200]}
            continue
        graph = json.loads(done.stdout)
        yield {"op": "graph", "folder": folder, **graph}
