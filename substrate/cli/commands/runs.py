"""`substrate runs`, `attach`, `watch` and `cancel`: the runs of a server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import click

from plexus.errors import PlexusError
from plexus.runtime.builtin import RUNS_PER_EVENT
from substrate.cli.shell_completion import complete_run
from substrate.cli.target.protocol import Target, ask, result_of
from substrate.cli.target.selection import need_server, server_option, spelled
from substrate.cli.target.server import ServerTarget
from substrate.cli.terminal.display import Streams, choose_display, coloured
from substrate.cli.terminal.prompter import Prompter
from substrate.cli.terminal.run_follower import INTERRUPTED, RunFollower
from substrate.cli.terminal.tables import (
    COLOURS,
    UNDER_WAY,
    is_work,
    print_json_line,
    print_runs,
    run_in_line,
)

__all__ = ("Changes", "attach", "cancel", "runs", "watch")

#: More than a server keeps: those under way, and those that ended lately.
MOST: Final = 10_000
STATES: Final = (*UNDER_WAY, "complete", "error", "cancelled")
#: What an exit code is above if a signal ended it.
SIGNALLED: Final = 128
#: For how long the server may be away before that is said.
AWAY_S: Final = 5.0
#: The state of a run that has ended and was forgotten before anybody saw how.
FORGOTTEN: Final = "forgotten"

Run = Mapping[str, Any]


def run_argument(*, required: bool = True) -> click.Argument:
    """The number of a run."""
    return click.Argument(
        ["run"], required=required, type=click.IntRange(1), shell_complete=complete_run
    )


@click.command(
    short_help="List the runs of the server.",
    params=[
        click.Option(
            ["--all", "everything"],
            is_flag=True,
            help="Those that ended lately too, and those that only look at the server.",
        ),
        click.Option(["--state"], type=click.Choice(STATES), help="Only runs in this state."),
        click.Option(["--json", "as_json"], is_flag=True, help="A line of JSON for each run."),
        server_option(),
    ],
)
@click.pass_context
def runs(
    ctx: click.Context, *, everything: bool, state: str | None, as_json: bool, url: str | None
) -> None:
    """List your runs on the server that are under way, the newest first.

    On a terminal it is a table; piped, or with --json, each run is a line of JSON.
    """
    params = {"limit": MOST} | ({} if state is None else {"state": state})
    found = [
        run
        for run in ask(need_server(ctx, url), "plexus.runs", params)
        if (everything or is_work(run)) and (everything or state or run["state"] in UNDER_WAY)
    ]
    if as_json or not sys.stdout.isatty():
        for run in found:
            print_json_line(run)
    elif found:
        print_runs(found)
    elif everything or state:
        click.echo("There is no such run.", err=True)
    else:
        more = spelled(ctx, "runs", "--all")
        click.echo(f"No run is under way. `{more}` lists those that ended lately.", err=True)


@click.command(
    short_help="Stop a run.",
    params=[
        run_argument(),
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
        print_json_line({"run": run, "was_running": was_running})
    else:
        click.echo(f"Run {run} {'is told to stop' if was_running else 'had ended already'}.")


# --- following one run ----------------------------------------------------------------------------


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
        run_argument(),
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


# --- watching all runs ----------------------------------------------------------------------------


@click.command(
    short_help="Follow all runs, or one.",
    params=[
        run_argument(required=False),
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
            print_json_line(changed)
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
        self._first = self._first and len(runs) >= RUNS_PER_EVENT


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
