"""Credentials of restarted runs: no connection here has used them, so no other watch checks them.

Additional tokens and browser sessions are in files of the user, which every process reads. A run of
a server's own token continues without it, because that token ends with its process. A run of an
OAuth login ends with what its client has open on the server that continues it.
"""

from __future__ import annotations

import asyncio
import logging

from plexus.errors import Denied
from plexus.runtime.run import LocalRun
from substrate.security.credential_watch import CHECK_S, REVOKED
from substrate.security.page_sessions import SessionFile
from substrate.security.tokens import CredentialKind, TokenFile, kind_of

__all__ = ("RunCredentials",)

logger = logging.getLogger("substrate.run_store")


class RunCredentials:
    """Cancels restarted runs whose credential is revoked, reduced or expired."""

    def __init__(self) -> None:
        self._tokens = TokenFile()
        self._sessions = SessionFile()
        self._runs: set[LocalRun] = set()
        self._timer: asyncio.TimerHandle | None = None

    def check(self, credential: bytes) -> None:
        """Raise Denied if a credential that can be checked here is no longer valid."""
        if not self._is_valid(credential):
            raise Denied("The token that started it is no longer valid.")

    def _is_valid(self, credential: bytes) -> bool:
        kind = kind_of(credential)
        if kind is CredentialKind.TOKEN:
            return self._tokens.has_credential(credential)
        if kind is CredentialKind.SESSION:
            return self._sessions.has_credential(credential, self._tokens)
        return kind is not None

    def watch(self, run: LocalRun) -> None:
        """Cancel a run within a second after its credential has become invalid."""
        self._runs.add(run)
        if self._timer is None:
            self._tick_later()

    def _tick_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._runs = {run for run in self._runs if run.terminal is None}
        if not self._runs:
            return
        self._tick_later()  # first, so that an exception below does not stop the watch
        used = {run.principal.credential for run in self._runs}
        lost = {each for each in used if each is not None and not self._is_valid(each)}
        for run in self._runs:
            if run.principal.credential in lost and run.cancel_reason is None:
                logger.info("run %d is cancelled: its credential is invalid", run.id)
                run.cancel(REVOKED)

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
