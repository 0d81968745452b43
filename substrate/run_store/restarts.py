"""Restarts: runs that move to another process when theirs has ended or stops in order.

A run that can be restarted is released when its process dies, or when that process hands it over.
It then belongs to no process. Each process that has its method looks for such runs when the store
has changed; the first one that claims it, in one transaction, starts it again under its number. A
run that no process claims in time, or whose credential is no longer valid, ends with the error
`owner_lost`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from plexus.errors import PlexusError
from plexus.events import Cancelled, ErrorEvent, Terminal
from plexus.principal import Principal
from plexus.registry.lazy import resolve
from plexus.rpc import wire
from plexus.runtime.hub import Plexus
from plexus.runtime.log import monotonic_at
from plexus.runtime.run import LocalRun
from plexus.storage.engine import Engine, Transaction
from substrate.run_store.leases import UNOWNED, Kept, database_ms, end_run, release_runs
from substrate.run_store.policy import RecordPolicy
from substrate.run_store.recorded_run import RunEntry
from substrate.run_store.recorder import Recorder
from substrate.run_store.schema import ENDED

if TYPE_CHECKING:  # imported when a run is restarted that was started with a credential
    from substrate.run_store.run_credentials import RunCredentials

__all__ = (
    "Claim",
    "Owner",
    "Restarts",
    "WaitingRun",
    "claim_runs",
    "end_unclaimed",
    "waiting_runs",
)

logger = logging.getLogger("substrate.run_store")

#: Seconds until a run that still executes here is looked at again.
RETRY_S: Final = 0.25
RUN_CREDENTIALS: Final = "substrate.run_store.run_credentials:RunCredentials"
#: The last message to readers of a run that is handed over.
MOVING: Final = "This server is stopping; another process continues the run."


class WaitingRun(NamedTuple):
    """A run that belongs to no process."""

    run: int
    method: str
    project: str
    restart: str
    cancel_requested: bool
    #: Seconds until it ends; negative if that time has passed.
    left_s: float


class Claim(NamedTuple):
    """A run that this process restarts."""

    run: int
    method: str
    principal: str
    #: The scopes of its caller, separated by spaces; None for all.
    scopes: str | None
    arguments: str
    summary: str
    client: str
    epoch: int
    last_seq: int
    size: int
    started_ms: int
    key: str | None
    retention_s: float | None
    checkpoint: str | None
    #: The identifier of the credential of its caller, in hexadecimal digits; None if it had none.
    credential: str | None


class Owner(NamedTuple):
    """The process that claims runs."""

    process: int
    pid: int
    host: str
    #: The project whose runs it claims; None for all. On one machine, a method of another project
    #: may be another method, and works in another folder.
    project: str | None


def waiting_runs(tx: Transaction) -> list[WaitingRun]:
    """Return the runs that belong to no process."""
    rows = tx.all(
        "SELECT id, method, project, restart, cancel_requested, kept_until FROM runs"
        f" WHERE process = ? AND state < {ENDED}",
        (UNOWNED,),
    )
    if not rows:
        return []
    now = database_ms(tx)
    return [
        WaitingRun(run, method, project, restart, bool(cancel_requested), (until - now) / 1000)
        for run, method, project, restart, cancel_requested, until in rows
    ]


def claim_runs(
    tx: Transaction, owner: Owner, methods: Mapping[str, str], excluded: Collection[int] = ()
) -> list[Claim]:
    """Take over the released runs of these methods, given with how they restart.

    Writers are serialised, so a run is claimed once.
    """
    claims = []
    for waiting in waiting_runs(tx):
        if is_claimable(waiting, owner, methods) and waiting.run not in excluded:
            tx.run(
                "UPDATE runs SET process = ?, pid = ?, host = ?, kept_until = NULL WHERE id = ?",
                (owner.process, owner.pid, owner.host, waiting.run),
            )
            row = tx.one(
                "SELECT id, method, principal, scopes, arguments, summary, client, epoch, last_seq,"
                " bytes, started_ms, run_key, retention_s, checkpoint,"
                " credential FROM runs WHERE id = ?",
                (waiting.run,),
            )
            assert row is not None, "it was read in this transaction"
            claims.append(Claim(*row))
    return claims


def is_claimable(waiting: WaitingRun, owner: Owner, methods: Mapping[str, str]) -> bool:
    """Return whether a process with these methods may restart a run."""
    return (
        methods.get(waiting.method) == waiting.restart
        and not waiting.cancel_requested
        and waiting.left_s >= 0
        and owner.project in (None, waiting.project)
    )


def end_unclaimed(tx: Transaction, kept: Kept) -> int:
    """End released runs that are cancelled, or that no process has restarted in time.

    Returns their number.
    """
    ended = 0
    for waiting in waiting_runs(tx):
        if waiting.cancel_requested:
            terminal: Terminal = Cancelled("cancelled by request")
        elif waiting.left_s < 0:
            terminal = ErrorEvent(
                "owner_lost", "The process of this run has ended, and no other has restarted it."
            )
        else:
            continue
        _end_owned(tx, waiting.run, UNOWNED, terminal, partial(kept, waiting.method))
        ended += 1
    return ended


def _end_owned(
    tx: Transaction, run: int, process: int, terminal: Terminal, kept_ms: Callable[[str], int]
) -> None:
    """End a run that still belongs to this process."""
    row = tx.one(
        f"SELECT last_seq, epoch FROM runs WHERE id = ? AND process = ? AND state < {ENDED}",
        (run, process),
    )
    if row is not None:
        last_seq, epoch = row
        end_run(tx, run, last_seq, epoch, terminal, kept_ms)


class Restarts:
    """Claims runs for a hub, and hands over those that it executes."""

    def __init__(
        self,
        hub: Plexus,
        recorder: Recorder,
        record: RecordPolicy,
        owner: Owner,
        renew: Callable[[Transaction], object],
        kept: Kept,
    ) -> None:
        self._hub = hub
        self._recorder = recorder
        self._record = record
        self._owner = owner
        #: Writes the lease of this process: others must notice if it ends with what it claims.
        self._renew = renew
        self._kept = kept
        self._is_claiming = False
        self._credentials: RunCredentials | None = None
        #: Whether a run was restarted here. Readers of it may follow what the store has.
        self.has_restarted = False

    # --- claiming -----------------------------------------------------------------------------

    def _methods(self) -> dict[str, str]:
        """Return the methods whose runs can be restarted here, with how they restart."""
        if self._hub.draining or self._record.is_off:
            return {}
        return {
            spec.name: spec.restart
            for spec in self._hub.methods()
            if spec.restart != "never" and self._record.mode(spec.name, spec.record) == "all"
        }

    def next_check_s(self, waiting: Iterable[WaitingRun]) -> float | None:
        """Return in how many seconds these runs need attention: 0 for now, None for never."""
        methods = self._methods()
        active = self._recorder.active
        due: list[float] = []
        for each in waiting:
            if each.cancel_requested or each.left_s < 0:
                due.append(0.0)
            elif each.run in active:
                self._recorder.mark_changed(each.run)  # it learns that it was released, and stops
                due.append(RETRY_S)
            elif is_claimable(each, self._owner, methods):
                due.append(0.0)
            else:
                due.append(each.left_s)
        return min(due, default=None)

    async def claim(self, engine: Engine) -> int:
        """Claim and restart the runs that wait for this process, and end those that wait too long.

        Returns how many runs have changed. Raises PlexusError if the store cannot write.
        """
        if self._is_claiming:
            return 0
        self._is_claiming = True
        try:
            return await self._claim(engine)
        finally:
            self._is_claiming = False

    async def _claim(self, engine: Engine) -> int:
        methods = self._methods()
        active = set(self._recorder.active)

        def work(tx: Transaction) -> tuple[int, list[Claim]]:
            ended = end_unclaimed(tx, self._kept)
            claims = claim_runs(tx, self._owner, methods, active)
            if claims:
                self._renew(tx)
            return ended, claims

        ended, claims = await engine.write(work)
        failed: list[tuple[Claim, PlexusError]] = []
        for claim in claims:
            try:
                self._restart(claim)
            except PlexusError as error:
                failed.append((claim, error))
        if failed:
            await engine.write(partial(self._end_failed, failed=failed))
        return ended + len(claims)

    def _restart(self, claim: Claim) -> None:
        scopes = None if claim.scopes is None else frozenset(claim.scopes.split())
        checkpoint = None if claim.checkpoint is None else claim.checkpoint.encode()
        credential = None if claim.credential is None else bytes.fromhex(claim.credential)
        if credential is not None:
            self._find_credentials().check(credential)
        self._recorder.claimed[claim.run] = claim.size
        try:
            run = self._hub.restart(
                claim.method,
                run_id=claim.run,
                principal=Principal(claim.principal, scopes, credential),
                arguments=wire.decode_trusted(claim.arguments.encode()),
                epoch=claim.epoch,
                checkpoint=checkpoint,
                first_seq=claim.last_seq + 1,
                started_at=monotonic_at(claim.started_ms),
                parent=None,
                key=claim.key,
            )
        finally:
            del self._recorder.claimed[claim.run]
        run.summary, run.client = claim.summary, claim.client or None
        run.retention_s = claim.retention_s
        self.has_restarted = True
        if credential is not None:
            self._find_credentials().watch(run)
        logger.info("run %d of %s is restarted here", run.id, run.method)

    def _find_credentials(self) -> RunCredentials:
        if self._credentials is None:
            self._credentials = resolve(RUN_CREDENTIALS)()
        return self._credentials

    def close(self) -> None:
        """Stop checking the credentials of restarted runs."""
        if self._credentials is not None:
            self._credentials.close()

    def _end_failed(self, tx: Transaction, failed: list[tuple[Claim, PlexusError]]) -> None:
        for claim, error in failed:
            if error.code == "stopping":  # another process restarts it
                release_runs(tx, self._owner.process, [(claim.run, claim.epoch)])
                continue
            lost = ErrorEvent(
                "owner_lost",
                "The process of this run has ended, and it could not be restarted:"
                f" {error.message}",
            )
            kept_ms = partial(self._kept, claim.method)
            _end_owned(tx, claim.run, self._owner.process, lost, kept_ms)

    # --- handing over -------------------------------------------------------------------------

    async def hand_over(self, engine: Engine, *, only_restarted: bool) -> int:
        """Stop the runs that another process can restart, then release them.

        In this order, so that a run never executes twice at a time. Returns how many were released.
        Raises PlexusError if the store cannot write.
        """
        await self._recorder.flushed()
        held = self._recorder.hold(only_restarted=only_restarted)
        if not held:
            return 0
        for entry in held:
            assert isinstance(entry.run, LocalRun), "only runs of this process are recorded"
            entry.run.move(MOVING)
        await self._wait_for_ends(held)
        moved = []
        for entry in held:
            terminal = entry.run.terminal
            if terminal is None or (isinstance(terminal, ErrorEvent) and terminal.code == "moved"):
                moved.append((entry.run.id, entry.epoch))
            else:  # it ended before it was stopped
                self._recorder.unhold(entry)
        await self._recorder.flushed()
        released = await engine.write(lambda tx: release_runs(tx, self._owner.process, moved))
        logger.info("%d runs are handed over", len(released))
        return len(released)

    async def _wait_for_ends(self, entries: Iterable[RunEntry]) -> None:
        try:
            async with asyncio.timeout(self._hub.limits.cancel_s + 1.0):
                for entry in entries:
                    while entry.run.terminal is None:  # noqa: ASYNC110 - a run has no such event
                        await asyncio.sleep(0.01)
        except TimeoutError:
            pass  # this process ends, and with it what is left of them
