"""Where a command's methods live: a server that is running, or a hub in this process.

Both are one small interface, so that no command knows which it talks to. A server is used if one
answers on the port of the settings, because that is where the runs are that others look at;
what can only be meant for a hub of our own (`--local`, `--activation`, `--bash-sandbox`,
`--database`) keeps to this process.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

from plexus.registry.plugins import Broken
from substrate.cli.main import files_of, settings_of
from substrate.cli.target.catalogue import Catalogue
from substrate.cli.target.local import LocalTarget
from substrate.cli.target.server import ServerTarget, find_server, server_url
from substrate.cli.terminal.display import coloured
from substrate.security.exposure import reached_at, url_host

__all__ = (
    "Choice",
    "Item",
    "OpenCall",
    "Target",
    "choose_target",
    "need_server",
    "report_broken",
    "running_server",
    "server_option",
    "spelled",
    "target_options",
)

T = TypeVar("T")

#: Root flags that shape a hub; a server has its own settings and would ignore them.
HUB_FLAGS = {
    "activation": "--activation",
    "bash_sandbox": "--bash-sandbox",
    "database": "--database",
}


class Item(Protocol):
    """One event of a run."""

    @property
    def event(self) -> Mapping[str, Any]:
        """The event as it is on the wire."""

    @property
    def time_ms(self) -> int | None:
        """When it was written, in milliseconds since the epoch, if the call asked for that."""

    @property
    def text(self) -> str | None:
        """How the event itself says that a person would read it; None if that is not known."""


class OpenCall(Protocol):
    """A call that was accepted."""

    @property
    def run(self) -> int:
        """The run's number."""

    def items(self) -> AsyncIterator[Item]:
        """What the run says, up to and with its terminal."""

    async def cancel(self, reason: str) -> None:
        """Stop the run; its terminal still comes."""

    async def answer(self, request: str, answer: Any) -> None:
        """Answer what the run asks; raises PlexusError if the answer does not fit."""


class Target(Protocol):
    """Somewhere to call methods."""

    @property
    def name(self) -> str:
        """How to speak of it, as in "the server on port 4444"."""

    @property
    def command(self) -> Sequence[str] | None:
        """The `substrate call` that reaches the same runs from elsewhere; None if none can."""

    @property
    def broken(self) -> Sequence[Broken]:
        """Plugins that were skipped."""

    @property
    def catalogue(self) -> Catalogue:
        """What there is to call."""

    def call(self, method: str, params: dict[str, Any]) -> AbstractAsyncContextManager[OpenCall]:
        """Begin a call; leaving it stops the run. Entering raises PlexusError if it is refused."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that calls."""

    def close(self) -> None:
        """Give everything back."""


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
    host = reached_at(settings.bind)
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


def report_broken(broken: Sequence[Broken]) -> None:
    """Say which plugins were skipped, and why."""
    for plugin in broken:
        message = f"Plugin skipped: {plugin.source}: {plugin.reason}"
        click.echo(coloured(message, "yellow"), err=True)
