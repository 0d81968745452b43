"""Noticing what other connections commit, by polling `PRAGMA data_version`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw

from plexus.storage.sqlite.file import BusyTimeout, connect, pragma

__all__ = ("ChangeWatcher",)

#: How often the file is polled, and how long a poll may wait for a lock.
POLL_S: Final = 0.04
LOCK_S: Final = 0.05


class ChangeWatcher:
    """A thread that calls `notify` after commits of others, while there are subscribers."""

    def __init__(self, path: Path, notify: Callable[[], None], name: str) -> None:
        self._path = path
        self._notify = notify
        self._name = name
        self._active = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Poll from now on; the thread is started by the first call."""
        self._active.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def pause(self) -> None:
        """Poll no more until the next start."""
        self._active.clear()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._active.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        connection: apsw.Connection | None = None
        seen: int | None = None
        while self._active.wait() and not self._stopped.is_set():
            # An error passes, or is reported by reads and writes; here it only means to retry.
            with contextlib.suppress(apsw.Error):
                if connection is None:
                    connection = connect(self._path, BusyTimeout(LOCK_S))
                version = pragma(connection, "data_version")
                if version != seen:
                    seen = version
                    self._notify()
            self._stopped.wait(POLL_S)
        if connection is not None:
            connection.close()
