"""Where figures were taken: without it they say nothing."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from typing import Any

from bench.servers import ROOT

__all__ = ("describe", "load")

PACKAGES = (
    "plexus-substrate",
    "anyio",
    "aiostream",
    "anthropic",
    "apsw",
    "click",
    "fastmcp",
    "httptools",
    "mcp",
    "orjson",
    "pydantic",
    "pydantic-ai-slim",
    "pydantic-core",
    "starlette",
    "uvicorn",
    "uvloop",
    "websockets",
)


def describe() -> dict[str, Any]:
    """Python, packages, machine, load and commit."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": {name: _version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": len(os.sched_getaffinity(0)),
        "load_1_min": load(),
        "commit": _git("rev-parse", "HEAD"),
        "changed_since_commit": bool(_git("status", "--porcelain")),
    }


def load() -> float:
    """How many processes wanted a CPU in the last minute: the noise in the figures."""
    return round(os.getloadavg()[0], 2)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """What git says, or nothing: a source archive has no history."""
    try:
        done = subprocess.run(
            ("git", *arguments), cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
