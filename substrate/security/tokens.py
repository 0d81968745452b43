"""Further tokens: a name, what it may call, until when, and of the secret only its digest.

They are in a file in the user's data folder. Every server reads it again when it has changed, so a
new token works at once, and a revoked one does not.
"""

from __future__ import annotations

import dataclasses
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

__all__ = ("NAME", "SCOPE", "Token", "TokenFile", "credential_of", "digest_of", "new_token")

#: 256 bits; half of that could not be guessed either.
TOKEN_BYTES: Final = 32
#: Of a token, and of whoever comes with it. Names of people that OAuth issuers know have an "@".
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
SCOPE: Final = re.compile(r"[a-z0-9_.]{1,64}")
FILE: Final = "tokens.json"


def new_token() -> str:
    """A new secret, as it is written in a header."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def credential_of(digest: bytes, name: str, scopes: frozenset[str] | None) -> bytes:
    """Identify what a credential stands for: one that gets other scopes or another name is
    another one, so everything that was opened with the old one ends."""
    allowed = "*" if scopes is None else " ".join(sorted(scopes))
    return hashlib.sha256(b"%b\0%b\0%b" % (digest, name.encode(), allowed.encode())).digest()


def digest_of(secret: str) -> bytes:
    """What is kept of a secret. It is random, so there is nothing to guess and no need for a
    slow digest."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


@dataclasses.dataclass(frozen=True)
class Token:
    """One token, without its secret."""

    name: str
    digest: bytes
    principal: Principal
    created_s: float
    #: When it ends; None for never.
    expires_s: float | None = None

    def expired(self, now_s: float) -> bool:
        """Whether its time is over."""
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
        """Where the file is."""
        return self._file.path

    # --- for servers --------------------------------------------------------------------------

    def find(self, digest: bytes) -> Token | None:
        """Return the token with this digest if it is in force. How long it takes does not depend
        on how much of a digest is right, nor on which it is."""
        found = None
        for token in self._file.records():
            if hmac.compare_digest(token.digest, digest):
                found = token
        return self._in_force(found)

    def get(self, digest: bytes) -> Token | None:
        """Return the token that was found before by this digest, if it is still in force. There
        is nothing to guess any more, so this takes no longer with many tokens."""
        return self._in_force(self._file.get(digest))

    def _in_force(self, token: Token | None) -> Token | None:
        return None if token is None or token.expired(self._wall()) else token

    def digests_in_force(self) -> frozenset[bytes]:
        """Return the digests of all tokens in force."""
        now = self._wall()
        return frozenset(each.digest for each in self._file.records() if not each.expired(now))

    # --- for commands -------------------------------------------------------------------------

    def read(self) -> list[Token]:
        """Return all tokens, by name. Raises OSError, and ValueError for other content."""
        return sorted(self._file.read(), key=lambda token: token.name)

    def add(
        self,
        name: str,
        scopes: frozenset[str] | None,
        *,
        principal: str | None = None,
        lifetime_s: float | None = None,
    ) -> str:
        """Make a token and return its secret, which is kept nowhere. Raises OSError, and ValueError
        that says what is wrong."""
        for each in (name, principal or name):
            if not NAME.fullmatch(each):
                raise ValueError(f"{each!r} is no name: use a-z, 0-9, '_', '.' and '-'.")
        for scope in scopes or ():
            if not SCOPE.fullmatch(scope):
                raise ValueError(f"{scope!r} is no scope: use a-z, 0-9, '_' and '.'.")
        secret, now = new_token(), self._wall()
        with self._file.changing() as tokens:
            if any(token.name == name for token in tokens):
                raise ValueError(f"there is a token called {name!r} already; revoke it first.")
            ends = None if lifetime_s is None else now + lifetime_s
            tokens.append(_made(name, digest_of(secret), principal or name, scopes, now, ends))
        return secret

    def revoke(self, name: str) -> bool:
        """Remove a token; False if there is none of this name. Raises OSError and ValueError."""
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
    return _made(
        str(entry["name"]),
        bytes.fromhex(entry["sha256"]),
        str(entry["principal"]),
        None if scopes is None else frozenset(map(str, scopes)),
        float(entry["created"]),
        None if entry["expires"] is None else float(entry["expires"]),
    )


def _made(
    name: str,
    digest: bytes,
    principal: str,
    scopes: frozenset[str] | None,
    created_s: float,
    expires_s: float | None,
) -> Token:
    owner = Principal(principal, scopes, credential_of(digest, principal, scopes))
    return Token(name, digest, owner, created_s, expires_s)
