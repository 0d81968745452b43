"""Keys of an OAuth issuer: discovered through its metadata, fetched within limits, cached.

Only the configured issuer is ever contacted, over https (or on loopback, for tests and for an
issuer on the same machine). Redirects are not followed, and a fetch has a timeout and a size limit.
Nothing in a token is ever used as a URL.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urlsplit

import h11

from plexus.errors import TooBig
from plexus.limits import Limits
from plexus.rpc import wire
from substrate.security.exposure import is_local

if TYPE_CHECKING:  # the package is imported when a key is built
    from jwt import PyJWK

__all__ = ("ALGORITHMS", "IssuerKeys", "IssuerUnreachable", "parse_address")

logger = logging.getLogger(__name__)

#: Key type of each algorithm, and its curve if there are several. Symmetric algorithms are
#: excluded: a party that can verify such a signature can also create one.
ALGORITHMS: Final[Mapping[str, tuple[str, str | None]]] = {
    "RS256": ("RSA", None),
    "RS384": ("RSA", None),
    "RS512": ("RSA", None),
    "PS256": ("RSA", None),
    "PS384": ("RSA", None),
    "PS512": ("RSA", None),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
#: The public members of a key; private ones that a set contains by mistake are not read.
PUBLIC: Final = ("kty", "crv", "n", "e", "x", "y")
#: The minimum that RFC 7518 allows for RSA.
RSA_BITS: Final = 2048

#: Age at which keys are fetched again: a withdrawn key may be accepted that long.
FRESH_S: Final = 3600.0
#: How long keys are used while the issuer cannot be reached.
KEEP_S: Final = 24 * 3600.0
#: Minimum interval between fetches because of an unknown key.
REFETCH_S: Final = 60.0
#: Minimum interval between fetches while there are no keys at all.
RETRY_S: Final = 5.0
#: Timeout for everything that is fetched together, from name resolution to the last byte.
FETCH_S: Final = 5.0
#: Maximum size of one document. A set of keys is a few kilobytes.
DOCUMENT_BYTES: Final = 256 * 1024
READ_BYTES: Final = 16 * 1024

METADATA: Final = "/.well-known/oauth-authorization-server"
OPENID: Final = "/.well-known/openid-configuration"


class IssuerUnreachable(Exception):
    """The issuer's keys cannot be fetched. The message says why."""


def parse_address(address: str, *, plain: bool) -> SplitResult:
    """Parse a URL that may be fetched: https, or with `plain` http to this machine.

    Raises ValueError with the reason.
    """
    parts = urlsplit(address)
    host = parts.hostname
    if not host or parts.username is not None or parts.fragment or parts.port == 0:
        raise ValueError("it is not the URL of a server")
    if parts.scheme == "https":
        return parts
    if parts.scheme != "http" or not plain or not (host == "localhost" or is_local(host)):
        raise ValueError("it must start with https://")
    return parts


