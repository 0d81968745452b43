"""The identity of a process, which a later process with the same pid does not share.

A process is identified by its host (the boot id and the pid namespace), its pid and its start time.
Where /proc cannot be read, the pid alone identifies it.
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
    """Return the boot id and the pid namespace of this process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:  # not Linux
        return os.uname().nodename


def start_time(pid: int) -> int | None:
    """Return the start time of a process, in ticks since the boot; ENDED for a zombie.

    Returns None if the process does not exist, or if the system does not provide the time.
    """
    try:
        record = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The program name is in parentheses and may contain any character.
    fields = record.rpartition(b")")[2].split()
    return ENDED if fields[0] in (b"Z", b"X") else int(fields[19])


def is_running(pid: int, started: int | None) -> bool:
    """Return whether the process with this pid and start time is alive."""
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
