"""Ends what a credential has open when that is revoked, replaced, reduced or expired.

A request is authenticated when it comes; a stream stays open after that. So everything that waits
is registered here under its credential, and one timer checks each distinct credential, however
many streams it has.

Rules:
- A stream ends within a second of the moment at which a new request would be refused.
- With a credential go the runs that were begun with it, also those that wait for a client to come
  back or are kept by promise, and its sessions.
- An OAuth token may be refreshed while streams are open. While a newer token of the same login
  with at least the same scopes is valid, only the streams of the expired one end, as if the
  connection was cut: runs and sessions wait for their client to come back.
- A short request costs one entry in a dictionary. Nothing ticks while nothing is open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from plexus.principal import Principal
from substrate.security.authentication import Access, Credential

__all__ = ("REVOKED", "CredentialHolder", "CredentialWatch", "OpenRequest")

logger = logging.getLogger("substrate.security.credential_watch")

#: How often credentials are checked, in seconds: with the time to write the last bytes, a stream
#: ends within one second.
CHECK_S: Final = 0.4
REVOKED: Final = "the token is no longer one of this server: it was revoked, replaced or expired"

#: What tells credentials apart: a digest of the secret, and what it stands for.
Key = tuple[bytes, bytes]


class OpenRequest(Protocol):
    """Something that stays open after its credential was checked."""

    def revoke(self, reason: str, *, refreshed: bool) -> None:
        """End it. With `refreshed` its client has a newer token and may come back."""


class CredentialHolder(Protocol):
    """Something that belongs to credentials and needs no open connection."""

    def credentials(self) -> set[bytes]:
        """The credentials in use."""

    def revoke(self, credential: bytes, valid: Sequence[Principal], reason: str) -> None:
        """End what belongs to this credential, as far as none of these valid principals of it
        covers the one that began it."""


class CredentialWatch:
    """The credentials of one server that have something open."""

    def __init__(
        self, access: Access, holders: Iterable[CredentialHolder] = (), check_s: float = CHECK_S
    ) -> None:
        self._access = access
        self._holders = tuple(holders)
        self._check_s = check_s
        #: The credentials that came since the last check: a request may be about to begin a run.
        self._fresh: dict[Key, Credential] = {}
        #: Those that have something open.
        self._known: dict[Key, Credential] = {}
        self._open: dict[Key, set[OpenRequest]] = {}
        self._checks: dict[Key, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(self, credential: Credential) -> None:
        """Take note of a credential that a request came with."""
        binding = credential.principal.credential
        if binding is None:
            return  # authentication is off
        self._fresh[credential.digest, binding] = credential
        if self._timer is None:
            self._tick_later()

    def add(self, credential: Credential, request: OpenRequest) -> None:
        """Register something that stays open."""
        key = _key(credential)
        if key is not None:
            self.note(credential)
            self._open.setdefault(key, set()).add(request)

    def discard(self, credential: Credential, request: OpenRequest) -> None:
        """Unregister what is not open any more."""
        key = _key(credential)
        if key in self._open:
            found = self._open[key]
            found.discard(request)
            if not found:
                del self._open[key]

    # --- checking -----------------------------------------------------------------------------

    def _tick_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._check_s, self._tick)

    def _tick(self) -> None:
        # First, so that a defect in what follows does not end the watch.
        self._tick_later()
        used = {binding for _, binding in self._open}
        for holder in self._holders:
            used |= holder.credentials()
        fresh, self._fresh = self._fresh, {}
        self._known = {
            key: credential
            for key, credential in (self._known | fresh).items()
            if key in fresh or key[1] in used
        }
        for key, credential in list(self._known.items()):
            if self._access.has_expired(credential):
                self._end(key, credential)
            elif key not in self._checks:
                # A task, because asking an OAuth issuer takes time and must not hold the others.
                task = asyncio.get_running_loop().create_task(self._check(key, credential))
                self._checks[key] = task
        if not self._known and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _check(self, key: Key, credential: Credential) -> None:
        try:
            still = await self._access.still(credential)
        except Exception:
            # Fail closed: what cannot be checked is not valid.
            logger.exception("a credential of %s cannot be checked", credential.principal.name)
            still = None
        finally:
            del self._checks[key]
        if key not in self._known:
            return  # it has expired meanwhile
        if still is None or _key(still) != key:
            self._end(key, credential)
        else:
            self._known[key] = still

    def _end(self, key: Key, credential: Credential) -> None:
        """End everything that this credential has open."""
        del self._known[key]
        self._fresh.pop(key, None)
        _, binding = key
        valid = [
            other.principal
            for (_, login), other in (self._known | self._fresh).items()
            if login == binding and not self._access.has_expired(other)
        ]
        refreshed = any(principal.covers(credential.principal) for principal in valid)
        opened = self._open.pop(key, set())
        if opened:
            name = credential.principal.name
            logger.info("ended %d open requests: a credential of %s ended", len(opened), name)
        for request in opened:
            try:
                request.revoke(REVOKED, refreshed=refreshed)
            except Exception:  # one that cannot end must not keep the others open
                logger.exception("an open request cannot be ended")
        for holder in self._holders:
            holder.revoke(binding, valid, REVOKED)


def _key(credential: Credential) -> Key | None:
    """What a credential is known by; None if authentication is off."""
    binding = credential.principal.credential
    return None if binding is None else (credential.digest, binding)
