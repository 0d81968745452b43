"""All limits of the core and of decoded messages, in one frozen table.

A program adds the limits of its transports (`substrate.server.limits`). The comment of each limit
gives the reason for its default, and a sentence that begins with "Past it" describes what happens
past the limit. Settings can replace the whole table. A refusal because of a limit names the limit
and its value. `substrate config limits` prints the table from these comments, and every row has
tests.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

__all__ = ("CONTROL_CALLS", "DEFAULT_LIMITS", "Limits")

KIB = 1024
MIB = 1024 * KIB
#: Control calls, such as `plexus.cancel`, that a connection may have in progress in addition to
#: `calls_in_flight`: a client that has filled its connection can still stop its calls.
CONTROL_CALLS: Final = 8


# Not a dataclass: creating one with all these fields takes 1.5 ms, more than 1 % of a start.
class Limits(msgspec.Struct, frozen=True):
    """The limits in force. Sizes are in bytes, times in seconds."""

    #: Size of an incoming message. A tool call is small; a larger body is a mistake or an attack.
    #: Past it: HTTP 413; -32600 on a pipe; a WebSocket is closed with 1009.
    message_bytes: int = 1 * MIB
    #: Nesting depth of an incoming message. The encoder stops at 253, and received data must still
    #: be encodable inside an envelope.
    #: Past it: -32600 with the limit.
    message_depth: int = 64
    #: Arrays and objects in one message. A mebibyte of `[]` would block the event loop for 100 ms,
    #: and creating 50,000 objects of an author's type takes 40 ms.
    #: Past it: -32600 with the limit.
    message_containers: int = 20_000
    #: Members of all objects in one message. Validation reports each unknown member as a separate
    #: error, and 90,000 of them would block the event loop for 50 ms.
    #: Past it: -32600 with the limit.
    message_members: int = 25_000
    #: Entries of all arrays and objects in one message. An error about a list copies the list,
    #: which takes 50 ms for 500,000 numbers.
    #: Past it: -32600 with the limit.
    message_values: int = 100_000
    #: Length of a request id and of a progress token. Clients use counters or UUIDs, and the id is
    #: repeated in the response.
    #: Past it: -32600 with the limit.
    id_chars: int = 256
    #: Length of a resource URI, which is matched against every template and repeated in responses.
    #: Past it: -32602 with the limit.
    uri_chars: int = 8192
    #: Entries in the `errors` of one error. A caller corrects the first few and retries.
    #: Past it: the remaining errors are only counted, in `more`.
    errors_listed: int = 20
    #: Size of an error response, so that an invalid request costs the server no more than a valid
    #: one.
    #: Past it: the message is shortened, and the largest members of `data` are omitted.
    error_bytes: int = 64 * KIB
    #: Requests in one batch.
    #: Past it: -32600 with the limit.
    batch_requests: int = 100
    #: Calls in progress on one connection. Control calls, such as `plexus.cancel`, have eight more.
    #: Past it: -32003 `busy` with the limit.
    calls_in_flight: int = 128
    #: Standing watches on one connection: read-only calls without an end, such as `health.watch`. A
    #: page needs a few, and they must not use up its calls.
    #: Past it: -32003 `busy` with the limit.
    connection_watches: int = 64
    #: Runs in progress that do work and were not started by another run, shared by all principals.
    #: Past it: -32003 `busy` with the limit and what the caller holds; other principals are not
    #: affected.
    runs_in_flight: int = 1024
    #: Standing watches in progress, shared by all principals. They do not count as
    #: `runs_in_flight`.
    #: Past it: -32003 `busy` with the limit and what the caller holds; other principals are not
    #: affected.
    watches_in_flight: int = 1024
    #: Control calls in progress, shared by all principals: they are short, and must work while all
    #: other pools are full.
    #: Past it: -32003 `busy` with the limit and what the caller holds; other principals are not
    #: affected.
    control_in_flight: int = 1024
    #: Worker threads of methods that are plain functions or plain generators. A function that never
    #: returns keeps its thread.
    #: Past it: -32003 `busy` with the limit and the number of abandoned threads.
    worker_threads: int = 256
    #: Resource subscriptions of one MCP client.
    #: Past it: -32602 with the limit.
    subscriptions: int = 1024
    #: Resource subscriptions of all MCP clients, shared by all principals.
    #: Past it: -32003 `busy` with the limit and what the caller holds; other principals are not
    #: affected.
    all_subscriptions: int = 16_384
    #: Runs with a guaranteed retention (MCP tasks), shared by all principals.
    #: Past it: -32003 `busy` with the limit and what the caller holds; other principals are not
    #: affected.
    kept_runs: int = 1024
    #: Size of one event. An image fits; a film should be a resource.
    #: Past it: the run ends with `too_big`.
    event_bytes: int = 1 * MIB
    #: Size of one checkpoint, as JSON. A checkpoint is a position, such as an offset or a cursor;
    #: data belongs in `ctx.storage` or in a file. It is written every time.
    #: Past it: `ctx.checkpoint` raises `too_big`, and the previous checkpoint stays.
    checkpoint_bytes: int = 1 * MIB
    #: Size of one terminal, and of the events of one buffered response.
    #: Past it: a terminal becomes `too_big`; a buffered response keeps its head and tail.
    answer_bytes: int = 10 * MIB
    #: How far a run may be ahead of its owner before it is paused. An item counts as its bytes plus
    #: one KiB, so this is about a thousand small items.
    #: Past it: the run waits until its owner has caught up.
    high_water_bytes: int = 1 * MIB
    #: Items that a run's log keeps for late watchers. More than the high-water mark, so that an
    #: owner never encounters a gap.
    #: Past it: the oldest items are dropped, and a late watcher gets a `gap`.
    log_items: int = 8192
    log_bytes: int = 16 * MIB
    #: Finished runs that are kept, so that they can be inspected and resumed; shared by all
    #: principals.
    #: Past it: the oldest run of the principal that holds the most is evicted: `not_found`.
    finished_runs: int = 256
    finished_bytes: int = 64 * MIB
    #: Finished watches and control calls that are kept. They are counted separately, so that
    #: inspecting the server evicts no work.
    #: Past it: the oldest run of the principal that holds the most is evicted: `not_found`.
    finished_control_runs: int = 64
    finished_control_bytes: int = 16 * MIB
    #: Retention of finished runs.
    #: Past it: the run is evicted: `not_found`.
    finished_s: float = 3600.0
    #: Timeout of a run, unless its method declares one.
    #: Past it: the run ends with `deadline`.
    run_s: float = 600.0
    #: How long a cancelled run may take to end.
    #: Past it: it is abandoned: it ends with `cancelled`, and the server logs it.
    cancel_s: float = 5.0
    #: How long a question to a person stays open.
    #: Past it: the method that asked gets `no_answer`.
    answer_s: float = 300.0
    #: How long a run waits for a disconnected caller to reconnect.
    #: Past it: the run is cancelled.
    orphan_s: float = 10.0
    #: Timeout of one write to a peer.
    #: Past it: the peer is disconnected: `lagged`.
    write_s: float = 30.0

    def as_dict(self) -> dict[str, Any]:
        """Return the limits by name."""
        return msgspec.structs.asdict(self)


DEFAULT_LIMITS: Final = Limits()
