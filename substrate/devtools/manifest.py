"""`python -m substrate.devtools.manifest`: write the manifest of the built-in activations.

Run it after a change of `plexus` or `activations`; with `--check` it only says whether the
manifest is up to date, by its exit code. It runs in a process of its own, so that the modules that
are imported here are those that the descriptions are made from.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from plexus.registry.lazy import Manifest, dump_manifest
from plexus.runtime.hub import Plexus
from substrate.build_hub import MANIFEST, ROOT, built_ins
from substrate.settings import Settings

__all__ = ("make_manifest",)

COMMAND = "python -m substrate.devtools.manifest"
#: What activations are made of.
PACKAGES = ("activations", "plexus")


def make_manifest() -> str:
    """Return the text of the manifest, made from the classes themselves."""
    nodes = built_ins(Plexus(), Settings(), Path("/nowhere"), Manifest({}))
    return dump_manifest(nodes, _sources(), ROOT)


def _sources() -> Iterator[Path]:
    """The files of the modules that are imported by now."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES and module.__file__ is not None:
            yield Path(module.__file__)


def main() -> int:
    """Write or check the manifest."""
    text = make_manifest()
    current = MANIFEST.read_text() if MANIFEST.exists() else ""
    if text == current:
        return 0
    if "--check" in sys.argv[1:]:
        sys.stderr.write(f"{MANIFEST.name} is stale: run {COMMAND}\n")
        return 1
    MANIFEST.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
