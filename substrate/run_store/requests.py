"""Requests: calls about a run that the process which executes it makes for another process.

The caller writes a row and wakes the process; the process makes the call and writes its terminal
into the row. Only a few methods can be requested: those that stop, retain or release a run, or
answer its questions. The caller has checked the permission before, so the call is made with all
scopes of the principal.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import aclosing
from typing import Any, Final

from plexus.errors import Failed, Internal, InvalidParams, NotFound, PlexusError
from plexus.events import ErrorEvent, Result, Terminal
from plexus.principal import Principal
from plexus.rpc import wire
from plexus.runtime.hub import Plexus
from plexus.runtime.stored_events import READING, read_event
from plexus.storage.engine import Engine, Transaction
from substrate.run_store.leases import UNOWNED, Kept
from substrate.run_store.queries import Request
from substrate.run_store.restarts import end_unclaimed
from substrate.run_store.schema import ENDED

__all__ = ("Requests", "read_results")

logger = logging.getLogger("substrate.run_store")

CANCEL: Final = "plexus.cancel"
#: Methods that another process may request.
ALLOWED: Final = frozenset(
    {CANCEL, "plexus.respond", "plexus.keep", "plexus.release", "approvals.respond"}
)
#: Seconds until a request fails.
REPLY_S: Final = 10.0
#: Seconds after which the answer is looked up even without a signal.
POLL_S: Final = 1.0
#: Requests older than this are removed: their callers have given up.
EXPIRED_MS: Final = 60_000


class Requests:
    """The requests of this process, and those that it serves."""

    def __init__(
        self,
        hub: Plexus,
        process: int,
        notify: Callable[[int], None],
        new_id: Callable[[], int],
        kept: Kept,
    ) -> None:
        self._hub = hub
        self._process = process
        #: Wakes a process; all of them if it is `UNOWNED`.
        self._notify = notify
        self._kept = kept
        self._new_id = new_id
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._serving: dict[int, asyncio.Task[None]] = {}

    # --- making requests ----------------------------------------------------------------------

    @property
    def waiting(self) -> list[int]:
        """The requests of this process without an answer."""
        return list(self._waiting)

    async def make(
        self,
        engine: Engine,
        run: int,
        method: str,
        params: dict[str, Any],
        client: str | None = None,
    ) -> Any:
        """Request a call for a client and return its value. Raises PlexusError."""
        number = self._new_id()
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        body = wire.encode(params).decode()
        try:
            owner = await engine.write(
                lambda tx: self._insert(tx, number, run, method, body, client)
            )
            self._notify(owner)
            if owner == UNOWNED and method == CANCEL:
                return True
            deadline = time.monotonic() + REPLY_S
            while not answer.done():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise Failed(
                        "The process of this run did not answer in time.",
                        code="gone",
                        data={"run": run},
                    )
                await asyncio.wait([answer], timeout=min(POLL_S, left_s))
                if not answer.done():
                    await self._look_up(engine, run, number)
            return _value(answer.result())
        finally:
            del self._waiting[number]

    def _insert(
        self, tx: Transaction, number: int, run: int, method: str, params: str, client: str | None
    ) -> int:
        """Write a request, or end a run that waits for a restart and is cancelled.

        Returns the process that executes the run. Raises NotFound.
        """
        process = _insert(tx, number, run, self._process, method, params, client)
        if process == UNOWNED and method == CANCEL:
            end_unclaimed(tx, self._kept)
        return process

    async def _look_up(self, engine: Engine, run: int, number: int) -> None:
        """Read the answer in case its signal was lost, and whether the run has ended."""

        def work(tx: Transaction) -> tuple[bytes | None, bool]:
            answered = read_results(tx, [number])
            state = tx.one("SELECT state FROM runs WHERE id = ?", (run,))
            return answered.get(number), state is None or state[0] >= ENDED

        raw, has_ended = await engine.read(work)
        if raw is not None:
            self.on_results({number: raw})
        elif has_ended:
            raise NotFound(f"Run {run} has ended.")

    def on_results(self, results: dict[int, bytes]) -> None:
        """Resolve requests of this process that were answered."""
        for number, raw in results.items():
            waiting = self._waiting.get(number)
            if waiting is not None and not waiting.done():
                waiting.set_result(raw)

    # --- serving requests ---------------------------------------------------------------------

    @property
    def serving(self) -> frozenset[int]:
        """The requests whose calls are being made."""
        return frozenset(self._serving)

    def serve(self, engine: Engine, requests: Iterable[Request], excluded: Collection[int]) -> None:
        """Make the requested calls, except of the excluded requests.

        These are the ones that were being served when the requests were read: they may have been
        answered since, and a call is made once.
        """
        for request in requests:
            if request.id not in excluded:
                task = asyncio.get_running_loop().create_task(self._serve(engine, request))
                self._serving[request.id] = task
                task.add_done_callback(self._on_served)

    def _on_served(self, task: asyncio.Task[None]) -> None:
        for number, each in list(self._serving.items()):
            if each is task:
                del self._serving[number]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("cannot answer a request of another process: %s", error)

    async def _serve(self, engine: Engine, request: Request) -> None:
        try:
            async with asyncio.timeout(REPLY_S):
                result = await self._call(request)
        except PlexusError as error:
            result = wire.encode_event(ErrorEvent(error.code, error.message, error.data))
        except TimeoutError:
            result = wire.encode_event(ErrorEvent("deadline", f"{request.method} timed out."))
        except Exception as error:  # noqa: BLE001 - a request is answered whatever happens
            failed = Internal.report(f"a request for {request.method}", error)
            result = wire.encode_event(ErrorEvent(failed.code, failed.message, failed.data))
        text = result.decode()
        await engine.write(
            lambda tx: tx.run("UPDATE run_requests SET result = ? WHERE id = ?", (text, request.id))
        )
        self._notify(request.requester)

    async def _call(self, request: Request) -> bytes:
        if request.method not in ALLOWED:
            raise NotFound(f"{request.method[:64]} cannot be requested.")
        params = wire.decode_value(request.params.encode(), READING)
        principal = Principal(request.principal)
        call = self._hub.call(request.method, params, principal, client=request.client)
        async with aclosing(call.run.batches()) as batches:
            async for batch in batches:
                if batch.terminal is not None:
                    return batch.payloads[-1]
        raise Failed(f"{request.method} ended without a terminal.")

    async def close(self) -> None:
        """Finish the calls that are being made."""
        tasks = list(self._serving.values())
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        for task in tasks:
            task.cancel()


def _insert(
    tx: Transaction,
    number: int,
    run: int,
    requester: int,
    method: str,
    params: str,
    client: str | None,
) -> int:
    """Write a request. Returns the process that executes the run. Raises NotFound."""
    row = tx.one(f"SELECT process, principal FROM runs WHERE id = ? AND state < {ENDED}", (run,))
    if row is None:
        raise NotFound(f"Run {run} has ended.")
    process, principal = row
    if method == CANCEL:
        # Whatever becomes of its process, the run is not restarted.
        tx.run("UPDATE runs SET cancel_requested = 1 WHERE id = ?", (run,))
    now_ms = time.time_ns() // 1_000_000
    tx.run("DELETE FROM run_requests WHERE made_ms < ?", (now_ms - EXPIRED_MS,))
    tx.run(
        "INSERT INTO run_requests"
        " (id, run, process, requester, method, params, principal, made_ms, client)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (number, run, process, requester, method, params, principal, now_ms, client),
    )
    return int(process)


def read_results(tx: Transaction, numbers: Iterable[int]) -> dict[int, bytes]:
    """Return the answers to these requests, as far as there are any."""
    found = {}
    for number in numbers:
        row = tx.one("SELECT result FROM run_requests WHERE id = ?", (number,))
        if row is not None and row[0] is not None:
            found[number] = row[0].encode()
    return found


def _value(raw: bytes) -> Any:
    """Return the value of a terminal. Raises its error."""
    terminal = read_event(raw)
    if isinstance(terminal, ErrorEvent):
        kind = {"invalid_params": InvalidParams, "not_found": NotFound}.get(terminal.code, Failed)
        raise kind(terminal.message, code=terminal.code, data=terminal.data)
    assert isinstance(terminal, Terminal), "the process writes a terminal"
    if isinstance(terminal, Result):
        return terminal.result
    return getattr(terminal, "result", None)
