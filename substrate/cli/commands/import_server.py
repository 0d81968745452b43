"""`substrate import`: try a server that was written with another framework."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from plexus.errors import PlexusError
from plexus.registry.activation_tree import read_activation
from plexus.registry.plugins import plugin_errors
from substrate.build_hub import FASTMCP, imported_server
from substrate.cli.terminal.tables import print_json_line

__all__ = ("import_server",)


@click.group("import")
def import_server() -> None:
    """Serve the tools of a server that was written with another framework."""


@import_server.command("fastmcp")
@click.argument("reference", metavar="MODULE:SERVER")
@click.option("--json", "as_json", is_flag=True, help="Print each method as a line of JSON.")
@click.pass_context
def import_fastmcp(ctx: click.Context, *, reference: str, as_json: bool) -> None:
    """List the tools of a FastMCP server as methods, and show how to serve them.

    MODULE:SERVER names the server object, as in weather:mcp. It runs in the same process, so its
    progress, log messages and questions are those of a run. Servers of the official SDK work too.
    """
    if not reference.partition(":")[2]:
        raise click.UsageError(f"{reference!r} is not MODULE:SERVER, as in weather:mcp.", ctx)
    try:
        with plugin_errors():
            node = read_activation(imported_server(reference, Path.cwd()))
    except PlexusError as error:
        raise click.ClickException(f"{reference}: {error.message}") from error
    if as_json:
        for spec in node.methods:
            print_json_line({"name": spec.name, "summary": spec.summary})
        return
    width = max(len(spec.name) for spec in node.methods)
    for spec in node.methods:
        click.echo(f"{spec.name:{width}}  {spec.summary}".rstrip())
    named = shlex.join(["--activation", FASTMCP + reference])
    click.echo("\nServe them:", err=True)
    for command in (f"substrate {named}", f"substrate mcp install claude-code {named}"):
        click.echo(f"  {command}", err=True)
