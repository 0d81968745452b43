"""The children of a process, adopted ones included, and what the kernel does for their end.

The supervisor and its guards use it, and the server for what lost both (`descendants.py`). It
needs the standard library alone, and little of it, so that the supervisor is loaded quickly.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable, Collection

__all__ = (
    "Children",
    "children_of",
    "continue_when_the_parent_dies",
    "harden",
    "kill_group",
    "read_record",
    "set_subreaper",
    "status_fields",
)

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36

#: The mark of processes below a server that has no limit of its own. In microseconds: 146,000
#: years of real-time scheduling.
MARK = 2**62


class Children:
    """Our children, adopted ones included, and a descriptor that turns readable when one ends."""

    def __init__(self) -> None:
        set_subreaper(True)
        self.bell, ringer = os.pipe()
        os.set_blocking(self.bell, False)
        os.set_blocking(ringer, False)
        signal.set_wakeup_fd(ringer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.empty = True

    def reap(self) -> dict[int, int]:
        """Reap the dead: pid to wait status. Sets `empty` to whether no child is left."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.bell, 4096):
                pass
        dead = {}
        try:
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                dead[found[0]] = found[1]
            self.empty = False
        except ChildProcessError:
            self.empty = True
        return dead

    def kill(self, spare: Collection[int] = ()) -> bool:
        """Kill each child that is not spared, with its process group. False if there was none."""
        own_group = os.getpgrp()
        me = os.getpid()
        doomed = [pid for pid in children_of(me, me) if pid not in spare]
        for pid in doomed:
            group = os.getpgid(pid)  # it is our child and not reaped, so it is there
            if group != own_group:
                kill_group(group)
            else:  # it was forked a moment ago and has no session yet
                os.kill(pid, signal.SIGKILL)
        return bool(doomed)


def kill_group(group: int) -> None:
    """Kill a process group, if it exists and may be killed."""
    # A program that changed its user may be out of our reach; it is tried again.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def set_subreaper(wanted: bool) -> None:
    """Adopt the orphans among this process's descendants, or stop doing so."""
    _prctl(PR_SET_CHILD_SUBREAPER, int(wanted))


def continue_when_the_parent_dies() -> None:
    """Have the kernel send SIGCONT when the parent ends: a stopped process would not notice."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


def harden() -> None:
    """Mark what is started from here on and refuse to be traced; see `supervisor.py`."""
    if sys.platform != "linux":
        return
    _prctl(PR_SET_DUMPABLE, 0)
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    mark = MARK if hard == resource.RLIM_INFINITY else max(hard - 1, 0)
    soft = mark if soft == resource.RLIM_INFINITY else min(soft, mark)
    # Not every system that calls itself Linux has this limit; without it there is no mark.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_RTTIME, (soft, mark))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        _prctl_of_the_c_library()(option, value, 0, 0, 0)


@functools.cache
def _prctl_of_the_c_library() -> Callable[..., int]:
    import ctypes  # the server needs it when a command is first run, and not to start

    function: Callable[..., int] = ctypes.CDLL(None).prctl
    return function


def children_of(pid: int, thread: int) -> list[int]:
    """Return the children of one thread of a process, dead ones that were not reaped included."""
    try:
        return [int(child) for child in read_record(f"/proc/{pid}/task/{thread}/children").split()]
    except FileNotFoundError:
        return _children_by_search(pid)


def _children_by_search(parent: int) -> list[int]:
    """The same from each process's own record, for kernels built without that list."""
    found = []
    for entry in os.scandir("/proc") if sys.platform == "linux" else ():
        if not entry.name.isdigit():
            continue
        try:
            fields = status_fields(int(entry.name))
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[1]) == parent:
            found.append(int(entry.name))
    return found


def status_fields(pid: int) -> list[bytes]:
    """Return the status of a process from /proc: its state, its parent and so on.

    Raises OSError if it is gone or hidden. The program's name, which may hold anything, is left
    out. `plexus.process_identity` is not used: a supervisor is loaded without the core.
    """
    return read_record(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def read_record(path: str) -> bytes:
    """Return what a file in /proc holds, without what pathlib and buffers cost."""
    fd = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)
