"""The wheel and the sdist, and an environment in which only the wheel is installed.

Everything is built from this repository and installed with uv, which is much faster than pip and
downloads each dependency once for all tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

__all__ = (
    "BIN",
    "MANUAL",
    "REPOSITORY",
    "bare_environment",
    "build",
    "documented",
    "install",
    "run",
)

REPOSITORY = Path(__file__).parents[2]
#: Programs of the environment of the tests: uv, twine, pipx.
BIN = Path(sys.executable).parent
MANUAL = REPOSITORY / "docs" / "installing.md"
RUN_S = 90.0


def bare_environment(folder: Path) -> dict[str, str]:
    """Return an environment with its data and home in a folder, and without our variables."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SUBSTRATE_", "PYTHON", "VIRTUAL_ENV", "UV_", "PIPX_"))
    }
    homes = {
        "HOME": folder / "home",
        "XDG_DATA_HOME": folder / "data",
        "XDG_STATE_HOME": folder / "state",
        "XDG_BIN_HOME": folder / "bin",
    }
    # The cache of uv is shared with other modules and the user: a download is slow.
    cache = os.environ.get("UV_CACHE_DIR") or str(Path.home() / ".cache" / "uv")
    found = {name: str(path) for name, path in homes.items()}
    path = os.pathsep.join([str(folder / "bin"), str(BIN), os.environ["PATH"]])
    python = str(BIN / "python")
    return kept | found | {"PATH": path, "UV_CACHE_DIR": cache, "UV_PYTHON": python}


def run(*command: str | Path, cwd: Path, environment: dict[str, str] | None = None) -> str:
    """Run a command, and return its output. Fails if the command does."""
    done = subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


def build(source: Path, target: str, folder: Path) -> Path:
    """Build the wheel or the sdist of a source tree into a folder, and return its path."""
    folder.mkdir(exist_ok=True)
    before = set(folder.iterdir())
    run(BIN / "python", "-m", "hatchling", "build", "-t", target, "-d", folder, cwd=source)
    (built,) = set(folder.iterdir()) - before
    return built


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel into a new environment, and return the folder of its programs."""
    run(BIN / "uv", "venv", "--quiet", "--python", BIN / "python", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    run(BIN / "uv", "pip", "install", "--quiet", "--python", python, wheel, cwd=folder.parent)
    return folder / "bin"


def documented(title: str) -> list[str]:
    """Return the commands that the manual shows in a section, without blocks that are not run."""
    [section] = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", MANUAL.read_text(), re.M | re.S)
    blocks = re.findall(r"(<!-- not run: .*? -->\n)?```sh\n(.*?)```", section, re.S)
    return [line for mark, block in blocks if not mark for line in block.splitlines()]
