"""Every bound of the core and of what is read from a wire, in one frozen table.

A limit is a default with a reason beside it; settings may replace the whole table. Whoever
refuses something because of a limit says which and how large it is.
"""

from __future__ import annotations

import dataclasses

__all__ = ("Limits",)

KIB = 1024
MIB = 1024 * KIB


@dataclasses.dataclass(frozen=True)
class Limits:
    """The bounds in force. Sizes are in bytes, times in seconds."""

    #: One incoming message. A tool call is small; a larger body is a mistake or an attack.
    message_bytes: int = 1 * MIB
    #: Nesting of an incoming message. The encoder stops at 253, so what comes in must be able to
    #: go out again inside some envelope.
    message_depth: int = 64
    #: Containers in one message: a mebibyte of `[]` would hold the loop for 100 ms.
    message_containers: int = 50_000
    #: Requests in one batch.
    batch_requests: int = 100
    #: Calls under way on one connection.
    calls_in_flight: int = 128
    #: Resources that one client is told about when they change.
    subscriptions: int = 1024
    #: Runs that are kept because somebody was promised that they would be.
    kept_runs: int = 1024
    #: One event on its way to the log. A picture fits; a film should be a resource.
    event_bytes: int = 1 * MIB
    #: One terminal, and one buffered answer as a whole.
    answer_bytes: int = 10 * MIB
    #: How far a run may be ahead of its owner before it is held; an item counts its bytes and
    #: one KiB more, so that this is about a thousand small items.
    high_water_bytes: int = 1 * MIB
    #: What a run's log keeps for those who come later. More than the high-water mark, so that
    #: an owner never finds a gap.
    log_items: int = 8192
    log_bytes: int = 16 * MIB
    #: What is kept of runs that have ended, so that they can be looked at and resumed.
    finished_runs: int = 256
    finished_bytes: int = 64 * MIB
    finished_s: float = 3600.0
    #: How long a method may run unless it declares a deadline of its own.
    run_s: float = 600.0
    #: How long a run that was told to stop may take to do so before it is abandoned.
    cancel_s: float = 5.0
    #: How long a question to a person stays open.
    answer_s: float = 300.0
    #: How long a run whose caller vanished waits for it to come back.
    orphan_s: float = 10.0
    #: How long one write to a peer may take.
    write_s: float = 30.0
    #: How long a silent stream stays silent before a keep-alive; proxies cut at 30 to 60 s.
    keep_alive_s: float = 15.0
