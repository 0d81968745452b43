"""`substrate --stdio` imports as little as it needs at start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from project_folders import trust_always

ROOT = Path(__file__).parents[1]

#: Packages that stdio does not need.
NEVER = {
    "apsw",
    "h11",
    "httptools",
    "opentelemetry",
    "prometheus_client",
    "psycopg",
    "rich",
    "sqlite3",
    "starlette",
    "uvicorn",
    "websockets",
}
CALL = b'{"jsonrpc":"2.0","id":1,"method":"plexus.hash"}\n'


TOOLS = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
    b'"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}\n'
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
    b'{"jsonrpc":"2.0","id":2,"method":"tools/list"}\n'
)
SCHEMA = b'{"jsonrpc":"2.0","id":1,"method":"plexus.schema"}\n'


def imported_by(
    stdin: bytes, folder: Path, *flags: str, **variables: str
) -> tuple[set[str], bytes]:
    """Return the packages and modules that a start imports, and its output."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "substrate", "--stdio", *flags],
        cwd=folder,
        env=os.environ | variables,
        input=stdin,
        capture_output=True,
        timeout=30,
        check=True,
    )
    lines = re.findall(rb"^import time:[^|]*\|[^|]*\|\s*(\S+)$", done.stderr, re.MULTILINE)
    modules = {name.decode() for name in lines}
    return modules | {name.partition(".")[0] for name in modules}, done.stdout


@pytest.mark.parametrize("stdin", [b"", CALL])
def test_a_start_imports_nothing_of_http_storage_or_display(stdin: bytes, tmp_path: Path) -> None:
    packages, answer = imported_by(stdin, tmp_path)
    assert {"plexus", "native_rpc", "substrate"} <= packages
    assert bool(answer) is bool(stdin)
    assert packages & NEVER == set()


def test_a_start_without_requests_does_not_import_pydantic(tmp_path: Path) -> None:
    packages, _ = imported_by(b"", tmp_path)
    assert not {package for package in packages if package.startswith("pydantic")}


@pytest.mark.parametrize(
    ("stdin", "flags", "answer"),
    [
        (b"", (), b""),
        (TOOLS, ("--mcp",), b'"name":"arbor'),
        (SCHEMA, (), b'"namespace":"arbor"'),
    ],
)
def test_listing_imports_no_activation_and_no_pydantic(
    stdin: bytes, flags: tuple[str, ...], answer: bytes, tmp_path: Path
) -> None:
    imported, answered = imported_by(stdin, tmp_path, *flags)
    assert answer in answered
    hint = "is the manifest stale? Run `python -m substrate.devtools.manifest`"
    assert "activations" not in imported, hint
    assert "pydantic" not in imported


def test_a_call_imports_the_activation_that_is_called_and_no_other(tmp_path: Path) -> None:
    imported, _ = imported_by(CALL, tmp_path)
    assert "activations" not in imported
    call = b'{"jsonrpc":"2.0","id":1,"method":"approvals.pending"}\n'
    imported, answered = imported_by(call, tmp_path)
    assert b"error" not in answered
    ours = {name.split(".")[1] for name in imported if name.startswith("activations.")}
    assert ours == {"approvals"}


def test_reading_settings_imports_no_package_of_others(tmp_path: Path) -> None:
    without, _ = imported_by(CALL, tmp_path)
    by_variable, _ = imported_by(CALL, tmp_path, SUBSTRATE_LOG_LEVEL="error")
    assert by_variable == without
    (trust_always(tmp_path) / "substrate.toml").write_text("log_level = 'error'\n")
    by_file, _ = imported_by(CALL, tmp_path)
    packages = {name.partition(".")[0] for name in by_file - without}
    assert packages - sys.stdlib_module_names <= {"plexus", "substrate"}


def test_a_start_in_a_folder_with_nothing_to_trust_imports_nothing_of_trust(tmp_path: Path) -> None:
    script = (
        "import sys, substrate.cli.main, substrate.stdio\n"
        "substrate.stdio.serve_stdio = lambda *_: None\n"
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
