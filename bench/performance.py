"""The document `docs/performance.md`, made from a result of the benchmark."""

from __future__ import annotations

from typing import Final

from bench.measure import Summary
from bench.result import Recorded, Result

__all__ = ("OBSTACLES", "ROWS", "missed", "render")

#: The rows of the document: the work, by name of its figure.
ROWS: Final = {
    "mcp_start": "stdio MCP: process start to the response to `initialize`",
    "mcp_start variable": "the same, with one `SUBSTRATE_` variable",
    "mcp_start file": "the same, with a trusted `substrate.toml`",
    "mcp_first_list": "start, `initialize` and the first `tools/list` of 1,000 tools of a plugin",
    "mcp_list 1000": "`tools/list` of 1,000 tools, repeated",
    "mcp_list 20": "`tools/list` of 20 tools, repeated",
    "mcp_calls_latency p50": "`tools/call` one after the other, p50",
    "mcp_calls_pipelined": "`tools/call`, 64 in flight, stdio",
    "calls_pipelined": "native calls, 64 in flight, stdio",
    "mcp_buffered": "10,000 events buffered into one result, stdio",
    "mcp_stream_stdio": "10,000 progress notifications, stdio",
    "mcp_http_json parallel": "HTTP `tools/call` answered as JSON, 64 in flight",
    "mcp_http_sse parallel": "HTTP `tools/call` answered as SSE, 64 in flight",
    "mcp_stream_sse": "10,000 progress notifications, SSE",
    "stream_sse": "native events over SSE",
    "stream_ws": "WebSocket events, one subscription",
    "stream_ws 100": "WebSocket events, 100 subscriptions on one connection",
    "mcp_first_event stdio": "the first progress notification of a fast stream, stdio",
    "mcp_first_event sse": "the first progress notification of a fast stream, SSE",
    "first_event ws": "the first event of a fast stream, WebSocket",
    "mcp_live_delay": "delay of a live event, one a millisecond, SSE, p50",
    "live_delay ws": "delay of a live event, one a millisecond, WebSocket, p50",
    "mcp_memory_idle": "memory of an idle process on stdio with one plugin",
    "mcp_memory_streams": "memory of an open SSE stream",
    "memory_websocket": "memory of an open WebSocket with a stream",
    "health_check": "`health.check` over HTTP, 64 in flight",
    "health_check p99": "the same, p99",
}
#: Contenders that are no MCP framework.
NOT_PEERS: Final = frozenset({"asgi", "starlette"})
NAMES: Final = {
    "mcp": "mcp (MCPServer)",
    "mcp low": "mcp (low level)",
    "fastmcp": "fastmcp",
    "ts 1": "TypeScript 1.x",
    "ts 2": "TypeScript 2.x",
    "asgi": "bare ASGI on uvicorn",
    "starlette": "a Starlette route",
}
VERSIONS: Final = ("plexus-substrate", "mcp", "fastmcp", "node", "@modelcontextprotocol/sdk")
VERSIONS_MORE: Final = ("@modelcontextprotocol/server", "orjson", "pydantic", "uvicorn", "uvloop")

