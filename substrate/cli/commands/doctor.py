"""`substrate doctor`: checks of machine, server, storage, plugins, models and MCP hosts.

A check returns results and raises nothing: an error is a result. Nothing is changed, except that
stale lock files are removed, as every reader of them does.
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
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal

import click

from activations.arbor import Arbor
from plexus.errors import PlexusError
from plexus.private_files import data_folder
from plexus.version import __version__
from substrate.cli.main import files_of, settings_of
from substrate.cli.mcp_hosts.hosts import (
    HOSTS,
    Refused,
    entry_fault,
    entry_summary,
    find_entries,
    is_own_entry,
)
from substrate.cli.target.local import LocalTarget
from substrate.cli.target.protocol import Target, result_of
from substrate.cli.target.selection import running_server
from substrate.cli.target.server import ServerTarget, identity_of
from substrate.cli.terminal.tables import print_json_line
from substrate.security.exposure import connect_address
from substrate.security.lockfile import find_running, lock_folder
from substrate.settings import ProjectFiles, Settings, files_to_trust

__all__ = ("doctor",)

Level = Literal["ok", "warning", "problem"]

#: Connections, and the files and pipes of commands; less makes a busy server refuse.
OPEN_FILES: Final = 1024
#: What should be free where trees are kept.
FREE_BYTES: Final = 200 * 1024 * 1024
MIB: Final = 1024 * 1024
OLDEST: Final = (3, 11)
COLOURS: Final = {"ok": "green", "warning": "yellow", "problem": "red"}


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    check: str
    level: Level
    message: str
    #: What to do about it.
    next: str = ""


@click.command(short_help="Check what is well, and say what to do about the rest.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each finding.")
@click.pass_context
def doctor(ctx: click.Context, *, as_json: bool) -> None:
    """Check this machine, the server on the port of the settings, what is stored, plugins, models
    and the entries in MCP hosts. The exit code is 1 if there is a problem."""
    counts = dict.fromkeys(COLOURS, 0)
    for result in _checks(ctx):
        counts[result.level] += 1
        if as_json:
            print_json_line(result)
        else:
            _print(result)
    if not as_json:
        problems, warnings = counts["problem"], counts["warning"]
        click.echo(f"{problems} problems, {warnings} warnings, {counts['ok']} OK.")
    if counts["problem"]:
        ctx.exit(1)


def _checks(ctx: click.Context) -> Iterator[Check]:
    settings = settings_of(ctx)
    yield from chain(machine_checks(), sandbox_checks(settings))
    results, server = server_checks(settings, running_server(ctx))
    yield from results
    yield from lock_checks()
    yield from store_checks(settings)
    here = LocalTarget(settings, Path.cwd(), files_of(ctx))
    ctx.call_on_close(here.close)
    yield from chain(trust_checks(files_of(ctx), Path.cwd()), plugin_checks(here))
    if server is not None:
        yield from activation_checks("server", server)
    yield from activation_checks("project", here)
    # The keys and the settings of whoever answers are what counts.
    yield from model_checks(here if server is None else server)
    yield from client_checks()


def _print(result: Check) -> None:
    mark = f"{'OK' if result.level == 'ok' else result.level:<8}"
    if sys.stdout.isatty():
        mark = click.style(mark, fg=COLOURS[result.level])
    click.echo(f"{mark} {result.check:<14} {result.message}")
    if result.next:
        click.echo(f"{'':24}{result.next}")


# --- this machine ---------------------------------------------------------------------------------


def machine_checks() -> Iterator[Check]:
    """Python, the event loop, how many files may be open."""
    version = f"Python {platform.python_version()}, substrate {__version__}"
    if sys.version_info >= OLDEST:
        yield Check("python", "ok", version)
    else:
        yield Check("python", "problem", version, "Install Python 3.11 or newer.")
    if sys.platform == "win32" or importlib.util.find_spec("uvloop") is not None:
        yield Check("uvloop", "ok", "the fast event loop is there")
    else:
        yield Check(
            "uvloop",
            "warning",
            "the server runs on asyncio's own, slower loop",
            "pip install uvloop",
        )
    import resource  # not there on Windows, where nothing of this runs anyway

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES:
        yield Check("open files", "ok", f"at most {soft}")
        return
    possible = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    next_step = f"Run `ulimit -n {possible}` before starting the server."
    yield Check("open files", "warning", f"only {soft} at once", next_step)


def sandbox_checks(settings: Settings) -> Iterator[Check]:
    """Whether commands can be confined. Whether the sandbox that is set works, its probe says."""
    found = shutil.which("bwrap")
    if found is not None:
        yield Check(
            "sandbox", "ok", f"bubblewrap is {found}; bash_sandbox is {settings.bash_sandbox}"
        )
    elif settings.bash_sandbox == "off":
        yield Check("sandbox", "ok", "off; there is no bubblewrap for --bash-sandbox")
    else:
        yield Check(
            "sandbox",
            "problem",
            f"bash_sandbox is {settings.bash_sandbox}, and there is no bwrap on PATH",
            "Install bubblewrap, or set bash_sandbox to off.",
        )


# --- the server -----------------------------------------------------------------------------------


def server_checks(
    settings: Settings, target: ServerTarget | None
) -> tuple[list[Check], Target | None]:
    """Who is on the port; and the server, if it is ours and lets us in."""
    port, host = settings.port, connect_address(settings.bind)
    if target is None:
        return [_who_else(port, host)], None
    running = find_running(port)
    whose = "it has no lock file of yours" if running is None else f"process {running.pid}"
    said = identity_of(port, host) or {}
    version = str(said.get("version", "of an unknown version"))
    results = [Check("server", "ok", f"substrate {version} on port {port}, {whose}")]
    if version != __version__:
        results = [
            Check(
                "server",
                "warning",
                f"the server on port {port} is {version}, and this is {__version__}",
                "Stop it and start it again.",
            )
        ]
    try:
        target.run(result_of(target, "plexus.hash", {}))
    except (click.ClickException, PlexusError) as error:
        results.append(
            Check(
                "token",
                "problem",
                f"the server does not let us in: {error.message}",
                "Give its token with `substrate --token TOKEN doctor`.",
            )
        )
        return results, None
    return [*results, Check("token", "ok", "the server takes it")], target


def _who_else(port: int, host: str) -> Check:
    """No server of ours is there; perhaps somebody else is."""
    if port == 0:
        return Check("server", "ok", "the port is 0: none can be found")
    import socket

    try:
        socket.create_connection((host, port), 0.3).close()
    except OSError:
        return Check("server", "ok", f"none runs on port {port}; `substrate` starts one")
    return Check(
        "server",
        "problem",
        f"something that is no substrate answers on port {port}",
        f"Stop it, or use another port: `substrate --port {port + 1 if port < 65535 else 4444}`.",
    )


def lock_checks() -> Iterator[Check]:
    """The lock files of servers; those that were left behind are removed by looking at them."""
    folder = lock_folder()
    if not folder.is_dir():
        yield Check("lock files", "ok", "there are none")
        return
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        yield Check(
            "lock files", "problem", f"others can look into {folder}", f"chmod 700 {folder}"
        )
    running = 0
    for path in sorted(folder.glob("*.json")):
        found = find_running(int(path.stem)) if path.stem.isdecimal() else None
        if found is not None:
            running += 1
        elif path.exists():
            yield Check("lock files", "warning", f"{path} is no lock file", f"rm {path}")
        else:
            yield Check(
                "lock files",
                "warning",
                f"the server on port {path.stem} had left its lock file behind; it is removed now",
                "Nothing: it was killed, or the machine went down.",
            )
    yield Check("lock files", "ok", f"{running} of servers that run, in {folder}")


# --- what is stored -------------------------------------------------------------------------------


def store_checks(settings: Settings) -> Iterator[Check]:
    """The folder, and the store in it."""
    folder = data_folder()
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not os.access(there, os.W_OK):
        yield Check("data", "problem", f"{there} cannot be written to", f"chown -R $USER {there}")
    else:
        free = shutil.disk_usage(there).free
        level: Level = "ok" if free >= FREE_BYTES else "warning"
        next_step = "" if level == "ok" else "Make some room."
        yield Check("data", level, f"{folder}, {free // MIB} MiB free", next_step)
    trees = Arbor(settings.database)
    if trees.is_empty():
        yield Check("store", "ok", "nothing is kept yet")
        return
    try:
        detail, size = asyncio.run(_probe_store(trees))
    except (PlexusError, OSError) as error:
        yield Check(
            "store",
            "problem",
            f"it cannot be opened: {error}",
            "Look at the file, or name another with `substrate --database FILE`.",
        )
        return
    yield Check("store", "ok", detail + ("" if size is None else f", {size / MIB:.1f} MiB"))


async def _probe_store(trees: Arbor) -> tuple[str, int | None]:
    try:
        return await trees.check_health(), trees.size()
    finally:
        await trees.close()


# --- the project folder ---------------------------------------------------------------------------


def trust_checks(files: ProjectFiles, project: Path) -> Iterator[Check]:
    """Whether the code and the settings of the project folder are loaded."""
    skipped = files.skipped
    there = " and ".join(files_to_trust(project))
    if skipped is not None:
        about = "; ".join(skipped.details)
        yield Check("trust", "warning", f"{skipped.message} ({about})", skipped.next)
    elif not there:
        yield Check("trust", "ok", "this folder has no substrate.toml and no activations.d")
    elif files.live:
        how = "for this start" if files.once else "always"
        yield Check("trust", "ok", f"{there} are loaded: the folder is trusted {how}")
    else:
        yield Check("trust", "ok", f"{there} are loaded, just as they were trusted")


# --- plugins, activations and models --------------------------------------------------------------


def plugin_checks(target: Target) -> list[Check]:
    """Plugins of this project that could not be loaded."""
    broken = [
        Check(
            "plugins",
            "problem",
            f"{each.source} was skipped: {each.reason}",
            "Mend it, or take it away.",
        )
        for each in target.broken
    ]
    return broken or [
        Check("plugins", "ok", f"{len(target.catalogue.namespaces())} namespaces, none broken")
    ]


def activation_checks(where: str, target: Target) -> Iterator[Check]:
    """What every activation says of itself."""
    try:
        report = target.run(result_of(target, "health.check", {}))
    except (click.ClickException, PlexusError) as error:
        next_step = "Look at the server's log."
        yield Check(where, "problem", f"health.check failed: {error.message}", next_step)
        return
    unwell: Sequence[dict[str, Any]] = [each for each in report["activations"] if not each["ok"]]
    for each in unwell:
        yield Check(
            where,
            "problem",
            f"{each['namespace']}: {each['detail']}",
            f"`substrate schema {each['namespace']}` says what it is.",
        )
    if not unwell:
        yield Check(where, "ok", f"all {len(report['activations'])} activations are well")


def model_checks(target: Target) -> Iterator[Check]:
    """Where models can come from. Only that of the default has to be ready."""
    try:
        models = target.run(result_of(target, "chat.models", {}))
    except (click.ClickException, PlexusError) as error:
        yield Check("chat", "problem", f"chat.models failed: {error.message}")
        return
    default = str(models["default"]).partition(":")[0]
    known = {each["provider"] for each in models["providers"]}
    if default not in known:
        there = f"There are {', '.join(sorted(known))}."
        yield Check("chat", "problem", f"chat_model is {models['default']!r}", there)
    for each in models["providers"]:
        name, advice = each["provider"], str(each.get("advice") or "")
        if each["ready"]:
            yield Check("chat", "ok", f"{name} is ready, as in {each['example']}")
        elif name == default:
            yield Check("chat", "problem", f"{models['default']} answers, and is not ready", advice)
        else:
            yield Check("chat", "ok", f"{name} is not set up", advice)


# --- MCP hosts ------------------------------------------------------------------------------------


def client_checks() -> Iterator[Check]:
    """Every host, in every file that it has."""
    for key, host in HOSTS.items():
        found = False
        for scope, place in host.files.items():
            path = place()
            install = f"substrate mcp install {key}" + (
                "" if scope == next(iter(host.files)) else f" --scope {scope}"
            )
            try:
                entries = find_entries(host, path.read_text())
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError, Refused) as error:
                yield Check(key, "problem", f"{path} cannot be read: {error}", "Mend the file.")
                found = True
                continue
            for name, entry in entries.items():
                if is_own_entry(name, entry):
                    found = True
                    where = f"{name} in {path}"
                    if (fault := entry_fault(host, entry)) is not None:
                        yield Check(key, "problem", f"{where} {fault}", install)
                    else:
                        yield Check(key, "ok", f"{where} {entry_summary(entry)}")
        if not found:
            yield Check(key, "ok", f"{host.title} does not know us", f"substrate mcp install {key}")
