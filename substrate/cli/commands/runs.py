"""`substrate runs`, `attach`, `watch` and `cancel`: list, follow and stop runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import click

from plexus.errors import PlexusError
from plexus.runtime.history import parse_time
from plexus.runtime.run_watch import RUNS_PER_EVENT
from substrate.cli.numbers import WholeNumber
from substrate.cli.shell_completion import complete_run
from substrate.cli.target.protocol import Target, call_method, result_of
from substrate.cli.target.run_reference import (
    MAX_IN_MEMORY,
    RunReference,
    find_run,
    latest_runs,
    run_argument,
    short_numbers,
)
from substrate.cli.target.selection import choose_runs_target, command_line, server_option
from substrate.cli.target.server import ServerTarget
from substrate.cli.terminal.display import Streams, choose_display, coloured
from substrate.cli.terminal.prompter import Prompter
from substrate.cli.terminal.run_follower import INTERRUPTED, RunFollower
from substrate.cli.terminal.tables import (
    ACTIVE_STATES,
    COLOURS,
    format_run,
    print_json_line,
    print_runs,
    state_label,
)

__all__ = ("Changes", "attach", "cancel", "runs", "watch")

#: Ended runs that are listed without a filter.
LATEST: Final = 20
STATES: Final = (*ACTIVE_STATES, "complete", "error", "cancelled", "succeeded", "failed")
#: Outcomes that are not states; only recorded runs can be selected by them.
OUTCOMES: Final = ("succeeded", "failed")
#: Printed after a search that did not read all runs.
STOPPED: Final = (
    "The search has reached its limits and stopped early. Narrow it with --since or --method, or "
    "search for whole words."
)
#: How long to reconnect to a lost server before reporting an error.
RECONNECT_S: Final = 5.0
#: State of a run that ended and was evicted before its outcome was seen.
FORGOTTEN: Final = "forgotten"

Run = Mapping[str, Any]


@click.group(
    short_help="List runs.",
    invoke_without_command=True,
    params=[
        click.Option(
            ["--all", "everything"],
            is_flag=True,
            help=f"All runs in memory, not only the latest {LATEST} that have ended.",
        ),
        click.Option(
            ["--system"],
            is_flag=True,
            help="Include calls that only watch or control the server. They are not recorded.",
        ),
        click.Option(
            ["--state"], type=click.Choice(STATES), help="Only runs in this state or outcome."
        ),
        click.Option(
            ["--since"],
            metavar="TIME",
            help="Also recorded runs, from this time on: 30m, 3h, 2d, or a date.",
        ),
        click.Option(["--until"], metavar="TIME", help="Only recorded runs before this time."),
        click.Option(
            ["--method", "pattern"],
            metavar="PATTERN",
            help="Only recorded runs of methods such as 'bash.*'.",
        ),
        click.Option(
            ["--search"],
            metavar="TEXT",
            help="Only recorded runs with these words, or with a text in double quotes.",
        ),
        click.Option(["--all-projects"], is_flag=True, help="Include runs of other folders."),
        click.Option(
            ["--limit"],
            type=WholeNumber(1, 1000),
            help="Maximum number of recorded runs.  [default: 50]",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print each run as a line of JSON."),
        server_option(),
    ],
)
@click.pass_context
def runs(
    ctx: click.Context,
    *,
    everything: bool,
    system: bool,
    state: str | None,
    since: str | None,
    until: str | None,
    pattern: str | None,
    search: str | None,
    all_projects: bool,
    limit: int | None,
    as_json: bool,
    url: str | None,
) -> None:
    """List your active and latest runs, newest first; with a filter, all recorded runs.

    The commands about runs accept the short numbers of the list, and `last` for the newest run.
    """
    if ctx.invoked_subcommand is not None:
        return
    target = choose_runs_target(ctx, url)
    filters = {
        "since": _time(ctx, "--since", since),
        "until": _time(ctx, "--until", until),
        "method": pattern,
        "search": search,
        "all_projects": all_projects or None,
        "limit": limit,
    }
    given = {name: value for name, value in filters.items() if value is not None}
    found: list[Run] = []
    # Lines appear while a search continues; a table needs all of its rows. While methods run in
    # this process, `sys.stdout` is redirected.
    show = partial(print_json_line, file=sys.stdout) if as_json else found.append
    if given or state in OUTCOMES:
        if system:
            raise click.UsageError("--system lists calls in memory, which have no filters.", ctx)
        list_recorded(target, given | ({"state": state} if state else {}), show)
    elif everything or system or state:
        params: dict[str, Any] = {"limit": MAX_IN_MEMORY, "system": system}
        params |= {} if state is None else {"state": state}
        for run in call_method(target, "plexus.runs", params):
            show(run)
    else:
        for run in _latest(target):
            show(run)
    if as_json:
        return
    if found:
        print_runs(found, short_numbers(found))
    elif everything or system or state or given:
        click.echo("No runs found.", err=True)
    else:
        click.echo("No runs yet. Call a method with `substrate call METHOD`.", err=True)


def _latest(target: Target) -> Iterator[Run]:
    """Yield the active runs and the latest ended ones, newest first."""
    ended = 0
    for run in latest_runs(target, LATEST):
        ended += run["state"] not in ACTIVE_STATES
        if run["state"] in ACTIVE_STATES or ended <= LATEST:
            yield run


def _time(ctx: click.Context, option: str, text: str | None) -> str | None:
    """Return a time, in the time zone of this terminal. Raises BadParameter."""
    try:
        return None if text is None else str(parse_time(text))
    except PlexusError as error:
        raise click.BadParameter(error.message, ctx, param_hint=f"'{option}'") from error


def list_recorded(target: Target, params: dict[str, Any], show: Callable[[Run], None]) -> None:
    """Show recorded runs; those of a search while it continues. Raises ClickException."""
    if "search" not in params:
        for run in call_method(target, "plexus.history", params):
            show(run)
        return

    async def search() -> None:
        async with target.call("plexus.find_runs", params) as call:
            async for item in call.items():
                event = item.event
                if event["type"] == "error":
                    raise PlexusError(event["message"], code=event["code"])
                for run in event.get("runs", ()):
                    show(run)
                if event.get("stopped_at") is not None:
                    click.echo(STOPPED, err=True)

    try:
        target.run(search())
    except PlexusError as error:
        raise click.ClickException(f"{error.message} ({error.code})") from error


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
    ctx: click.Context, *, run: str, reason: str | None, as_json: bool, url: str | None
) -> None:
    """Cancel RUN. A run that has already ended is not changed."""
    target = choose_runs_target(ctx, url)
    number = find_run(target, run)
    params = {"run": number} | ({} if reason is None else {"reason": reason})
    advice = {"not_found": f"`{command_line(ctx, 'runs')}` lists runs."}
    was_running = bool(call_method(target, "plexus.cancel", params, advice))
    if as_json:
        print_json_line({"run": number, "was_running": was_running})
    else:
        click.echo(f"Run {number} {'is being cancelled' if was_running else 'had already ended'}.")


# --- recorded runs --------------------------------------------------------------------------------


def references_argument() -> click.Argument:
    """Return the argument for several runs."""
    return click.Argument(
        ["references"],
        metavar="RUN...",
        nargs=-1,
        required=True,
        type=RunReference(),
        shell_complete=complete_run,
    )


def outcome_option() -> click.Option:
    """Return the option that prints what was done as JSON."""
    return click.Option(
        ["--json", "as_json"], is_flag=True, help="Print the outcome as a line of JSON."
    )


@runs.command(
    short_help="Keep runs.", params=[references_argument(), outcome_option(), server_option()]
)
@click.pass_context
def pin(ctx: click.Context, *, references: Sequence[str], as_json: bool, url: str | None) -> None:
    """Keep these recorded runs until they are unpinned."""
    _set_pinned(ctx, references, url, pinned=True, as_json=as_json)


@runs.command(
    short_help="Unpin runs.", params=[references_argument(), outcome_option(), server_option()]
)
@click.pass_context
def unpin(ctx: click.Context, *, references: Sequence[str], as_json: bool, url: str | None) -> None:
    """Keep these recorded runs no longer than others."""
    _set_pinned(ctx, references, url, pinned=False, as_json=as_json)


def _set_pinned(
    ctx: click.Context, references: Sequence[str], url: str | None, *, pinned: bool, as_json: bool
) -> None:
    target = choose_runs_target(ctx, url)
    for number in [find_run(target, reference) for reference in references]:
        call_method(target, "plexus.pin", {"run": number, "pinned": pinned}, _advice(ctx))
        if as_json:
            print_json_line({"run": number, "pinned": pinned})
        else:
            click.echo(f"Run {number} is {'pinned' if pinned else 'no longer pinned'}.")


@runs.command(
    short_help="Delete runs.", params=[references_argument(), outcome_option(), server_option()]
)
@click.pass_context
def delete(
    ctx: click.Context, *, references: Sequence[str], as_json: bool, url: str | None
) -> None:
    """Delete these recorded runs for good, with their output and their entries in the index."""
    target = choose_runs_target(ctx, url)
    numbers = [find_run(target, reference) for reference in references]
    _print_deleted(call_method(target, "plexus.delete", {"runs": numbers}, _advice(ctx)), as_json)


@runs.command(short_help="Delete expired runs.", params=[outcome_option(), server_option()])
@click.pass_context
def prune(ctx: click.Context, *, as_json: bool, url: str | None) -> None:
    """Delete all recorded runs whose retention has ended. This also happens automatically."""
    _print_deleted(call_method(choose_runs_target(ctx, url), "plexus.prune", {}), as_json)


def _print_deleted(count: int, as_json: bool) -> None:
    if as_json:
        print_json_line({"deleted": count})
    else:
        click.echo(f"Deleted {count} {'run' if count == 1 else 'runs'}.")


def _advice(ctx: click.Context) -> dict[str, str]:
    return {"not_found": f"`{command_line(ctx, 'runs', '--limit', '50')}` lists recorded runs."}


# --- following one run ----------------------------------------------------------------------------


def follow_options() -> list[click.Option]:
    """Return the options for displaying a run."""
    return [
        click.Option(
            ["--json", "as_json"], is_flag=True, help="Print each event as a line of JSON."
        ),
        server_option(),
    ]


@click.command(
    short_help="Follow a run.",
    params=[
        run_argument(),
        click.Option(
            ["--after"],
            type=WholeNumber(0),
            default=0,
            metavar="N",
            help="Start after the item with this number.  [default: 0, the first item]",
        ),
        click.Option(["--times"], is_flag=True, help="Show the time of each item."),
        click.Option(
            ["--exit-code", "passes_exit_code"],
            is_flag=True,
            help="Exit with the exit code of the command that the run has executed.",
        ),
        *follow_options(),
    ],
)
@click.pass_context
def attach(
    ctx: click.Context,
    *,
    run: str,
    after: int,
    times: bool,
    passes_exit_code: bool,
    as_json: bool,
    url: str | None,
) -> None:
    """Show the output of RUN so far, then follow it to its end.

    The output looks like that of `substrate call`, and you can answer the run's questions here.
    Ctrl-C detaches without stopping the run. The exit code reports how the run ended, as with
    `call`.
    """
    server = choose_runs_target(ctx, url)
    number = find_run(server, run)
    ctx.exit(
        follow(
            ctx,
            server,
            number,
            after,
            times=times,
            passes_exit_code=passes_exit_code,
            as_json=as_json,
        )
    )


def follow(
    ctx: click.Context,
    target: Target,
    run: int,
    after: int,
    *,
    as_json: bool,
    times: bool = False,
    passes_exit_code: bool = False,
) -> int:
    """Show a run to its end or until Ctrl-C. Returns the exit code. Raises ClickException."""

    async def is_pending(request: Mapping[str, Any]) -> bool:
        try:
            pending = await result_of(target, "approvals.pending", {"run": run, "limit": 1000})
        except PlexusError:
            return True  # unknown; an answer that is too late is rejected with a message
        return any(each["request"] == request["request"] for each in pending["approvals"])

    streams = Streams()
    display = choose_display(streams, as_json=as_json)
    prompter = Prompter.at_terminal(streams.err)
    follower = RunFollower(target, display, prompter, is_pending, passes_exit_code=passes_exit_code)
    params = {"run": run, "after": after} | ({"_times": True} if times else {})
    try:
        code = target.run(follower.follow("plexus.attach", params, detach=True))
    except PlexusError as error:
        advice = f"`{command_line(ctx, 'runs')}` lists runs."
        raise click.ClickException(f"{error.message} {advice}") from error
    if follower.was_interrupted:
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
def watch(ctx: click.Context, *, run: str | None, as_json: bool, url: str | None) -> None:
    """Show every run that starts, asks or ends; with RUN, follow that run from its start.

    Each change is a line of text. With --json it is the run as a line of JSON; with RUN, each event
    of the run. Ctrl-C stops watching; the runs continue.
    """
    target = choose_runs_target(ctx, url)
    if run is not None:
        ctx.exit(follow(ctx, target, find_run(target, run), 0, as_json=as_json))
    respond = command_line(ctx, "respond")
    out = sys.stdout  # redirected while methods run in this process

    def show(changed: Run) -> None:
        if as_json:
            print_json_line(changed, out)
            return
        hint = f"  (answer with `{respond}`)" if changed["state"] == "asking" else ""
        colour = COLOURS.get(state_label(changed).partition(" ")[0]) if out.isatty() else None
        click.echo(coloured(format_run(changed), colour) + hint, out)

    if isinstance(target, ServerTarget):
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


async def _watch(target: Target, show: Callable[[Run], None]) -> None:
    changes = Changes()
    async with target.call("plexus.watch", {}) as call:
        async for item in call.items():
            event = item.event
            if event["type"] == "error":
                raise PlexusError(event["message"], code=event["code"])
            if event["type"] == "cancelled":
                raise PlexusError(str(event.get("reason") or "cancelled"), code="cancelled")
            for changed in changes.update(event["runs"], event["gone"]):
                show(changed)
