"""`substrate ide`: the editor that Claude Code connects to, and how to connect."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import click

from plexus.text import escape_controls
from substrate.cli.main import settings_of
from substrate.cli.target.protocol import call_method
from substrate.cli.target.selection import (
    command_line,
    require_server,
    running_server,
    server_option,
)
from substrate.cli.terminal.tables import print_json_line
from substrate.server.ide.lock_files import editors_for

__all__ = ("ide",)

#: What a person can do about an error, by its code.
ADVICE: Final = {"not_found": "The server was started without `ide`."}


@click.command(
    "ide",
    short_help="Connect Claude Code to the editor in the page.",
    params=[
        click.Argument(["switch"], required=False, type=click.Choice(["on", "off"])),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the state as JSON."),
        server_option(),
    ],
)
@click.pass_context
def ide(
    ctx: click.Context, *, switch: Literal["on", "off"] | None, as_json: bool, url: str | None
) -> None:
    """Show how to connect Claude Code to the editor in the page, or switch the editor on or off.

    Claude Code then shows its changes in the page before it writes them. You accept or reject
    them there, with `substrate respond`, or in Claude Code; the first answer counts.
    """
    if switch is None and not as_json and url is None and running_server(ctx) is None:
        click.echo(f"No server runs on port {settings_of(ctx).port}. Start one with the editor:")
        click.echo("  substrate --ide")
        return
    target = require_server(ctx, url)
    ctx.call_on_close(target.close)
    if switch is None:
        status = call_method(target, "ide.status", {}, ADVICE)
    else:
        status = call_method(target, "ide.switch", {"on": switch == "on"}, ADVICE)
    if as_json:
        print_json_line(status)
    elif status["on"]:
        _print_connections(status)
        _print_advice(ctx, status, is_local=url is None)
    else:
        reason = f": {status['reason']}" if status.get("reason") else "."
        click.echo(escape_controls(f"The editor is off{reason}"))
        if switch != "off":
            click.echo(f"Switch it on:\n  {command_line(ctx, 'ide', 'on')}")


def _print_connections(status: dict[str, Any]) -> None:
    connections = status["connections"]
    count = f"{len(connections)} program{'' if len(connections) == 1 else 's'} connected"
    folder = escape_controls(status["workspace"])
    click.echo(f"The editor is on for {folder}, port {status['port']}, {count}.")
    for each in connections:
        process = "" if each["pid"] is None else f", process {each['pid']}"
        click.echo(escape_controls(f"  {each['client'] or 'a program'}{process}"))


def _print_advice(ctx: click.Context, status: dict[str, Any], *, is_local: bool) -> None:
    click.echo("Connect Claude Code in this folder:\n  claude --ide")
    click.echo("In a terminal of another editor, or if several editors are running:")
    click.echo(f"  CLAUDE_CODE_SSE_PORT={status['port']} ENABLE_IDE_INTEGRATION=true claude")
    click.echo("In a session that is running:\n  /ide")
    click.echo("Review its changes in the page, or here:")
    click.echo(f"  {command_line(ctx, 'open')}\n  {command_line(ctx, 'respond')}")
    others = editors_for(Path(status["workspace"]), status["port"]) if is_local else []
    if others:
        names = ", ".join(f"{name} (port {port})" for name, port in others)
        click.echo(
            escape_controls(
                f"Other editors are running for this folder: {names}. `claude --ide` connects only "
                "if there is a single one; choose with /ide."
            ),
            err=True,
        )
