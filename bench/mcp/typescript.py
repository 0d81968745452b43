"""The peers on the official TypeScript SDKs, if Node and the SDKs are installed.

`python -m tests.conformance.node` installs them, in fixed versions.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.servers import ROOT

__all__ = ("NAMES", "commands", "versions")

#: Scripts by name of the peer.
NAMES: Final = {"ts 1": "typescript_1.mjs", "ts 2": "typescript_2.mjs"}
SCRIPTS: Final = ROOT / "bench" / "peers"
SDKS: Final = ("@modelcontextprotocol/sdk", "@modelcontextprotocol/server")
INSTALLED_S: Final = 60.0


def commands() -> dict[str, tuple[str, ...]]:
    """Return the commands of the installed peers by name, without arguments."""
    found = _installed()
    if found is None:
        return {}
    node, place = found
    # Node resolves packages from the folder of a script.
    for script in SCRIPTS.glob("*.mjs"):
        _copy(script, place / script.name)
    return {name: (str(node), str(place / script)) for name, script in NAMES.items()}


def versions() -> dict[str, str | None]:
    """Return the versions of Node and of the SDKs; None if they are not installed."""
    found = _installed()
    if found is None:
        return dict.fromkeys(("node", *SDKS))
    node, place = found
    folders = {"node": node.parents[1], **{name: place / "node_modules" / name for name in SDKS}}
    return {
        name: json.loads((folder / "package.json").read_bytes())["version"]
        for name, folder in folders.items()
    }


@functools.cache
def _installed() -> tuple[Path, Path] | None:
    """Return Node and the folder with the SDKs."""
    done = subprocess.run(
        (sys.executable, "-m", "tests.conformance.node", "servers"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=INSTALLED_S,
        check=True,
    )
    lines = done.stdout.splitlines()
    return (Path(lines[0]), Path(lines[1])) if len(lines) == 2 else None


def _copy(source: Path, target: Path) -> None:
    """Copy a script, unless it is there. Another process may copy it at the same time."""
    text = source.read_bytes()
    if target.exists() and target.read_bytes() == text:
        return
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        file.write(text)
    Path(file.name).replace(target)
