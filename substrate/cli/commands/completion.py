"""`substrate completion`: print a shell completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

__all__ = ("completion",)

#: Variable that makes this program print completions; click derives it from the program's name.
VARIABLE = "_SUBSTRATE_COMPLETE"


@click.command(short_help="Print a shell completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, *, shell: str) -> None:
    """Print a script that completes commands, methods, parameters, runs and sessions in SHELL.

    \b
    bash   eval "$(substrate completion bash)"                in ~/.bashrc
    zsh    eval "$(substrate completion zsh)"                 in ~/.zshrc, after compinit
    fish   substrate completion fish | source                 in ~/.config/fish/config.fish
    """
    script = get_completion_class(shell)
    assert script is not None, "click supports these shells"
    root = ctx.find_root().command
    # `source()` would also warn about the version of the bash on PATH.
    generator = script(root, {}, "substrate", VARIABLE)
    click.echo(generator.source_template % generator.source_vars(), nl=False)
