"""OAuth 2.1 of remote servers, on the flows of the official SDK.

The SDK knows the protocol: discovery, registration, PKCE, resource indicators, the check of the
issuer, refresh and step-up. This module decides when it runs, and bounds it:

- A request with a valid token does not enter the flow, so requests do not wait for each other.
- One task of one process at a time signs in to a server; the others use its token.
- A token that is rejected is refreshed before a person is asked.
- The requests of a flow are bounded in size and time, and do not reach this machine or its network
  if the server is elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import (
    OAuthClientProvider,
    OAuthFlowError,
    OAuthRegistrationError,
    OAuthTokenError,
)
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, BaseModel, ValidationError

from activations.gateway.transports.http_hosts import is_loopback
from activations.gateway.transports.oauth import OAuth, SignIn
from activations.gateway.transports.redirect_listener import RedirectListener
from mcp_view.client.errors import SignInRequired

__all__ = ("OAuthFlow", "StoredTokens")

M = TypeVar("M", bound=BaseModel)
#: The names of the documents that were discovered, in an entry of the token store.
RESOURCE: Final = "resource"
AUTHORIZATION: Final = "authorization"

#: A token is refreshed before it expires: by this time, or by this part of a short lifetime.
EARLY_S: Final = 30.0
EARLY: Final = 0.1
#: An expiry in the past, which makes the flow begin with a refresh.
EXPIRED: Final = 1.0
# It logs every sign-in that fails with a traceback. The caller gets the error, and it is recorded.
logging.getLogger("mcp.client.auth.oauth2").setLevel(logging.CRITICAL)
FAILURES: Final = (OAuthFlowError, OAuthRegistrationError, OAuthTokenError, ValidationError)


class StoredTokens:
    """The token store as the flow of the SDK sees it, for one server."""

    def __init__(self, oauth: OAuth) -> None:
        self._oauth = oauth
        self._entry: dict[str, Any] = {}
        self.tokens: OAuthToken | None = None
        self.expires_at: float | None = None
        #: Returns what the flow has discovered, which is stored with its tokens.
        self.describe_discovery: Callable[[], dict[str, Any]] = dict

    async def load(self) -> None:
        """Read the entry, which another process may have changed."""
        self._entry = await self._oauth.store.load(self._oauth.key)
        self.tokens = self.expires_at = None
        with contextlib.suppress(ValidationError):
            if "tokens" in self._entry:
                self.tokens = OAuthToken.model_validate(self._entry["tokens"])
        expires = self._entry.get("expires_at")
        if isinstance(expires, int | float):
            self.expires_at = expires

    @property
    def is_fresh(self) -> bool:
        """Whether there is a token that has not expired."""
        if self.tokens is None:
            return False
        return self.expires_at is None or time.time() < self.expires_at

    @property
    def access_token(self) -> str | None:
        """The token to send."""
        return None if self.tokens is None else self.tokens.access_token

    @property
    def can_refresh(self) -> bool:
        """Whether there is a refresh token, and the client that it was issued to."""
        known = "client" in self._entry or self._oauth.client.id is not None
        return self.tokens is not None and self.tokens.refresh_token is not None and known

    @property
    def port(self) -> int:
        """The port of the registered redirect URI; 0 if there is none."""
        port = self._entry.get("port")
        return port if isinstance(port, int) else 0

    def discovered(self, name: str, model: type[M]) -> M | None:
        """Return a document that was discovered when the tokens were obtained."""
        with contextlib.suppress(ValidationError, KeyError, TypeError):
            return model.model_validate(self._entry["discovery"][name])
        return None

    async def get_tokens(self) -> OAuthToken | None:
        """Return the stored tokens."""
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store tokens, with the time at which they expire."""
        self.tokens = tokens
        self.expires_at = None
        if tokens.expires_in is not None:
            early_s = min(EARLY_S, tokens.expires_in * EARLY)
            self.expires_at = time.time() + tokens.expires_in - early_s
        self._entry["tokens"] = tokens.model_dump(mode="json", exclude_none=True)
        self._entry["expires_at"] = self.expires_at
        self._entry["discovery"] = self.describe_discovery()
        await self._oauth.store.save(self._oauth.key, self._entry)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the registration."""
        client = self._oauth.client
        if client.id is not None:
            method = "none" if client.secret is None else client.secret_sent_by
            return OAuthClientInformationFull(
                client_id=client.id,
                client_secret=client.secret,
                redirect_uris=None,
                issuer=client.issuer,
                token_endpoint_auth_method=method,
            )
        with contextlib.suppress(ValidationError):
            if "client" in self._entry:
                return OAuthClientInformationFull.model_validate(self._entry["client"])
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store a registration."""
        self._entry["client"] = client_info.model_dump(mode="json", exclude_none=True)
        await self._oauth.store.save(self._oauth.key, self._entry)

    def forget_refresh_token(self) -> None:
        """Do not refresh again with the same token."""
        if self.tokens is not None:
            self.tokens = self.tokens.model_copy(update={"refresh_token": None})

    def use_port(self, port: int) -> None:
        """Forget a registration with another redirect URI."""
        if self._entry.get("port") != port:
            self._entry.pop("client", None)
            self._entry["port"] = port


