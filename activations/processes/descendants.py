"""The server as the last resort: it signals its helpers and ends orphans that have none.

A command without a sandbox can stop and kill its guard and its supervisor. What loses both is
adopted by the server, which is a subreaper while commands run. It tells orphans of commands from
other children, which belong to other code in this process, by a mark that they cannot remove: a
hard limit that is lower than the server's own (`supervisor.py` says more). It signals and reaps
marked children alone, so their pids cannot have passed to strangers.

While commands run, an orphan of another program that this process started becomes its child too.
It is left alone: nothing here can tell it from a child whose exit status other code waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from activations.processes.children import children_of, read_record, set_subreaper, status_fields
from activations.processes.pipes import resolve

__all__ = ("HELPERS", "PidHandle", "adopt_orphans", "is_stopped", "kill_orphans", "sweep_orphans")

#: The supervisors and guards of this process that are trusted, by pid. They are no orphans.
HELPERS: set[int] = set()

#: How long to wait for killed orphans before looking again.
PAUSE_S = 0.001

#: The number of launchers with commands: orphans are adopted while it is above zero.
_adopting = 0

#: The limit of this process when it first adopted. Later is too late: a command can lower it.
_own_limit: int | None = None
_own_limit_is_known = False


class PidHandle:
    """A process to signal. The pidfd stays its own, also when the pid passes to a stranger."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process is gone or out of reach."""
        if self._pidfd >= 0 and sys.platform == "linux":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def ended(self, seconds: float) -> None:
        """Wait until it has ended and its children have passed to the next subreaper."""
        if self._pidfd < 0:
            return
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._pidfd, resolve, ended)
        try:
            await asyncio.wait([ended], timeout=seconds)
        finally:
            loop.remove_reader(self._pidfd)

    def close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def is_stopped(pid: int) -> bool:
    """Whether a process is held by a signal or by a tracer."""
    try:
        return status_fields(pid)[0] in (b"T", b"t")
    except OSError:  # it is gone, or hidden from us: deadlines decide
        return False


def adopt_orphans(wanted: bool) -> None:
    """Begin to adopt orphans, or stop. Each call with True needs one with False."""
    # The kernel keeps these for the process, so they cannot be an object's.
    global _adopting, _own_limit, _own_limit_is_known

    if not _own_limit_is_known:
        _own_limit = _hard_limit(os.getpid())
        _own_limit_is_known = True
    _adopting += 1 if wanted else -1
    set_subreaper(_adopting > 0)


def kill_orphans() -> bool:
    """Kill and reap children that came of a command and have no helper; False if there was none."""
    orphans = [pid for pid in _children() if pid not in HELPERS and _is_marked(pid)]
    for pid in orphans:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            group = os.getpgid(pid)
            # Killing a group is atomic towards fork. A command cannot enter the group of a
            # helper, but a child that a helper forked a moment ago is still in it.
            if group in HELPERS or group == os.getpgrp():
                os.kill(pid, signal.SIGKILL)
            else:
                os.killpg(group, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return bool(orphans)


async def sweep_orphans(seconds: float) -> bool:
    """Kill orphans until none is left; False if some are after this time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while kill_orphans():
        if loop.time() > deadline:
            return False
        await asyncio.sleep(PAUSE_S)
    return True


def _children() -> list[int]:
    if sys.platform != "linux":
        return []
    me = os.getpid()
    found: set[int] = set()
    for thread in Path(f"/proc/{me}/task").iterdir():
        found.update(children_of(me, int(thread.name)))
    return sorted(found)


def _is_marked(pid: int) -> bool:
    limit = _hard_limit(pid)
    return limit is not None and (_own_limit is None or limit < _own_limit)


def _hard_limit(pid: int) -> int | None:
    """Return the hard limit of real-time scheduling; None if there is none or it is gone."""
    # Unlike prlimit, the file also tells of a process that runs as another user.
    with contextlib.suppress(OSError):
        for line in read_record(f"/proc/{pid}/limits").splitlines():
            if line.startswith(b"Max realtime timeout"):
                value = line.split()[4]
                return None if value == b"unlimited" else int(value)
    return None
