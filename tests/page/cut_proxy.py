"""A proxy between a browser and a server that can cut all connections, or lose all bytes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ("CutProxy", "proxying")

CHUNK = 65_536


class CutProxy:
    """Forwards bytes until its connections are cut.

    While `down`, it refuses new connections. While `silent`, it loses what is sent, in connections
    that stay open: like a network that is gone.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.target = 0
        self.down = False
        self.silent = False
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> int:
        """Cut every connection, and return their number."""
        with self._lock:
            cut = list(self._open)
            self._open.clear()
        for each in cut:
            _end(each)
        return len(cut) // 2

    def close(self) -> None:
        """Close the listener and all connections."""
        self.down = True
        # Closing alone would not wake the thread that waits for the next connection.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.down:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                if not self.silent:
                    sink.sendall(data)
        for each in (source, sink):
            _end(each)
            with self._lock:
                self._open.discard(each)


def _end(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@contextmanager
def proxying() -> Iterator[CutProxy]:
    """Run a proxy for the duration of the block; the caller sets its target."""
    proxy = CutProxy()
    try:
        yield proxy
    finally:
        proxy.close()