_START: Final = (
    "Most of it is importing modules: asyncio, the command line, the registry of methods and the "
    "views. The limit imports asyncio and orjson only."
)
_CALL: Final = (
    "Every call is a run: it has a number, a principal, a log, a deadline, validated arguments and "
    "rows in the run store, none of which the limit has."
)
_HTTP: Final = (
    "A short call needs no task and no ASGI messages, which saves a seventh of the CPU time of the "
    "event loop. Of what is left, parsing and writing HTTP with uvicorn takes a fifth, the guard "
    "and admission a fourteenth, reading the message and preparing its view a sixth, and the run "
    "more than half. The thread that records runs uses the same interpreter."
)
_EVENT: Final = (
    "An event is an object that an asynchronous generator yields, that a log keeps for other "
    "watchers and for the run store, and that a view encodes."
)
_FIRST: Final = (
    "Two thirds of the time pass before the run starts: the message is read, decoded and checked, "
    "and becomes a call with its run and its task. Then the run has its first slice of work, of at "
    "least a few events, before a view reads its log: a shorter one would cost short streams a "
    "second turn of the event loop. Between two calls of this measure code and data leave the "
    "caches of the processor, so that each step takes several times as long as in a burst of calls."
)
_LIVE: Final = (
    "An event passes the log, and the task that writes the stream runs in the next turn of the "
    "event loop: a view must not run inside a method. The limit writes from the timer itself. In a "
    "burst the same steps take a fifth of the difference; after a millisecond without work, code "
    "and data are no longer in the caches of the processor."
)
_OPEN: Final = (
    "An open stream is a connection of uvicorn with its transport, request and response (a third), "
    "the task that answers it, with the connection and the view of the client (a third), and a run "
    "with its task, generator, log, reader and record (a third)."
)
#: What stands in the way of a goal, by name of the figure: what the program does and the limit does
#: not. Only shares, and no other figures, because this text is not generated.
OBSTACLES: Final = {
    "mcp_start": _START,
    "mcp_start variable": f"{_START} A variable adds the reading of settings.",
    "mcp_start file": f"{_START} A file adds a TOML parser, and the check that it is trusted.",
    "mcp_first_list": "A thousand functions are imported, and their type hints and docstrings are "
    "read into schemas. The limit reads the finished list from a file.",
    "mcp_list 1000": "The list is kept as bytes; what is left is that of any call.",
    "mcp_calls_pipelined": _CALL,
    "calls_pipelined": f"{_CALL} A native call also has three messages instead of one.",
    "mcp_buffered": f"{_EVENT} A third of the time is the generator and its objects, and half is "
    "the pump, which checks, encodes and stores each of them. The limit joins texts.",
    "mcp_stream_stdio": _EVENT,
    "mcp_http_json parallel": f"{_HTTP} {_CALL}",
    "mcp_http_sse parallel": f"{_HTTP} {_CALL}",
    "mcp_stream_sse": f"{_EVENT} A fifth of the time is the generator and its objects, two fifths "
    "are the pump and the encoding, and two fifths are the text of the result, the notification "
    "and the event of the stream, each formatted for hundreds of events at a time. The limit fills "
    "a template.",
    "stream_sse": _EVENT,
    "stream_ws": _EVENT,
    "stream_ws 100": f"{_EVENT} With 100 streams, each is also scheduled in turn.",
    "mcp_first_event stdio": _FIRST,
    "mcp_first_event sse": f"{_FIRST} Over HTTP, uvicorn and the guard come before it.",
    "first_event ws": _FIRST,
    "mcp_live_delay": _LIVE,
    "live_delay ws": _LIVE,
    "mcp_memory_idle": "pydantic is the largest part: the first list of tools needs it for the "
    "schemas of a plugin whose types are not plain.",
    "mcp_memory_streams": _OPEN,
    "memory_websocket": _OPEN,
    "health_check": "A report is built from the checks of all activations, some of which read a "
    "disk in a thread; calls within a moment share one check.",
    "health_check p99": "The 64 calls wait for one another on one core, and a check in a thread "
    "waits for a processor.",
}

