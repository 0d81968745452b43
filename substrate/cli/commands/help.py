"""`substrate help`: the help text of a command, as `substrate COMMAND --help`."""

from __future__ import annotations

import click

from substrate.cli.main import program_of

__all__ = ("show_help",)


@click.command("help", short_help="Explain a command.")
@click.argument("command", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def show_help(ctx: click.Context, *, command: tuple[str, ...]) -> None:
    """Explain COMMAND, or list all commands. `substrate help call METHOD` explains a method."""
    root = ctx.find_root()
    assert isinstance(root.command, click.Group), "the root command has this command"
    root.command.main(
        [*command, "--help"],
        prog_name=root.info_name,
        standalone_mode=False,
        obj=program_of(ctx),
    )
