"""Namespaces and methods as a list: on a terminal, in a pipe, as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from plexus.rpc import wire
from substrate.cli.target.catalogue import Namespace

__all__ = ("print_namespaces",)


def print_namespaces(namespaces: Sequence[Namespace], *, as_json: bool) -> None:
    """Print all of them."""
    if as_json:
        for namespace in namespaces:
            for method in namespace.methods:
                click.echo(wire.encode(_described(namespace, method.name)).decode())
    elif sys.stdout.isatty():
        _print_table(namespaces)
    else:
        _print_plain(namespaces)


def _described(namespace: Namespace, name: str) -> dict[str, Any]:
    method = next(method for method in namespace.methods if method.name == name)
    return {
        "name": method.name,
        "namespace": namespace.path,
        "version": namespace.version,
        "streaming": method.streaming,
        "scope": method.scope,
        "summary": method.summary,
    }


def _print_plain(namespaces: Sequence[Namespace]) -> None:
    names = [method.name for namespace in namespaces for method in namespace.methods]
    width = max(map(len, names), default=0)
    for namespace in namespaces:
        click.echo(f"{namespace.path} {namespace.version}: {namespace.description}")
        for method in namespace.methods:
            click.echo(f"  {method.name:<{width}}  {method.summary}")


def _print_table(namespaces: Sequence[Namespace]) -> None:
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
