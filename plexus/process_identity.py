"""What tells a process from a later one that has the same number.

A process is identified by its host (the boot and the set of process numbers), its number and its
start time. Where /proc cannot be read, the number alone identifies it.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Final

__all__ = ("ENDED", "host_id", "is_running", "start_time")

#: The start time of a process that has ended and was not reaped yet.
ENDED: Final = -1


@functools.cache
def host_id() -> str:
    """Return the boot and the set of process numbers that this process belongs to."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:  # not Linux
        return os.uname().nodename


def start_time(pid: int) -> int | None:
    """Return when a process started, in ticks since the boot; ENDED for a zombie.

    None if there is no such process, or if the system does not say.
    """
    try:
        record = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name of the program is in parentheses, and may hold anything.
    fields = record.rpartition(b")")[2].split()
    return ENDED if fields[0] in (b"Z", b"X") else int(fields[19])


def is_running(pid: int, started: int | None) -> bool:
    """Whether the process with this number and start time is alive."""
    found = start_time(pid)
    if found is not None or started is not None:
        return found == started
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # a process of another user
        pass
    return True
