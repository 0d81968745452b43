"""Selection of the target of a command: a running server, or a hub in this process.

If a server answers on the configured port, commands use it, because other clients watch its runs.
Flags that only apply to a local hub (`--local`, `--activation`, `--only`, `--without`,
`--bash-sandbox`, `--database`) select this process.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from plexus.registry.plugins import BrokenPlugin
from plexus.version import __version__
from substrate.cli.main import files_of, program_of, settings_of
from substrate.cli.target.local import LocalTarget
from substrate.cli.target.protocol import Target
from substrate.cli.target.server import ServerTarget, find_server, server_url
from substrate.cli.terminal.display import coloured
from substrate.security.exposure import connect_address, url_host

__all__ = (
    "Choice",
    "choose_runs_target",
    "choose_target",
    "client_of",
    "command_line",
    "report_broken",
    "require_server",
    "running_server",
    "server_option",
    "target_options",
)

#: Root flags that configure a hub. A server has its own settings and would ignore them.
HUB_FLAGS = {
    "activation": "--activation",
    "only": "--only",
    "without": "--without",
    "bash_sandbox": "--bash-sandbox",
    "database": "--database",
}


@dataclasses.dataclass(frozen=True)
class Choice:
    """Target requested on the command line."""

    local: bool = False
    url: str | None = None


def target_options() -> list[click.Option]:
    """Return the options that select a target."""
    return [
        click.Option(["--local"], is_flag=True, help="Run in this process, without a server."),
        server_option(),
    ]


def server_option() -> click.Option:
    """Return the option that selects a server."""
    return click.Option(
        ["--url"], metavar="URL", help="Use this server: ws://host:port or http://host:port."
    )


def choose_target(ctx: click.Context, choice: Choice) -> Target:
    """Find the server, or build a hub that is closed with the context. Raises click's errors."""
    settings = settings_of(ctx)
    flags = ctx.find_root().params
    hub_flags = [flag for name, flag in HUB_FLAGS.items() if flags.get(name)]
    target: Target | None = None
    if choice.url is not None:
        local_flags = ["--local"] if choice.local else hub_flags
        if local_flags:
            raise click.UsageError(
                f"{local_flags[0]} runs in this process and --url selects a server. Omit one.",
                ctx,
            )
        target = _named_server(ctx, choice.url)
    # Shell completion must be fast, and a server that hangs must not block the shell.
    elif not (choice.local or hub_flags or ctx.resilient_parsing or program_of(ctx)):
        target = running_server(ctx)
    if target is None:
        target = LocalTarget(settings, Path.cwd(), files_of(ctx), client_of(ctx))
        if not ctx.resilient_parsing:
            report_broken(target.broken)
    ctx.call_on_close(target.close)
    return target


def choose_runs_target(ctx: click.Context, url: str | None) -> Target:
    """Return a target that sees all runs: a server, or a hub with the run store in this process."""
    if url is not None:
        return _named_server(ctx, url)
    # A server may record to another database.
    server = None if ctx.find_root().params.get("database") else running_server(ctx)
    if server is not None:
        return server
    target = LocalTarget(settings_of(ctx), Path.cwd(), files_of(ctx), client_of(ctx))
    ctx.call_on_close(target.close)
    return target


def require_server(ctx: click.Context, url: str | None) -> ServerTarget:
    """Return the selected or running server. Raises ClickException if no server runs."""
    if url is not None:
        return _named_server(ctx, url)
    server = running_server(ctx)
    if server is None:
        raise click.ClickException(
            f"No server runs on port {settings_of(ctx).port}. Start one with `substrate`, or "
            "select another with `substrate --port PORT` or --url."
        )
    return server


def command_line(ctx: click.Context, command: str, *words: str) -> str:
    """Return a command line that uses the same server as this command."""
    url, port = ctx.params.get("url"), ctx.find_root().params.get("port")
    before = ["--port", str(port)] if url is None and port is not None else []
    after = [] if url is None else ["--url", url]
    return shlex.join(["substrate", *before, command, *after, *words])


def client_of(ctx: click.Context) -> str:
    """Return the name and version of the command, as in "substrate call 0.1.0"."""
    root = ctx.find_root()
    while ctx.parent not in (None, root):
        ctx = ctx.parent
    return " ".join(["substrate", *([] if ctx is root else [ctx.info_name or ""]), __version__])


def running_server(ctx: click.Context) -> ServerTarget | None:
    """Return the server that answers on the configured port, or None."""
    settings = settings_of(ctx)
    host = connect_address(settings.bind)
    if not find_server(settings.port, host):
        return None
    return ServerTarget(
        server_url(f"{url_host(host)}:{settings.port}"),
        f"the server on port {settings.port}",
        ["substrate", "--port", str(settings.port), "call"],
        ctx.find_root().params.get("token"),
        client_of(ctx),
    )


def _named_server(ctx: click.Context, address: str) -> ServerTarget:
    """Return the server at an address, without connecting to it. Raises UsageError."""
    try:
        url = server_url(address)
    except ValueError as error:
        raise click.UsageError(f"--url: {error}", ctx) from error
    command = ["substrate", "call", "--url", address]
    token = ctx.find_root().params.get("token")
    return ServerTarget(url, f"the server at {address}", command, token, client_of(ctx))


def report_broken(broken: Sequence[BrokenPlugin]) -> None:
    """Print which plugins were skipped, and why."""
    for plugin in broken:
        message = f"Plugin skipped: {plugin.source}: {plugin.reason}"
        click.echo(coloured(message, "yellow"), err=True)
