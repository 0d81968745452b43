"""`substrate list`: list namespaces and methods.

Your own namespaces come first, with their methods; the built-in ones are folded to a line each.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from substrate.build_hub import NAMESPACES
from substrate.cli.main import files_of, settings_of
from substrate.cli.shell_completion import complete_namespace
from substrate.cli.target.catalogue import MethodInfo, NamespaceInfo, method_names, suggest
from substrate.cli.target.local import LocalTarget
from substrate.cli.target.protocol import Target
from substrate.cli.target.selection import Choice, choose_target, report_broken, target_options
from substrate.cli.terminal.display import DIM, coloured
from substrate.cli.terminal.tables import print_json_line

__all__ = ("list_methods", "print_namespaces")

#: Version of an activation that declares none.
UNVERSIONED = "0"


@click.command(
    "list",
    short_help="List namespaces and methods.",
    params=[
        click.Argument(
            ["names"], metavar="[NAMESPACE]...", nargs=-1, shell_complete=complete_namespace
        ),
        click.Option(
            ["--all", "everything"], is_flag=True, help="List the methods of all namespaces."
        ),
        click.Option(
            ["--json", "as_json"], is_flag=True, help="Print each method as a line of JSON."
        ),
        *target_options(),
    ],
)
@click.pass_context
def list_methods(
    ctx: click.Context,
    *,
    names: tuple[str, ...],
    everything: bool,
    as_json: bool,
    local: bool,
    url: str | None,
) -> None:
    """List the methods of your activations, and the built-in namespaces.

    With NAMESPACE, list the methods of that namespace. The list is that of the running server, if
    any, and of this project.
    """
    target = choose_target(ctx, Choice(local, url))
    namespaces = target.catalogue.namespaces()
    only_here = [] if target.command is None else _only_here(ctx, target)
    namespaces += only_here
    if names:
        namespaces = _chosen(ctx, names, namespaces)
    print_namespaces(namespaces, as_json=as_json, unfolds=everything or bool(names))
    if only_here:
        methods = [method.name for namespace in only_here for method in namespace.methods]
        message = (
            f"{target.name.capitalize()} does not have {', '.join(methods)}, which this project "
            "has. Call it with --local, or restart the server."
        )
        click.echo(coloured(message, "yellow"), err=True)


def _chosen(
    ctx: click.Context, names: Sequence[str], namespaces: Sequence[NamespaceInfo]
) -> list[NamespaceInfo]:
    """Return the named namespaces with their children. Raises UsageError."""
    paths = [namespace.path for namespace in namespaces]
    for name in names:
        if name not in paths:
            advice = suggest(name, paths) or "`substrate list` shows all namespaces."
            if any(method.name == name for each in namespaces for method in each.methods):
                advice = f"It is a method: `substrate schema {name}` describes it."
            raise click.UsageError(f"Unknown namespace {name!r}. {advice}", ctx)
    return [
        namespace
        for namespace in namespaces
        if any(namespace.path == name or namespace.path.startswith(f"{name}.") for name in names)
    ]


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


def print_namespaces(
    namespaces: Sequence[NamespaceInfo], *, as_json: bool, unfolds: bool = False
) -> None:
    """Print namespaces: your own with their methods, the built-in ones unless `unfolds` folded."""
    own = [each for each in namespaces if _root(each) not in NAMESPACES]
    theirs = [each for each in namespaces if _root(each) in NAMESPACES]
    if as_json:
        for namespace in [*own, *theirs]:
            for method in namespace.methods:
                print_json_line(_method_fields(namespace, method))
        return
    unfolded = [*own, *theirs] if unfolds else own
    width = max((len(each.name) for namespace in unfolded for each in namespace.methods), default=0)
    for namespace in unfolded:
        _print_methods(namespace, width)
    if not unfolds:
        _print_folded(theirs)


def _print_methods(namespace: NamespaceInfo, width: int) -> None:
    title = click.style(namespace.path, fg="cyan", bold=True)
    if namespace.version != UNVERSIONED:
        title += f" {namespace.version}"
    _print_line(f"{title}: {namespace.description}" if namespace.description else title)
    for method in namespace.methods:
        padding = " " * (width - len(method.name))
        _print_line(f"  {click.style(method.name, fg='green')}{padding}  {method.summary}")


def _print_folded(namespaces: Sequence[NamespaceInfo]) -> None:
    rows = [
        (each.path, _counted(len(each.methods)), each.description)
        for each in namespaces
        if each.methods
    ]
    if not rows:
        return
    paths, counts = (max(len(row[column]) for row in rows) for column in (0, 1))
    _print_line("Built in:")
    for path, count, description in rows:
        name = click.style(f"{path:<{paths}}", fg="cyan", bold=True)
        _print_line(f"  {name}  {count:>{counts}}  {description}")
    if sys.stderr.isatty():
        hint = "`substrate list NAMESPACE` lists the methods of a namespace."
        click.echo(coloured(hint, DIM), err=True)


def _counted(methods: int) -> str:
    return "1 method " if methods == 1 else f"{methods} methods"


def _print_line(text: str) -> None:
    """Print a line; without colours in a pipe and with NO_COLOR."""
    click.echo(click.unstyle(text) if os.environ.get("NO_COLOR") else text)


def _root(namespace: NamespaceInfo) -> str:
    return namespace.path.partition(".")[0]


def _method_fields(namespace: NamespaceInfo, method: MethodInfo) -> dict[str, Any]:
    return {
        "name": method.name,
        "namespace": namespace.path,
        "version": namespace.version,
        "streaming": method.streaming,
        "scope": method.scope,
        "summary": method.summary,
    }
