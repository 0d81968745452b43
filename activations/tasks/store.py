"""The store: every operation on tasks as a coroutine, independent of the engine.

Each operation is one function of `queries`, run as one unit of work, and therefore atomic. Tasks of
another principal are treated as missing. An operation first releases the claims whose lease has
ended, so no caller ever sees a claim of a dead holder.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from activations.tasks.model import Caller, Filter, Process, Task
from activations.tasks.queries import claims, links, reads, tasks, transfer
from activations.tasks.queries.tasks import NewTask, Patch
from activations.tasks.schema import TASKS
from plexus.process_identity import host_id, start_time
from plexus.storage import Engine, Transaction, open_engine

__all__ = ("Store", "open_store", "own_process")

P = ParamSpec("P")
T = TypeVar("T")


def own_process() -> Process:
    """Return a new identity for the leases of one store in this process."""
    pid = os.getpid()
    return Process(int.from_bytes(os.urandom(6)) or 1, host_id(), pid, start_time(pid))


async def open_store(database: str, process: Process | None = None) -> Store:
    """Open and migrate the store: a path, `sqlite:///path` or `postgresql://...`."""
    return Store(await open_engine(database, TASKS), process or own_process())


class Store:
    """An open store, bound to the event loop that it was opened on."""

    def __init__(self, engine: Engine, process: Process) -> None:
        self._engine = engine
        self.process = process

    async def _read(
        self, query: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a read query; again, if claims of dead holders had to be released first."""

        def work(tx: Transaction) -> tuple[bool, T | None]:
            if claims.dead_leases(tx, self.process.host):
                return True, None
            return False, query(tx, *args, **kwargs)

        ended, result = await self._engine.read(work)
        if ended:
            await self.release_dead()
            return await self._engine.read(lambda tx: query(tx, *args, **kwargs))
        return result  # type: ignore[return-value]  # only None if the query returns None

    def _write(
        self, query: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        """Run a write query, after the release of claims of dead holders."""

        def work(tx: Transaction) -> T:
            claims.release_dead(tx, self.process.host)
            return query(tx, *args, **kwargs)

        return self._engine.write(work)

    # --- tasks -----------------------------------------------------------------------------------

    async def create(self, caller: Caller, project: str, new: NewTask) -> Task:
        return await self._write(tasks.create, caller, project, new)

    async def get(self, principal: str, task: str) -> Task:
        return await self._read(reads.get, principal, task)

    async def list_tasks(
        self, principal: str, chosen: Filter, after: str | None, limit: int
    ) -> tuple[list[Task], str | None, int]:
        """Return a page, the cursor of the next one, and the number of tasks in the list."""
        return await self._read(reads.list_tasks, principal, chosen, after, limit)

    async def update(self, caller: Caller, task: str, patch: Patch, *, force: bool = False) -> Task:
        return await self._write(tasks.update, caller, self.process, task, patch, force=force)

    async def close_task(
        self,
        caller: Caller,
        task: str,
        outcome: str = "done",
        reason: str | None = None,
        *,
        force: bool = False,
    ) -> Task:
        return await self._write(
            tasks.close, caller, self.process, task, outcome, reason, force=force
        )

    async def delete(self, caller: Caller, names: Sequence[str]) -> int:
        """Delete tasks. Returns their number."""
        return await self._write(tasks.delete, caller, names)

    async def link(self, caller: Caller, task: str, kind: str, target: str) -> None:
        await self._write(links.link, caller.principal, caller.name, task, kind, target)

    async def unlink(self, caller: Caller, task: str, kind: str, target: str) -> bool:
        """Remove a link. Returns whether there was one."""
        return await self._write(links.unlink, caller.principal, caller.name, task, kind, target)

    # --- claims ----------------------------------------------------------------------------------

    async def claim(self, caller: Caller, task: str, *, force: bool = False) -> Task:
        """Claim a task. Raises Busy (`claimed`), which names the holder."""
        return await self.update(caller, task, Patch("in_progress"), force=force)

    async def next_task(self, caller: Caller, chosen: Filter, *, claim: bool) -> Task | None:
        """Return the most urgent ready task, and claim it if requested."""

        def work(tx: Transaction) -> str | None:
            where, params = reads.condition(caller.principal, chosen._replace(listed="all"))
            row = claims.claim_next(tx, caller, self.process, where, params)
            return None if row is None else row.id

        if claim:
            name = await self._write(work)
        else:
            page, _, _ = await self.list_tasks(
                caller.principal, chosen._replace(listed="ready"), None, 1
            )
            name = page[0]["id"] if page else None
        return None if name is None else await self.get(caller.principal, name)

    async def release_of(self, lease: str, ref: str, why: str) -> int:
        """Release the claims of a connection or a run of this process."""
        return await self._engine.write(
            lambda tx: claims.release_of(tx, self.process, lease, ref, why)
        )

    async def release_dead(self) -> int:
        """Release the claims whose lease has ended. Returns their number."""
        return await self._engine.write(lambda tx: claims.release_dead(tx, self.process.host))

    async def leases(self) -> tuple[list[Process], int | None]:
        """Return the processes with leases, and when the next lease by time expires."""
        return await self._engine.read(claims.live_processes)

    async def renew(self) -> bool:
        """Renew the lease of this process. Returns whether it holds tasks."""
        return await self._engine.write(lambda tx: claims.renew(tx, self.process))

    async def touch(self, caller: Caller) -> None:
        """Renew the leases by time of a caller."""
        await self._engine.write(lambda tx: claims.touch(tx, caller))

    # --- reading ---------------------------------------------------------------------------------

    async def history(self, principal: str, task: str, after: int, limit: int) -> list[Task]:
        return await self._read(reads.history, principal, task, after, limit)

    async def changed(
        self, principal: str, project: str | None, after: int, limit: int
    ) -> list[tuple[int, int, Task]]:
        """Return the tasks that have changed after a number, as they are now."""
        return await self._read(reads.changed, principal, project, after, limit)

    async def closed(self, principal: str, project: str | None, limit: int) -> list[Task]:
        """Return the tasks that were closed last."""
        return await self._read(reads.closed, principal, project, limit)

    async def last_change(self) -> int:
        return await self._read(reads.last_change)

    async def counts(
        self, principal: str | None = None, project: str | None = None
    ) -> dict[str, int]:
        return await self._read(reads.counts, principal, project)

    async def projects(self, principal: str) -> list[dict[str, Any]]:
        return await self._read(reads.projects, principal)

    # --- transfer --------------------------------------------------------------------------------

    async def export_page(
        self, principal: str, project: str | None, status: str | None, after: int, limit: int
    ) -> list[tuple[int, Task]]:
        """Return a page of tasks with everything about them, each with its cursor."""
        return await self._read(reads.export_page, principal, project, status, after, limit)

    async def import_tasks(
        self, caller: Caller, project: str, lines: Sequence[Any]
    ) -> dict[str, int]:
        """Import exported tasks, all or none."""
        return await self._write(transfer.import_tasks, caller, project, lines)

    # --- the database ----------------------------------------------------------------------------

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after commits by this or any other process."""
        return self._engine.subscribe(listener)

    async def check(self) -> None:
        """Check the disk and the database files. Raises Failed."""
        await self._engine.check()

    async def close(self) -> None:
        """Release the claims of this process, and close the database."""
        try:
            await self._engine.write(lambda tx: claims.release_all(tx, self.process))
        finally:
            await self._engine.close()
