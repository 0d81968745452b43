"""Ends open requests when their credential is revoked, replaced, reduced or expired.

A request is authenticated when it arrives; a stream stays open after that. So everything that stays
open is registered here under its credential, and one timer checks each distinct credential,
regardless of the number of its streams.

Rules:

- A stream ends within a second of the moment at which a new request would be refused.
- Together with a credential end its sessions and the runs that were started with it, including runs
  that wait for a client to reconnect or are kept.
- An OAuth token may be refreshed while streams are open. While a newer token of the same login with
  at least the same scopes is valid, only the streams of the expired token end, as if the connection
  was cut: runs and sessions wait for their client to reconnect.
- A short request costs one dictionary entry. The timer does not run while nothing is open.
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

#: Interval between checks, in seconds: with the time to write the last bytes, a stream ends within
#: one second.
CHECK_S: Final = 0.4
REVOKED: Final = "the token is no longer valid: it was revoked, replaced or has expired"

#: Identity of a credential: a digest of the secret, and of what it stands for.
Key = tuple[bytes, bytes]


class OpenRequest(Protocol):
    """A request that stays open after its credential was checked."""

    def revoke(self, reason: str, *, refreshed: bool) -> None:
        """End it. With `refreshed` its client has a newer token and may reconnect."""


class CredentialHolder(Protocol):
    """An owner of state that belongs to credentials and needs no open connection."""

    def credentials(self) -> set[bytes]:
        """Return the credentials in use."""

    def revoke(self, credential: bytes, valid: Sequence[Principal], reason: str) -> None:
        """End what belongs to this credential.

        What one of these valid principals covers is kept.
        """


class CredentialWatch:
    """Watch over the credentials of one server that have something open."""

    def __init__(
        self, access: Access, holders: Iterable[CredentialHolder] = (), check_s: float = CHECK_S
    ) -> None:
        self._access = access
        self._holders = tuple(holders)
        self._check_s = check_s
        #: Credentials used since the last check: their requests may be about to start a run.
        self._fresh: dict[Key, Credential] = {}
        #: Credentials that have something open.
        self._known: dict[Key, Credential] = {}
        self._open: dict[Key, set[OpenRequest]] = {}
        self._checks: dict[Key, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def record_use(self, credential: Credential) -> None:
        """Record that a request used this credential."""
        binding = credential.principal.credential
        if binding is None:
            return  # authentication is off
        self._fresh[credential.digest, binding] = credential
        if self._timer is None:
            self._tick_later()

    def add(self, credential: Credential, request: OpenRequest) -> None:
        """Register an open request."""
        key = _key(credential)
        if key is not None:
            self.record_use(credential)
            self._open.setdefault(key, set()).add(request)

    def discard(self, credential: Credential, request: OpenRequest) -> None:
        """Unregister a request that has ended."""
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
        # First, so that an exception below does not stop the watch.
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
                self._revoke(key, credential)
            elif key not in self._checks:
                # A task, because a request to an OAuth issuer takes time and must not delay the
                # others.
                task = asyncio.get_running_loop().create_task(self._check(key, credential))
                self._checks[key] = task
        if not self._known and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _check(self, key: Key, credential: Credential) -> None:
        try:
            still = await self._access.revalidate(credential)
        except Exception:
            # Fail closed: what cannot be checked is not valid.
            logger.exception("cannot check a credential of %s", credential.principal.name)
            still = None
        finally:
            del self._checks[key]
        if key not in self._known:
            return  # it expired meanwhile
        if still is None or _key(still) != key:
            self._revoke(key, credential)
        else:
            self._known[key] = still

    def _revoke(self, key: Key, credential: Credential) -> None:
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
            logger.info("ended %d open requests: a credential of %s is invalid", len(opened), name)
        for request in opened:
            try:
                request.revoke(REVOKED, refreshed=refreshed)
            except Exception:  # a failure must not keep the others open
                logger.exception("cannot end an open request")
        for holder in self._holders:
            holder.revoke(binding, valid, REVOKED)


def _key(credential: Credential) -> Key | None:
    """Return the identity of a credential; None if authentication is off."""
    binding = credential.principal.credential
    return None if binding is None else (credential.digest, binding)
