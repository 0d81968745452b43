"""Selection of the target of a command: a running server, or a hub in this process.

A server is used if one answers on the port of the settings, because the runs that other clients
watch are there. Flags that only make sense for a local hub (`--local`, `--activation`,
`--bash-sandbox`, `--database`) select this process.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from plexus.registry.plugins import BrokenPlugin
from substrate.cli.main import files_of, settings_of
from substrate.cli.target.local import LocalTarget
from substrate.cli.target.protocol import Target
from substrate.cli.target.server import ServerTarget, find_server, server_url
from substrate.cli.terminal.display import coloured
from substrate.security.exposure import connect_address, url_host

__all__ = (
    "Choice",
    "choose_target",
    "need_server",
    "report_broken",
    "running_server",
    "server_option",
    "spelled",
    "target_options",
)

#: Root flags that shape a hub; a server has its own settings and would ignore them.
HUB_FLAGS = {
    "activation": "--activation",
    "bash_sandbox": "--bash-sandbox",
    "database": "--database",
}


@dataclasses.dataclass(frozen=True)
class Choice:
    """What the person said about where to call."""

    local: bool = False
    url: str | None = None


def target_options() -> list[click.Option]:
    """The flags that make a `Choice`, as every command has them."""
    return [
        click.Option(["--local"], is_flag=True, help="Never ask a server: use this process."),
        server_option(),
    ]


def server_option() -> click.Option:
    """The flag that names a server, for a command that needs one."""
    return click.Option(
        ["--url"], metavar="URL", help="Ask this server: ws://host:port or http://host:port."
    )


def choose_target(ctx: click.Context, choice: Choice) -> Target:
    """Find the server, or build the hub; it is closed with the context. Raises click's errors."""
    settings = settings_of(ctx)
    given = ctx.find_root().params
    hub_flags = [flag for name, flag in HUB_FLAGS.items() if given.get(name)]
    target: Target | None = None
    if choice.url is not None:
        about_here = ["--local"] if choice.local else hub_flags
        if about_here:
            raise click.UsageError(
                f"{about_here[0]} is about a hub in this process and --url about a server; "
                "leave one out.",
                ctx,
            )
        target = _named_server(ctx, choice.url)
    # A completion is wanted at once, and a server that hangs must not hold up a shell.
    elif not (choice.local or hub_flags or ctx.resilient_parsing):
        target = running_server(ctx)
    if target is None:
        target = LocalTarget(settings, Path.cwd(), files_of(ctx))
        if not ctx.resilient_parsing:
            report_broken(target.broken)
    ctx.call_on_close(target.close)
    return target


def need_server(ctx: click.Context, url: str | None) -> ServerTarget:
    """The server that is named, or else runs; raises ClickException that says what to do."""
    if url is not None:
        return _named_server(ctx, url)
    server = running_server(ctx)
    if server is None:
        raise click.ClickException(
            f"no server runs on port {settings_of(ctx).port}. Start one with `substrate`, or name "
            "another with `substrate --port PORT` or --url."
        )
    return server


def spelled(ctx: click.Context, command: str, *words: str) -> str:
    """A command that reaches the same server as this one, ready to be typed."""
    url, port = ctx.params.get("url"), ctx.find_root().params.get("port")
    before = ["--port", str(port)] if url is None and port is not None else []
    after = [] if url is None else ["--url", url]
    return shlex.join(["substrate", *before, command, *after, *words])


def running_server(ctx: click.Context) -> ServerTarget | None:
    """The server that answers on the port of the settings, if one does."""
    settings = settings_of(ctx)
    host = connect_address(settings.bind)
    if not find_server(settings.port, host):
        return None
    return ServerTarget(
        server_url(f"{url_host(host)}:{settings.port}"),
        f"the server on port {settings.port}",
        ["substrate", "--port", str(settings.port), "call"],
        ctx.find_root().params.get("token"),
    )


def _named_server(ctx: click.Context, address: str) -> ServerTarget:
    """The server at this address, whether it is there or not; raises UsageError."""
    try:
        url = server_url(address)
    except ValueError as error:
        raise click.UsageError(f"--url: {error}", ctx) from error
    command = ["substrate", "call", "--url", address]
    token = ctx.find_root().params.get("token")
    return ServerTarget(url, f"the server at {address}", command, token)


def report_broken(broken: Sequence[BrokenPlugin]) -> None:
    """Say which plugins were skipped, and why."""
    for plugin in broken:
        message = f"Plugin skipped: {plugin.source}: {plugin.reason}"
        click.echo(coloured(message, "yellow"), err=True)
