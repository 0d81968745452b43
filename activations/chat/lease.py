"""Leases: one turn at a time in a session, over all processes that share the store.

A turn holds the session's head under the name of its owner and renews the lease every few
seconds. An owner that is known to be dead, or was silent for too long, has lost its turn: what it
had written so far is then made into messages, marked as interrupted.
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
from activations.chat.message import node_of, recover_draft
from plexus.errors import Busy
from plexus.process_identity import host_id, is_running, start_time

__all__ = (
    "RENEW_S",
    "SPACE",
    "WhenBusy",
    "acquire",
    "complete",
    "is_leased",
    "lease_owner",
    "recover",
    "turn_under_way",
)

T = TypeVar("T")

#: What happens to a turn that is requested while another is in progress.
WhenBusy: TypeAlias = Literal["refuse", "queue"]

#: The space that sessions' names live in.
SPACE: Final = "chat"

#: How often an owner renews its lease, and after how long without that the lease has expired.
RENEW_S = 5.0
STALE_S = 30.0
#: How long a turn waits for the one before it.
QUEUE_S = 600.0
#: How often a waiting turn looks if no change is notified: a dead owner does not notify.
LOOK_S = 2.0
#: The queues of this process, by store, principal and name. A session without waiting turns has
#: none.
_QUEUES: WeakValueDictionary[tuple[int, str, str], asyncio.Lock] = WeakValueDictionary()


async def complete(work: Coroutine[Any, Any, T]) -> T:
    """Await this to its end, also if the caller is cancelled meanwhile."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def lease_owner(run: int) -> str:
    """Return the name under which this run, in this process, holds a session."""
    pid = os.getpid()
    started = start_time(pid)
    return f"{host_id()}/{pid}/{'' if started is None else started}/{run}"


def is_leased(head: Head) -> bool:
    """Whether a session has an owner that may still be alive."""
    if head.holder is None:
        return False
    if head.held_ms is None or time.time() * 1000 - head.held_ms > STALE_S * 1000:
        return False
    host, pid, started, *_ = (*head.holder.split("/"), "", "", "")
    if host != host_id() or not pid.isdecimal():
        return True
    return is_running(int(pid), int(started) if started.isdecimal() else None)


async def recover(store: Store, principal: str, head: Head, owner: str) -> Head:
    """Store what an owner that is gone has left as messages, and release the head.

    If another caller does so at the same moment, the head is returned as that has left it. A
    cancelled caller leaves nothing half done: the rest would be lost.
    """
    return await complete(_recover(store, principal, head, owner))


async def _recover(store: Store, principal: str, head: Head, owner: str) -> Head:
    try:
        head = await store.acquire_head(principal, SPACE, head.name, owner, instead_of=head.holder)
    except Busy:
        return await store.get_head(principal, SPACE, head.name)
    try:
        messages = recover_draft(await store.pieces(principal, head.id))
        marked = [each._replace(meta={**each.meta, "status": "interrupted"}) for each in messages]
        if marked:
            await store.advance(principal, head.id, owner, [node_of(each) for each in marked])
    finally:
        await store.release_head(principal, head.id, owner)
    return await store.get_head(principal, SPACE, head.name)


async def acquire(store: Store, principal: str, name: str, owner: str, when_busy: WhenBusy) -> Head:
    """Acquire a session, after its present owner if `when_busy` is "queue"; raises Busy.

    The waiting turns of one process get it in the order in which they came.
    """
    deadline = time.monotonic() + QUEUE_S
    key = id(store), principal, name
    if when_busy == "refuse":
        if key in _QUEUES:
            raise turn_under_way(name)
        return await _acquire(store, principal, name, owner, None)
    queue = _QUEUES.setdefault(key, asyncio.Lock())
    try:
        async with asyncio.timeout(QUEUE_S):
            await queue.acquire()
    except TimeoutError:
        raise turn_under_way(name) from None
    try:
        return await _acquire(store, principal, name, owner, deadline)
    finally:
        queue.release()


async def _acquire(
    store: Store, principal: str, name: str, owner: str, deadline: float | None
) -> Head:
    """Acquire a session; until the deadline, if there is one, wait for its present owner."""
    changed = asyncio.Event()
    unsubscribe = store.subscribe(changed.set)
    try:
        while True:
            changed.clear()  # before looking, so that a change meanwhile is not missed
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
                raise turn_under_way(name)
            await _wait_for_change(changed, min(LOOK_S, deadline - time.monotonic()), name)
    finally:
        unsubscribe()


async def _acquire_free(store: Store, principal: str, name: str, owner: str) -> Head:
    """Acquire a session that has no owner; a caller that is cancelled meanwhile owns nothing."""
    acquiring = asyncio.create_task(store.acquire_head(principal, SPACE, name, owner))
    try:
        return await asyncio.shield(acquiring)
    except asyncio.CancelledError:
        await asyncio.wait([acquiring])
        if acquiring.exception() is None:
            await complete(store.release_head(principal, acquiring.result().id, owner))
        raise


async def _wait_for_change(changed: asyncio.Event, within_s: float, name: str) -> None:
    if within_s <= 0:
        raise turn_under_way(name)
    try:
        async with asyncio.timeout(within_s):
            await changed.wait()
    except TimeoutError:
        pass


def turn_under_way(name: str) -> Busy:
    """Return the error for a session with a turn in progress."""
    return Busy(
        f"a turn of session {name!r} is under way; wait for its end, cancel it, or send with"
        ' when_busy "queue"',
        code="turn_under_way",
        data={"session": name},
    )