BEGINNING = """# Performance

<!-- Generated by `python -m bench.documents` from `bench/results/latest.json`. -->

Every figure below was measured by `python -m bench`, which is part of the repository. A figure is a
ratio to a *limit*: a program written by hand for one purpose, with nothing but asyncio (uvloop for
HTTP and WebSocket) and orjson, that puts the same bytes on the same wire. It has no validation, no
runs, no recording, no cancellation, no authentication. A ratio of 2 means twice the time of that
program; lower is better. The peers are servers with the same tools, written as their documentation
shows.

## The table

"""
HOW = """## How it was measured

- One row is one measure of `python -m bench`. All contenders take turns within it: round after
  round, and each round begins with another contender. A ratio is the median of the ratios of
  neighbouring rounds, with its quartiles in parentheses, so a machine that becomes slower during
  the measurement affects all contenders.
- The client only moves bytes. It does not parse while time is measured, so its own cost does not
  hide that of a server. What arrives is checked: the number of events, the text of a result, and in
  the tests of the benchmark that the limit sends the same bytes as the program.
- The limits are `bench/limit_stdio.py`, `bench/limit_http.py` and `bench/limit_websocket.py`. The
  peers are in `bench/peers`: the official Python SDK with its high-level and its low-level
  interface, FastMCP, and the TypeScript SDKs 1.x and 2.x with Node. The Python peers run on the
  same uvicorn, with the same options, as the program, which is faster than their defaults.
- The program runs as it is installed, with recording on. Only two settings differ from the default:
  no token over HTTP, because the others require none, and one progress notification for each event
  instead of at most 20 a second, because the others send all.
- Peers that are slower by an order of magnitude do a tenth of the work of a round. The cost of one
  call or event is compared.
- Memory is the resident memory of the process. That of one stream is the growth while 400 streams
  are opened; one principal can have 448 with the default limits.
"""
TRIED = """## Tried and not kept

- Compiling the modules of a call with mypyc, for an optional wheel. With 35 modules compiled, a
  connection with 64 calls in flight needed less processor time for each: by a factor of 1.7 to 1.9
  for MCP and 1.5 for native calls. On stdio, with the pipes and the recording of runs, the main
  thread needed less by a factor of 1.7 and 1.35. The start took the same time, and the process 3
  MiB more memory. 27,000 requests with values of wrong types got the same bytes, and of 5,300 tests
  only the 11 failed that replace a method, a constant or a clock, inherit from a compiled class, or
  look at the name of a coroutine. It is not kept because neither mypy nor the compiler reports what
  it changes: a class derived from `deque` crashed the process, and a `cached_property` was computed
  at every access. The 35 modules would have to avoid that forever, and only a build of 90 seconds
  of processor time and a second run of the tests show whether they do. Nor can a program or a test
  inherit from a compiled class. The 18 modules without such classes win too little: a factor of
  1.07 for MCP and 1.1 to 1.2 for native calls. Each figure is the median of the ratios of
  neighbouring rounds of two processes that took turns, one of each kind, in processor time of the
  thread with the event loop, because the machine had other work.
"""
REPEAT = """## Repeat it

<!-- not run: benchmarks of minutes -->
```sh
pip install -e '.[bench]'          # the Python peers
python -m tests.conformance.node   # Node and the TypeScript SDKs, needs npm
python -m bench                    # everything
python -m bench --only mcp_start   # one row
python -m bench --compare main     # this working tree against a commit, which rows moved
```

A contender that is not installed is left out. To replace the figures of this page:

<!-- not run: a benchmark of minutes -->
```sh
{command} --json bench/results/latest.json
python -m bench.documents
```

One measure of them again, with the others as they are:

<!-- not run: a benchmark of minutes -->
```sh
python -m bench --only mcp_start --json bench/results/latest.json --update
python -m bench.documents
```
"""


def render(result: Result) -> str:
    """Return the document."""
    rows = [result.figures[name] for name in ROWS if name in result.figures]
    parts = [BEGINNING, *_table(rows), "\n", *_peers(rows), "\n"]
    parts += _not_reached(rows)
    parts += _absent(result)
    parts += [HOW, "\n", TRIED, "\n", _machine(result), "\n", REPEAT.format(command=result.command)]
    return "".join(parts)


def missed(result: Result) -> list[Recorded]:
    """Return the rows whose goal is not reached."""
    return [
        result.figures[name]
        for name in ROWS
        if name in result.figures and _is_reached(result.figures[name]) is False
    ]


def _table(rows: list[Recorded]) -> list[str]:
    lines = [
        "| Work | Limit | Substrate | Best peer | Goal | Reached | Load | Measure |\n",
        "|---|---|---|---|---|---|---|---|\n",
    ]
    for row in rows:
        reached = {True: "yes", False: "no", None: ""}[_is_reached(row)]
        lines.append(
            f"| {ROWS[row.name]} | {_absolute(row, row.limit)} | {_ours(row)} | {_best(row)} "
            f"| {_goal(row)} | {reached} | {row.load:.0f} | `{row.measure}` |\n"
        )
    lines.append(
        "\n*Measure* is the name for `python -m bench --only`. A goal with a unit is for the figure"
        " itself. *Load* is the load average of the machine at the end of the measure.\n"
    )
    return lines


