"""`python -m bench`: measure the program and its limit in one run.

The limit L is a hand-written program that puts the same kind of bytes on the same wire with only
asyncio and orjson (`limit_stdio.py`, `limit_http.py`). Over MCP, the same tools on other frameworks
(`peers/`) are measured too, if they are installed. Targets are shown but not asserted: a benchmark
is not a test. Linux only, because memory and processes are read from /proc.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from bench import (
    analysis,
    arbor,
    chat,
    front,
    gateway,
    history,
    memory,
    native,
    page,
    python_sessions,
    record_cost,
    replicas,
    shared_store,
    tool_styles,
    watchers,
)
from bench.commits import (
    MIN_ROUNDS,
    BenchFailed,
    Row,
    changed_files,
    checked_out,
    compare_trees,
    render_rows,
    verdict,
)
from bench.mcp import contenders, http_calls, requests
from bench.mcp import memory as mcp_memory
from bench.mcp import streams as mcp_streams
from bench.measure import FULL, QUICK, Effort, Figure
from bench.report import describe_environment, load, render
from bench.result import command_of, updated
from bench.servers import (
    LIMIT_HTTP,
    LIMIT_STDIO,
    LIMIT_WEBSOCKET,
    OURS_HTTP,
    OURS_STDIO,
    ROOT,
    ServerExited,
    format_command,
    private_folders,
)

__all__ = ("MEASURES", "main")

MEASURES: dict[str, Callable[[Effort], list[Figure]]] = {
    "cold_start": native.cold_start,
    "stream_stdio": native.over_stdio,
    "stream_sse": native.over_sse,
    "stream_ws": native.over_ws,
    "first_event": native.first_events,
    "live_delay": native.live_events,
    "calls_latency": native.latency,
    "calls_pipelined": native.pipelined,
    "front_start": front.start_latency,
    "front_call": front.call_latency,
    "memory_idle": memory.idle,
    "memory_stream": memory.stream,
    "memory_websocket": memory.websockets,
    "cancel_tree": native.cancel_tree,
    "recorded_stdio": record_cost.over_stdio,
    "recorded_sse": record_cost.over_sse,
    "recorded_websocket": record_cost.over_ws,
    "recorded_calls": record_cost.calls,
    "recorded_mcp_calls": record_cost.mcp_calls,
    "recorded_start": record_cost.start_time,
    "recorded_memory": record_cost.memory,
    "recorded_idle": record_cost.idle,
    "recorded_latency": shared_store.latency,
    "recorded_stop": shared_store.stop,
    "recorded_throughput": shared_store.throughput,
    "watchers": watchers.live,
    "replicas": replicas.calls,
    "arbor_commit": arbor.commits,
    "arbor_group": arbor.groups,
    "arbor_path": arbor.paths,
    "arbor_readers": arbor.readers,
    "history": history.pages,
    "chat_first_token": chat.first_token,
    "chat_history": chat.history,
    "page_start": page.start_up,
    "page_events": page.events,
    "page_lines": page.lines,
    "page_runs": page.runs,
    "page_heap": page.busy_run,
    "python": python_sessions.sessions,
    "analysis_complexity": analysis.complexity,
    "analysis_memory": analysis.memory,
    "analysis_history": analysis.history,
    "style": tool_styles.calls,
    "tokens": tool_styles.tokens,
    "mcp_start": requests.cold_start,
    "mcp_first_list": requests.first_lists,
    "mcp_list": requests.lists,
    "mcp_calls_latency": requests.latency,
    "mcp_calls_pipelined": requests.pipelined,
    "mcp_buffered": requests.buffered,
    "mcp_first_event": mcp_streams.first_events,
    "mcp_live_delay": mcp_streams.live_events,
    "mcp_stream_stdio": mcp_streams.over_stdio,
    "mcp_stream_sse": mcp_streams.over_sse,
    "mcp_http_json": http_calls.json_responses,
    "mcp_http_sse": http_calls.sse_responses,
    "mcp_memory_streams": mcp_memory.streams,
    "mcp_memory_idle": mcp_memory.idle,
    "health_check": http_calls.health_checks,
    "mount_call": gateway.calls,
    "mount_everything": gateway.calls_of_everything,
    "mount_progress": gateway.progress,
    "mount_list": gateway.lists,
    "mount_start": gateway.cold_start,
}
MANIFEST = "run `python -m substrate.devtools.manifest`."
MEASURED = {
    "stdio": format_command(OURS_STDIO),
    "http": format_command(OURS_HTTP),
    "limit_stdio": format_command(LIMIT_STDIO),
    "limit_http": format_command(LIMIT_HTTP),
    "limit_websocket": format_command(LIMIT_WEBSOCKET),
    "mcp_stdio": format_command(contenders.ours_stdio()),
    "mcp_http": format_command(contenders.ours_http()),
}


def _known(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    for prefix in value:
        if not any(name.startswith(prefix) for name in MEASURES):
            raise click.BadParameter(f"no measure starts with {prefix!r}.")
    return value


@click.command(epilog=f"Measures: {', '.join(MEASURES)}.")
@click.option("--quick", is_flag=True, help="Smoke test with few rounds. Do not quote its figures.")
@click.option(
    "--only",
    metavar="NAME",
    multiple=True,
    callback=_known,
    help="Run only this measure, or all that start with this prefix. Repeatable.",
)
@click.option(
    "--json",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=ROOT / "artifacts" / "bench.json",
    help="File for the result.  [default: artifacts/bench.json]",
)
@click.option("--update", is_flag=True, help="Replace only these measures in the file of --json.")
@click.option(
    "--compare",
    "base",
    metavar="COMMIT",
    help="Run this commit and the working tree in turn, and report the rows that moved.",
)
@click.option(
    "--rounds",
    type=click.IntRange(MIN_ROUNDS),
    default=6,
    show_default=True,
    help="Rounds of --compare.",
)
@click.argument("names", nargs=-1, callback=_known, metavar="[NAME]...")
def main(
    *,
    quick: bool,
    only: tuple[str, ...],
    file: Path,
    update: bool,
    base: str | None,
    rounds: int,
    names: tuple[str, ...],
) -> None:
    """Measure the installed program, as ratios to a bare loop that does the same I/O."""
    # So that servers and files are removed, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    wanted = (*only, *names)
    # In the order in which they were named.
    chosen = list(
        dict.fromkeys(name for each in wanted for name in MEASURES if name.startswith(each))
    ) or list(MEASURES)
    if base is not None:
        _compare(base, chosen, rounds, quick=quick)
        return
    command = command_of(quick, chosen)
    where = describe_environment()
    if not where["manifest_is_current"]:
        click.echo(
            f"The manifest is stale, so starts and memory are not comparable: {MANIFEST}", err=True
        )
    old = json.loads(file.read_bytes()) if update and file.exists() else None
    shown: list[Figure] = []
    figures: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    started = time.monotonic()
    for done, name in enumerate(chosen, start=1):
        click.echo(f"measuring {name} ...", err=True)
        try:
            with private_folders():
                found = MEASURES[name](QUICK if quick else FULL)
            shown += found
            busy = load()
            figures += [{"measure": name, "load_1_min": busy, **each.as_json()} for each in found]
        except (ServerExited, OSError) as error:
            # The figures of the others are not lost.
            failed[name] = str(error)
            click.echo("\n".join([f"{name}: {error}", *getattr(error, "__notes__", [])]), err=True)
        result = {
            "command": command_of(quick, chosen[:done]),
            "measures": chosen[:done],
            "quick": quick,
            "seconds": round(time.monotonic() - started, 1),
            "environment": {**where, "load_1_min_after": load()},
            "measured": MEASURED,
            "failed": failed,
            "figures": figures,
        }
        # After each measure, so that an interrupted run keeps what it has.
        _write(file, result if old is None else updated(old, result))
    where["load_1_min_after"] = load()
    click.echo(f"$ {command}")
    click.echo(_summary(where))
    click.echo()
    click.echo(render(shown))
    if failed:
        raise click.ClickException(f"failed: {', '.join(failed)}.")


def _write(file: Path, result: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=2) + "\n")


def _compare(base: str, chosen: list[str], rounds: int, *, quick: bool) -> None:
    """Compare a commit with the working tree. Exits with 1 if a row became slower."""
    rows: list[Row] = []
    before = load()
    try:
        with checked_out(base) as tree:
            for row in compare_trees(tree, ROOT, chosen, rounds, quick=quick):
                rows.append(row)
                click.echo(f"{row.name}: {verdict(row)}", err=True)
    except BenchFailed as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{rounds} rounds of each, load {before} before and {load()} after")
    changed = changed_files(base, "bench")
    if changed:
        click.echo(f"The bench itself differs, which may move rows: {', '.join(changed)}")
    click.echo(render_rows(rows))
    if any(verdict(row) == "slower" for row in rows):
        raise SystemExit(1)


def _summary(where: dict[str, object]) -> str:
    commit = str(where["commit"] or "none")[:12]
    changed = " with changes" if where["changed_since_commit"] else ""
    return (
        f"{where['python']}, {where['cpus']} CPUs, {where['system']}, commit {commit}{changed}, "
        f"load {where['load_1_min']} before and {where['load_1_min_after']} after"
    )


if __name__ == "__main__":
    main(prog_name="python -m bench")
