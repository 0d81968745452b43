"""The client at the other end of a response: notices when it hangs up or may read no more."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.types import Message, Receive, Send

from substrate.driver import Connection
from substrate.security.authentication import Credential
from substrate.security.credential_watch import CredentialWatch

__all__ = ("Peer",)

#: How long the last bytes for a client whose credential is no longer valid may take.
LAST_WRITE_S: Final = 0.4


class Peer:
    """The reader of a response. Watching begins when it has to wait: an answer that is given at
    once needs none."""

    __slots__ = (
        "_connection",
        "_credential",
        "_credentials",
        "_deadline",
        "_receive",
        "_resumable",
        "_watching",
        "gone",
    )

    def __init__(
        self,
        receive: Receive,
        connection: Connection,
        credentials: CredentialWatch,
        credential: Credential,
        *,
        resumable: bool = False,
    ) -> None:
        """With `resumable` the client can come back for what it misses."""
        self._receive = receive
        self._connection = connection
        self._credentials = credentials
        self._credential = credential
        self._resumable = resumable
        self._watching: asyncio.Task[None] | None = None
        #: Of the write in progress.
        self._deadline: asyncio.Timeout | None = None
        #: Whether nothing more is to be written for it.
        self.gone = False

    def watch(self) -> None:
        """Begin to watch, once."""
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())
            self._credentials.add(self._credential, self)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.dismiss()

    async def write(self, send: Send, message: Message, within_s: float) -> None:
        """Send a message; raises TimeoutError if the client does not take it in time."""
        if self._connection.revoked is not None:
            within_s = min(within_s, LAST_WRITE_S)
        try:
            async with asyncio.timeout(within_s) as self._deadline:
                await send(message)
        finally:
            self._deadline = None

    def dismiss(self) -> None:
        """Stop writing for this client."""
        self.gone = True
        self._connection.wake()

    def revoke(self, reason: str, *, refreshed: bool) -> None:
        """End the response, because its credential is no longer valid."""
        if refreshed and self._resumable:
            self.dismiss()
        else:
            self._connection.revoke(reason)
        if self._deadline is not None:
            end = asyncio.get_running_loop().time() + LAST_WRITE_S
            self._deadline.reschedule(min(end, self._deadline.when() or end))

    def leave(self) -> None:
        """Stop watching."""
        if self._watching is not None:
            self._watching.cancel()
            # The two would keep each other, and all of the connection, until a collection.
            self._watching = None
            self._credentials.discard(self._credential, self)

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *_: object) -> None:
        """With the peer goes its connection."""
        self.leave()
        self._connection.lost()
