"""`substrate completion`: the script with which a shell completes our commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

__all__ = ("completion",)

#: What the scripts set to have this program give offers, as click makes it of our name.
VARIABLE = "_SUBSTRATE_COMPLETE"


@click.command(short_help="Print the completion script for a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, *, shell: str) -> None:
    """Print the script with which SHELL completes commands, methods, parameters, runs and sessions.

    \b
    bash   eval "$(substrate completion bash)"                in ~/.bashrc
    zsh    eval "$(substrate completion zsh)"                 in ~/.zshrc, after compinit
    fish   substrate completion fish | source                 in ~/.config/fish/config.fish
    """
    script = get_completion_class(shell)
    assert script is not None, "click knows these shells"
    root = ctx.find_root().command
    # Not `source()`: for bash that also warns about the version of the bash that is on PATH.
    made = script(root, {}, "substrate", VARIABLE)
    click.echo(made.source_template % made.source_vars(), nl=False)
