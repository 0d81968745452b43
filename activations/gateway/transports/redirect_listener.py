"""The end of a sign-in: the address to which the browser is redirected, on this machine.

It accepts only the redirect of this sign-in, recognised by the `state`; a person whose browser
runs on another machine can paste the address instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qs, urlsplit

from mcp_view.client.errors import SignInRequired

__all__ = ("RedirectListener", "Redirected")

PATH: Final = "/callback"
#: Bounds of one request of a browser.
REQUEST_BYTES: Final = 16 * 1024
REQUEST_S: Final = 10.0
PAGE: Final = (
    b"<!doctype html><meta charset=utf-8><title>Signed in</title>"
    b"<p>You can close this window and return to your program.</p>"
)


class Redirected:
    """The parameters of a redirect."""

    __slots__ = ("code", "iss", "state")

    def __init__(self, address: str) -> None:
        query = parse_qs(urlsplit(address).query, max_num_fields=50)

        def first(name: str) -> str | None:
            found = query.get(name)
            return found[0] if found else None

        error = first("error")
        if error is not None:
            text = first("error_description") or ""
            raise SignInRequired(f"The sign-in was refused: {error[:100]} {text[:300]}".strip())
        self.code = first("code") or ""
        self.state = first("state")
        self.iss = first("iss")


class RedirectListener:
    """A listening socket on 127.0.0.1, until `close`."""

    def __init__(self, port: int) -> None:
        """Bind the port, or any if it is taken or 0."""
        try:
            self._socket = _bind(port)
        except OSError:
            self._socket = _bind(0)
        self.port: int = self._socket.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._state = ""
        self._result: asyncio.Future[Redirected] | None = None

    @property
    def url(self) -> str:
        """The redirect URI."""
        return f"http://127.0.0.1:{self.port}{PATH}"

    async def start(self, state: str) -> None:
        """Accept the redirect with this state."""
        self._state = state
        self._result = asyncio.get_running_loop().create_future()
        if self._server is None:
            self._server = await asyncio.start_server(
                self._serve, sock=self._socket, limit=REQUEST_BYTES
            )

    def complete(self, address: str) -> bool:
        """Accept an address that a browser was redirected to. False if it is of another sign-in."""
        result = self._result
        if result is None or result.done():
            return False
        given = parse_qs(urlsplit(address).query, max_num_fields=50).get("state", [""])[0]
        if not hmac.compare_digest(given.encode(), self._state.encode()):
            return False
        try:
            result.set_result(Redirected(address))
        except SignInRequired as error:
            result.set_exception(error)
        return True

    def refuse(self, reason: str) -> None:
        """End the sign-in with an error."""
        if self._result is not None and not self._result.done():
            self._result.set_exception(SignInRequired(reason))

    def on_end(self, callback: Callable[[], object]) -> None:
        """Call this at the end of the sign-in."""
        if self._result is None:
            raise SignInRequired("The sign-in was not started.")
        self._result.add_done_callback(lambda _: callback())

    async def wait(self, timeout_s: float) -> Redirected:
        """Return the redirect. Raises SignInRequired if it is not completed in time."""
        if self._result is None:
            raise SignInRequired("The sign-in was not started.")
        try:
            async with asyncio.timeout(timeout_s):
                return await self._result
        except TimeoutError:
            raise SignInRequired(f"The sign-in was not completed within {timeout_s:g} s.") from None

    async def close(self) -> None:
        """Close the socket."""
        if self._server is not None:
            self._server.close()
        self._socket.close()
        if self._result is None:
            return
        if not self._result.done():
            self._result.cancel()
        elif not self._result.cancelled():
            self._result.exception()  # it may have arrived after the end of the wait

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                target = head.split(b" ", 2)[1].decode("ascii", "replace")
                accepted = target.partition("?")[0] == PATH and self.complete(target)
                status = b"200 OK" if accepted else b"404 Not Found"
                body = PAGE if accepted else b"Not found"
                writer.write(
                    b"HTTP/1.1 %b\r\nContent-Type: text/html\r\nContent-Length: %d\r\n"
                    b"Cache-Control: no-store\r\nConnection: close\r\n\r\n%b"
                    % (status, len(body), body)
                )
                await writer.drain()
        writer.close()


def _bind(port: int) -> socket.socket:
    found = socket.socket()
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(("127.0.0.1", port))
        found.setblocking(False)
    except OSError:
        found.close()
        raise
    return found
