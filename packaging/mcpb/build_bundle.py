"""Build the MCP bundle, a `.mcpb` file for Claude Desktop: `make mcpb`.

    python packaging/mcpb/build_bundle.py --packer PROGRAM [--wheel FILE] [--output FOLDER]

The bundle contains the wheel of this project, a `pyproject.toml` that depends on it, and an entry
point; the host installs the dependencies with uv. PROGRAM is `mcpb`, the official packer, which
validates the manifest. Without `--wheel`, the wheel is built first.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

__all__ = ("build_bundle", "build_wheel")

SOURCES = Path(__file__).parent
REPOSITORY = SOURCES.parents[1]
#: Files of the bundle, next to the wheel.
FILES = ("manifest.json", "pyproject.toml", "server/main.py")
#: Timeout of the build of the wheel, and of the packer.
STEP_S = 120.0


class BuildError(Exception):
    """The bundle cannot be built; the text says why."""


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this project into a folder, and return its path."""
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder.resolve())])
    (wheel,) = folder.glob("*.whl")
    return wheel


def build_bundle(wheel: Path, packer: Sequence[str], output: Path) -> Path:
    """Pack the bundle with a wheel into a folder, and return its path. Raises BuildError."""
    project = tomllib.loads((SOURCES / "pyproject.toml").read_text())
    wanted = project["tool"]["uv"]["sources"]["plexus-substrate"]["path"]
    if wheel.name != Path(wanted).name:
        raise BuildError(f"{wheel.name} is not {Path(wanted).name}, which pyproject.toml names")
    output.mkdir(parents=True, exist_ok=True)
    bundle = output.resolve() / f"substrate-{project['project']['version']}.mcpb"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in FILES:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(SOURCES / name, folder / name)
        shutil.copyfile(REPOSITORY / "LICENSE", folder / "LICENSE")
        (folder / wanted).parent.mkdir()
        shutil.copyfile(wheel, folder / wanted)
        _run([*packer, "validate", str(folder / "manifest.json")])
        _run([*packer, "pack", str(folder), str(bundle)])
    return bundle


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, timeout=STEP_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]}: {error}") from None
    if done.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def main() -> int:
    """Build the bundle, and print its path."""
    parser = argparse.ArgumentParser(description="Build the MCP bundle.")
    parser.add_argument("--packer", required=True, nargs="+", help="program and arguments of mcpb")
    parser.add_argument("--wheel", type=Path, help="wheel to use; built if omitted")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "dist", help="folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        try:
            wheel = given.wheel or build_wheel(Path(temporary))
            sys.stdout.write(f"{build_bundle(wheel, given.packer, given.output)}\n")
        except BuildError as error:
            sys.stderr.write(f"{error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
