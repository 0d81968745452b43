"""`substrate list`: list namespaces and methods."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from substrate.cli.main import files_of, settings_of
from substrate.cli.target.catalogue import MethodInfo, NamespaceInfo, method_names
from substrate.cli.target.local import LocalTarget
from substrate.cli.target.protocol import Target
from substrate.cli.target.selection import Choice, choose_target, report_broken, target_options
from substrate.cli.terminal.display import coloured
from substrate.cli.terminal.tables import print_json_line

__all__ = ("list_methods", "print_namespaces")


@click.command(
    "list",
    short_help="List namespaces and methods.",
    params=[
        click.Option(
            ["--json", "as_json"], is_flag=True, help="Print each method as a line of JSON."
        ),
        *target_options(),
    ],
)
@click.pass_context
def list_methods(ctx: click.Context, *, as_json: bool, local: bool, url: str | None) -> None:
    """List namespaces and methods of the running server, if any, and of this project."""
    target = choose_target(ctx, Choice(local, url))
    namespaces = target.catalogue.namespaces()
    only_here = [] if target.command is None else _only_here(ctx, target)
    print_namespaces([*namespaces, *only_here], as_json=as_json)
    if only_here:
        names = ", ".join(method.name for namespace in only_here for method in namespace.methods)
        message = (
            f"{target.name.capitalize()} does not have {names}, which this project has. "
            "Call it with --local, or restart the server."
        )
        click.echo(coloured(message, "yellow"), err=True)


def _only_here(ctx: click.Context, target: Target) -> list[NamespaceInfo]:
    """Return what this project has and the server lacks.

    The server may have been started earlier, or in another folder.
    """
    own = LocalTarget(settings_of(ctx), Path.cwd(), files_of(ctx))
    ctx.call_on_close(own.close)
    report_broken(own.broken)
    known = set(method_names(target.catalogue))
    missing = []
    for namespace in own.catalogue.namespaces():
        methods = tuple(method for method in namespace.methods if method.name not in known)
        if methods:
            missing.append(dataclasses.replace(namespace, methods=methods))
    return missing


# --- printing -------------------------------------------------------------------------------------


def print_namespaces(namespaces: Sequence[NamespaceInfo], *, as_json: bool) -> None:
    """Print namespaces with their methods."""
    if as_json:
        for namespace in namespaces:
            for method in namespace.methods:
                print_json_line(_method_fields(namespace, method))
    elif sys.stdout.isatty():
        _print_table(namespaces)
    else:
        _print_plain(namespaces)


def _method_fields(namespace: NamespaceInfo, method: MethodInfo) -> dict[str, Any]:
    return {
        "name": method.name,
        "namespace": namespace.path,
        "version": namespace.version,
        "streaming": method.streaming,
        "scope": method.scope,
        "summary": method.summary,
    }


def _print_plain(namespaces: Sequence[NamespaceInfo]) -> None:
    names = [method.name for namespace in namespaces for method in namespace.methods]
    width = max(map(len, names), default=0)
    for namespace in namespaces:
        click.echo(f"{namespace.path} {namespace.version}: {namespace.description}")
        for method in namespace.methods:
            click.echo(f"  {method.name:<{width}}  {method.summary}")


def _print_table(namespaces: Sequence[NamespaceInfo]) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console()
    names = [method.name for namespace in namespaces for method in namespace.methods]
    width = max(map(len, names), default=0)
    for namespace in namespaces:
        console.print(
            Text.assemble(
                (namespace.path, "bold cyan"),
                (f" {namespace.version}", "dim"),
                f"  {namespace.description}",
            )
        )
        table = Table.grid(padding=(0, 2))
        table.add_column(width=width, no_wrap=True)
        table.add_column()
        for method in namespace.methods:
            table.add_row(Text(method.name, style="green"), Text(method.summary))
        console.print(Padding(table, (0, 0, 1, 2)))
