"""`substrate show` and `substrate replay`: the transcript of a run, complete or with its pauses."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any, Final

import click

from plexus.errors import PlexusError
from plexus.text import replace_controls
from substrate.cli.numbers import Number
from substrate.cli.target.protocol import Item, Target, result_of
from substrate.cli.target.run_reference import find_run, run_argument
from substrate.cli.target.selection import choose_runs_target, command_line, server_option
from substrate.cli.terminal.display import (
    DIM,
    Display,
    JsonLines,
    Readable,
    Streams,
    pretty_json,
)
from substrate.cli.terminal.run_follower import INTERRUPTED
from substrate.cli.terminal.tables import ACTIVE_STATES, format_duration, state_label

__all__ = ("RecordedDisplay", "replay", "show")

Event = Mapping[str, Any]

#: Control sequences of terminals: with parameters, with a text, and single ones.
SEQUENCES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]"
)
#: Maximum seconds between two items of a replay, whatever its speed.
MAX_PAUSE_S: Final = 3600.0


class RecordedDisplay(Readable):
    """Display of recorded events, whose output cannot control the terminal."""

    def show(self, event: Event, text: str | None) -> None:
        """Show an event without control sequences."""
        cleaned = {name: _clean(value) for name, value in event.items()}
        super().show(cleaned, None if text is None else _clean(text))


def _clean(value: Any) -> Any:
    """Return a JSON value whose texts have no control characters."""
    if isinstance(value, str):
        plain = SEQUENCES.sub("", value) if "\x1b" in value else value
        return replace_controls(plain, keep="\n\t")
    if isinstance(value, list):
        return [_clean(member) for member in value]
    if isinstance(value, dict):
        return {_clean(name): _clean(member) for name, member in value.items()}
    return value


def json_option() -> click.Option:
    """Return the option for JSON lines."""
    return click.Option(
        ["--json", "as_json"],
        is_flag=True,
        help="Print the run and each of its events as a line of JSON.",
    )


@click.command(
    short_help="Show the transcript of a run.",
    params=[run_argument(), json_option(), server_option()],
)
@click.pass_context
def show(ctx: click.Context, *, run: str, as_json: bool, url: str | None) -> None:
    """Show everything that is recorded of RUN: what was called, by what client, and its output.

    Control sequences are removed from the output. Of a run that has not ended, the output so far is
    shown.
    """
    target = choose_runs_target(ctx, url)
    streams = Streams()
    display: Display = JsonLines(streams) if as_json else RecordedDisplay(streams)
    number = find_run(target, run)

    async def work() -> None:
        details = await result_of(target, "plexus.inspect", {"run": number})
        if as_json:
            display.show(details, None)
        else:
            click.echo(format_header(details), streams.out)
        async for item in recorded_items(target, details):
            if as_json and item.time_ms is not None:
                display.stamp(item.time_ms)
            display.show(item.event, item.text)
        display.finish_line()
        if details["state"] in ACTIVE_STATES:
            follow = command_line(ctx, "attach", str(number))
            display.remark(f"The run has not ended. `{follow}` follows it.", DIM)

    _run(ctx, target, display, work())


@click.command(
    short_help="Replay a run in its own time.",
    params=[
        run_argument(),
        click.Option(
            ["--speed"],
            type=Number(0, min_open=True),
            default=1.0,
            metavar="FACTOR",
            help="Speed; 10 is ten times as fast.  [default: 1]",
        ),
        json_option(),
        server_option(),
    ],
)
@click.pass_context
def replay(ctx: click.Context, *, run: str, speed: float, as_json: bool, url: str | None) -> None:
    """Show the output of RUN with the pauses between its items. Ctrl-C ends it."""
    target = choose_runs_target(ctx, url)
    streams = Streams()
    display: Display = JsonLines(streams) if as_json else RecordedDisplay(streams)
    number = find_run(target, run)

    async def work() -> None:
        details = await result_of(target, "plexus.inspect", {"run": number})
        last_ms: int | None = None
        async for item in recorded_items(target, details):
            if item.time_ms is not None:
                if last_ms is not None:
                    pause_s = max(item.time_ms - last_ms, 0) / 1000 / speed
                    await asyncio.sleep(min(pause_s, MAX_PAUSE_S))
                last_ms = item.time_ms
                if as_json:
                    display.stamp(item.time_ms)
            display.show(item.event, item.text)
        display.finish_line()

    _run(ctx, target, display, work())


def _run(
    ctx: click.Context, target: Target, display: Display, work: Coroutine[Any, Any, None]
) -> None:
    try:
        target.run(work)
    except KeyboardInterrupt:
        display.end_line()
        ctx.exit(INTERRUPTED)
    except PlexusError as error:
        listing = command_line(ctx, "runs", "--limit", "50")
        message = error.message.partition(" List your runs")[0]
        raise click.ClickException(f"{message} `{listing}` lists recorded runs.") from error


async def recorded_items(target: Target, details: Mapping[str, Any]) -> AsyncIterator[Item]:
    """Yield the items of a run that exist now, with their times."""
    last = details["last_seq"] if details["state"] in ACTIVE_STATES else None
    if last == 0:
        return
    params = {"run": details["run"], "after": 0, "_times": True}
    seq = 0
    async with target.call("plexus.attach", params) as call:
        async for item in call.items():
            yield item
            event = item.event
            seq = event["to"] if event.get("type") == "gap" else seq + 1
            if last is not None and seq >= last:
                return


def format_header(details: Mapping[str, Any]) -> str:
    """Format what is known about a run, as lines."""
    started_ms, ended_ms = details["started_ms"], details.get("ended_ms")
    outcome = state_label(details)
    if ended_ms is not None:
        outcome += f", after {format_duration(ended_ms - started_ms)}"
    process = details.get("process") or {}
    fields = {
        "Run": str(details["run"]),
        "Method": details["method"],
        "Outcome" if ended_ms is not None else "State": outcome,
        "Started": _format_time(started_ms),
        "Arguments": pretty_json(details["arguments"]) if details.get("arguments") else None,
        "Client": details.get("client"),
        "Session": details.get("agent_session"),
        "Project": details.get("project"),
        "Process": process.get("pid"),
        "Parent": details.get("parent"),
        "Items": str(details["last_seq"]),
        "Kept until": _format_retention(details),
    }
    shown = {title: str(_clean(value)) for title, value in fields.items() if value}
    width = max(map(len, shown)) + 2
    lines = []
    for title, value in shown.items():
        first, *rest = value.splitlines() or [""]
        lines.append(f"{title:<{width}}{first}")
        lines += [" " * width + line for line in rest]
    return "\n".join([*lines, ""])


def _format_time(ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000))


def _format_retention(details: Mapping[str, Any]) -> str | None:
    if details.get("pinned"):
        return "unpinned"
    kept_until = details.get("kept_until")
    return None if kept_until is None else _format_time(kept_until)
