"""Node, and the npm packages that the tests want: suites, other clients, and a compiler.

They are installed once, by npm, which is all that must be there already. Where to is said by
SUBSTRATE_NODE_DIR; without it they go to `.cache/node` in the repository.

    python -m tests.conformance.node     installs everything, and says where
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = (
    "CLAUDE_CODE",
    "COMPILER",
    "LATEST",
    "PACKAGES",
    "STABLE",
    "NotInstalled",
    "claude_code",
    "compiler",
    "installed",
    "node",
    "script",
)

REPOSITORY = Path(__file__).parents[2]

LATEST = "latest"
STABLE = "stable"
COMPILER = "compiler"
CLAUDE_CODE = "claude-code"
#: What is installed, by folder: two versions of one package cannot share one. The suites need a
#: newer Node than many systems have, so it comes along.
PACKAGES = {
    LATEST: {
        "node": "24.21.0",
        "@modelcontextprotocol/conformance": "0.2.0-alpha.12",
        "@modelcontextprotocol/client": "2.4.0",
        "@modelcontextprotocol/sdk": "1.32.2",
    },
    STABLE: {"@modelcontextprotocol/conformance": "0.1.16"},
    COMPILER: {"typescript": "7.0.2", "@types/node": "24.19.2"},
    CLAUDE_CODE: {"@anthropic-ai/claude-code": "2.1.197"},
}
#: Where the package `node` puts the program, and `typescript` its compiler.
NODE = Path("node_modules", "node", "bin", "node")
TSC = Path("node_modules", "typescript", "bin", "tsc")
#: How long npm may take for one folder.
INSTALL_S = 300.0


class NotInstalled(Exception):
    """Something is missing and could not be installed; the text says what, and what to do."""


def installed(folder: str) -> Path:
    """Where the packages of this folder are; installs them first; raises NotInstalled."""
    root = Path(os.environ.get("SUBSTRATE_NODE_DIR") or REPOSITORY / ".cache" / "node").resolve()
    place = root / folder
    mark = place / "installed.json"
    wanted = json.dumps(PACKAGES[folder], indent=2)
    if _says(mark, wanted):
        return place
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalled(
            "npm is missing: install Node.js, which brings it (`apt-get install npm`, "
            "`brew install node`); everything else is then installed from here"
        )
    root.mkdir(parents=True, exist_ok=True)
    with _alone(root / "lock"):
        if not _says(mark, wanted):
            _install(npm, place, PACKAGES[folder])
            mark.write_text(wanted)
    return place


def node() -> Path:
    """The Node program; raises NotInstalled."""
    return installed(LATEST) / NODE


def compiler() -> tuple[Path, Path]:
    """TypeScript's compiler, a script for Node, and where types of packages are; raises
    NotInstalled."""
    place = installed(COMPILER)
    return place / TSC, place / "node_modules" / "@types"


def claude_code() -> Path:
    """Return the Claude Code CLI. Raises NotInstalled."""
    return installed(CLAUDE_CODE) / "node_modules" / ".bin" / "claude"


def script(name: str) -> Path:
    """A script of `tests/node`, in a place where it finds the packages: Node looks beside it."""
    place = installed(LATEST)
    for path in (REPOSITORY / "tests" / "node").glob("*.mjs"):
        if not _says(place / path.name, path.read_text()):
            shutil.copyfile(path, place / path.name)
    return place / name


def _install(npm: str, place: Path, packages: dict[str, str]) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "package.json").write_text(json.dumps({"private": True, "dependencies": packages}))
    command = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
    try:
        done = subprocess.run(
            command, cwd=place, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"npm did not end within {INSTALL_S:g} s in {place}") from None
    if done.returncode:
        raise NotInstalled(f"npm failed in {place}:\n{done.stderr.strip()[-2000:]}")
    if "node" in packages and not (place / NODE).is_file():
        raise NotInstalled(f"npm did not run the install script of the package node in {place}")


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Keep other processes from installing at the same time."""
    until = time.monotonic() + INSTALL_S
    with lock.open("w") as held:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise NotInstalled(f"another process holds {lock}") from None
                time.sleep(0.2)
        yield


def _says(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


if __name__ == "__main__":
    try:
        for name in PACKAGES:
            print(installed(name))  # noqa: T201
    except NotInstalled as error:
        sys.exit(str(error))
