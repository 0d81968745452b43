"""The report: the environment of the measurement, and the figures as a plain text table."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.mcp import typescript
from bench.measure import Figure, Summary, Target
from bench.servers import ROOT

__all__ = ("describe_environment", "load", "render")

HEAD = ("measure", "ours", "limit L", "unit", "ratio (quartiles)", "target", "reached")
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


def describe_environment() -> dict[str, Any]:
    """Return Python, packages, machine, load and commit."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": {name: _version(name) for name in PACKAGES} | typescript.versions(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "load_1_min": load(),
        "commit": _git("rev-parse", "HEAD"),
        "changed_since_commit": bool(_git("status", "--porcelain")),
        "manifest_is_current": _is_manifest_current(),
    }


def _is_manifest_current() -> bool:
    """Return whether starts use the manifest. If it is stale, they import all activations."""
    command = (sys.executable, "-m", "substrate.devtools.manifest", "--check")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False)
    return done.returncode == 0


def load() -> float:
    """Return the load average of the last minute, which shows the noise in the figures."""
    return round(os.getloadavg()[0], 2)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Return the output of git, or None in a source archive without history."""
    try:
        done = subprocess.run(
            ("git", *arguments), cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


# --- the table ------------------------------------------------------------------------------------


def render(figures: Sequence[Figure]) -> str:
    """Return the table, the peers if there are any, and a note for each row."""
    parts = [_table([HEAD, *map(_row, figures)])]
    names = list(dict.fromkeys(name for figure in figures for name in figure.peers))
    if names:
        rows = [
            (figure.name, *(_peer(figure, name) for name in names))
            for figure in figures
            if figure.peers
        ]
        parts += ["", "Peers, as multiples of L (quartiles):", _table([("measure", *names), *rows])]
    notes = [f"{figure.name}: {figure.note}." for figure in figures if figure.note]
    return "\n".join([*parts, "", *notes])


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _row(figure: Figure) -> tuple[str, ...]:
    reached = {True: "yes", False: "no", None: "-"}[figure.reached]
    return (
        figure.name,
        _median(figure.ours),
        _median(figure.limit),
        figure.unit,
        _spread(figure.ratio),
        ", ".join(_target(target, figure.unit) for target in figure.targets) or "-",
        reached,
    )


def _peer(figure: Figure, name: str) -> str:
    if name not in figure.peers:
        return "-"
    peer = figure.peers[name]
    return "not installed" if peer is None else _spread(peer.ratio)


def _median(summary: Summary | None) -> str:
    return "-" if summary is None else _number(summary.median)


def _spread(summary: Summary | None) -> str:
    if summary is None:
        return "-"
    return f"{_ratio(summary.median)} ({_ratio(summary.low)} to {_ratio(summary.high)})"


def _target(target: Target, unit: str) -> str:
    if target.of == "ratio":
        return f"<= {target.at_most:g} L"
    if target.of == "value":
        return f"<= {target.at_most:g} {unit}"
    return f">= {1 / target.at_most:g}x {target.of}"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"


def _ratio(value: float) -> str:
    return f"{value:.0f}" if value >= 20 else f"{value:.2f}"
