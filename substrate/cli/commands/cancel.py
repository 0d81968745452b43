"""`substrate cancel`: stop a run."""

from __future__ import annotations

import click

from plexus.rpc import wire
from substrate.cli.shell_completion import complete_run
from substrate.cli.target.protocol import ask
from substrate.cli.target.selection import need_server, server_option, spelled

__all__ = ("cancel",)


@click.command(
    short_help="Stop a run.",
    params=[
        click.Argument(["run"], type=click.IntRange(1), shell_complete=complete_run),
        click.Option(["--reason"], metavar="TEXT", help="What the run's last event shall say."),
        click.Option(["--json", "as_json"], is_flag=True, help="The outcome as a line of JSON."),
        server_option(),
    ],
)
@click.pass_context
def cancel(
    ctx: click.Context, *, run: int, reason: str | None, as_json: bool, url: str | None
) -> None:
    """Tell RUN to stop. One that has ended already is left as it is."""
    params = {"run": run} | ({} if reason is None else {"reason": reason})
    advice = {"not_found": f"`{spelled(ctx, 'runs')}` lists those that are under way."}
    was_running = bool(ask(need_server(ctx, url), "plexus.cancel", params, advice))
    if as_json:
        click.echo(wire.encode({"run": run, "was_running": was_running}).decode())
    else:
        click.echo(f"Run {run} {'is told to stop' if was_running else 'had ended already'}.")
