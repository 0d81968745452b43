"""HTTP as the transports use it: bounded, without compression, and within one origin.

A redirect is followed only to the same scheme, host and port, and only if it keeps the method.
Everything in a request (headers, tokens, the message) was configured for that origin.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from activations.gateway.transports.http_hosts import is_loopback
from activations.gateway.transports.transport import SessionLimits, too_large
from mcp_view.client.errors import BadMessage, Lost, SignInRequired, Unreachable, UpstreamError

if TYPE_CHECKING:
    import httpx2

    from activations.gateway.transports.oauth import OAuth
    from activations.gateway.transports.oauth_flow import OAuthFlow

__all__ = ("HttpClient", "is_event_stream")

MAX_REDIRECTS: Final = 3
REDIRECTS: Final = (301, 302, 303, 307, 308)
#: Timeout to send a request.
WRITE_S: Final = 60.0
#: Bytes of the text of an error response that are read.
ERROR_BYTES: Final = 64 * 1024
#: Bounds of a request for authorization and its response.
AUTH_S: Final = 30.0
AUTH_BYTES: Final = 1024 * 1024


def is_event_stream(response: httpx2.Response) -> bool:
    """Whether the body of a response is a stream of server-sent events."""
    kind = response.headers.get("content-type", "").partition(";")[0]
    return bool(kind.strip().lower() == "text/event-stream")


class HttpClient:
    """Requests to one server."""

    def __init__(
        self, url: str, headers: Mapping[str, str] | None, auth: OAuth | None, limits: SessionLimits
    ) -> None:
        self.url = url
        self._headers = dict(headers or {})
        self._auth = auth
        self._limits = limits
        self._client: httpx2.AsyncClient | None = None

    async def open(self) -> None:
        """Load the library and create the pool. Raises Unreachable for an unusable URL."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Unreachable(f"{self.url!r} is no URL of HTTP.")
        local = is_loopback(parts.hostname)
        if self._auth is not None and parts.scheme != "https" and not local:
            raise Unreachable(f"A sign-in requires https, which {self.url} does not use.")
        try:
            self._client = await asyncio.to_thread(self._create, local)
            if self._auth is not None:
                await asyncio.to_thread(self._auth.load)
        except ImportError as error:
            raise Unreachable(
                "Servers over HTTP require an extra: pip install 'plexus-substrate[gateway]'"
            ) from error

    def _create(self, local: bool) -> httpx2.AsyncClient:
        import httpx2

        limits = self._limits
        return httpx2.AsyncClient(
            # A standing stream may be silent; callers have their own deadlines.
            timeout=httpx2.Timeout(
                connect=limits.connect_s, write=WRITE_S, read=None, pool=limits.connect_s
            ),
            limits=httpx2.Limits(max_connections=limits.requests + 8, keepalive_expiry=30.0),
            follow_redirects=False,
            # A proxy of the environment does not know this machine.
            trust_env=not local,
            # Certificates are loaded only if they are needed.
            verify=self._auth is not None or self.url.startswith("https"),
        )

    async def close(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    @contextlib.asynccontextmanager
    async def stream(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[httpx2.Response]:
        """Send a request and enter its response. Raises UpstreamError."""
        response = await self._send(method, url, headers, body)
        try:
            yield response
        finally:
            await response.aclose()

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> httpx2.Response:
        client = self._client
        if client is None:
            raise Lost("The session is closed.")
        import httpx2

        all_headers = {"Accept-Encoding": "identity", **self._headers, **headers}
        try:
            request = client.build_request(method, url, headers=all_headers, content=body)
            for _ in range(MAX_REDIRECTS + 1):
                if self._auth is None:
                    response = await client.send(request, stream=True)
                else:
                    response = await self._send_authorized(client, self._auth.load(), request)
                following = self._following(response)
                if following is None:
                    return response
                await response.aclose()
                request = following
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise Unreachable(f"Cannot connect to {self.url}: {error or 'timed out'}") from error
        except httpx2.HTTPError as error:
            raise Lost(f"The connection to {self.url} failed: {error!r:.200}") from error
        except (httpx2.InvalidURL, UnicodeError, ValueError) as error:
            raise BadMessage(f"The request to {self.url} is invalid: {error}") from error
        raise BadMessage(f"{self.url} redirects more than {MAX_REDIRECTS} times.")

    async def _send_authorized(
        self, client: httpx2.AsyncClient, flow: OAuthFlow, request: httpx2.Request
    ) -> httpx2.Response:
        """Send a request with a token, and what is necessary to obtain it."""
        async with contextlib.aclosing(flow.authorize(request)) as requests:
            outgoing, own = await anext(requests), None
            while True:
                response = await self._send_one(client, outgoing, is_own=outgoing is request)
                if outgoing is request:
                    own = response
                try:
                    outgoing = await requests.asend(response)
                except StopAsyncIteration:
                    if own is None:
                        raise SignInRequired(f"{self.url} requires a sign-in.") from None
                    return own

    async def _send_one(
        self, client: httpx2.AsyncClient, request: httpx2.Request, *, is_own: bool
    ) -> httpx2.Response:
        """Send a request of a flow, whose response is read here, within bounds."""
        if is_own:
            response = await client.send(request, stream=True)
            if response.status_code not in (401, 403):
                return response
        else:
            request.headers["Accept-Encoding"] = "identity"
            try:
                async with asyncio.timeout(AUTH_S):
                    response = await client.send(request, stream=True)
            except TimeoutError:
                raise Lost(f"{request.url.host} did not answer within {AUTH_S:g} s.") from None
        import httpx2

        try:
            async with asyncio.timeout(AUTH_S):
                body = await self.read(response, AUTH_BYTES)
        except TimeoutError:
            raise Lost(f"{request.url.host} did not complete its answer.") from None
        finally:
            await response.aclose()
        read = httpx2.Response(
            response.status_code, headers=response.headers, content=body, request=request
        )
        read.next_request = response.next_request
        return read

    def _following(self, response: httpx2.Response) -> httpx2.Request | None:
        """Return the request of a redirect within the origin. Raises BadMessage for others."""
        if response.status_code not in REDIRECTS or "location" not in response.headers:
            return None
        sent, following = response.request, response.next_request
        if (
            following is not None
            and following.method == sent.method
            and (following.url.scheme, following.url.host, following.url.port)
            == (sent.url.scheme, sent.url.host, sent.url.port)
            and following.url.userinfo in (b"", sent.url.userinfo)
        ):
            return following
        target = "elsewhere"
        if following is not None:
            target = str(following.url.copy_with(userinfo=b"", query=None, fragment=None))
        raise BadMessage(
            f"{self.url} redirects to {target[:200]}, which is another origin or method. If you "
            "trust it, configure that URL."
        )

    async def chunks(self, response: httpx2.Response) -> AsyncGenerator[bytes, None]:
        """Iterate over the body of a response. Raises Lost."""
        import httpx2

        if response.is_stream_consumed:  # it was read because it could concern a token
            yield response.content
            return
        encoding = response.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise BadMessage(f"The server compressed its response with {encoding[:40]!r}.")
        try:
            async for chunk in response.aiter_raw():
                yield chunk
        except httpx2.HTTPError as error:
            raise Lost(f"The connection to {self.url} was lost: {error!r:.200}") from error

    async def read(self, response: httpx2.Response, limit: int) -> bytes:
        """Return the body of a response. Raises TooLarge."""
        length = response.headers.get("content-length", "")
        if length.isdigit() and len(length) < 19 and int(length) > limit:
            raise too_large(int(length), limit)
        body = bytearray()
        async with contextlib.aclosing(self.chunks(response)) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > limit:
                    raise too_large(len(body), limit)
        return bytes(body)

    async def failure(self, response: httpx2.Response) -> tuple[UpstreamError, bytes]:
        """Return the error for an unsuccessful response, and the body as far as it was read."""
        try:
            body = await self.read(response, ERROR_BYTES)
        except UpstreamError:
            body = b""
        text = " ".join(body[:200].decode(errors="replace").split())
        status = f"{self.url} answered with HTTP {response.status_code}"
        if response.status_code == 401:
            return SignInRequired(f"{status}: it requires a sign-in or a token. {text}"), body
        if response.status_code == 403:
            return SignInRequired(f"{status}: the token is not sufficient. {text}"), body
        return BadMessage(f"{status}: {text}"), body
