"""`python -m substrate.devtools.manifest`: write the manifest of the built-in activations.

Run it after a change of `plexus` or `activations`; with `--check` it only reports by its exit code
whether the manifest is current. It must run in a separate process, because the imported modules are
recorded as the sources of the descriptions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from plexus.registry.lazy import Manifest, dump_manifest
from plexus.runtime.hub import Plexus
from substrate.build_hub import MANIFEST, ROOT, built_ins
from substrate.settings import Settings

__all__ = ("build_manifest",)

COMMAND = "python -m substrate.devtools.manifest"
#: Packages whose modules are sources of activations.
PACKAGES = ("activations", "plexus")


def build_manifest() -> str:
    """Return the text of the manifest, generated from the classes."""
    nodes = built_ins(Plexus(), Settings(), Path("/nowhere"), Manifest({}))
    return dump_manifest(nodes, _sources(), ROOT)


def _sources() -> Iterator[Path]:
    """Yield the files of the modules that are imported at this point."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES and module.__file__ is not None:
            yield Path(module.__file__)


def main() -> int:
    """Write or check the manifest."""
    text = build_manifest()
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
