"""Additional tokens: a name, scopes, an expiry, and only the digest of the secret.

They are stored in a file in the user's data folder. Every server reads it again when it has
changed, so a new token works immediately, and a revoked token stops working immediately.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from plexus.principal import Principal
from plexus.private_files import data_folder
from substrate.security.private_files import RecordFile

__all__ = (
    "NAME",
    "SCOPE",
    "CredentialKind",
    "Token",
    "TokenFile",
    "credential_of",
    "digest_of",
    "kind_of",
    "new_token",
)

#: 256 bits; half of that could not be guessed either.
TOKEN_BYTES: Final = 32
#: Names of tokens and of their principals. Names of OAuth users contain an "@".
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
SCOPE: Final = re.compile(r"[a-z0-9_.]{1,64}")
FILE: Final = "tokens.json"


def new_token() -> str:
    """Return a new secret, in a form that fits in a header."""
    return secrets.token_urlsafe(TOKEN_BYTES)


class CredentialKind(bytes, enum.Enum):
    """What a credential is: the first byte of its identifier."""

    #: A server's own token, which other servers do not know.
    OWN = b"o"
    #: An additional token, in the file.
    TOKEN = b"t"
    #: A browser session.
    SESSION = b"s"
    #: A login at an OAuth issuer. It may be valid again with a newer token.
    LOGIN = b"l"


def credential_of(
    kind: CredentialKind, digest: bytes, name: str, scopes: frozenset[str] | None
) -> bytes:
    """Return an identifier of what a credential stands for.

    It changes with the scopes or the name, so that everything opened with the old one ends.
    """
    allowed = "*" if scopes is None else " ".join(sorted(scopes))
    content = b"%b\0%b\0%b" % (digest, name.encode(), allowed.encode())
    return kind.value + hashlib.sha256(content).digest()


def kind_of(credential: bytes) -> CredentialKind | None:
    """Return what the credential with this identifier is; None for an unknown identifier."""
    try:
        return CredentialKind(credential[:1])
    except ValueError:
        return None


def digest_of(secret: str) -> bytes:
    """Return the digest of a secret. Secrets are random, so a slow password hash is not needed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


@dataclasses.dataclass(frozen=True)
class Token:
    """A token, without its secret."""

    name: str
    digest: bytes
    principal: Principal
    created_s: float
    #: Expiry; None: never expires.
    expires_s: float | None = None

    def expired(self, now_s: float) -> bool:
        """Return whether the token has expired."""
        return self.expires_s is not None and now_s >= self.expires_s


class TokenFile:
    """The tokens in one file."""

    def __init__(
        self,
        path: Path | None = None,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = RecordFile(
            path or data_folder() / FILE, "tokens", decode=_token, encode=_entry, clock=clock
        )
        self._wall = wall

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._file.path

    # --- for servers --------------------------------------------------------------------------

    def find(self, digest: bytes) -> Token | None:
        """Return the valid token with this digest.

        The duration depends neither on how much of a digest is right nor on which token it is.
        """
        found = None
        for token in self._file.records():
            if hmac.compare_digest(token.digest, digest):
                found = token
        return self._if_valid(found)

    def get(self, digest: bytes) -> Token | None:
        """Return the token that was found before by this digest, if it is still valid.

        The digest is known to exist, so no constant-time search is needed and this is fast with
        many tokens.
        """
        return self._if_valid(self._file.get(digest))

    def _if_valid(self, token: Token | None) -> Token | None:
        return None if token is None or token.expired(self._wall()) else token

    def has_credential(self, credential: bytes) -> bool:
        """Return whether a valid token has this identifier."""
        found = (each for each in self._file.records() if each.principal.credential == credential)
        return self._if_valid(next(found, None)) is not None

    def valid_digests(self) -> frozenset[bytes]:
        """Return the digests of all valid tokens."""
        now = self._wall()
        return frozenset(each.digest for each in self._file.records() if not each.expired(now))

    # --- for commands -------------------------------------------------------------------------

    def read(self) -> list[Token]:
        """Return all tokens, sorted by name. Raises OSError, and ValueError for invalid content."""
        return sorted(self._file.read(), key=lambda token: token.name)

    def add(
        self,
        name: str,
        scopes: frozenset[str] | None,
        *,
        principal: str | None = None,
        lifetime_s: float | None = None,
    ) -> str:
        """Create a token and return its secret, which is not stored.

        Raises OSError, and ValueError for an invalid or existing name or an invalid scope.
        """
        for each in (name, principal or name):
            if not NAME.fullmatch(each):
                raise ValueError(f"{each!r} is not a valid name: use a-z, 0-9, '_', '.' and '-'.")
        for scope in scopes or ():
            if not SCOPE.fullmatch(scope):
                raise ValueError(f"{scope!r} is not a valid scope: use a-z, 0-9, '_' and '.'.")
        secret, now = new_token(), self._wall()
        with self._file.update() as tokens:
            if any(token.name == name for token in tokens):
                raise ValueError(f"A token named {name!r} exists already: revoke it first.")
            expires_s = None if lifetime_s is None else now + lifetime_s
            owner = principal or name
            tokens.append(_build_token(name, digest_of(secret), owner, scopes, now, expires_s))
        return secret

    def revoke(self, name: str) -> bool:
        """Remove a token. False if none has this name. Raises OSError and ValueError."""
        return self._file.remove(lambda token: token.name == name)


def _entry(token: Token) -> dict[str, Any]:
    scopes = token.principal.scopes
    return {
        "name": token.name,
        "sha256": token.digest.hex(),
        "principal": token.principal.name,
        "scopes": None if scopes is None else sorted(scopes),
        "created": token.created_s,
        "expires": token.expires_s,
    }


def _token(entry: Any) -> Token:
    scopes = entry["scopes"]
    return _build_token(
        str(entry["name"]),
        bytes.fromhex(entry["sha256"]),
        str(entry["principal"]),
        None if scopes is None else frozenset(map(str, scopes)),
        float(entry["created"]),
        None if entry["expires"] is None else float(entry["expires"]),
    )


def _build_token(
    name: str,
    digest: bytes,
    principal: str,
    scopes: frozenset[str] | None,
    created_s: float,
    expires_s: float | None,
) -> Token:
    credential = credential_of(CredentialKind.TOKEN, digest, principal, scopes)
    owner = Principal(principal, scopes, credential)
    return Token(name, digest, owner, created_s, expires_s)
