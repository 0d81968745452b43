"""Node, Deno, and the npm packages that tests need: suites, other clients, and a compiler.

npm must be present; it installs everything once, into SUBSTRATE_NODE_DIR or, by default, into
`.cache/node` in the repository.

    python -m tests.conformance.node           installs everything, and prints the folders
    python -m tests.conformance.node packer    prints the command of the packer of MCP bundles
    python -m tests.conformance.node servers   prints Node and the folder of the SDKs for servers,
                                               nothing if they are not installed
    python -m tests.conformance.node upstream everything
                                               prints the command of an official server, one
                                               argument per line; nothing if it is not installed
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
    "DENO",
    "LATEST",
    "LINTERS",
    "PACKAGES",
    "SERVERS",
    "STABLE",
    "UPSTREAMS",
    "NotInstalled",
    "claude_code",
    "compiler",
    "deno",
    "installed",
    "is_installed",
    "linter",
    "node",
    "packer",
    "script",
    "server",
)

REPOSITORY = Path(__file__).parents[2]

LATEST = "latest"
STABLE = "stable"
SERVERS = "servers"
COMPILER = "compiler"
CLAUDE_CODE = "claude-code"
DENO = "deno"
UPSTREAMS = "upstreams"
LINTERS = "linters"
#: The packages by folder: two versions of one package cannot share a folder. Node is included,
#: because the suites need a newer one than many systems have.
PACKAGES = {
    LATEST: {
        "node": "24.21.0",
        "@modelcontextprotocol/conformance": "0.2.0-alpha.12",
        "@modelcontextprotocol/client": "2.4.0",
        "@modelcontextprotocol/sdk": "1.32.2",
        "@anthropic-ai/mcpb": "2.1.2",
    },
    STABLE: {"@modelcontextprotocol/conformance": "0.1.16"},
    # The official SDKs for servers, which the benchmark compares the program with.
    SERVERS: {
        "@modelcontextprotocol/sdk": "1.32.2",
        "@modelcontextprotocol/server": "2.4.0",
        "@modelcontextprotocol/node": "2.1.2",
        "zod": "4.6.7",
    },
    COMPILER: {
        "typescript": "7.0.2",
        "@types/node": "24.19.2",
        # The libraries of the page, for their types and to compare the vendored files.
        "preact": "11.2.0",
        "@preact/signals": "2.11.4",
        "@preact/signals-core": "1.14.5",
        "htm": "3.1.1",
    },
    CLAUDE_CODE: {"@anthropic-ai/claude-code": "2.1.197"},
    DENO: {"deno": "2.9.6"},
    # Servers that the tests mount.
    UPSTREAMS: {
        "@modelcontextprotocol/server-everything": "2026.8.31",
        "@modelcontextprotocol/server-filesystem": "2026.8.31",
        "@modelcontextprotocol/server-memory": "2026.8.31",
    },
    LINTERS: {"eslint": "10.15.0", "prettier": "3.10.1"},
}
#: Where the package `node` puts the program, and `typescript` its compiler.
NODE = Path("node_modules", "node", "bin", "node")
TSC = Path("node_modules", "typescript", "bin", "tsc")
PACKER = Path("node_modules", "@anthropic-ai", "mcpb", "dist", "cli", "cli.js")
#: Timeout of npm for one folder.
INSTALL_S = 300.0


class NotInstalled(Exception):
    """A part is missing and could not be installed; the text names it and what to do."""


def installed(folder: str) -> Path:
    """Install the packages of a folder if needed, and return its path. Raises NotInstalled."""
    place = _place(folder)
    root, mark = place.parent, place / "installed.json"
    wanted = json.dumps(PACKAGES[folder], indent=2)
    if is_installed(folder):
        return place
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalled(
            "npm is missing: install Node.js, which includes it (`apt-get install npm`, "
            "`brew install node`); everything else is then installed automatically"
        )
    root.mkdir(parents=True, exist_ok=True)
    with _alone(root / "lock"):
        if not _says(mark, wanted):
            _install(npm, place, PACKAGES[folder])
            mark.write_text(wanted)
    return place


def is_installed(folder: str) -> bool:
    """Return whether the packages of a folder are installed in the versions of this file."""
    return _says(_place(folder) / "installed.json", json.dumps(PACKAGES[folder], indent=2))


def _place(folder: str) -> Path:
    root = os.environ.get("SUBSTRATE_NODE_DIR") or REPOSITORY / ".cache" / "node"
    return Path(root).resolve() / folder


def node() -> Path:
    """Return the Node program. Raises NotInstalled."""
    return installed(LATEST) / NODE


def compiler() -> tuple[Path, Path]:
    """Return TypeScript's compiler, a script for Node, and the folder of package types.

    Raises NotInstalled.
    """
    place = installed(COMPILER)
    return place / TSC, place / "node_modules" / "@types"


def claude_code() -> Path:
    """Return the Claude Code CLI. Raises NotInstalled."""
    return installed(CLAUDE_CODE) / "node_modules" / ".bin" / "claude"


def deno() -> Path:
    """Return the Deno program. Raises NotInstalled."""
    return installed(DENO) / "node_modules" / ".bin" / "deno"


def server(name: str) -> list[str]:
    """Return the command of an official server, such as "everything". Raises NotInstalled."""
    package = installed(UPSTREAMS) / "node_modules" / "@modelcontextprotocol" / f"server-{name}"
    return [str(node()), str(package / "dist" / "index.js")]


def linter(name: str) -> Path:
    """Return the program of a linter or formatter. Raises NotInstalled."""
    return installed(LINTERS) / "node_modules" / ".bin" / name


def packer() -> list[str]:
    """Return the command of `mcpb`, the packer of MCP bundles. Raises NotInstalled."""
    return [str(node()), str(installed(LATEST) / PACKER)]


def script(name: str) -> Path:
    """Copy a script of `tests/node` next to the packages, where Node finds them; return its path.

    Raises NotInstalled.
    """
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
        raise NotInstalled(f"npm timed out after {INSTALL_S:g} s in {place}") from None
    if done.returncode:
        raise NotInstalled(f"npm failed in {place}:\n{done.stderr.strip()[-2000:]}")
    if "node" in packages and not (place / NODE).is_file():
        raise NotInstalled(f"npm did not run the install script of the package node in {place}")


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Prevent other processes from installing at the same time."""
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
        if sys.argv[1:] == ["packer"]:
            print(*packer())  # noqa: T201
        elif sys.argv[1:] == ["servers"]:
            if is_installed(LATEST) and is_installed(SERVERS):
                print(node(), installed(SERVERS), sep="\n")  # noqa: T201
        elif sys.argv[1:2] == ["upstream"]:
            if is_installed(LATEST) and is_installed(UPSTREAMS):
                print(*server(sys.argv[2]), sep="\n")  # noqa: T201
        else:
            print(*map(installed, PACKAGES), sep="\n")  # noqa: T201
    except NotInstalled as error:
        sys.exit(str(error))
