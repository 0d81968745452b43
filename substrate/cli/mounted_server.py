"""The server of one mount, started by a command: listed, and reported on.

A person at a terminal signs in there, if the server requires it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from activations.gateway.gateway import Gateway
from activations.gateway.mount_config import MountConfig
from activations.gateway.mount_file import LoadedMounts
from plexus.errors import PlexusError
from plexus.runtime.hub import Plexus
from plexus.text import escape_controls
from substrate.cli.event_loop import run_async
from substrate.cli.terminal.display import stdin_is_terminal

if TYPE_CHECKING:  # imported when a server is reached over HTTP
    from activations.gateway.transports.oauth import SignIn

__all__ = ("check_server", "diagnose_server", "make_gateway")


def make_gateway(config: MountConfig) -> Gateway:
    """Return a gateway with this mount only."""
    gateway = Gateway(Plexus(), lambda: LoadedMounts({config.name: config}, {}))
    gateway.register_all()
    if stdin_is_terminal():
        gateway.show_sign_in = _show_sign_in
    return gateway


async def _show_sign_in(pending: SignIn) -> None:
    """Print the address of a sign-in, and read the address at its end if a person pastes one."""
    click.echo(f"Sign in to {pending.server} with a browser:\n\n{pending.url}\n", err=True)
    click.echo(
        "This continues automatically. If the browser shows an error page, paste its address here:",
        err=True,
    )
    loop = asyncio.get_running_loop()

    def read_line() -> None:
        line = sys.stdin.readline()
        if not line:
            loop.remove_reader(sys.stdin)
        elif line.strip() and not pending.complete(line.strip()):
            click.echo("That is not the address at the end of this sign-in.", err=True)

    loop.add_reader(sys.stdin, read_line)
    try:
        await asyncio.sleep(pending.limit_s)
    finally:
        loop.remove_reader(sys.stdin)


async def _refresh(config: MountConfig) -> dict[str, Any]:
    gateway = make_gateway(config)
    try:
        refreshed = await gateway.refresh(config.name)
        return refreshed.describe_state()
    finally:
        await gateway.close()


async def diagnose_server(config: MountConfig) -> dict[str, Any]:
    """Start a server and list it. Returns its state, with the error and the time that it took."""
    gateway = make_gateway(config)
    started = time.monotonic()
    error = None
    try:
        await gateway.refresh(config.name)
    except PlexusError as failure:
        error = failure.message
    finally:
        state = gateway.find(config.name).describe_state()
        await gateway.close()
    return state | {"error": error, "took_s": round(time.monotonic() - started, 2)}


def check_server(config: MountConfig, *, as_json: bool) -> dict[str, Any]:
    """List a server, and print what it offers. A failure is reported; the mount stays."""
    try:
        state = run_async(_refresh(config))
    except PlexusError as error:
        if not as_json:
            click.echo(f"Note: {escape_controls(error.message)}", err=True)
            click.echo(f"`substrate mount doctor {config.name}` shows more.", err=True)
        return {"error": error.message}
    if not as_json:
        _print_offer(config, state)
    return state


def _print_offer(config: MountConfig, state: dict[str, Any]) -> None:
    counts = f"{state['tools']} tools, {state['resources']} resources, {state['prompts']} prompts"
    click.echo(f"{config.name} offers {counts}.")
    for problem in state["problems"]:
        click.echo(f"Note: {escape_controls(problem)}", err=True)
    if state["tools"] and config.expose == ("search",):
        click.echo(
            "Models find them with plexus.search. To list them as tools: --expose all, or patterns."
        )
        if config.call == "safe":
            click.echo(
                "plexus.call refuses those that do not declare that they do no damage: --call all."
            )
    if state["held"]:
        click.echo(
            f"{len(state['held'])} tools wait for approval: substrate mount approve {config.name}"
        )
