"""`substrate arbor`: back up the stored trees, and draw a tree."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import IO, Any

import click
from click.core import ParameterSource

from activations.arbor import Arbor
from plexus.errors import PlexusError
from substrate.cli.event_loop import run_async
from substrate.cli.main import settings_of
from substrate.cli.numbers import WholeNumber
from substrate.cli.target.protocol import Target, result_of
from substrate.cli.target.selection import Choice, choose_target, target_options
from substrate.cli.terminal.tables import print_json_line

__all__ = ("arbor",)

#: The lines that lead to a branch, and the annotations after a node's text.
GUIDES = re.compile(r"(?:│   |    )*(?:├── |└── )?")
REMARK = re.compile(
    r"  \(replaced\)|  [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$|\[unresolved .*|… \d+ .*"
)
COMMANDLINE = ParameterSource.COMMANDLINE
#: Options that change a drawing only.
DRAWN = ("node_id", "ids", "limit")
#: Columns reserved for the lines that lead to a node's text.
INDENT = 24


@click.group(short_help="Back up and draw stored trees.")
def arbor() -> None:
    """Back up and draw the trees that `arbor` stores."""


@arbor.command(short_help="Back up all trees to a file.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("-f", "--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as a line of JSON.")
@click.pass_context
def backup(ctx: click.Context, *, file: Path, force: bool, as_json: bool) -> None:
    """Write a consistent snapshot of all trees to FILE while servers continue writing.

    The backup is a complete database: `--database FILE` opens it.
    """
    if file.exists() and not force:
        raise click.ClickException(f"{file} already exists. Use --force to replace it.")
    trees = Arbor(settings_of(ctx).database)
    if trees.is_empty():
        raise click.ClickException("Nothing to back up: the database does not exist yet.")
    try:
        run_async(_backup(trees, file))
    except PlexusError as error:
        raise click.ClickException(error.message) from error
    if as_json:
        print_json_line({"file": str(file.absolute()), "bytes": file.stat().st_size})
    else:
        click.echo(f"Wrote {file}.")


async def _backup(trees: Arbor, file: Path) -> None:
    try:
        await (await trees.store()).backup(file)
    finally:
        await trees.close()


@arbor.command(
    short_help="Draw a tree.",
    params=[
        click.Argument(["tree_id"], metavar="TREE"),
        click.Option(
            ["--node", "node_id"], metavar="NODE", help="Draw only the nodes below this node."
        ),
        click.Option(["--ids"], is_flag=True, help="Show each node's id."),
        click.Option(
            ["--limit"],
            type=WholeNumber(1, 1000),
            default=200,
            show_default=True,
            help="Maximum number of nodes to draw.",
        ),
        click.Option(
            ["--json", "as_json"],
            is_flag=True,
            help="Print the tree, then each of its nodes, as a line of JSON.",
        ),
        *target_options(),
    ],
)
@click.pass_context
def tree(
    ctx: click.Context, /, *, local: bool, url: str | None, as_json: bool, **params: Any
) -> None:
    """Draw the tree with the id TREE."""
    target = choose_target(ctx, Choice(local, url))
    if as_json:
        if any(ctx.get_parameter_source(name) is COMMANDLINE for name in DRAWN):
            raise click.UsageError("--json prints the whole tree: omit --node, --ids and --limit.")
        try:
            target.run(_print_nodes(target, params["tree_id"], sys.stdout))
        except PlexusError as error:
            raise click.ClickException(error.message) from error
        return
    arguments = {name: value for name, value in params.items() if value is not None}
    on_terminal = sys.stdout.isatty()
    if on_terminal:
        from rich.console import Console

        arguments["width"] = max(Console().width - INDENT, 40)
    try:
        drawing = str(target.run(result_of(target, "arbor.tree_render", arguments)))
    except PlexusError as error:
        raise click.ClickException(error.message) from error
    if on_terminal:
        _print(drawing)
    else:
        click.echo(drawing, nl=False)


async def _print_nodes(target: Target, tree_id: str, out: IO[str]) -> None:
    """Print a tree and its nodes in creation order, as lines of JSON. Raises PlexusError.

    While methods run in this process, `sys.stdout` is redirected.
    """
    async with target.call("arbor.tree_get", {"tree_id": tree_id}) as call:
        async for item in call.items():
            event = item.event
            if event["type"] == "error":
                raise PlexusError(event["message"], code=event["code"])
            if event["type"] == "tree":
                print_json_line(event, out)
            for node in event.get("nodes", ()):
                print_json_line(node, out)


def _print(drawing: str) -> None:
    """Print the drawing with dimmed lines."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for number, line in enumerate(drawing.splitlines()):
        text = Text(line, no_wrap=True, overflow="ellipsis")
        lead = GUIDES.match(line)
        text.stylize("dim", 0, lead.end() if lead else 0)
        if number == 0:
            text.stylize("bold")
        for remark in REMARK.finditer(line):
            text.stylize("dim yellow", *remark.span())
        console.print(text)
