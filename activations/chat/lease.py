"""Session leases: at most one turn per session across all processes that share the store.

A turn acquires the session's head under its owner id and renews the lease every few seconds. The
lease expires if its owner is known to be dead or stops renewing. The draft of an expired owner is
then stored as messages, marked as interrupted.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine
from typing import Any, Final, Literal, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from activations.arbor.model import Head
from activations.arbor.store import Store
from activations.chat.message import node_from_message, recover_draft
from plexus.errors import Busy
from plexus.process_identity import host_id, is_running, start_time

__all__ = (
    "RENEW_S",
    "SPACE",
    "WhenBusy",
    "acquire",
    "is_leased",
    "lease_owner",
    "recover",
    "run_to_completion",
    "turn_in_progress",
)

T = TypeVar("T")

#: What happens to a turn requested while another is in progress.
WhenBusy: TypeAlias = Literal["refuse", "queue"]

#: The namespace of session names in the store.
SPACE: Final = "chat"

#: Interval between renewals of a lease, and the time without renewal after which it expires.
RENEW_S = 5.0
LEASE_TIMEOUT_S = 30.0
#: How long a queued turn waits for the turns before it.
QUEUE_TIMEOUT_S = 600.0
#: Poll interval of a queued turn when no change is notified: a dead owner does not notify.
POLL_S = 2.0
#: The queues of this process, by store, principal and session name. A session has no queue while
#: no turn is waiting.
_QUEUES: WeakValueDictionary[tuple[int, str, str], asyncio.Lock] = WeakValueDictionary()


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine until it completes, even if the caller is cancelled meanwhile."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def lease_owner(run: int) -> str:
    """Return the owner id of a run in this process: host, process id, start time and run."""
    pid = os.getpid()
    started = start_time(pid)
    return f"{host_id()}/{pid}/{'' if started is None else started}/{run}"


def is_leased(head: Head) -> bool:
    """Return whether a session has an owner that may still be alive."""
    if head.holder is None:
        return False
    if head.held_ms is None or time.time() * 1000 - head.held_ms > LEASE_TIMEOUT_S * 1000:
        return False
    host, pid, started, *_ = (*head.holder.split("/"), "", "", "")
    if host != host_id() or not pid.isdecimal():
        return True
    return is_running(int(pid), int(started) if started.isdecimal() else None)


async def recover(store: Store, principal: str, head: Head, owner: str) -> Head:
    """Store the draft of a dead owner as messages, release the head and return it.

    If another caller recovers the head concurrently, the head is returned as that caller left it.
    Recovery completes even if the caller is cancelled, since the rest of the draft would be lost.
    """
    return await run_to_completion(_recover(store, principal, head, owner))


async def _recover(store: Store, principal: str, head: Head, owner: str) -> Head:
    try:
        head = await store.acquire_head(principal, SPACE, head.name, owner, instead_of=head.holder)
    except Busy:
        return await store.get_head(principal, SPACE, head.name)
    try:
        messages = recover_draft(await store.pieces(principal, head.id))
        marked = [each._replace(meta={**each.meta, "status": "interrupted"}) for each in messages]
        if marked:
            nodes = [node_from_message(each) for each in marked]
            await store.advance(principal, head.id, owner, nodes)
    finally:
        await store.release_head(principal, head.id, owner)
    return await store.get_head(principal, SPACE, head.name)


async def acquire(store: Store, principal: str, name: str, owner: str, when_busy: WhenBusy) -> Head:
    """Acquire the lease of a session; with `when_busy` "queue", wait for the current owner.

    Queued turns of one process acquire it in order of arrival. Raises Busy.
    """
    deadline = time.monotonic() + QUEUE_TIMEOUT_S
    key = id(store), principal, name
    if when_busy == "refuse":
        if key in _QUEUES:
            raise turn_in_progress(name)
        return await _acquire(store, principal, name, owner, None)
    queue = _QUEUES.setdefault(key, asyncio.Lock())
    try:
        async with asyncio.timeout(QUEUE_TIMEOUT_S):
            await queue.acquire()
    except TimeoutError:
        raise turn_in_progress(name) from None
    try:
        return await _acquire(store, principal, name, owner, deadline)
    finally:
        queue.release()


async def _acquire(
    store: Store, principal: str, name: str, owner: str, deadline: float | None
) -> Head:
    """Acquire a session; with a deadline, wait for its current owner until then."""
    changed = asyncio.Event()
    unsubscribe = store.subscribe(changed.set)
    try:
        while True:
            changed.clear()  # before the attempt, so that no concurrent change is missed
            try:
                return await _acquire_free(store, principal, name, owner)
            except Busy as error:
                if error.code != "held":
                    raise
            head = await store.get_head(principal, SPACE, name)
            if head.holder is None:
                continue
            if not is_leased(head):
                await recover(store, principal, head, owner)
                continue
            if deadline is None:
                raise turn_in_progress(name)
            await _wait_for_change(changed, min(POLL_S, deadline - time.monotonic()), name)
    finally:
        unsubscribe()


async def _acquire_free(store: Store, principal: str, name: str, owner: str) -> Head:
    """Acquire a session without an owner; if the caller is cancelled, release it again."""
    task = asyncio.create_task(store.acquire_head(principal, SPACE, name, owner))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if task.exception() is None:
            await run_to_completion(store.release_head(principal, task.result().id, owner))
        raise


async def _wait_for_change(changed: asyncio.Event, timeout_s: float, name: str) -> None:
    if timeout_s <= 0:
        raise turn_in_progress(name)
    try:
        async with asyncio.timeout(timeout_s):
            await changed.wait()
    except TimeoutError:
        pass


def turn_in_progress(name: str) -> Busy:
    """Return the error for a session that has a turn in progress."""
    return Busy(
        f"session {name!r} has a turn in progress; wait until it ends, cancel it, or set"
        ' when_busy to "queue"',
        code="turn_under_way",
        data={"session": name},
    )
