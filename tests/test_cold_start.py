"""What a start of `substrate --stdio` imports: as little as it needs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: What serving stdio needs none of.
NEVER = {
    "apsw",
    "h11",
    "httptools",
    "opentelemetry",
    "prometheus_client",
    "psycopg",
    "pydantic_settings",
    "rich",
    "sqlite3",
    "starlette",
    "uvicorn",
    "websockets",
}
CALL = b'{"jsonrpc":"2.0","id":1,"method":"plexus.runs"}\n'


def imported_by(stdin: bytes, tmp_path: Path) -> tuple[set[str], bytes]:
    """The packages that a start imports, and what it answers."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "substrate", "--stdio"],
        cwd=tmp_path,  # a project without settings
        input=stdin,
        capture_output=True,
        timeout=30,
        check=True,
    )
    lines = re.findall(rb"^import time:[^|]*\|[^|]*\|\s*(\S+)$", done.stderr, re.MULTILINE)
    return {name.decode().partition(".")[0] for name in lines}, done.stdout


@pytest.mark.parametrize("stdin", [b"", CALL])
def test_a_start_imports_nothing_of_http_storage_or_display(stdin: bytes, tmp_path: Path) -> None:
    packages, answer = imported_by(stdin, tmp_path)
    assert {"plexus", "native_rpc", "substrate"} <= packages
    assert bool(answer) is bool(stdin)
    assert packages & NEVER == set()


def test_a_start_that_is_asked_nothing_does_not_even_import_pydantic(tmp_path: Path) -> None:
    packages, _ = imported_by(b"", tmp_path)
    assert not {package for package in packages if package.startswith("pydantic")}


def test_a_start_in_a_folder_with_nothing_to_trust_imports_nothing_of_trust(tmp_path: Path) -> None:
    script = (
        "import sys, substrate.cli.main, substrate.stdio.transport\n"
        "substrate.stdio.transport.serve_stdio = lambda *_: None\n"
        "try:\n    substrate.cli.main.cli(['--stdio'])\nexcept SystemExit:\n    pass\n"
        "trust = 'substrate.security.folder_trust'\n"
        "print([name for name in sys.modules if name.startswith(trust)])"
    )
    for folder, expected in ((tmp_path, False), (tmp_path / "activations.d", True)):
        folder.mkdir(exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        assert (done.stdout != "[]\n") is expected, done.stdout
