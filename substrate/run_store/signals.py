"""Wake-ups between the processes that share a SQLite run store.

Every process with runs has a datagram socket in a private folder, named for the process. A byte
means that something in the store has changed; the receiver reads the store. A process that watches
the runs of others has a second name, which tells writers that their items are needed soon.

A full socket buffer means that the receiver will look anyway. A refused one means that its process
has ended without removing the socket, which is then removed here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from plexus.private_files import make_folders

__all__ = ("Signals",)

#: Whether a folder can be named by its descriptor.
HAS_PROC: Final = Path("/proc/self/fd").is_dir()
OWN: Final = ".run"
WATCH: Final = ".watch"
#: A folder that changed this recently may change again without a newer timestamp.
MTIME_RESOLUTION_NS: Final = 20_000_000
#: Seconds between two reads of the socket, however many signals arrive.
PAUSE_S: Final = 0.005
#: Datagrams that are read in one batch. They have no content.
BATCH: Final = 64


class Signals:
    """The socket of this process, and those of the others."""

    def __init__(self, folder: Path, process: int, on_signal: Callable[[], None]) -> None:
        self._folder = folder
        self._process = process
        self._on_signal = on_signal
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._folder_fd = -1
        self._watchers: list[str] = []
        self._seen_mtime = 0
        self._timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Create the socket of this process. Raises OSError."""
        make_folders(self._folder)
        self._folder_fd = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            own.bind(self._address(f"{self._process}{OWN}"))
            (self._folder / f"{self._process}{OWN}").chmod(0o600)
        except OSError:
            own.close()
            os.close(self._folder_fd)
            raise
        self._socket = own
        self._loop.add_reader(own.fileno(), self._readable)

    def _address(self, name: str) -> str:
        """Return the address of a socket. It is short: the length of an address is limited."""
        folder = Path(f"/proc/self/fd/{self._folder_fd}")
        return str((folder if HAS_PROC else self._folder) / name)

    def _readable(self) -> None:
        assert self._socket is not None, "it is watched only while it is open"
        with contextlib.suppress(BlockingIOError):
            for _ in range(BATCH):
                self._socket.recv(1)
        # The next ones wait in the socket: a process that sends in a loop costs little here.
        self._loop.remove_reader(self._socket.fileno())
        self._timer = self._loop.call_later(PAUSE_S, self._resume)
        self._on_signal()

    def _resume(self) -> None:
        if self._socket is not None:
            self._loop.add_reader(self._socket.fileno(), self._readable)

    # --- watching -----------------------------------------------------------------------------

    def watch(self) -> None:
        """Receive a signal after every commit of other processes."""
        with contextlib.suppress(OSError):  # without it, the store is polled
            os.link(self._name(OWN), self._name(WATCH))

    def unwatch(self) -> None:
        """Receive signals only for requests to this process."""
        with contextlib.suppress(OSError):
            os.unlink(self._name(WATCH))  # noqa: PTH108 - as above

    def _name(self, suffix: str) -> str:
        return str(self._folder / f"{self._process}{suffix}")

    @property
    def is_watched(self) -> bool:
        """Whether another process watches the runs of this one."""
        try:
            changed = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - at every flush
        except OSError:
            return False
        if changed != self._seen_mtime:
            with contextlib.suppress(OSError):
                self._watchers = [name for name in self._others() if name.endswith(WATCH)]
            settled = time.time_ns() - changed > MTIME_RESOLUTION_NS
            self._seen_mtime = changed if settled else 0
        return bool(self._watchers)

    def _others(self) -> Iterator[str]:
        own = f"{self._process}."
        return (name for name in os.listdir(self._folder) if not name.startswith(own))  # noqa: PTH208

    # --- sending ------------------------------------------------------------------------------

    def notify_watchers(self) -> None:
        """Wake the processes that watch."""
        if self.is_watched:
            for name in self._watchers:
                self._send(name)

    def notify(self, process: int) -> None:
        """Wake one process."""
        self._send(f"{process}{OWN}")

    def notify_all(self) -> None:
        """Wake every process."""
        with contextlib.suppress(OSError):
            for name in list(self._others()):
                if name.endswith(OWN):
                    self._send(name)

    def _send(self, name: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(b"!", self._address(name))
        except BlockingIOError:
            pass  # it has unread signals
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()
        except OSError:
            pass  # the process has just ended

    def close(self) -> None:
        """Remove the socket."""
        if self._socket is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._socket = None
        os.close(self._folder_fd)
        for suffix in (OWN, WATCH):
            with contextlib.suppress(OSError):
                os.unlink(self._name(suffix))  # noqa: PTH108 - as above
