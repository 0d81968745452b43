"""The real Claude Code CLI with our server and a scripted model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from conformance.node import claude_code

__all__ = ("KEY", "private_environment", "run_claude", "start_claude")

RUN_S = 90.0
KEY = "sk-ant-none"


def private_environment(home: Path, api: str, key: str) -> dict[str, str]:
    """Return an environment without the user's account, and without telemetry."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ANTHROPIC_", "CLAUDE", "AWS_", "GOOGLE_"))
    }
    return kept | {
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": api,
        "ANTHROPIC_API_KEY": key,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }


def run_claude(folder: Path, api: str, tool: str, **settings: str) -> str:
    """Run one turn in print mode with `substrate --stdio --mcp`, and return the output.

    `settings` are environment variables of the server.
    """
    process = start_claude(folder, api, tool, **settings)
    try:
        output, errors = process.communicate(timeout=RUN_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, output + errors
    return output


def start_claude(folder: Path, api: str, tool: str, **settings: str) -> subprocess.Popen[str]:
    """Start one turn, in a separate process group."""
    servers = {
        "substrate": {
            "command": sys.executable,
            "args": ["-m", "substrate", "--stdio", "--mcp"],
            "env": settings,
        }
    }
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": servers}))
    home = folder / "home"
    home.mkdir(exist_ok=True)
    command = [str(claude_code()), "-p", "go", "--mcp-config", str(config), "--strict-mcp-config"]
    return subprocess.Popen(
        [*command, "--allowedTools", tool],
        cwd=folder,
        env=private_environment(home, api, KEY),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
