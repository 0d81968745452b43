"""The keys of an OAuth issuer: found through its metadata, fetched within bounds, kept a while.

Only the issuer that was configured is ever asked, over https (or on loopback, for tests and for
an issuer on the same machine); redirects are not followed, and a fetch has a bound on its time
and its size. What a token says never becomes an address.
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

if TYPE_CHECKING:  # the package is imported when a key is made
    from jwt import PyJWK

__all__ = ("ALGORITHMS", "IssuerKeys", "IssuerUnreachable", "checked_address")

logger = logging.getLogger(__name__)

#: What a key must be for an algorithm: its type, and its curve where there are several. Nothing
#: symmetric is here: whoever could check such a signature could also make one.
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
#: The public parts of a key; a set that holds more by mistake is not read further.
PUBLIC: Final = ("kty", "crv", "n", "e", "x", "y")
#: The least that RFC 7518 allows for RSA.
RSA_BITS: Final = 2048

#: After how long keys are asked for anew: so long may one that was withdrawn still be taken.
FRESH_S: Final = 3600.0
#: How long keys are used while the issuer cannot be reached.
KEEP_S: Final = 24 * 3600.0
#: How soon the issuer is asked again because of a key that is not known.
REFETCH_S: Final = 60.0
#: How soon it is asked again while there are no keys at all.
RETRY_S: Final = 5.0
#: Everything that is fetched at one time, from the name of the host to the last byte.
FETCH_S: Final = 5.0
#: One document. A set of keys is a few kilobytes.
DOCUMENT_BYTES: Final = 256 * 1024
READ_BYTES: Final = 16 * 1024

METADATA: Final = "/.well-known/oauth-authorization-server"
OPENID: Final = "/.well-known/openid-configuration"


class IssuerUnreachable(Exception):
    """The issuer has not given its keys; the message says why."""


def checked_address(address: str, *, plain: bool) -> SplitResult:
    """The parts of an address that may be fetched: https, or http to this machine if `plain` is.
    Raises ValueError with the reason."""
    parts = urlsplit(address)
    host = parts.hostname
    if not host or parts.username is not None or parts.fragment or parts.port == 0:
        raise ValueError("it is no address of a server")
    if parts.scheme == "https":
        return parts
    if parts.scheme != "http" or not plain or not (host == "localhost" or is_local(host)):
        raise ValueError("it must begin with https://")
    return parts


class IssuerKeys:
    """What the issuer signs with, as far as it is known."""

    def __init__(self, issuer: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._clock = clock
        self._set: list[dict[str, Any]] | None = None
        #: Keys that have been made, by their name and algorithm.
        self._made: dict[tuple[str | None, str], PyJWK] = {}
        self._fetched = 0.0
        self._next_fetch = float("-inf")
        self._fetching = asyncio.Lock()
        self._reason = "it was not asked yet"

    async def find(self, name: str | None, algorithm: str) -> PyJWK | None:
        """The key of this name for this algorithm; None if the issuer has none, or if the token
        names none and there are several. Raises IssuerUnreachable without any keys."""
        age = self._clock() - self._fetched
        if age > KEEP_S:
            self._set = None
        key = self._pick(name, algorithm)
        # Old keys do while somebody else is fetching; one that is not known has to wait.
        if key is None or (age > FRESH_S and not self._fetching.locked()):
            await self._fetch()
            key = self._pick(name, algorithm)
        if self._set is None:
            raise IssuerUnreachable(self._reason)
        return key

    def _pick(self, name: str | None, algorithm: str) -> PyJWK | None:
        if self._set is None:
            return None
        made = self._made.get((name, algorithm))
        if made is not None:
            return made
        fitting = [
            key
            for key in self._set
            if (name is None or key.get("kid") == name) and _fits(key, algorithm)
        ]
        key = _make(fitting[0], algorithm) if len(fitting) == 1 else None
        if key is not None:
            self._made[name, algorithm] = key
        return key

    async def _fetch(self) -> None:
        """Ask the issuer, unless that has been done a moment ago."""
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
            self._set, self._fetched, self._made = keys, now, {}
            self._next_fetch = now + REFETCH_S


def _fits(key: dict[str, Any], algorithm: str) -> bool:
    """Whether this key is one for checking signatures of this algorithm."""
    kind, curve = ALGORITHMS[algorithm]
    uses = key.get("key_ops")
    return (
        key.get("kty") == kind
        and (curve is None or key.get("crv") == curve)
        and key.get("alg", algorithm) == algorithm
        and key.get("use", "sig") == "sig"
        and (uses is None or (isinstance(uses, list) and "verify" in uses))
    )


def _make(key: dict[str, Any], algorithm: str) -> PyJWK | None:
    """The key itself, or None if it is none, or too weak."""
    from jwt import PyJWK, PyJWTError

    try:
        made = PyJWK({part: key[part] for part in PUBLIC if part in key}, algorithm)
    except (PyJWTError, ValueError, TypeError):
        return None
    return None if key["kty"] == "RSA" and made.key.key_size < RSA_BITS else made


# --- fetching -------------------------------------------------------------------------------------


async def _fetch_keys(issuer: str) -> list[dict[str, Any]]:
    """The issuer's keys, wherever its metadata says that they are; raises IssuerUnreachable."""
    plain = issuer.startswith("http://")
    try:
        async with asyncio.timeout(FETCH_S):
            # Reading the certificates of the authorities takes a while.
            tls = None if plain else await asyncio.to_thread(ssl.create_default_context)
            keys_at = await _find_keys(issuer, plain, tls)
            status, document = await _get(checked_address(keys_at, plain=plain), tls)
    except TimeoutError as error:
        raise IssuerUnreachable(f"it did not answer within {FETCH_S:g} s") from error
    except (OSError, h11.RemoteProtocolError, TooBig, ValueError) as error:
        raise IssuerUnreachable(str(error)) from error
    keys = document.get("keys") if isinstance(document, dict) else None
    if status != 200 or not isinstance(keys, list):
        raise IssuerUnreachable(f"{keys_at} answered with HTTP {status} and no keys")
    return [key for key in keys if isinstance(key, dict)]


async def _find_keys(issuer: str, plain: bool, tls: ssl.SSLContext | None) -> str:
    """Where the metadata says that the keys are."""
    for address in _metadata_addresses(issuer):
        status, document = await _get(checked_address(address, plain=plain), tls)
        if status != 200 or not isinstance(document, dict):
            continue
        # RFC 8414, section 3.3: or one issuer of a host could speak for another of it.
        if document.get("issuer") != issuer:
            raise IssuerUnreachable(f"{address} is the metadata of another issuer")
        if not isinstance(keys_at := document.get("jwks_uri"), str):
            raise IssuerUnreachable(f"{address} has no jwks_uri")
        return keys_at
    raise IssuerUnreachable("it has no metadata where RFC 8414 or OpenID would have them")


def _metadata_addresses(issuer: str) -> list[str]:
    """Where metadata may be, in the order in which MCP has clients look for them."""
    parts = urlsplit(issuer)
    host, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    places = [METADATA + path, OPENID + path, path + OPENID]
    return [host + place for place in dict.fromkeys(places)]


async def _get(parts: SplitResult, tls: ssl.SSLContext | None) -> tuple[int, Any]:
    """The status of a document and what is in it, if it is there."""
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
                # A redirect too: the address was configured, or checked; another was not.
                return status, None
            if len(body) > DOCUMENT_BYTES:
                raise ValueError(f"it answered with more than {DOCUMENT_BYTES} bytes")
        return status, wire.decode_value(body, Limits())
    finally:
        writer.transport.abort()  # nobody waits for an orderly end
