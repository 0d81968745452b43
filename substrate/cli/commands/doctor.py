"""`substrate doctor`: what is well, what is not, and what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click

from plexus.rpc import wire
from substrate.cli.doctor_checks import (
    Check,
    activation_checks,
    client_checks,
    lock_checks,
    machine_checks,
    model_checks,
    plugin_checks,
    sandbox_checks,
    server_checks,
    store_checks,
    trust_checks,
)
from substrate.cli.main import files_of, settings_of
from substrate.cli.target.local import LocalTarget
from substrate.cli.target.selection import running_server

__all__ = ("doctor",)

MARKS = {"ok": ("OK", "green"), "warning": ("warning", "yellow"), "problem": ("problem", "red")}


@click.command(short_help="Check what is well, and say what to do about the rest.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each finding.")
@click.pass_context
def doctor(ctx: click.Context, *, as_json: bool) -> None:
    """Check this machine, the server on the port of the settings, what is stored, plugins, models
    and the entries in MCP hosts. The exit code is 1 if there is a problem."""
    counts = {"ok": 0, "warning": 0, "problem": 0}
    for result in _checks(ctx):
        counts[result.level] += 1
        if as_json:
            click.echo(wire.encode(result).decode())
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
    mark, colour = MARKS[result.level]
    coloured = click.style(f"{mark:<8}", fg=colour) if sys.stdout.isatty() else f"{mark:<8}"
    click.echo(f"{coloured} {result.check:<14} {result.message}")
    if result.next:
        click.echo(f"{'':24}{result.next}")
