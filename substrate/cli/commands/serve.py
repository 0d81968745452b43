"""`substrate serve`: the server, with all of its flags. Without a command, `substrate` is the same.

The flags of the root command and of `serve` are the same objects; both places can be combined.
"""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from substrate.cli.main import SERVES, cli, start

__all__ = ("serve",)

#: Root flags that are not about a server.
NOT_SERVING = frozenset({"token", "version"})


@click.command(
    short_help="Start a server.",
    params=[option for option in cli.params if option.name not in NOT_SERVING],
)
@click.pass_context
def serve(ctx: click.Context, /, **flags: Any) -> None:
    """Serve HTTP, WebSocket and MCP on 127.0.0.1, or a protocol on stdio.

    On a terminal, a line is printed for each run that ends. Ctrl-C stops the server: runs get a
    moment to end, and a second Ctrl-C ends them. Every flag is also a setting, which `substrate
    config` explains.
    """
    root = ctx.find_root()
    for name, value in flags.items():
        if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        before = root.params.get(name)
        root.params[name] = (*before, *value) if isinstance(before, tuple) else value
    root.meta[SERVES] = True
    start(root)
