"""Further tokens: a name, what it may call, until when, and of the secret only its digest.

They are in a file in the user's data folder. Every server looks at it again when it has changed,
so a token that was made can be used at once, and one that was revoked cannot.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from plexus.principal import Principal
from substrate.access.files import data_folder, make_private, read_json, write_private

__all__ = ("NAME", "SCOPE", "Token", "TokenFile", "digest_of", "new_token")

logger = logging.getLogger(__name__)

#: 256 bits; half of that could not be guessed either.
TOKEN_BYTES: Final = 32
#: Of a token, and of whoever comes with it. Names of people that OAuth issuers know have an "@".
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
SCOPE: Final = re.compile(r"[a-z0-9_.]{1,64}")
FILE: Final = "tokens.json"


def new_token() -> str:
    """A new secret, as it is written in a header."""
    return secrets.token_urlsafe(TOKEN_BYTES)


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

    def __init__(self, path: Path | None = None, wall: Callable[[], float] = time.time) -> None:
        self.path = path or data_folder() / FILE
        self._wall = wall
        self._tokens: tuple[Token, ...] = ()
        #: What the file looked like when it was read: its number, size and time.
        self._seen: tuple[int, int, int] | None = None

    # --- for servers --------------------------------------------------------------------------

    def find(self, digest: bytes) -> Token | None:
        """The token with this digest that is in force. How long it takes does not depend on how
        much of a digest is right, nor on which it is."""
        self._look()
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return None if found is None or found.expired(self._wall()) else found

    def _look(self) -> None:
        """Read the file if it has changed; if it cannot be read, there are no tokens."""
        try:
            status = self.path.stat()
            seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        except OSError:
            seen = None
        if seen == self._seen:
            return
        self._seen = seen
        self._tokens = ()
        try:
            self._tokens = tuple(self.read())
        except (OSError, ValueError) as error:
            logger.error("no further tokens are known: %s: %s", self.path, error)  # noqa: TRY400

    # --- for commands -------------------------------------------------------------------------

    def read(self) -> list[Token]:
        """All tokens, by name; raises OSError, and ValueError if the file holds something else."""
        content = read_json(self.path)
        try:
            entries = [] if content is None else content["tokens"]
            return sorted(map(_token, entries), key=lambda token: token.name)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("it does not hold tokens") from error

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
        with self._changing() as tokens:
            if any(token.name == name for token in tokens):
                raise ValueError(f"there is a token called {name!r} already; revoke it first.")
            ends = None if lifetime_s is None else now + lifetime_s
            owner = Principal(principal or name, scopes)
            tokens.append(Token(name, digest_of(secret), owner, now, ends))
        return secret

    def revoke(self, name: str) -> bool:
        """Remove a token; False if there is none of this name. Raises OSError and ValueError."""
        with self._changing() as tokens:
            kept = [token for token in tokens if token.name != name]
            found = len(kept) < len(tokens)
            tokens[:] = kept
        return found

    @contextmanager
    def _changing(self) -> Iterator[list[Token]]:
        """The tokens, to be changed by nobody else meanwhile."""
        make_private(self.path.parent)
        with self.path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tokens = self.read()
            yield tokens
            write_private(self.path, {"tokens": [_entry(token) for token in tokens]})


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
    return Token(
        str(entry["name"]),
        bytes.fromhex(entry["sha256"]),
        Principal(str(entry["principal"]), None if scopes is None else frozenset(scopes)),
        float(entry["created"]),
        None if entry["expires"] is None else float(entry["expires"]),
    )