class OAuthFlow:
    """The authorization of requests to one server."""

    def __init__(self, oauth: OAuth) -> None:
        self._oauth = oauth
        self._stored = StoredTokens(oauth)
        self._is_loaded = False
        self._turn = asyncio.Lock()
        self._listener: RedirectListener | None = None
        self._provider = self._make_provider()
        self._stored.describe_discovery = self._describe_discovery
        self._is_local = is_loopback(urlsplit(oauth.url).hostname or "")

    async def authorize(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Yield requests to send; the last response to `request` is the outcome.

        Raises SignInRequired.
        """
        if not self._is_loaded:
            await self._stored.load()
            self._is_loaded = True
        response: httpx2.Response | None = None
        used = self._attach(request)
        if used is not None or not self._stored.can_refresh:
            response = yield request
        handled: set[int] = set()
        while response is None or _is_challenge(response):
            status = 0 if response is None else response.status_code
            if status in handled:
                return
            handled.add(status)
            async with contextlib.aclosing(self._renew(request, response, used)) as renewing:
                answer = None
                while True:
                    try:
                        outgoing = await renewing.asend(answer)
                    except StopAsyncIteration:
                        break
                    self._check_target(outgoing)
                    answer = yield outgoing
            used = self._attach(request)
            if used is None and response is not None:
                return
            response = yield request

    async def _renew(
        self, request: httpx2.Request, rejected: httpx2.Response | None, used: str | None
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response | None]:
        """Obtain a token, by a refresh or by a sign-in. Yields only requests of the flow."""
        async with self._turn, self._oauth.turn():
            await self._stored.load()
            if self._stored.is_fresh and self._stored.access_token != used:
                self._synchronize(expired=False)
                return  # another task or process has signed in meanwhile
            refreshes = rejected is None or rejected.status_code == 401
            self._synchronize(expired=refreshes and self._stored.can_refresh)
            try:
                self._prepare_redirect()
                flow = self._provider.async_auth_flow(request)
                async with contextlib.aclosing(flow):
                    outgoing = await anext(flow)
                    while True:
                        if outgoing is request:
                            if self._stored.is_fresh and self._stored.access_token != used:
                                return
                            self._stored.forget_refresh_token()  # it was of no use
                            answer: httpx2.Response | None = rejected
                        else:
                            answer = yield outgoing
                        if answer is None:
                            return
                        outgoing = await flow.asend(answer)
            except StopAsyncIteration:
                return
            except FAILURES as error:
                raise SignInRequired(
                    f"The sign-in to {self._oauth.url} failed: {str(error)[:500]}"
                ) from error
            finally:
                await self._close_redirect()

    def _attach(self, request: httpx2.Request) -> str | None:
        """Add the token to a request, and return it."""
        if not self._stored.is_fresh:
            request.headers.pop("Authorization", None)
            return None
        token = self._stored.access_token
        request.headers["Authorization"] = f"Bearer {token}"
        return token

    def _synchronize(self, *, expired: bool) -> None:
        """Give the flow the stored tokens, which it would otherwise read only once."""
        provider = self._provider
        if isinstance(provider, OAuthClientProvider):
            provider.context.current_tokens = self._stored.tokens
            provider.context.token_expiry_time = EXPIRED if expired else self._stored.expires_at
            self._restore_discovery(provider.context)

    def _describe_discovery(self) -> dict[str, Any]:
        """Return what is known of the authorization server, as JSON."""
        provider = self._provider
        if not isinstance(provider, OAuthClientProvider):
            return {}
        context = provider.context
        found = {
            RESOURCE: context.protected_resource_metadata,
            AUTHORIZATION: context.oauth_metadata,
        }
        return {
            name: each.model_dump(mode="json", exclude_none=True)
            for name, each in found.items()
            if each is not None
        }

    def _restore_discovery(self, context: OAuthContext) -> None:
        """Let a refresh use what another process has discovered.

        Without it the flow would send the refresh token to the server itself, and not to its
        authorization server.
        """
        if context.protected_resource_metadata is None:
            found = self._stored.discovered(RESOURCE, ProtectedResourceMetadata)
            context.protected_resource_metadata = found
        if context.oauth_metadata is None:
            context.oauth_metadata = self._stored.discovered(AUTHORIZATION, OAuthMetadata)

    def _check_target(self, request: httpx2.Request) -> None:
        """Raise SignInRequired if a server leads a request to where it must not go."""
        if self._is_local:
            return
        host = request.url.host
        inside = is_loopback(host)
        with contextlib.suppress(ValueError):
            inside = inside or not ipaddress.ip_address(host.strip("[]")).is_global
        if inside or request.url.scheme != "https":
            raise SignInRequired(
                f"{self._oauth.url} leads the sign-in to {request.url.scheme}://{host}, which is "
                "not a public https address."
            )

    # --- a person -------------------------------------------------------------------------------

    def _prepare_redirect(self) -> None:
        """Bind the redirect URI, because a registration contains it."""
        provider = self._provider
        if self._oauth.client.grant != "authorization_code":
            return
        if isinstance(provider, OAuthClientProvider):
            self._listener = RedirectListener(self._stored.port)
            self._stored.use_port(self._listener.port)
            provider.context.client_metadata.redirect_uris = [AnyUrl(self._listener.url)]

    async def _close_redirect(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.close()

    async def _show(self, url: str) -> None:
        listener, on_sign_in = self._listener, self._oauth.on_sign_in
        if listener is None or on_sign_in is None:
            raise OAuthFlowError("it requires a person to sign in, and there is no person to ask")
        if urlsplit(url).scheme not in ("https", "http"):
            raise OAuthFlowError("the authorization address is not https")
        state = parse_qs(urlsplit(url).query).get("state", [""])[0]
        await listener.start(state)
        await on_sign_in(SignIn(self._oauth.url, url, listener, self._oauth.sign_in_s))

    async def _wait_for_person(self) -> AuthorizationCodeResult:
        listener = self._listener
        if listener is None:
            raise OAuthFlowError("the sign-in was not started")
        found = await listener.wait(self._oauth.sign_in_s)
        return AuthorizationCodeResult(code=found.code, state=found.state, iss=found.iss)

    # --- the flow -------------------------------------------------------------------------------

    def _make_provider(self) -> OAuthClientProvider | IdentityAssertionOAuthProvider:
        oauth, client = self._oauth, self._oauth.client
        if client.grant == "jwt_bearer":
            if client.assertion is None or client.issuer is None:
                raise SignInRequired("The grant jwt_bearer requires an issuer and an assertion.")
            return IdentityAssertionOAuthProvider(
                oauth.url,
                self._stored,
                client.id or "",
                client.secret or "",
                client.issuer,
                client.assertion,
                scope=client.scope,
                token_endpoint_auth_method=client.secret_sent_by,
            )
        if client.grant == "client_credentials":
            return self._make_machine_provider()
        metadata = OAuthClientMetadata(
            client_name="Substrate",
            redirect_uris=[AnyUrl("http://127.0.0.1/callback")],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
            scope=client.scope,
        )
        return OAuthClientProvider(
            oauth.url,
            metadata,
            self._stored,
            self._show,
            self._wait_for_person,
            client_metadata_url=client.metadata_url,
        )

    def _make_machine_provider(self) -> OAuthClientProvider:
        oauth, client = self._oauth, self._oauth.client
        if client.id is None or client.issuer is None:
            raise SignInRequired("The grant client_credentials requires a client id and issuer.")
        if client.private_key is not None:
            signing = SignedJWTParameters(
                issuer=client.id,
                subject=client.id,
                signing_key=client.private_key,
                signing_algorithm=client.algorithm,
            )
            return PrivateKeyJWTOAuthProvider(
                oauth.url,
                self._stored,
                client.id,
                signing.create_assertion_provider(),
                scope=client.scope,
                issuer=client.issuer,
            )
        return ClientCredentialsOAuthProvider(
            oauth.url,
            self._stored,
            client.id,
            client.secret or "",
            client.secret_sent_by,
            scope=client.scope,
            issuer=client.issuer,
        )


def _is_challenge(response: httpx2.Response) -> bool:
    """Whether a response requires another token."""
    if response.status_code == 403:
        return "insufficient_scope" in response.headers.get("www-authenticate", "")
    return response.status_code == 401
