"""Every bound of the core and of what is read from a wire, in one frozen table. A program adds
those of its transports (`substrate.server.limits`).

A limit is a default with a reason beside it, and a sentence that begins with "Past it" on what
happens to whatever is past it; settings may replace the whole table. Whoever refuses something
because of a limit says which and how large it is. `substrate config limits` prints the table from
these comments, and every row of it has tests.
"""

from __future__ import annotations

import dataclasses
from typing import Final

__all__ = ("CONTROL_CALLS", "Limits")

KIB = 1024
MIB = 1024 * KIB
#: Control calls, as `plexus.cancel` is one, that a connection may have under way beyond
#: `calls_in_flight`: a client that has filled its connection can still stop what it began.
CONTROL_CALLS: Final = 8


@dataclasses.dataclass(frozen=True)
class Limits:
    """The bounds in force. Sizes are in bytes, times in seconds."""

    #: One incoming message. A tool call is small; a larger body is a mistake or an attack.
    #: Past it: HTTP 413; -32600 on a pipe; a WebSocket is closed with 1009.
    message_bytes: int = 1 * MIB
    #: Nesting of an incoming message. The encoder stops at 253, so what comes in must be able to
    #: go out again inside some envelope.
    #: Past it: -32600 with the limit.
    message_depth: int = 64
    #: Arrays and objects in one message. A mebibyte of `[]` would block the loop for 100 ms, and
    #: making 50,000 objects of an author's type takes 40 ms.
    #: Past it: -32600 with the limit.
    message_containers: int = 20_000
    #: Members of all objects in one message. Validation reports each unknown member as an error of
    #: its own, and 90,000 of them would block the loop for 50 ms.
    #: Past it: -32600 with the limit.
    message_members: int = 25_000
    #: Entries of all arrays and objects in one message. An error about a list copies it, which
    #: takes 50 ms for 500,000 numbers.
    #: Past it: -32600 with the limit.
    message_values: int = 100_000
    #: The id of a request and a progress token. Clients count or use a UUID, and the id is repeated
    #: in the answer.
    #: Past it: -32600 with the limit.
    id_chars: int = 256
    #: The address of a resource, which is matched against every template and repeated in answers.
    #: Past it: -32602 with the limit.
    uri_chars: int = 8192
    #: Entries in the `errors` of one error. A caller corrects the first few and tries again.
    #: Past it: the rest is only counted, in `more`.
    errors_listed: int = 20
    #: One error answer, so that a bad request costs the server no more than a good one.
    #: Past it: the message is shortened, and the largest members of `data` are left out.
    error_bytes: int = 64 * KIB
    #: Requests in one batch.
    #: Past it: -32600 with the limit.
    batch_requests: int = 100
    #: Calls under way on one connection. Control calls, as `plexus.cancel` is one, have eight more.
    #: Past it: -32003 `busy` with the limit.
    calls_in_flight: int = 128
    #: Standing watches on one connection: calls that only read and have no end, as
    #: `health.watch`. A page needs a handful, and they must not use up its calls.
    #: Past it: -32003 `busy` with the limit.
    connection_watches: int = 64
    #: Runs under way that do work and that no other run has begun, shared by all principals.
    #: Past it: -32003 `busy` with the limit and what the caller holds; other principals go on.
    runs_in_flight: int = 1024
    #: Standing watches under way, shared by all principals. They take no place of `runs_in_flight`.
    #: Past it: -32003 `busy` with the limit and what the caller holds; other principals go on.
    watches_in_flight: int = 1024
    #: Control calls under way, shared by all principals: they are short, and they must work when
    #: everything else is busy.
    #: Past it: -32003 `busy` with the limit and what the caller holds; other principals go on.
    control_in_flight: int = 1024
    #: Resources that one MCP client is notified about when they change.
    #: Past it: -32602 with the limit.
    subscriptions: int = 1024
    #: The same of all clients together, shared by all principals.
    #: Past it: -32003 `busy` with the limit and what the caller holds; other principals go on.
    all_subscriptions: int = 16_384
    #: Runs that are kept because the server promised to (MCP tasks), shared by all principals.
    #: Past it: -32003 `busy` with the limit and what the caller holds; other principals go on.
    kept_runs: int = 1024
    #: One event on its way to the log. A picture fits; a film should be a resource.
    #: Past it: the run ends with `too_big`.
    event_bytes: int = 1 * MIB
    #: One terminal, and the events of one buffered answer.
    #: Past it: a terminal becomes `too_big`; a buffered answer keeps its head and tail.
    answer_bytes: int = 10 * MIB
    #: How far a run may be ahead of its owner before it is held; an item counts its bytes and
    #: one KiB more, so that this is about a thousand small items.
    #: Past it: the run waits until its reader has caught up.
    high_water_bytes: int = 1 * MIB
    #: What a run's log keeps for those who come later. More than the high-water mark, so that
    #: an owner never finds a gap.
    #: Past it: the oldest items go, and a late watcher gets a `gap`.
    log_items: int = 8192
    log_bytes: int = 16 * MIB
    #: What is kept of runs that have ended, so that they can be looked at and resumed; shared by
    #: all principals.
    #: Past it: the oldest run of the principal that holds the most is evicted: `not_found`.
    finished_runs: int = 256
    finished_bytes: int = 64 * MIB
    #: The same of ended watches and control calls, so that looking at the server evicts no work.
    #: Past it: the oldest run of the principal that holds the most is evicted: `not_found`.
    finished_control_runs: int = 64
    finished_control_bytes: int = 16 * MIB
    #: How long what has ended is kept.
    #: Past it: the run is evicted: `not_found`.
    finished_s: float = 3600.0
    #: How long a method may run unless it declares a deadline of its own.
    #: Past it: the run ends with `deadline`.
    run_s: float = 600.0
    #: How long a run that was told to stop may take to do so.
    #: Past it: it is abandoned: it ends with `cancelled`, and that is logged.
    cancel_s: float = 5.0
    #: How long a question to a person stays open.
    #: Past it: the method that asked gets `no_answer`.
    answer_s: float = 300.0
    #: How long a run whose caller vanished waits for it to come back.
    #: Past it: the run is cancelled.
    orphan_s: float = 10.0
    #: How long one write to a peer may take.
    #: Past it: the peer is cut off: `lagged`.
    write_s: float = 30.0