def _peers(rows: list[Recorded]) -> list[str]:
    compared = [row for row in rows if row.peers]
    names = [name for name in NAMES if any(name in row.peers for row in compared)]
    head = "".join(f" {NAMES[name]} |" for name in names)
    lines = [
        "## All contenders\n\nMultiples of the limit, medians.\n\n",
        f"| Work | Substrate |{head}\n",
        f"|---|---|{'---|' * len(names)}\n",
    ]
    for row in compared:
        cells = "".join(
            f" {_number(row.peers[name].median) if name in row.peers else ''} |" for name in names
        )
        ratio = "" if row.ratio is None else _number(row.ratio.median)
        lines.append(f"| {ROWS[row.name]} | {ratio} |{cells}\n")
    return lines


def _not_reached(rows: list[Recorded]) -> list[str]:
    lines = [
        f"- {ROWS[row.name]}: {_ours(row)}, the goal is {_goal(row)}. {OBSTACLES[row.name]}\n"
        for row in rows
        if _is_reached(row) is False
    ]
    return ["## What is not reached\n\n", *lines, "\n"] if lines else []


def _absent(result: Result) -> list[str]:
    lines = []
    for name, work in ROWS.items():
        if name in result.figures:
            continue
        errors = [text for measure, text in result.failed.items() if name.startswith(measure)]
        reason = f"the measure failed: {errors[0]}" if errors else "not part of this run"
        lines.append(f"- {work}: {reason}.\n")
    return ["## What was not measured\n\n", *lines, "\n"] if lines else []


def _machine(result: Result) -> str:
    where, loads = result.environment, [row.load for row in result.figures.values()]
    packages = where["packages"]
    versions = ", ".join(
        f"{name} {packages[name]}" for name in (*VERSIONS, *VERSIONS_MORE) if packages.get(name)
    )
    return (
        "## The machine\n\n"
        f"- {where['cpus']} CPUs ({where['processor']}), {where['memory_gib']:g} GiB, "
        f"{where['system']}, {where['python']}.\n"
        f"- The load average was between {min(loads):.1f} and {max(loads):.1f} in the "
        f"{result.seconds / 60:.0f} minutes of the run: other work shared the processors. The "
        "quartiles show how much that mattered. Absolute times and rates are too slow by as much; "
        "ratios, CPU times and memory suffer less.\n"
        f"- {versions}.\n"
    )


def _is_reached(row: Recorded) -> bool | None:
    """Return whether the goals of this page are reached: those that are not relative to a peer."""
    found = [_value(row, of) <= at_most for of, at_most in row.targets if of in ("ratio", "value")]
    return all(found) if found else None


def _value(row: Recorded, of: str) -> float:
    summary = row.ours if of == "value" else row.ratio
    assert summary is not None, row.name
    return summary.median


def _ours(row: Recorded) -> str:
    if row.ratio is None or any(of == "value" for of, _ in row.targets):
        return _absolute(row, row.ours)
    ratio = row.ratio
    return f"{_number(ratio.median)} ({_number(ratio.low)} to {_number(ratio.high)})"


def _best(row: Recorded) -> str:
    peers = {name: each.median for name, each in row.peers.items() if name not in NOT_PEERS}
    if not peers:
        return ""
    best = min(peers, key=lambda name: peers[name])
    return f"{NAMES[best]} {_number(peers[best])}"


def _goal(row: Recorded) -> str:
    for of, at_most in row.targets:
        if of == "ratio":
            return f"{at_most:g}"
        if of == "value":
            return f"{at_most:g} {row.unit}"
    return ""


def _absolute(row: Recorded, summary: Summary | None) -> str:
    return "" if summary is None else f"{_number(summary.median)} {row.unit}"


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return (
        f"{value:.0f}"
        if abs(value) >= 20
        else f"{value:.1f}"
        if abs(value) >= 1
        else f"{value:.2f}"
    )
