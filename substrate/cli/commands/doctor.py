"""`substrate doctor`: check machine, server, storage, plugins, models and MCP hosts.

A check returns results and never raises: an error is a result. Checks change nothing, except that
reading a stale lock file removes it.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import click

from plexus.errors import PlexusError
from plexus.version import __version__
from substrate.cli.commands.stored_state import (
    Check,
    history_check,
    mount_checks,
    plural,
    store_checks,
)
from substrate.cli.main import files_of, settings_of
from substrate.cli.mcp_hosts.hosts import (
    HOSTS,
    NotEditable,
    entry_error,
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

#: Needed for connections and for the files and pipes of commands. With fewer, a busy server
#: rejects clients.
OPEN_FILES: Final = 1024
MIN_PYTHON: Final = (3, 11)
COLOURS: Final = {
    "ok": "green",
    "optional": "bright_black",
    "warning": "yellow",
    "problem": "red",
}
MARKS: Final = {"ok": "OK", "optional": "-"}


@click.command(short_help="Diagnose problems and suggest fixes.")
@click.option("--json", "as_json", is_flag=True, help="Print each result as a line of JSON.")
@click.pass_context
def doctor(ctx: click.Context, *, as_json: bool) -> None:
    """Check this machine, the server, storage, mounts, plugins, models and MCP host entries.

    The server is the one on the configured port. The exit code is 1 if there is a problem.
    """
    counts = dict.fromkeys(COLOURS, 0)
    for result in _checks(ctx):
        counts[result.level] += 1
        if as_json:
            print_json_line(result)
        else:
            _print(result)
    if not as_json:
        problems, warnings = counts["problem"], counts["warning"]
        click.echo(
            f"{plural(problems, 'problem')}, {plural(warnings, 'warning')}, {counts['ok']} OK; "
            f"{counts['optional']} optional parts (-) are not set up."
        )
    if counts["problem"]:
        ctx.exit(1)


def _checks(ctx: click.Context) -> Iterator[Check]:
    settings = settings_of(ctx)
    yield from chain(machine_checks(), sandbox_checks(settings))
    results, server = server_checks(settings, running_server(ctx))
    yield from results
    yield from lock_checks()
    yield from store_checks(settings)
    yield history_check(settings)
    yield from mount_checks(settings, files_of(ctx))
    here = LocalTarget(settings, Path.cwd(), files_of(ctx))
    ctx.call_on_close(here.close)
    yield from chain(trust_checks(files_of(ctx), Path.cwd()), plugin_checks(here))
    if server is not None:
        yield from activation_checks("server", server)
    yield from activation_checks("project", here)
    # The process that answers chats needs the API keys and settings.
    yield from model_checks(here if server is None else server)
    yield from client_checks()


def _print(result: Check) -> None:
    mark = f"{MARKS.get(result.level, result.level):<8}"
    if sys.stdout.isatty():
        mark = click.style(mark, fg=COLOURS[result.level])
    click.echo(f"{mark} {result.check:<14} {result.message}")
    if result.next:
        click.echo(f"{'':24}{result.next}")


# --- this machine ---------------------------------------------------------------------------------


def machine_checks() -> Iterator[Check]:
    """Check Python, the event loop and the limit on open files."""
    version = f"Python {platform.python_version()}, substrate {__version__}"
    if sys.version_info >= MIN_PYTHON:
        yield Check("python", "ok", version)
    else:
        yield Check("python", "problem", version, "Install Python 3.11 or newer.")
    if importlib.util.find_spec("uvloop") is not None:
        yield Check("uvloop", "ok", "uvloop is installed")
    else:
        message = "not installed; the server needs it"
        yield Check("uvloop", "problem", message, "pip install uvloop")
    import resource  # Unix only, like the program itself

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES:
        yield Check("open files", "ok", f"limit {soft}")
        return
    possible = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    next_step = f"Run `ulimit -n {possible}` before starting the server."
    yield Check("open files", "warning", f"limit only {soft}", next_step)


def sandbox_checks(settings: Settings) -> Iterator[Check]:
    """Check whether bubblewrap is installed. bash's health check tests the configured sandbox."""
    found = shutil.which("bwrap")
    if found is not None:
        yield Check(
            "sandbox", "ok", f"bubblewrap is {found}; bash_sandbox is {settings.bash_sandbox}"
        )
    elif settings.bash_sandbox == "off":
        yield Check("sandbox", "optional", "off; bubblewrap for --bash-sandbox is not installed")
    else:
        yield Check(
            "sandbox",
            "problem",
            f"bash_sandbox is {settings.bash_sandbox}, but bwrap is not on PATH",
            "Install bubblewrap, or set bash_sandbox to off.",
        )


# --- the server -----------------------------------------------------------------------------------


def server_checks(
    settings: Settings, target: ServerTarget | None
) -> tuple[list[Check], Target | None]:
    """Check the server on the port. Returns results, and the target if it can be called."""
    port, host = settings.port, connect_address(settings.bind)
    if target is None:
        return [_port_check(port, host)], None
    running = find_running(port)
    whose = "without a lock file of yours" if running is None else f"process {running.pid}"
    identity = identity_of(port, host) or {}
    version = str(identity.get("version", "of unknown version"))
    results = [Check("server", "ok", f"substrate {version} on port {port}, {whose}")]
    if version != __version__:
        results = [
            Check(
                "server",
                "warning",
                f"the server on port {port} has version {version}, this program {__version__}",
                "Restart the server.",
            )
        ]
    try:
        target.run(result_of(target, "plexus.hash", {}))
    except (click.ClickException, PlexusError) as error:
        results.append(
            Check(
                "token",
                "problem",
                f"the server rejected the token: {error.message}",
                "Pass its token: `substrate --token TOKEN doctor`.",
            )
        )
        return results, None
    return [*results, Check("token", "ok", "accepted by the server")], target


