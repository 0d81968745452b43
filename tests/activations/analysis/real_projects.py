"""Source packages of real projects, downloaded once into `.cache/source-packages`."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

__all__ = ("PROJECTS", "real_project")

CACHE = Path(__file__).parents[3] / ".cache" / "source-packages"
#: Projects with the folder of their package: functions, classes, and an extension in C.
PROJECTS = {"click==8.1.7": "src", "requests==2.32.3": "src", "markupsafe==3.0.2": "src"}
#: Timeout of a download. What cannot be downloaded is skipped.
DOWNLOAD_S = 120


def real_project(requirement: str) -> Path:
    """Return the folder of a project, after downloading it if necessary."""
    name, _, version = requirement.partition("==")
    target = CACHE / f"{name}-{version}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _download(requirement, name, target)
    return target / PROJECTS[requirement]


def _download(requirement: str, name: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        command = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", name)
        try:
            subprocess.run(
                (*command, "-d", folder, requirement),
                env={**os.environ, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
                capture_output=True,
                timeout=DOWNLOAD_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"{requirement} cannot be downloaded: {error}")
        [archive] = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as opened:
            opened.extractall(Path(folder, "files"), filter="data")
        [root] = Path(folder, "files").iterdir()
        shutil.move(root, target)
