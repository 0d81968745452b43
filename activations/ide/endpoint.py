"""What the program provides to `ide`: the listener that editor clients connect to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from plexus.caller_connection import CallerConnection

__all__ = ("SERVICE", "EditorClient", "EditorEndpoint")

#: The name of the endpoint among the services of the hub.
SERVICE: Final = "editor_endpoint"


class EditorClient(Protocol):
    """A connected program, such as Claude Code."""

    @property
    def number(self) -> int:
        """A number that is unique in this server."""

    @property
    def client(self) -> str | None:
        """Its name and version; None before the handshake."""

    @property
    def pid(self) -> int | None:
        """Its process; None if it is unknown."""

    @property
    def connected_ms(self) -> int:
        """When it connected."""

    @property
    def is_ready(self) -> bool:
        """Whether it can be notified."""

    @property
    def is_claude_code(self) -> bool:
        """Whether it is Claude Code, which has its own forms of notifications."""

    @property
    def connection(self) -> CallerConnection | None:
        """The connection that its calls come from."""

    def notify(self, method: str, params: dict[str, Any]) -> bool:
        """Send a notification. Returns whether it was sent: a client that lags misses it."""


class EditorEndpoint(Protocol):
    """The listener, and its lock file that clients find it by."""

    @property
    def port(self) -> int | None:
        """The port; None while it is off."""

    @property
    def lock_file(self) -> str | None:
        """The path of the lock file; None while it is off."""

    @property
    def reason(self) -> str | None:
        """Why it could not be switched on; None if it could or was not."""

    @property
    def clients(self) -> Sequence[EditorClient]:
        """The connected programs, in the order of their connections."""

    async def start(self) -> None:
        """Listen and write the lock file; nothing if it is on. Raises Failed."""

    async def stop(self) -> None:
        """Remove the lock file and close all connections; nothing if it is off."""

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change of the above. Returns a function that unsubscribes."""
