"""The connection that a call came from, for methods that hold something for their caller.

A transport whose connections last, such as stdio and WebSocket, provides one with each call. Calls
over HTTP have none: the end of a request says nothing about its client.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

__all__ = ("CallerConnection",)

logger = logging.getLogger("plexus.connections")


class CallerConnection:
    """The lifetime of a connection: whether it is open, and listeners for its end."""

    __slots__ = ("_listeners", "is_open")

    def __init__(self) -> None:
        #: False after the client has disconnected, or the server has ended the connection.
        self.is_open = True
        self._listeners: list[Callable[[], None]] = []

    def on_close(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` once, at the end of the connection. Returns a function that unsubscribes.

        If the connection has already ended, the listener is called immediately.
        """
        if not self.is_open:
            listener()
            return _nothing
        self._listeners.append(listener)
        return partial(_remove, self._listeners, listener)

    def close(self) -> None:
        """Notify the listeners. Only the first call has an effect."""
        self.is_open = False
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            try:
                listener()
            except Exception:
                logger.exception("a listener for the end of a connection failed")


def _remove(listeners: list[Callable[[], None]], listener: Callable[[], None]) -> None:
    if listener in listeners:
        listeners.remove(listener)


def _nothing() -> None:
    """Unsubscribe nothing."""
