"""`substrate runs`: what runs on the server."""

from __future__ import annotations

import sys

import click

from plexus.rpc import wire
from substrate.cli.target.protocol import ask
from substrate.cli.target.selection import need_server, server_option, spelled
from substrate.cli.terminal.tables import UNDER_WAY, is_work, print_runs

__all__ = ("runs",)

#: More than a server keeps: those under way, and those that ended lately.
MOST = 10_000
STATES = (*UNDER_WAY, "complete", "error", "cancelled")


@click.command(
    short_help="List the runs of the server.",
    params=[
        click.Option(
            ["--all", "everything"],
            is_flag=True,
            help="Those that ended lately too, and those that only look at the server.",
        ),
        click.Option(["--state"], type=click.Choice(STATES), help="Only runs in this state."),
        click.Option(["--json", "as_json"], is_flag=True, help="A line of JSON for each run."),
        server_option(),
    ],
)
@click.pass_context
def runs(
    ctx: click.Context, *, everything: bool, state: str | None, as_json: bool, url: str | None
) -> None:
    """List your runs on the server that are under way, the newest first.

    On a terminal it is a table; piped, or with --json, each run is a line of JSON.
    """
    params = {"limit": MOST} | ({} if state is None else {"state": state})
    found = [
        run
        for run in ask(need_server(ctx, url), "plexus.runs", params)
        if (everything or is_work(run)) and (everything or state or run["state"] in UNDER_WAY)
    ]
    if as_json or not sys.stdout.isatty():
        for run in found:
            click.echo(wire.encode(run).decode())
    elif found:
        print_runs(found)
    elif everything or state:
        click.echo("There is no such run.", err=True)
    else:
        more = spelled(ctx, "runs", "--all")
        click.echo(f"No run is under way. `{more}` lists those that ended lately.", err=True)
