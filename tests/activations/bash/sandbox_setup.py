"""Helpers of the sandbox tests: whether bubblewrap works, and a home folder to protect."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from activations.processes.sandbox.profiles import Profile

PROFILES: tuple[Profile, ...] = ("workspace", "strict")


@functools.cache
def _why_not() -> str:
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    trial = ["bwrap", "--ro-bind", "/", "/", "--unshare-user", "--unshare-pid", "true"]
    tried = subprocess.run(trial, capture_output=True, text=True, check=False)
    return f"bubblewrap does not work here: {tried.stderr}" if tried.returncode else ""


needs_bwrap = pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "bubblewrap works")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home folder with secrets and a project in it."""
    # Not in /tmp, which a sandbox hides anyway.
    base = Path("/var/tmp") / f"bash-sandbox-{os.getpid()}-{tmp_path.name}"
    (base / "project").mkdir(parents=True)
    (base / ".ssh").mkdir()
    (base / ".ssh" / "id").write_text("secret key")
    (base / ".netrc").write_text("secret word")
    (base / "notes").write_text("private but no secret")
    monkeypatch.setenv("HOME", str(base))
    for variable in ("XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(variable, raising=False)
    yield base
    shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def project(home: Path) -> Path:
    """The workspace in that home folder."""
    return home / "project"
