"""`substrate runs`, `attach`, `watch` and `cancel`: list, follow and stop the runs of a server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import click

from plexus.errors import PlexusError
from plexus.runtime.builtin import RUNS_PER_EVENT
from substrate.cli.shell_completion import complete_run
from substrate.cli.target.protocol import Target, call_method, result_of
from substrate.cli.target.selection import command_line, require_server, server_option
from substrate.cli.target.server import ServerTarget
from substrate.cli.terminal.display import Streams, choose_display, coloured
from substrate.cli.terminal.prompter import Prompter
from substrate.cli.terminal.run_follower import INTERRUPTED, RunFollower
from substrate.cli.terminal.tables import (
    ACTIVE_STATES,
    COLOURS,
    format_run,
    is_work,
    print_json_line,
    print_runs,
)

__all__ = ("Changes", "attach", "cancel", "runs", "watch")

#: More runs than a server retains, active and recently ended.
MAX_ITEMS: Final = 10_000
STATES: Final = (*ACTIVE_STATES, "complete", "error", "cancelled")
#: An exit code above this is a signal number plus this.
SIGNAL_BASE: Final = 128
#: How long to reconnect to a lost server before reporting an error.
RECONNECT_S: Final = 5.0
#: State of a run that ended and was evicted before its outcome was seen.
FORGOTTEN: Final = "forgotten"

Run = Mapping[str, Any]


def run_argument(*, required: bool = True) -> click.Argument:
    """Return the argument for the number of a run."""
    return click.Argument(
        ["run"], required=required, type=click.IntRange(1), shell_complete=complete_run
    )


@click.command(
    short_help="List the runs on the server.",
    params=[
        click.Option(
            ["--all", "everything"],
            is_flag=True,
            help="Include recently ended runs, and runs that only inspect or control other runs.",
        ),
        click.Option(["--state"], type=click.Choice(STATES), help="Only runs in this state."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print each run as a line of JSON."),
        server_option(),
    ],
)
@click.pass_context
def runs(
    ctx: click.Context, *, everything: bool, state: str | None, as_json: bool, url: str | None
) -> None:
    """List your active runs on the server, newest first.

    On a terminal the output is a table. Piped, or with --json, each run is a line of JSON.
    """
    params = {"limit": MAX_ITEMS} | ({} if state is None else {"state": state})
    found = [
        run
        for run in call_method(require_server(ctx, url), "plexus.runs", params)
        if (everything or is_work(run)) and (everything or state or run["state"] in ACTIVE_STATES)
    ]
    if as_json or not sys.stdout.isatty():
        for run in found:
            print_json_line(run)
    elif found:
        print_runs(found)
    elif everything or state:
        click.echo("No runs found.", err=True)
    else:
        more = command_line(ctx, "runs", "--all")
        click.echo(f"No active runs. `{more}` also lists recently ended runs.", err=True)


@click.command(
    short_help="Stop a run.",
    params=[
        run_argument(),
        click.Option(
            ["--reason"], metavar="TEXT", help="Reason to record in the run's last event."
        ),
        click.Option(
            ["--json", "as_json"], is_flag=True, help="Print the outcome as a line of JSON."
        ),
        server_option(),
    ],
)
@click.pass_context
def cancel(
    ctx: click.Context, *, run: int, reason: str | None, as_json: bool, url: str | None
) -> None:
    """Cancel RUN. A run that has already ended is not changed."""
    params = {"run": run} | ({} if reason is None else {"reason": reason})
    advice = {"not_found": f"`{command_line(ctx, 'runs')}` lists the active runs."}
    was_running = bool(call_method(require_server(ctx, url), "plexus.cancel", params, advice))
    if as_json:
        print_json_line({"run": run, "was_running": was_running})
    else:
        click.echo(f"Run {run} {'is being cancelled' if was_running else 'had already ended'}.")


# --- following one run ----------------------------------------------------------------------------


def follow_options() -> list[click.Option]:
    """Return the options for displaying a run."""
    return [
        click.Option(
            ["--json", "as_json"], is_flag=True, help="Print each event as a line of JSON."
        ),
        click.Option(
            ["--text", "as_text"], is_flag=True, help="Print readable text, also when piped."
        ),
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
            help="Start after the item with this number.  [default: 0, the first item]",
        ),
        click.Option(["--times"], is_flag=True, help="Show the time of each item."),
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
    """Show the output of RUN so far, then follow it to its end.

    The output looks like that of `substrate call`, and you can answer the run's questions here.
    Ctrl-C detaches without stopping the run. The exit code reports how the run ended, as with
    `call`.
    """
    server = require_server(ctx, url)
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
    """Show a run to its end or until Ctrl-C. Returns the exit code. Raises ClickException."""

    async def is_pending(request: Mapping[str, Any]) -> bool:
        try:
            pending = await result_of(target, "approvals.pending", {"run": run, "limit": 1000})
        except PlexusError:
            return True  # unknown; an answer that is too late is rejected with a message
        return any(each["request"] == request["request"] for each in pending["approvals"])

    streams = Streams()
    display = choose_display(streams, as_json=as_json, as_text=as_text)
    follower = RunFollower(target, display, Prompter.at_terminal(streams.err), is_pending)
    params = {"run": run, "after": after} | ({"_times": True} if times else {})
    try:
        code = target.run(follower.follow("plexus.attach", params, detach=True))
    except PlexusError as error:
        advice = f"`{command_line(ctx, 'runs', '--all')}` lists all runs."
        raise click.ClickException(f"{error.message} {advice}") from error
    if code > SIGNAL_BASE:
        stop = command_line(ctx, "cancel", str(run))
        display.remark(f"Detached from run {run}. `{stop}` stops it.", "yellow")
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
    """Show every run that starts, asks or ends; with RUN, follow that run from its start.

    On a terminal each change is a line of text. Piped, or with --json, it is the run as a line of
    JSON. Ctrl-C leaves without stopping a run.
    """
    target = require_server(ctx, url)
    if run is not None:
        ctx.exit(follow(ctx, target, run, 0, as_json=as_json, as_text=as_text))
    if as_json and as_text:
        raise click.UsageError("--json and --text cannot be used together.", ctx)
    readable = as_text or (sys.stdout.isatty() and not as_json)
    respond = command_line(ctx, "respond")

    def show(changed: Run) -> None:
        if not readable:
            print_json_line(changed)
            return
        hint = f"  (answer with `{respond}`)" if changed["state"] == "asking" else ""
        colour = COLOURS.get(changed["state"])
        click.echo(coloured(format_run(changed), colour if sys.stdout.isatty() else None) + hint)

    target.reconnect_s = RECONNECT_S
    if sys.stderr.isatty():
        click.echo(f"Watching {target.name}. Press Ctrl-C to leave.", err=True)
    try:
        target.run(_watch(target, show))
    except KeyboardInterrupt:
        ctx.exit(INTERRUPTED)
    except PlexusError as error:
        raise click.ClickException(f"{error.message} ({error.code})") from error


class Changes:
    """Filter for state changes: the server also notifies about every new item of a run."""

    def __init__(self) -> None:
        #: Last known entry of every run that the server retains.
        self._known: dict[int, Run] = {}
        #: Whether entries still belong to the initial snapshot.
        self._first = True

    def update(self, runs: Sequence[Run], gone: Sequence[int]) -> Iterator[Run]:
        """Yield every new run and every changed state, in start order.

        Of the initial snapshot, only active runs are yielded.
        """
        for run in reversed(runs):
            before = self._known.get(run["run"])
            self._known[run["run"]] = run
            if before is None:
                if not self._first or run["state"] in ACTIVE_STATES:
                    yield run
            elif before["state"] != run["state"]:
                yield run
        for number in gone:
            before = self._known.pop(number, None)
            if before is not None and before["state"] in ACTIVE_STATES:
                yield {**before, "state": FORGOTTEN}
        self._first = self._first and len(runs) >= RUNS_PER_EVENT


async def _watch(target: ServerTarget, show: Callable[[Run], None]) -> None:
    changes = Changes()
    async with target.call("plexus.watch", {}) as call:
        async for item in call.items():
            event = item.event
            if event["type"] == "error":
                raise PlexusError(event["message"], code=event["code"])
            if event["type"] == "cancelled":
                raise PlexusError(str(event.get("reason") or "cancelled"), code="cancelled")
            for changed in changes.update(event["runs"], event["gone"]):
                if is_work(changed):
                    show(changed)
