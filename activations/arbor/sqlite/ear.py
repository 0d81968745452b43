"""Hearing what other processes commit."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw

from activations.arbor.sqlite.file import Patience, connect, pragma

__all__ = ("Ear",)

#: How often the file is looked at, and how long that may wait for a lock.
LISTEN_S: Final = 0.04
PATIENCE_S: Final = 0.05


class Ear:
    """Notices commits of others, on a thread of its own, while somebody wants to know."""

    def __init__(self, path: Path, ring: Callable[[], None]) -> None:
        self._path = path
        self._ring = ring
        self._wanted = threading.Event()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def listen(self) -> None:
        """Somebody wants to know."""
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="arbor ear", daemon=True)
            self._thread.start()

    def rest(self) -> None:
        """Nobody wants to know any more."""
        self._wanted.clear()

    def finish(self) -> None:
        """End the thread."""
        self._over.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        connection: apsw.Connection | None = None
        heard: int | None = None
        while self._wanted.wait() and not self._over.is_set():
            # An error passes or is met by whoever reads; here it only means to try again.
            with contextlib.suppress(apsw.Error):
                if connection is None:
                    connection = connect(self._path, Patience(PATIENCE_S))
                version = pragma(connection, "data_version")
                if version != heard:
                    heard = version
                    self._ring()
            self._over.wait(LISTEN_S)
        if connection is not None:
            connection.close()
