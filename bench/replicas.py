"""Measures of one and two replicas on one PostgreSQL database, as `docs/scaling.md` needs them.

All of it is CPU time, which other processes of the machine change less than they change durations:
what a recorded call costs a replica and the database, what the commits of one replica cost another,
and whether a call costs more when there are two replicas. Every replica has its own folders, as on
its own machine. Without PostgreSQL there are no figures.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from bench import postgres
from bench.mcp import http_client, messages
from bench.mcp.contenders import ours_http
from bench.measure import LIMIT, OURS, Effort, Figure, Target, compare, single, take_turns
from bench.postgres import Database
from bench.record_cost import cpu_s
from bench.servers import Server, ServerExited, port_of, scratch_folder, start

__all__ = ("calls",)

#: Connections of the client, divided between the replicas.
CONNECTIONS = 32
#: Calls before measuring, which open the run store.
WARMUP_CALLS = 200
TIMEOUT_S = 60.0
POLL_S = 0.25
#: After this part of the time for idle processes, the background work of a replica has begun.
BEGUN = 0.4
#: Resolution of the CPU times of the database.
TICK_S = 0.01
#: After a round, for what a replica does in the background.
SETTLE_S = 1.2
STORED = "SELECT count(*) FROM runs WHERE method = 'bench.echo' AND state >= 3"
COMMITS = "SELECT coalesce(sum(last), 0)::bigint FROM writers"
CONNECTED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"


class Replica(NamedTuple):
    """A server, and what clients need to call it."""

    server: Server
    port: int
    endpoint: http_client.Endpoint


class Spent(NamedTuple):
    """The CPU seconds of a round, without what replicas spend while they wait."""

    #: The seconds to the last response.
    wall: float
    replicas: float
    database: float
    #: By the replica without calls, 0 without such a replica.
    other: float
    #: Of all replicas.
    commits: int


def calls(effort: Effort) -> list[Figure]:
    """Measure calls of an echo on one replica and on two, until all of them are stored."""
    if not postgres.is_installed():
        return []
    number, rounds = 2 * effort.pipelined_calls, max(effort.recorded_rounds // 4, 1)
    with postgres.open_database() as database, ExitStack() as stack:
        replicas = [stack.enter_context(_replica(database)) for _ in range(2)]
        _run(database, replicas, WARMUP_CALLS)
        connections = (database.query(CONNECTED) - 1) / len(replicas)
        time.sleep(effort.idle_s * BEGUN)
        idle = _idle(database, replicas, effort.idle_s / 2)
        taken = take_turns(
            {
                OURS: lambda: _round(database, replicas, [], number, idle),
                LIMIT: lambda: _round(database, replicas[:1], replicas[1:], number, idle),
            },
            rounds,
            warm=False,
        )
        lost = WARMUP_CALLS + 2 * rounds * number - database.query(STORED)
    note = (
        f"{number:,} calls of an echo over HTTP, recorded in PostgreSQL, two replicas; limit: one"
    )
    compared = (
        ("wall", "time until the last response", None),
        ("cpu", "CPU time of the replicas", Target("ratio", 1.2)),
        ("database", "CPU time of PostgreSQL", Target("ratio", 1.2)),
    )
    each_us = {
        side: {
            "wall": [spent.wall / number * 1e6 for spent in spents],
            "cpu": [spent.replicas / number * 1e6 for spent in spents],
            "database": [spent.database / number * 1e6 for spent in spents],
        }
        for side, spents in taken.items()
    }
    commits = sum(spent.commits for spent in taken[LIMIT])
    # One round has too few commits for a difference of CPU times.
    per_commit = sum(spent.other for spent in taken[LIMIT]) / max(commits, 1) * 1e6
    rates = [spent.commits / spent.wall for spent in taken[LIMIT]]
    waiting = "while a replica waits, a second"
    return [
        *(
            compare(
                f"replicas {column}",
                "us/call",
                each_us[OURS][column],
                each_us[LIMIT][column],
                target,
                f"{kind} of {note}",
            )
            for column, kind, target in compared
        ),
        single(
            "replicas commit",
            "us/commit",
            [per_commit],
            note="CPU time of a replica without calls, for each commit of the other replica, beyond"
            f" waiting; of {commits:,} commits",
        ),
        single("replicas commits", "1/s", rates, note="commits of a replica under this load"),
        single("replicas idle", "ms/s", [idle.replicas * 1e3], note=f"CPU time {waiting}"),
        single(
            "replicas idle database",
            "ms/s",
            [idle.database * 1e3],
            note=f"CPU time of PostgreSQL {waiting}",
        ),
        single("replicas lost", "calls", [float(lost)], Target("value", 0.0), "not in the store"),
        single("replicas connections", "each", [connections], note="to PostgreSQL, of a replica"),
    ]


@contextmanager
def _replica(database: Database) -> Iterator[Replica]:
    with scratch_folder() as folder:
        variables = {name: str(folder) for name in ("XDG_STATE_HOME", "XDG_DATA_HOME")}
        with start((*ours_http(), "--database", database.url), variables) as server:
            port = port_of(server)
            yield Replica(server, port, http_client.handshake(port))


def _run(database: Database, replicas: Sequence[Replica], number: int) -> float:
    """Make calls, and wait until all are stored. Returns the seconds to the last response."""
    stored = _stored(database)
    per_replica = CONNECTIONS // len(replicas)
    requests = [
        (each.port, each.endpoint.request(messages.call_echo(request)))
        for each in replicas
        for request in range(1, per_replica + 1)
    ]
    seconds = http_client.call_parallel(requests, number)
    until = time.monotonic() + TIMEOUT_S
    while _stored(database) < stored + number:
        if time.monotonic() > until:
            raise ServerExited("not all calls were stored in time")
        time.sleep(POLL_S)
    return seconds


def _stored(database: Database) -> int:
    """Return the number of stored calls; 0 before a replica has created the table."""
    if database.query("SELECT to_regclass('runs')::text") is None:
        return 0
    return int(database.query(STORED))


class Idle(NamedTuple):
    """The CPU seconds of a second in which all replicas wait, for each replica."""

    replicas: float
    database: float


def _idle(database: Database, replicas: Sequence[Replica], for_s: float) -> Idle:
    started, before, stored = time.monotonic(), _cpu_s(replicas), database.cpu_s()
    time.sleep(for_s)
    elapsed = (time.monotonic() - started) * len(replicas)
    return Idle((_cpu_s(replicas) - before) / elapsed, (database.cpu_s() - stored) / elapsed)


def _round(
    database: Database,
    replicas: Sequence[Replica],
    others: Sequence[Replica],
    number: int,
    idle: Idle,
) -> Spent:
    """Measure one round of calls on the replicas; the others get none."""
    started, commits = time.monotonic(), database.query(COMMITS)
    before = _cpu_s(replicas), database.cpu_s(), _cpu_s(others)
    seconds = _run(database, replicas, number)
    time.sleep(SETTLE_S)
    own, stored, other = _cpu_s(replicas), database.cpu_s(), _cpu_s(others)
    elapsed = time.monotonic() - started
    waited = idle.replicas * elapsed
    return Spent(
        seconds,
        max(own - before[0] - waited * len(replicas), TICK_S),
        max(stored - before[1] - idle.database * elapsed * (len(replicas) + len(others)), TICK_S),
        other - before[2] - waited * len(others),
        database.query(COMMITS) - commits,
    )


def _cpu_s(replicas: Sequence[Replica]) -> float:
    return sum(cpu_s(each.server.pid) for each in replicas)
