"""Children of a process, adopted ones included, and the kernel features that help to end them.

The supervisor and its guards use this module, and the server uses it for processes that lost both
(`descendants.py`). It imports only the standard library, and little of it, so that the supervisor
starts quickly.
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
    "continue_on_parent_death",
    "harden",
    "kill_group",
    "read_record",
    "set_subreaper",
    "status_fields",
)

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36

#: Value of the mark (a hard limit) below a server that has no such limit. In microseconds: 146,000
#: years of real-time scheduling.
MARK = 2**62


class Children:
    """Children of this process, adopted ones included.

    `wakeup_fd` is a descriptor that becomes readable when a child exits.
    """

    def __init__(self) -> None:
        set_subreaper(True)
        self.wakeup_fd, write_end = os.pipe()
        os.set_blocking(self.wakeup_fd, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.empty = True

    def reap(self) -> dict[int, int]:
        """Reap exited children and return their wait statuses by pid.

        Sets `empty` to whether no child is left.
        """
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wakeup_fd, 4096):
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
        """Kill each child that is not spared, with its process group. False if there is none."""
        own_group = os.getpgrp()
        me = os.getpid()
        targets = [pid for pid in children_of(me, me) if pid not in spare]
        for pid in targets:
            group = os.getpgid(pid)  # our child, and not reaped yet, so it exists
            if group != own_group:
                kill_group(group)
            else:  # just forked, and without its own session yet
                os.kill(pid, signal.SIGKILL)
        return bool(targets)


def kill_group(group: int) -> None:
    """Kill a process group, if it exists and we have permission."""
    # We may lack permission if a program changed its user; the kill is retried.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def set_subreaper(enabled: bool) -> None:
    """Start or stop adopting the orphans among this process's descendants."""
    _prctl(PR_SET_CHILD_SUBREAPER, int(enabled))


def continue_on_parent_death() -> None:
    """Have the kernel send SIGCONT when the parent dies: a stopped process would not notice."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


def harden() -> None:
    """Set the mark that child processes inherit, and refuse to be traced; see `supervisor.py`."""
    if sys.platform != "linux":
        return
    _prctl(PR_SET_DUMPABLE, 0)
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    mark = MARK if hard == resource.RLIM_INFINITY else max(hard - 1, 0)
    soft = mark if soft == resource.RLIM_INFINITY else min(soft, mark)
    # Some systems that report Linux lack this limit; then there is no mark.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_RTTIME, (soft, mark))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        _libc_prctl()(option, value, 0, 0, 0)


@functools.cache
def _libc_prctl() -> Callable[..., int]:
    import ctypes  # needed for the first command, not for the start of the server

    function: Callable[..., int] = ctypes.CDLL(None).prctl
    return function


def children_of(pid: int, thread: int) -> list[int]:
    """Return the children of one thread of a process, including exited ones that are not reaped."""
    try:
        return [int(child) for child in read_record(f"/proc/{pid}/task/{thread}/children").split()]
    except FileNotFoundError:
        return _children_by_search(pid)


def _children_by_search(parent: int) -> list[int]:
    """Return the same from each process's own record, for kernels built without that list."""
    found = []
    for entry in os.scandir("/proc") if sys.platform == "linux" else ():
        if not entry.name.isdigit():
            continue
        try:
            fields = status_fields(int(entry.name))
        except OSError:  # it has exited meanwhile
            continue
        if int(fields[1]) == parent:
            found.append(int(entry.name))
    return found


def status_fields(pid: int) -> list[bytes]:
    """Return the status fields of a process from /proc: its state, its parent and so on.

    Raises OSError if the process does not exist or is hidden. The program's name, which may contain
    any character, is left out. `plexus.process_identity` is not used: a supervisor does not import
    the core.
    """
    return read_record(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def read_record(path: str) -> bytes:
    """Return the content of a file in /proc, without the overhead of pathlib and buffers."""
    fd = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)