def _port_check(port: int, host: str) -> Check:
    """Report whether a port without a Substrate server is used by another program."""
    if port == 0:
        return Check("server", "ok", "the port is 0, so no server can be found")
    import socket

    try:
        socket.create_connection((host, port), 0.3).close()
    except (OSError, UnicodeError):  # no host has this name
        message = f"not running on port {port}; start it with `substrate serve`"
        return Check("server", "optional", message)
    return Check(
        "server",
        "problem",
        f"another program listens on port {port}",
        f"Stop it, or use another port: `substrate --port {port + 1 if port < 65535 else 4444}`.",
    )


def lock_checks() -> Iterator[Check]:
    """Check the lock files of servers. Reading a stale lock file removes it."""
    folder = lock_folder()
    if not folder.is_dir():
        yield Check("lock files", "ok", "none")
        return
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        yield Check(
            "lock files", "problem", f"other users can read {folder}", f"chmod 700 {folder}"
        )
    running = 0
    for path in sorted(folder.glob("*.json")):
        found = find_running(int(path.stem)) if path.stem.isdecimal() else None
        if found is not None:
            running += 1
        elif path.exists():
            yield Check("lock files", "warning", f"{path} is not a lock file", f"rm {path}")
        else:
            yield Check(
                "lock files",
                "warning",
                f"removed the stale lock file of a server on port {path.stem}",
                "Nothing to do: the server was killed, or the machine went down.",
            )
    yield Check("lock files", "ok", f"{running} of running servers in {folder}")


# --- the project folder ---------------------------------------------------------------------------


def trust_checks(files: ProjectFiles, project: Path) -> Iterator[Check]:
    """Check whether the code and settings of the project folder are loaded."""
    skipped = files.skipped
    found = " and ".join(files_to_trust(project))
    if skipped is not None:
        about = "; ".join(skipped.details)
        yield Check("trust", "warning", f"{skipped.message} ({about})", skipped.next)
    elif not found:
        message = "this folder has no substrate.toml and no activations.d"
        yield Check("trust", "optional", message)
    elif files.live:
        how = "for this start" if files.once else "always"
        yield Check("trust", "ok", f"{found} loaded: the folder is trusted {how}")
    else:
        yield Check("trust", "ok", f"{found} loaded, unchanged since they were trusted")


# --- plugins, activations and models --------------------------------------------------------------


def plugin_checks(target: Target) -> list[Check]:
    """Report the plugins of this project that could not be loaded."""
    broken = [
        Check(
            "plugins",
            "problem",
            f"{each.source} was skipped: {each.reason}",
            "Fix it or remove it.",
        )
        for each in target.broken
    ]
    return broken or [
        Check("plugins", "ok", f"{len(target.catalogue.namespaces())} namespaces loaded")
    ]


def activation_checks(where: str, target: Target) -> Iterator[Check]:
    """Report the health of every activation."""
    try:
        report = target.run(result_of(target, "health.check", {}))
    except (click.ClickException, PlexusError) as error:
        next_step = "Check the server's log."
        yield Check(where, "problem", f"health.check failed: {error.message}", next_step)
        return
    unhealthy: Sequence[dict[str, Any]] = [each for each in report["activations"] if not each["ok"]]
    for each in unhealthy:
        yield Check(
            where,
            "problem",
            f"{each['namespace']}: {each['detail']}",
            f"`substrate schema {each['namespace']}` describes the activation.",
        )
    if not unhealthy:
        yield Check(where, "ok", f"all {len(report['activations'])} activations are healthy")


def model_checks(target: Target) -> Iterator[Check]:
    """Check the model providers. Only the provider of the default model has to be ready."""
    try:
        models = target.run(result_of(target, "chat.models", {}))
    except (click.ClickException, PlexusError) as error:
        yield Check("chat", "problem", f"chat.models failed: {error.message}")
        return
    default = str(models["default"]).partition(":")[0]
    known = {each["provider"] for each in models["providers"]}
    if default not in known:
        next_step = f"Set chat_model to a model of {', '.join(sorted(known))}."
        message = f"unknown provider in chat_model {models['default']!r}"
        yield Check("chat", "problem", message, next_step)
    for each in models["providers"]:
        name, advice = each["provider"], str(each.get("advice") or "")
        if each["ready"]:
            yield Check("chat", "ok", f"{name} is ready, as in {each['example']}")
        elif name == default:
            message = f"the default model {models['default']} is not ready"
            yield Check("chat", "problem", message, advice)
        else:
            yield Check("chat", "optional", f"{name} is not configured", advice)


# --- MCP hosts ------------------------------------------------------------------------------------


def client_checks() -> Iterator[Check]:
    """Check the entries for this program in all configuration files of all hosts."""
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
            except (OSError, UnicodeDecodeError, NotEditable) as error:
                yield Check(key, "problem", f"cannot read {path}: {error}", "Fix the file.")
                found = True
                continue
            for name, entry in entries.items():
                if is_own_entry(name, entry):
                    found = True
                    where = f"{name} in {path}"
                    if (reason := entry_error(host, entry)) is not None:
                        yield Check(key, "problem", f"{where} {reason}", install)
                    else:
                        yield Check(key, "ok", f"{where} {entry_summary(entry)}")
        if not found:
            message = f"no entry in {host.title}"
            yield Check(key, "optional", message, f"substrate mcp install {key}")
