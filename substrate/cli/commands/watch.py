"""`substrate watch`: follow all runs, or one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import click

from plexus.errors import PlexusError
from plexus.rpc import wire
from plexus.runtime.run_changes import IN_EVENT
from substrate.cli.commands.attach import follow, follow_options
from substrate.cli.shell_completion import complete_run
from substrate.cli.target.selection import need_server, spelled
from substrate.cli.target.server import ServerTarget
from substrate.cli.terminal.display import coloured
from substrate.cli.terminal.run_follower import INTERRUPTED
from substrate.cli.terminal.tables import COLOURS, UNDER_WAY, is_work, run_in_line

__all__ = ("Changes", "watch")

#: For how long the server may be away before that is said.
AWAY_S: Final = 5.0
#: The state of a run that has ended and was forgotten before anybody saw how.
FORGOTTEN: Final = "forgotten"

Run = Mapping[str, Any]


@click.command(
    short_help="Follow all runs, or one.",
    params=[
        click.Argument(
            ["run"], required=False, type=click.IntRange(1), shell_complete=complete_run
        ),
        *follow_options(),
    ],
)
@click.pass_context
def watch(
    ctx: click.Context, *, run: int | None, as_json: bool, as_text: bool, url: str | None
) -> None:
    """Tell of every run that begins, asks or ends; with RUN, show that one from its beginning.

    On a terminal each change is a line; piped, or with --json, it is the run as a line of JSON.
    Ctrl-C leaves, and stops no run.
    """
    target = need_server(ctx, url)
    if run is not None:
        ctx.exit(follow(ctx, target, run, 0, as_json=as_json, as_text=as_text))
    if as_json and as_text:
        raise click.UsageError("--json and --text exclude each other.", ctx)
    readable = as_text or (sys.stdout.isatty() and not as_json)
    answering = spelled(ctx, "respond")

    def tell(changed: Run) -> None:
        if not readable:
            click.echo(wire.encode(changed).decode())
            return
        hint = f"  (`{answering}` answers)" if changed["state"] == "asking" else ""
        colour = COLOURS.get(changed["state"])
        click.echo(coloured(run_in_line(changed), colour if sys.stdout.isatty() else None) + hint)

    target.reconnect_s = AWAY_S
    if sys.stderr.isatty():
        click.echo(f"Watching {target.name}; Ctrl-C leaves.", err=True)
    try:
        target.run(_watch(target, tell))
    except KeyboardInterrupt:
        ctx.exit(INTERRUPTED)
    except PlexusError as error:
        raise click.ClickException(f"{error.message} ({error.code})") from error


class Changes:
    """Which of the news about runs are worth telling: the server tells of every item too."""

    def __init__(self) -> None:
        #: What was said last of every run that the server knows.
        self._known: dict[int, Run] = {}
        #: Whether we still hear of what there was before we came.
        self._first = True

    def told(self, runs: Sequence[Run], gone: Sequence[int]) -> Iterator[Run]:
        """Every run that is new or in another state, in the order in which they began. Of what
        there was before, those that are under way."""
        for run in reversed(runs):
            before = self._known.get(run["run"])
            self._known[run["run"]] = run
            if before is None:
                if not self._first or run["state"] in UNDER_WAY:
                    yield run
            elif before["state"] != run["state"]:
                yield run
        for number in gone:
            before = self._known.pop(number, None)
            if before is not None and before["state"] in UNDER_WAY:
                yield {**before, "state": FORGOTTEN}
        self._first = self._first and len(runs) >= IN_EVENT


async def _watch(target: ServerTarget, tell: Callable[[Run], None]) -> None:
    changes = Changes()
    async with target.call("plexus.watch", {}) as call:
        async for item in call.items():
            event = item.event
            if event["type"] == "error":
                raise PlexusError(event["message"], code=event["code"])
            if event["type"] == "cancelled":
                raise PlexusError(str(event.get("reason") or "cancelled"), code="cancelled")
            for changed in changes.told(event["runs"], event["gone"]):
                if is_work(changed):
                    tell(changed)
