"""The server as the last resort: it signals its helpers and kills orphans that have none.

A command without a sandbox can stop and kill its guard and its supervisor. Processes that lose both
are adopted by the server, which is a subreaper while commands run. It distinguishes orphans of
commands from other children, which belong to other code in this process, by a mark that they cannot
remove: a hard limit that is lower than the server's own (see `supervisor.py`). It signals and reaps
only marked children, so their pids cannot have been reused.

While commands run, an orphan of another program that this process started becomes its child too. It
is left alone: it cannot be distinguished from a child whose exit status other code waits for.
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

#: Trusted supervisors and guards of this process, by pid. They are not orphans.
HELPERS: set[int] = set()

#: Seconds between two checks for killed orphans.
POLL_S = 0.001

#: Number of launchers with commands: orphans are adopted while it is above zero.
_adopting = 0

#: Limit of this process when it first adopted orphans. Read once: a command can lower it later.
_own_limit: int | None = None
_own_limit_is_known = False


class PidHandle:
    """A process to signal. The pidfd refers to it even after the pid was reused."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has exited or we lack permission."""
        if self._pidfd >= 0 and sys.platform == "linux":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def wait(self, seconds: float) -> None:
        """Wait until it has exited and its children have passed to the next subreaper."""
        if self._pidfd < 0:
            return
        loop = asyncio.get_running_loop()
        exited: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._pidfd, resolve, exited)
        try:
            await asyncio.wait([exited], timeout=seconds)
        finally:
            loop.remove_reader(self._pidfd)

    def close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal or by a tracer."""
    try:
        return status_fields(pid)[0] in (b"T", b"t")
    except OSError:  # it has exited, or is hidden from us: deadlines apply
        return False


def adopt_orphans(enabled: bool) -> None:
    """Start or stop adopting orphans. Each call with True needs one with False."""
    # The kernel keeps this state per process, so it cannot belong to an object.
    global _adopting, _own_limit, _own_limit_is_known

    if not _own_limit_is_known:
        _own_limit = _hard_limit(os.getpid())
        _own_limit_is_known = True
    _adopting += 1 if enabled else -1
    set_subreaper(_adopting > 0)


def kill_orphans() -> bool:
    """Kill and reap children that came from a command and have no helper.

    False if there is none.
    """
    orphans = [pid for pid in _children() if pid not in HELPERS and _is_marked(pid)]
    for pid in orphans:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            group = os.getpgid(pid)
            # Killing a group is atomic with respect to fork. A command cannot join the group of a
            # helper, but a child that a helper has just forked is still in it.
            if group in HELPERS or group == os.getpgrp():
                os.kill(pid, signal.SIGKILL)
            else:
                os.killpg(group, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return bool(orphans)


async def sweep_orphans(seconds: float) -> bool:
    """Kill orphans until none is left. False if some are left after this time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while kill_orphans():
        if loop.time() > deadline:
            return False
        await asyncio.sleep(POLL_S)
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
    """Return the hard limit of real-time scheduling; None if unlimited or unknown."""
    # Unlike prlimit, this also works for a process that runs as another user.
    with contextlib.suppress(OSError):
        for line in read_record(f"/proc/{pid}/limits").splitlines():
            if line.startswith(b"Max realtime timeout"):
                value = line.split()[4]
                return None if value == b"unlimited" else int(value)
    return None
