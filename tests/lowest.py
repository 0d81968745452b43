"""The smoke tests with the lowest versions that `pyproject.toml` allows: `make lowest`.

They run in a separate environment in `.cache/lowest`, which is kept until the bounds change.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

__all__ = ("EXTRAS", "constraints", "requirements")

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".cache" / "lowest"
#: The optional parts that the smoke tests use, and what the tests themselves import.
EXTRAS = ("oauth", "otel", "postgres")
TEST_TOOLS = ("hypothesis", "pytest", "pytest-timeout")
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[[\w,-]+\])?>=(?P<lowest>[\d.]+)(,<[\d.]+)?(;.*)?")


def requirements() -> list[str]:
    """Return every requirement of the project and of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    return [*project["dependencies"], *(one for extra in extras.values() for one in extra)]


def constraints() -> list[str]:
    """Return the lowest version of each package, as constraints for pip.

    Raises ValueError if a requirement has no lower bound, or two that differ.
    """
    lowest: dict[str, str] = {}
    for requirement in requirements():
        found = REQUIREMENT.fullmatch(requirement)
        if found is None:
            raise ValueError(f"{requirement!r} has no lower bound; write it as 'name>=1.2'")
        name, version = found["name"], found["lowest"]
        if lowest.setdefault(name, version) != version:
            raise ValueError(f"{name} has two lower bounds: {lowest[name]} and {version}")
    return [f"{name}=={version}" for name, version in sorted(lowest.items())]


def install() -> Path:
    """Create the environment unless it is up to date, and return its Python."""
    python = FOLDER / "venv" / "bin" / "python"
    wanted = "\n".join([sys.version, *constraints()])
    installed = FOLDER / "installed.txt"
    if installed.exists() and installed.read_text() == wanted:
        return python
    installed.unlink(missing_ok=True)
    venv.create(FOLDER / "venv", clear=True, with_pip=True)
    bounds = FOLDER / "constraints.txt"
    bounds.write_text("\n".join(constraints()) + "\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    parts = ["--editable", f"{ROOT}[{','.join(EXTRAS)}]", *TEST_TOOLS]
    subprocess.run([*pip, "--constraint", str(bounds), *parts], check=True)
    installed.write_text(wanted)
    return python


def main() -> int:
    """Install, and run the smoke tests."""
    python = install()
    command = [str(python), "-m", "pytest", "-m", "smoke", "tests/test_smoke.py", *sys.argv[1:]]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