class IssuerKeys:
    """The known signing keys of an issuer."""

    def __init__(self, issuer: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._clock = clock
        self._set: list[dict[str, Any]] | None = None
        #: Keys that were built, by key id and algorithm.
        self._keys: dict[tuple[str | None, str], PyJWK] = {}
        self._fetched = 0.0
        self._next_fetch = float("-inf")
        self._fetching = asyncio.Lock()
        self._reason = "its keys were not fetched yet"

    async def find(self, name: str | None, algorithm: str) -> PyJWK | None:
        """Return the key with this id for this algorithm.

        None if the issuer has none, or if the token has no key id and there are several. Raises
        IssuerUnreachable without any keys.
        """
        age = self._clock() - self._fetched
        if age > KEEP_S:
            self._set = None
        key = self._find_cached(name, algorithm)
        # Old keys are used during another task's fetch; an unknown key has to wait.
        if key is None or (age > FRESH_S and not self._fetching.locked()):
            await self._fetch()
            key = self._find_cached(name, algorithm)
        if self._set is None:
            raise IssuerUnreachable(self._reason)
        return key

    def _find_cached(self, name: str | None, algorithm: str) -> PyJWK | None:
        if self._set is None:
            return None
        key_object = self._keys.get((name, algorithm))
        if key_object is not None:
            return key_object
        fitting = [
            key
            for key in self._set
            if (name is None or key.get("kid") == name) and _is_usable(key, algorithm)
        ]
        key = _build_key(fitting[0], algorithm) if len(fitting) == 1 else None
        if key is not None:
            self._keys[name, algorithm] = key
        return key

    async def _fetch(self) -> None:
        """Fetch the keys, unless that was done a moment ago."""
        async with self._fetching:
            now = self._clock()
            if now < self._next_fetch:
                return
            self._next_fetch = now + (RETRY_S if self._set is None else REFETCH_S)
            try:
                keys = await _fetch_keys(self._issuer)
            except IssuerUnreachable as error:
                self._reason = str(error)
                logger.warning("no keys from the OAuth issuer %s: %s", self._issuer, error)
                return
            self._set, self._fetched, self._keys = keys, now, {}
            self._next_fetch = now + REFETCH_S


def _is_usable(key: dict[str, Any], algorithm: str) -> bool:
    """Return whether this key can verify signatures of this algorithm."""
    kind, curve = ALGORITHMS[algorithm]
    uses = key.get("key_ops")
    return (
        key.get("kty") == kind
        and (curve is None or key.get("crv") == curve)
        and key.get("alg", algorithm) == algorithm
        and key.get("use", "sig") == "sig"
        and (uses is None or (isinstance(uses, list) and "verify" in uses))
    )


def _build_key(key: dict[str, Any], algorithm: str) -> PyJWK | None:
    """Return the key, or None if it is invalid or too weak."""
    from jwt import PyJWK, PyJWTError

    try:
        key_object = PyJWK({part: key[part] for part in PUBLIC if part in key}, algorithm)
    except (PyJWTError, ValueError, TypeError):
        return None
    return None if key["kty"] == "RSA" and key_object.key.key_size < RSA_BITS else key_object


# --- fetching -------------------------------------------------------------------------------------


async def _fetch_keys(issuer: str) -> list[dict[str, Any]]:
    """Return the issuer's keys from the URL in its metadata. Raises IssuerUnreachable."""
    plain = issuer.startswith("http://")
    try:
        async with asyncio.timeout(FETCH_S):
            # Loading the CA certificates takes a while.
            tls = None if plain else await asyncio.to_thread(ssl.create_default_context)
            keys_at = await _find_keys(issuer, plain, tls)
            status, document = await _get(parse_address(keys_at, plain=plain), tls)
    except TimeoutError as error:
        raise IssuerUnreachable(f"it did not respond within {FETCH_S:g} s") from error
    except (OSError, h11.RemoteProtocolError, TooBig, ValueError) as error:
        raise IssuerUnreachable(str(error)) from error
    keys = document.get("keys") if isinstance(document, dict) else None
    if status != 200 or not isinstance(keys, list):
        raise IssuerUnreachable(f"{keys_at} responded with HTTP {status} and no keys")
    return [key for key in keys if isinstance(key, dict)]


async def _find_keys(issuer: str, plain: bool, tls: ssl.SSLContext | None) -> str:
    """Return the URL of the keys from the metadata."""
    for address in _metadata_addresses(issuer):
        status, document = await _get(parse_address(address, plain=plain), tls)
        if status != 200 or not isinstance(document, dict):
            continue
        # RFC 8414, section 3.3: otherwise one issuer of a host could impersonate another.
        if document.get("issuer") != issuer:
            raise IssuerUnreachable(f"{address} is the metadata of another issuer")
        if not isinstance(keys_at := document.get("jwks_uri"), str):
            raise IssuerUnreachable(f"{address} has no jwks_uri")
        return keys_at
    raise IssuerUnreachable("it has no metadata at the paths of RFC 8414 or OpenID")


def _metadata_addresses(issuer: str) -> list[str]:
    """Return the URLs of the metadata, in the order that MCP prescribes for clients."""
    parts = urlsplit(issuer)
    host, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    places = [METADATA + path, OPENID + path, path + OPENID]
    return [host + place for place in dict.fromkeys(places)]


async def _get(parts: SplitResult, tls: ssl.SSLContext | None) -> tuple[int, Any]:
    """Return the status of a document, and its content if the status is 200."""
    host, port = parts.hostname, parts.port or (80 if tls is None else 443)
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    try:
        connection = h11.Connection(h11.CLIENT)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = [("Host", parts.netloc), ("Accept", "application/json"), ("Connection", "close")]
        request = h11.Request(method="GET", target=target, headers=headers)
        writer.write(connection.send(request) or b"")
        connection.send(h11.EndOfMessage())
        status, body = 0, b""
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(READ_BYTES))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
            if status not in (0, 200):
                # Redirects too: this URL was configured or checked; another one was not.
                return status, None
            if len(body) > DOCUMENT_BYTES:
                raise ValueError(f"it responded with more than {DOCUMENT_BYTES} bytes")
        return status, wire.decode_value(body, Limits())
    finally:
        writer.transport.abort()  # the response is complete or useless
