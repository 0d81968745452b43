"""Sign-in to a server over HTTP: what is configured, and who shows the address to a person.

The protocol is that of the official SDK (`oauth_flow`), which is imported at the first sign-in.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final, Literal

from activations.gateway.transports.redirect_listener import RedirectListener
from activations.gateway.transports.token_store import TokenStore
from plexus.registry.lazy import resolve

if TYPE_CHECKING:
    from activations.gateway.transports.oauth_flow import OAuthFlow

__all__ = ("SIGN_IN_S", "OAuth", "OAuthClient", "SignIn")

#: Timeout for a person to sign in.
SIGN_IN_S: Final = 300.0


class SignIn:
    """A sign-in that a person must complete in a browser."""

    def __init__(
        self, server: str, url: str, listener: RedirectListener, limit_s: float = SIGN_IN_S
    ) -> None:
        #: The URL of the server that requires it.
        self.server = server
        #: The address to open in a browser.
        self.url = url
        #: Seconds that a person has.
        self.limit_s = limit_s
        self._listener = listener

    def complete(self, address: str) -> bool:
        """Complete it with the address to which the browser was redirected.

        Only needed if the browser runs on another machine. Returns False for an address that is not
        of this sign-in.
        """
        return self._listener.complete(address)

    def refuse(self, reason: str) -> None:
        """End it without a token."""
        self._listener.refuse(reason)

    def on_end(self, callback: Callable[[], object]) -> None:
        """Call this when it is complete, refused or given up; immediately if it already is."""
        self._listener.on_end(callback)


@dataclasses.dataclass(frozen=True, slots=True)
class OAuthClient:
    """How this client identifies itself to an authorization server."""

    #: A client that was registered beforehand. Without it, the metadata document or dynamic
    #: registration is used.
    id: str | None = None
    secret: str | None = None
    #: How the secret is sent. Authorization servers must support the default.
    secret_sent_by: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"
    #: The authorization server that knows this client.
    issuer: str | None = None
    #: The URL of a client metadata document.
    metadata_url: str | None = None
    scope: str | None = None
    grant: Literal["authorization_code", "client_credentials", "jwt_bearer"] = "authorization_code"
    #: A private key in PEM, which signs the assertion of the grant `client_credentials`.
    private_key: str | None = None
    algorithm: str = "RS256"
    #: Returns the identity assertion for an issuer and a resource, for the grant `jwt_bearer`.
    assertion: Callable[[str, str], Awaitable[str]] | None = None


class OAuth:
    """The authorization of one client at one server."""

    def __init__(
        self,
        url: str,
        store: TokenStore,
        *,
        on_sign_in: Callable[[SignIn], Awaitable[None]] | None = None,
        client: OAuthClient | None = None,
        sign_in_s: float = SIGN_IN_S,
        account: str = "",
    ) -> None:
        """Create it for a server; `account` separates the tokens of several people there."""
        self.url = url
        #: The name of its tokens in the store.
        self.key = f"{account}@{url}" if account else url
        self.store = store
        self.on_sign_in = on_sign_in
        self.client = client or OAuthClient()
        self.sign_in_s = sign_in_s
        #: Whether a token is being obtained, which may take a person's time.
        self.is_busy = False
        self._flow: OAuthFlow | None = None

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Exclude other processes while a token is obtained. Raises SignInRequired."""
        self.is_busy = True
        try:
            async with self.store.lock(self.key):
                yield
        finally:
            self.is_busy = False

    def load(self) -> OAuthFlow:
        """Return the protocol, which takes half a second to import the first time."""
        if self._flow is None:
            self._flow = resolve("activations.gateway.transports.oauth_flow:OAuthFlow")(self)
        return self._flow
