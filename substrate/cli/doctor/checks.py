"""What `substrate doctor` looks at: this machine, the server, what is stored, plugins, models.

A check gives findings and raises nothing: what goes wrong is what it has found. Nothing is changed,
but lock files that nobody stands behind are removed, as by everybody who comes across them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import os
import platform
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import click

from activations.arbor import Arbor
from plexus.errors import PlexusError
from plexus.private_files import data_folder
from plexus.version import __version__
from substrate.cli.target.rpc import result_of
from substrate.cli.target.server import ServerTarget, identity_of
from substrate.cli.target.target import Target
from substrate.security.exposure import reached_at
from substrate.security.lockfile import find_running, lock_folder
from substrate.settings import ProjectFiles, Settings, files_to_trust

__all__ = (
    "Finding",
    "activation_findings",
    "lock_findings",
    "machine_findings",
    "model_findings",
    "plugin_findings",
    "sandbox_findings",
    "server_findings",
    "store_findings",
    "trust_findings",
)

Level = Literal["ok", "warning", "problem"]

#: Connections, and the files and pipes of commands; less makes a busy server refuse.
OPEN_FILES: Final = 1024
#: What should be free where trees are kept.
FREE_BYTES: Final = 200 * 1024 * 1024
MIB: Final = 1024 * 1024
OLDEST: Final = (3, 11)


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: str
    level: Level
    message: str
    #: What to do about it.
    next: str = ""


# --- this machine ---------------------------------------------------------------------------------


def machine_findings() -> Iterator[Finding]:
    """Python, the event loop, how many files may be open."""
    version = f"Python {platform.python_version()}, substrate {__version__}"
    if sys.version_info >= OLDEST:
        yield Finding("python", "ok", version)
    else:
        yield Finding("python", "problem", version, "Install Python 3.11 or newer.")
    if sys.platform == "win32" or importlib.util.find_spec("uvloop") is not None:
        yield Finding("uvloop", "ok", "the fast event loop is there")
    else:
        yield Finding(
            "uvloop",
            "warning",
            "the server runs on asyncio's own, slower loop",
            "pip install uvloop",
        )
    import resource  # not there on Windows, where nothing of this runs anyway

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES:
        yield Finding("open files", "ok", f"at most {soft}")
        return
    possible = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    next_step = f"Run `ulimit -n {possible}` before starting the server."
    yield Finding("open files", "warning", f"only {soft} at once", next_step)


def sandbox_findings(settings: Settings) -> Iterator[Finding]:
    """Whether commands can be confined. Whether the sandbox that is set works, its probe says."""
    found = shutil.which("bwrap")
    if found is not None:
        yield Finding(
            "sandbox", "ok", f"bubblewrap is {found}; bash_sandbox is {settings.bash_sandbox}"
        )
    elif settings.bash_sandbox == "off":
        yield Finding("sandbox", "ok", "off; there is no bubblewrap for --bash-sandbox")
    else:
        yield Finding(
            "sandbox",
            "problem",
            f"bash_sandbox is {settings.bash_sandbox}, and there is no bwrap on PATH",
            "Install bubblewrap, or set bash_sandbox to off.",
        )


# --- the server -----------------------------------------------------------------------------------


def server_findings(
    settings: Settings, target: ServerTarget | None
) -> tuple[list[Finding], Target | None]:
    """Who is on the port; and the server, if it is ours and lets us in."""
    port, host = settings.port, reached_at(settings.bind)
    if target is None:
        return [_who_else(port, host)], None
    running = find_running(port)
    whose = "it has no lock file of yours" if running is None else f"process {running.pid}"
    said = identity_of(port, host) or {}
    version = str(said.get("version", "of an unknown version"))
    findings = [Finding("server", "ok", f"substrate {version} on port {port}, {whose}")]
    if version != __version__:
        findings = [
            Finding(
                "server",
                "warning",
                f"the server on port {port} is {version}, and this is {__version__}",
                "Stop it and start it again.",
            )
        ]
    try:
        target.run(result_of(target, "plexus.hash", {}))
    except (click.ClickException, PlexusError) as error:
        findings.append(
            Finding(
                "token",
                "problem",
                f"the server does not let us in: {error.message}",
                "Give its token with `substrate --token TOKEN doctor`.",
            )
        )
        return findings, None
    return [*findings, Finding("token", "ok", "the server takes it")], target


def _who_else(port: int, host: str) -> Finding:
    """No server of ours is there; perhaps somebody else is."""
    if port == 0:
        return Finding("server", "ok", "the port is 0: none can be found")
    import socket

    try:
        socket.create_connection((host, port), 0.3).close()
    except OSError:
        return Finding("server", "ok", f"none runs on port {port}; `substrate` starts one")
    return Finding(
        "server",
        "problem",
        f"something that is no substrate answers on port {port}",
        f"Stop it, or use another port: `substrate --port {port + 1 if port < 65535 else 4444}`.",
    )


def lock_findings() -> Iterator[Finding]:
    """The lock files of servers; those that were left behind are removed by looking at them."""
    folder = lock_folder()
    if not folder.is_dir():
        yield Finding("lock files", "ok", "there are none")
        return
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        yield Finding(
            "lock files", "problem", f"others can look into {folder}", f"chmod 700 {folder}"
        )
    running = 0
    for path in sorted(folder.glob("*.json")):
        found = find_running(int(path.stem)) if path.stem.isdecimal() else None
        if found is not None:
            running += 1
        elif path.exists():
            yield Finding("lock files", "warning", f"{path} is no lock file", f"rm {path}")
        else:
            yield Finding(
                "lock files",
                "warning",
                f"the server on port {path.stem} had left its lock file behind; it is removed now",
                "Nothing: it was killed, or the machine went down.",
            )
    yield Finding("lock files", "ok", f"{running} of servers that run, in {folder}")


# --- what is stored -------------------------------------------------------------------------------


def store_findings(settings: Settings) -> Iterator[Finding]:
    """The folder, and the store in it."""
    folder = data_folder()
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not os.access(there, os.W_OK):
        yield Finding("data", "problem", f"{there} cannot be written to", f"chown -R $USER {there}")
    else:
        free = shutil.disk_usage(there).free
        level: Level = "ok" if free >= FREE_BYTES else "warning"
        next_step = "" if level == "ok" else "Make some room."
        yield Finding("data", level, f"{folder}, {free // MIB} MiB free", next_step)
    trees = Arbor(settings.database)
    if trees.is_empty():
        yield Finding("store", "ok", "nothing is kept yet")
        return
    try:
        detail, size = asyncio.run(_look(trees))
    except (PlexusError, OSError) as error:
        yield Finding(
            "store",
            "problem",
            f"it cannot be opened: {error}",
            "Look at the file, or name another with `substrate --database FILE`.",
        )
        return
    yield Finding("store", "ok", detail + ("" if size is None else f", {size / MIB:.1f} MiB"))


async def _look(trees: Arbor) -> tuple[str, int | None]:
    try:
        return await trees.check_health(), trees.size()
    finally:
        await trees.close()


# --- the project folder ---------------------------------------------------------------------------


def trust_findings(files: ProjectFiles, project: Path) -> Iterator[Finding]:
    """Whether the code and the settings of the project folder are loaded."""
    skipped = files.skipped
    there = " and ".join(files_to_trust(project))
    if skipped is not None:
        about = "; ".join(skipped.details)
        yield Finding("trust", "warning", f"{skipped.message} ({about})", skipped.next)
    elif not there:
        yield Finding("trust", "ok", "this folder has no substrate.toml and no activations.d")
    elif files.live:
        how = "for this start" if files.once else "always"
        yield Finding("trust", "ok", f"{there} are loaded: the folder is trusted {how}")
    else:
        yield Finding("trust", "ok", f"{there} are loaded, just as they were trusted")


# --- plugins, activations and models --------------------------------------------------------------


def plugin_findings(target: Target) -> list[Finding]:
    """Plugins of this project that could not be loaded."""
    broken = [
        Finding(
            "plugins",
            "problem",
            f"{each.source} was skipped: {each.reason}",
            "Mend it, or take it away.",
        )
        for each in target.broken
    ]
    return broken or [
        Finding("plugins", "ok", f"{len(target.catalogue.namespaces())} namespaces, none broken")
    ]


def activation_findings(where: str, target: Target) -> Iterator[Finding]:
    """What every activation says of itself."""
    try:
        report = target.run(result_of(target, "health.check", {}))
    except (click.ClickException, PlexusError) as error:
        next_step = "Look at the server's log."
        yield Finding(where, "problem", f"health.check failed: {error.message}", next_step)
        return
    unwell: Sequence[dict[str, Any]] = [each for each in report["activations"] if not each["ok"]]
    for each in unwell:
        yield Finding(
            where,
            "problem",
            f"{each['namespace']}: {each['detail']}",
            f"`substrate schema {each['namespace']}` says what it is.",
        )
    if not unwell:
        yield Finding(where, "ok", f"all {len(report['activations'])} activations are well")


def model_findings(target: Target) -> Iterator[Finding]:
    """Where models can come from. Only that of the default has to be ready."""
    try:
        models = target.run(result_of(target, "chat.models", {}))
    except (click.ClickException, PlexusError) as error:
        yield Finding("chat", "problem", f"chat.models failed: {error.message}")
        return
    default = str(models["default"]).partition(":")[0]
    known = {each["provider"] for each in models["providers"]}
    if default not in known:
        there = f"There are {', '.join(sorted(known))}."
        yield Finding("chat", "problem", f"chat_model is {models['default']!r}", there)
    for each in models["providers"]:
        name, advice = each["provider"], str(each.get("advice") or "")
        if each["ready"]:
            yield Finding("chat", "ok", f"{name} is ready, as in {each['example']}")
        elif name == default:
            yield Finding(
                "chat", "problem", f"{models['default']} answers, and is not ready", advice
            )
        else:
            yield Finding("chat", "ok", f"{name} is not set up", advice)
