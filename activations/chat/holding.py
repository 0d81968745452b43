"""Who is at work on a session: one turn at a time, over all processes that share the store.

Whoever begins a turn holds the session's head and says so again every few seconds. A holder that
is known to be dead, or has been silent for long, has lost its turn: what it had written so far is
then made into messages, marked as interrupted.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from activations.arbor.model import Head
from activations.chat.draft import recovered
from activations.chat.setup import WhenBusy
from activations.chat.shielding import seen_through
from activations.chat.stored import node_of
from plexus.errors import Busy

if TYPE_CHECKING:  # a store is imported when it is opened
    from activations.arbor.store import Store

__all__ = (
    "RENEW_S",
    "SPACE",
    "hold",
    "holder_of_run",
    "is_held",
    "recover",
    "under_way",
)

#: The space that sessions' names live in.
SPACE = "chat"

#: How often a holder says that it is still at work, and after how much silence it is not.
RENEW_S = 5.0
STALE_S = 30.0
#: How long a turn waits for the one before it.
QUEUE_S = 600.0
#: How often somebody who waits looks, if nothing rings: a dead holder does not.
LOOK_S = 2.0
#: Who waits for a session in this process: a store, a principal, a name. Nobody waits, no line.
_LINES: WeakValueDictionary[tuple[int, str, str], asyncio.Lock] = WeakValueDictionary()


@cache
def _here() -> str:
    """The one set of process numbers that this process's own is one of."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:  # not Linux
        return os.uname().nodename


def _started(pid: int) -> str | None:
    """What tells a process from a later one with its number; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    except OSError:
        return ""
    else:
        return stat.rpartition(b")")[2].split()[19].decode()
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return ""


def holder_of_run(run: int) -> str:
    """The name under which this run, in this process, holds a session."""
    pid = os.getpid()
    return f"{_here()}/{pid}/{_started(pid)}/{run}"


def is_held(head: Head) -> bool:
    """Whether somebody is at work on this session who may still be alive."""
    if head.holder is None:
        return False
    if head.held_ms is None or time.time() * 1000 - head.held_ms > STALE_S * 1000:
        return False
    here, pid, started, *_ = (*head.holder.split("/"), "", "", "")
    return here != _here() or not pid.isdecimal() or _started(int(pid)) == started


async def recover(store: Store, principal: str, head: Head, holder: str) -> Head:
    """Make messages of what a holder that is gone has left, and hold the head no more.

    If somebody else does so at the same moment, the head is as they have left it. Whoever is
    cancelled meanwhile leaves nothing half done: what was left would be lost.
    """
    return await seen_through(_recover(store, principal, head, holder))


async def _recover(store: Store, principal: str, head: Head, holder: str) -> Head:
    try:
        head = await store.acquire_head(principal, SPACE, head.name, holder, instead_of=head.holder)
    except Busy:
        return await store.get_head(principal, SPACE, head.name)
    try:
        messages = recovered(await store.pieces(principal, head.id))
        marked = [each._replace(meta={**each.meta, "status": "interrupted"}) for each in messages]
        if marked:
            await store.advance(principal, head.id, holder, [node_of(each) for each in marked])
    finally:
        await store.release_head(principal, head.id, holder)
    return await store.get_head(principal, SPACE, head.name)


async def hold(store: Store, principal: str, name: str, holder: str, when_busy: WhenBusy) -> Head:
    """Hold a session, after whoever holds it now if that is wanted; raises Busy.

    Those who wait in one process get it in the order in which they came.
    """
    deadline = time.monotonic() + QUEUE_S
    key = id(store), principal, name
    if when_busy == "refuse":
        if key in _LINES:
            raise under_way(name)
        return await _hold(store, principal, name, holder, None)
    line = _LINES.setdefault(key, asyncio.Lock())
    try:
        async with asyncio.timeout(QUEUE_S):
            await line.acquire()
    except TimeoutError:
        raise under_way(name) from None
    try:
        return await _hold(store, principal, name, holder, deadline)
    finally:
        line.release()


async def _hold(
    store: Store, principal: str, name: str, holder: str, deadline: float | None
) -> Head:
    """Hold a session; until then, at most until the deadline, wait for whoever holds it now."""
    bell = asyncio.Event()
    stop = store.subscribe(bell.set)
    try:
        while True:
            bell.clear()  # before looking, so that what happens meanwhile is seen too
            try:
                return await _take(store, principal, name, holder)
            except Busy as error:
                if error.code != "held":
                    raise
            head = await store.get_head(principal, SPACE, name)
            if head.holder is None:
                continue
            if not is_held(head):
                await recover(store, principal, head, holder)
                continue
            if deadline is None:
                raise under_way(name)
            await _rings(bell, min(LOOK_S, deadline - time.monotonic()), name)
    finally:
        stop()


async def _take(store: Store, principal: str, name: str, holder: str) -> Head:
    """Hold a session that nobody holds; who is cancelled meanwhile holds nothing."""
    taking = asyncio.create_task(store.acquire_head(principal, SPACE, name, holder))
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        await asyncio.wait([taking])
        if taking.exception() is None:
            await seen_through(store.release_head(principal, taking.result().id, holder))
        raise


async def _rings(bell: asyncio.Event, within_s: float, name: str) -> None:
    if within_s <= 0:
        raise under_way(name)
    try:
        async with asyncio.timeout(within_s):
            await bell.wait()
    except TimeoutError:
        pass


def under_way(name: str) -> Busy:
    """A turn of this session is under way."""
    return Busy(
        f"a turn of session {name!r} is under way; wait for its end, cancel it, or send with"
        ' when_busy "queue"',
        code="turn_under_way",
        data={"session": name},
    )
