"""`substrate list`: what there is to call."""

from __future__ import annotations

from pathlib import Path

import click

from substrate.cli import settings_of
from substrate.commands.catalogue import method_names
from substrate.commands.display import coloured
from substrate.commands.listing import print_namespaces
from substrate.commands.local import LocalTarget
from substrate.commands.target import Choice, Target, choose_target, report_broken, target_options

__all__ = ("list_methods",)


@click.command(
    "list",
    short_help="List namespaces and methods.",
    params=[
        click.Option(["--json", "as_json"], is_flag=True, help="A line of JSON for each method."),
        *target_options(),
    ],
)
@click.pass_context
def list_methods(ctx: click.Context, *, as_json: bool, local: bool, url: str | None) -> None:
    """List namespaces and methods: those of the server if one runs, else those found here."""
    target = choose_target(ctx, Choice(local, url))
    print_namespaces(target.catalogue.namespaces(), as_json=as_json)
    if target.command is not None:
        _compare(ctx, target)


def _compare(ctx: click.Context, target: Target) -> None:
    """Say what the project here has and the server has not: it may have been started before, or
    elsewhere."""
    own = LocalTarget(settings_of(ctx), Path.cwd())
    ctx.call_on_close(own.close)
    report_broken(own.broken)
    missing = sorted(set(method_names(own.catalogue)) - set(method_names(target.catalogue)))
    if missing:
        message = (
            f"This is {target.name}. It lacks what is found here: {', '.join(missing)}. "
            "--local lists it."
        )
        click.echo(coloured(message, "yellow"), err=True)
