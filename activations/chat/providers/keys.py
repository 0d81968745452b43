"""API keys: read from the environment, or else from the keyring of the user.

A key is looked up for each request and not cached. It never appears in a message, a log or a repr.
A keyring can be slow, locked or broken: it is read in a separate thread with a timeout, and any
failure means that it has no key.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import os
import threading
from collections.abc import Mapping, Sequence

from activations.chat.providers.endpoints import Endpoint, is_installed
from plexus.errors import Failed

__all__ = ("KEYRING_TIMEOUT_S", "SERVICE", "Keys")

#: The service name of keys in a keyring; the user name is the variable.
SERVICE = "substrate"
KEYRING = "keyring"
#: Timeout of a keyring. Unlocking it can take longer; the key is then available to the next
#: request.
KEYRING_TIMEOUT_S = 5.0


class Keys:
    """The API keys of the user."""

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        *,
        keyring_timeout_s: float = KEYRING_TIMEOUT_S,
    ) -> None:
        self._environment = os.environ if environment is None else environment
        self._keyring_timeout_s = keyring_timeout_s
        #: The variables that are being read from the keyring.
        self._reading: set[str] = set()

    def in_environment(self, endpoint: Endpoint) -> bool:
        """Return whether the environment has a key of an endpoint."""
        return any(self._environment.get(name, "").strip() for name in endpoint.variables)

    async def find(self, endpoint: Endpoint) -> str | None:
        """Return the key of an endpoint; None if none is needed. Raises `missing_key`."""
        key = self._from_environment(endpoint.variables)
        # Local servers rarely need a key, and reading the keyring for each request is slow.
        if key is None and (endpoint.needs_key or not endpoint.is_local):
            key = await self._from_keyring(endpoint.variables)
        if key is None and endpoint.needs_key:
            raise _missing_key(endpoint)
        return key

    def _from_environment(self, variables: Sequence[str]) -> str | None:
        for variable in variables:
            if key := self._environment.get(variable, "").strip():
                return _validate(key, variable)
        return None

    async def _from_keyring(self, variables: Sequence[str]) -> str | None:
        if not is_installed(KEYRING):
            return None
        for variable in variables:
            if variable in self._reading:  # the previous read has not returned yet
                continue
            key = await self._read_keyring(variable)
            if key is not None and key.strip():
                return _validate(key.strip(), variable)
        return None

    async def _read_keyring(self, variable: str) -> str | None:
        answer: concurrent.futures.Future[str | None] = concurrent.futures.Future()
        # A running future cannot be cancelled, so the thread can always set its result.
        answer.set_running_or_notify_cancel()
        self._reading.add(variable)

        def read() -> None:
            key = _get_password(variable)
            self._reading.discard(variable)
            answer.set_result(key)

        # Not from a pool: the exit of the process would wait for the pool, and this may hang.
        threading.Thread(target=read, name="keyring", daemon=True).start()
        try:
            async with asyncio.timeout(self._keyring_timeout_s):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            return None


def _get_password(variable: str) -> str | None:
    """Return the keyring entry of a variable. Blocks."""
    try:
        key = importlib.import_module(KEYRING).get_password(SERVICE, variable)
    except Exception:  # noqa: BLE001 - a third-party backend may raise anything
        return None
    return key if isinstance(key, str) else None


def _missing_key(endpoint: Endpoint) -> Failed:
    """Return the error for a missing key, with the places to store it."""
    variable = endpoint.variables[0]
    return Failed(
        f"no API key for {endpoint.name}: set {variable}, or store it in the keyring with"
        f" `keyring set {SERVICE} {variable}`",
        code="missing_key",
        data={"variable": variable},
    )


def _validate(key: str, variable: str) -> str:
    """Return the key if it can be sent in a header. Raises `bad_key`."""
    if not key.isascii() or not key.isprintable() or " " in key:
        raise Failed(
            f"the value of {variable} is not a valid API key: it contains a space or a character"
            " that is not printable ASCII; set it again",
            code="bad_key",
            data={"variable": variable},
        )
    return key
