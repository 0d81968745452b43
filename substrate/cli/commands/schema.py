"""`substrate schema`: describe parameters, events and results of methods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from substrate.cli.schema_options import format_value, type_label
from substrate.cli.target.catalogue import Catalogue, find_method, method_names, suggest, walk
from substrate.cli.target.selection import Choice, choose_target, target_options
from substrate.cli.terminal.tables import new_console, print_json_line

if TYPE_CHECKING:  # rich is imported when there is a terminal to print on
    from rich.console import Console, RenderableType
    from rich.table import Table

__all__ = ("schema",)

Described = dict[str, Any]


def _complete_name(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [
        CompletionItem(name, help=meaning)
        for namespace in choose_target(ctx, Choice()).catalogue.namespaces()
        for name, meaning in [
            (namespace.path, namespace.description),
            *((method.name, method.summary) for method in namespace.methods),
        ]
        if name.startswith(incomplete)
    ]


@click.command(
    short_help="Describe a namespace or a method.",
    params=[
        click.Argument(
            ["name"],
            required=False,
            metavar="[NAMESPACE[.METHOD]]",
            shell_complete=_complete_name,
        ),
        click.Option(
            ["--json", "as_json"], is_flag=True, help="Print the JSON Schema as one line."
        ),
        *target_options(),
    ],
)
@click.pass_context
def schema(
    ctx: click.Context, *, name: str | None, as_json: bool, local: bool, url: str | None
) -> None:
    """Describe all methods, one namespace, or one method, with parameters and events.

    The output is readable text; with --json it is the JSON Schema.
    """
    catalogue = choose_target(ctx, Choice(local, url)).catalogue
    found = _find(ctx, catalogue, name)
    if as_json:
        print_json_line(found)
        return
    console = new_console()
    for method in _methods_in(found):
        _print_method(console, method)


def _find(ctx: click.Context, catalogue: Catalogue, name: str | None) -> Described:
    """Return the named part of the schema. Raises UsageError with similar names."""
    if name is None:
        return catalogue.schema()
    method = find_method(catalogue, name)
    if method is not None:
        return catalogue.method(method)
    for node in walk(catalogue.schema()["activations"]):
        if node["namespace"] == name:
            return node
    namespaces = [namespace.path for namespace in catalogue.namespaces()]
    advice = suggest(name, namespaces + method_names(catalogue))
    raise click.UsageError(
        f"Unknown namespace or method {name!r}. "
        + (advice or "`substrate list` shows all methods."),
        ctx,
    )


def _methods_in(found: Described) -> Iterator[Described]:
    if "params" in found:
        yield found
        return
    for node in walk(found.get("activations", [found])):
        yield from node["methods"]


# --- on a terminal --------------------------------------------------------------------------------


def _print_method(console: Console, method: Described) -> None:
    from rich.padding import Padding
    from rich.text import Text

    def indented(content: RenderableType, by: int = 2) -> Padding:
        return Padding(content, (0, 0, 0, by))

    console.print(Text(method["name"], style="bold cyan"))
    console.print(indented(Text(method["description"])))
    console.print(indented(Text.assemble(("\nScope  ", "bold"), (method["scope"], "yellow"))))
    parameters = _parameters(method["params"])
    if parameters.row_count:
        console.print(indented(Text("\nParameters", style="bold")))
        console.print(indented(parameters, 4))
    if "events" in method:
        console.print(indented(Text("\nEvents", style="bold")))
        console.print(indented(_events(method["events"]), 4))
    elif "result" in method:
        result = method["result"]
        words = type_label(result, result.get("$defs", {}))
        console.print(indented(Text.assemble(("\nResult  ", "bold"), (words, "yellow"))))
    console.print()


def _grid() -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    grid.add_column()
    return grid


def _parameters(params: Described) -> Table:
    from rich.text import Text

    grid = _grid()
    required = params.get("required", ())
    for name, entry in params.get("properties", {}).items():
        remark = "required" if name in required else f"default {format_value(entry.get('default'))}"
        grid.add_row(
            Text(name, style="green"),
            Text(type_label(entry, params.get("$defs", {})), style="yellow"),
            Text.assemble(f"{entry.get('description', '')} ", (f"({remark})", "dim")),
        )
    return grid


def _events(events: Described) -> Table:
    from rich.text import Text

    grid = _grid()
    for event in events["oneOf"]:
        properties = event.get("properties", {})
        definitions = event.get("$defs", {})
        fields = ", ".join(
            f"{name}: {type_label(entry, definitions)}"
            for name, entry in properties.items()
            if name != "type"
        )
        grid.add_row(
            Text(str(properties["type"]["const"]), style="green"),
            Text(" ".join(event.get("description", "").split())),
            Text(fields, style="yellow"),
        )
    return grid
