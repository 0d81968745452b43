"""`substrate attach`: follow a run that somebody began."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from plexus.errors import PlexusError
from substrate.cli.shell_completion import complete_run
from substrate.cli.target.protocol import Target, result_of
from substrate.cli.target.selection import need_server, server_option, spelled
from substrate.cli.terminal.display import Streams, choose_display
from substrate.cli.terminal.prompter import Prompter
from substrate.cli.terminal.run_follower import RunFollower

__all__ = ("attach", "follow", "follow_options")

#: What an exit code is above if a signal ended it.
SIGNALLED = 128


def follow_options() -> list[click.Option]:
    """The flags for showing a run."""
    return [
        click.Option(["--json", "as_json"], is_flag=True, help="Each event as a line of JSON."),
        click.Option(["--text", "as_text"], is_flag=True, help="Readable, also when piped."),
        server_option(),
    ]


@click.command(
    short_help="Follow a run.",
    params=[
        click.Argument(["run"], type=click.IntRange(1), shell_complete=complete_run),
        click.Option(
            ["--after"],
            type=click.IntRange(0),
            default=0,
            metavar="N",
            help="Begin after the item of this number.  [default: from the first]",
        ),
        click.Option(["--times"], is_flag=True, help="Show when each item was written."),
        *follow_options(),
    ],
)
@click.pass_context
def attach(
    ctx: click.Context,
    *,
    run: int,
    after: int,
    times: bool,
    as_json: bool,
    as_text: bool,
    url: str | None,
) -> None:
    """Show what RUN has said so far, and then what it says, up to its end.

    It looks as `substrate call` would show it, and what the run asks can be answered here. Ctrl-C
    leaves, and does not stop the run. The exit code says how the run ended, as with `call`.
    """
    server = need_server(ctx, url)
    ctx.exit(follow(ctx, server, run, after, times=times, as_json=as_json, as_text=as_text))


def follow(
    ctx: click.Context,
    target: Target,
    run: int,
    after: int,
    *,
    as_json: bool,
    as_text: bool,
    times: bool = False,
) -> int:
    """Show a run to its end, or until Ctrl-C; the exit code. Raises ClickException."""

    async def is_open(request: Mapping[str, Any]) -> bool:
        try:
            pending = await result_of(target, "approvals.pending", {"run": run, "limit": 1000})
        except PlexusError:
            return True  # it cannot be found out; whoever answers is told if it is too late
        return any(each["request"] == request["request"] for each in pending["approvals"])

    streams = Streams()
    display = choose_display(streams, as_json=as_json, as_text=as_text)
    follower = RunFollower(target, display, Prompter.at_terminal(streams.err), is_open)
    params = {"run": run, "after": after} | ({"_times": True} if times else {})
    try:
        code = target.run(follower.play("plexus.attach", params, follows=True))
    except PlexusError as error:
        advice = f"`{spelled(ctx, 'runs', '--all')}` lists those there are."
        raise click.ClickException(f"{error.message}. {advice}") from error
    if code > SIGNALLED:
        display.remark(f"Left run {run}. `{spelled(ctx, 'cancel', str(run))}` stops it.", "yellow")
    return code
