"""`substrate doctor`: what is well, what is not, and what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click

from plexus.rpc import wire
from substrate.cli.doctor.checks import (
    Finding,
    activation_findings,
    lock_findings,
    machine_findings,
    model_findings,
    plugin_findings,
    sandbox_findings,
    server_findings,
    store_findings,
    trust_findings,
)
from substrate.cli.doctor.client_checks import client_findings
from substrate.cli.main import files_of, settings_of
from substrate.cli.target.local import LocalTarget
from substrate.cli.target.target import running_server

__all__ = ("doctor",)

MARKS = {"ok": ("OK", "green"), "warning": ("warning", "yellow"), "problem": ("problem", "red")}


@click.command(short_help="Check what is well, and say what to do about the rest.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each finding.")
@click.pass_context
def doctor(ctx: click.Context, *, as_json: bool) -> None:
    """Check this machine, the server on the port of the settings, what is stored, plugins, models
    and the entries in MCP hosts. The exit code is 1 if there is a problem."""
    counts = {"ok": 0, "warning": 0, "problem": 0}
    for finding in _findings(ctx):
        counts[finding.level] += 1
        if as_json:
            click.echo(wire.encode(finding).decode())
        else:
            _print(finding)
    if not as_json:
        problems, warnings = counts["problem"], counts["warning"]
        click.echo(f"{problems} problems, {warnings} warnings, {counts['ok']} OK.")
    if counts["problem"]:
        ctx.exit(1)


def _findings(ctx: click.Context) -> Iterator[Finding]:
    settings = settings_of(ctx)
    yield from chain(machine_findings(), sandbox_findings(settings))
    findings, server = server_findings(settings, running_server(ctx))
    yield from findings
    yield from lock_findings()
    yield from store_findings(settings)
    here = LocalTarget(settings, Path.cwd(), files_of(ctx))
    ctx.call_on_close(here.close)
    yield from chain(trust_findings(files_of(ctx), Path.cwd()), plugin_findings(here))
    if server is not None:
        yield from activation_findings("server", server)
    yield from activation_findings("project", here)
    # The keys and the settings of whoever answers are what counts.
    yield from model_findings(here if server is None else server)
    yield from client_findings()


def _print(finding: Finding) -> None:
    mark, colour = MARKS[finding.level]
    coloured = click.style(f"{mark:<8}", fg=colour) if sys.stdout.isatty() else f"{mark:<8}"
    click.echo(f"{coloured} {finding.check:<14} {finding.message}")
    if finding.next:
        click.echo(f"{'':24}{finding.next}")
