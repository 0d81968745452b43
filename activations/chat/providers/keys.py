"""Where keys come from: the environment, else the keyring of whoever runs this.

A key is looked up when it is needed, and is kept by nobody here. It stands in no message, no log
and no repr. A keyring may be slow, locked or broken: it is asked in a thread of its own and given
up on after a while, and whatever goes wrong there means that it has no key.
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

__all__ = ("KEYRING_S", "SERVICE", "Keys")

#: What keys are kept under in a keyring, each with its variable as the user.
SERVICE = "substrate"
KEYRING = "keyring"
#: How long a keyring may take. One that waits for a person to unlock it may take longer; the
#: key is there the next time.
KEYRING_S = 5.0


class Keys:
    """The keys of whoever runs this."""

    def __init__(
        self, environment: Mapping[str, str] | None = None, *, keyring_s: float = KEYRING_S
    ) -> None:
        self._environment = os.environ if environment is None else environment
        self._keyring_s = keyring_s
        #: What the keyring is being asked for.
        self._asking: set[str] = set()

    def is_there(self, endpoint: Endpoint) -> bool:
        """Whether there is a key in the environment."""
        return any(self._environment.get(name, "").strip() for name in endpoint.variables)

    async def find(self, endpoint: Endpoint) -> str | None:
        """The key for a server; None if there is none and it can do without."""
        key = self._from_environment(endpoint.variables)
        # A server on this machine that wants a key is rare; asking for it each time is slow.
        if key is None and (endpoint.needs_key or not endpoint.is_local):
            key = await self._from_keyring(endpoint.variables)
        if key is None and endpoint.needs_key:
            raise _missing(endpoint)
        return key

    def _from_environment(self, variables: Sequence[str]) -> str | None:
        for variable in variables:
            if key := self._environment.get(variable, "").strip():
                return _checked(key, variable)
        return None

    async def _from_keyring(self, variables: Sequence[str]) -> str | None:
        if not is_installed(KEYRING):
            return None
        for variable in variables:
            if variable in self._asking:  # it has not answered the last time yet
                continue
            key = await self._asked(variable)
            if key is not None and key.strip():
                return _checked(key.strip(), variable)
        return None

    async def _asked(self, variable: str) -> str | None:
        answer: concurrent.futures.Future[str | None] = concurrent.futures.Future()
        # A future that runs cannot be cancelled: the thread may always set its result.
        answer.set_running_or_notify_cancel()
        self._asking.add(variable)

        def ask() -> None:
            key = _stored(variable)
            self._asking.discard(variable)
            answer.set_result(key)

        # Not from a pool: a pool is waited for when the program ends, and this may hang.
        threading.Thread(target=ask, name="keyring", daemon=True).start()
        try:
            async with asyncio.timeout(self._keyring_s):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            return None


def _stored(variable: str) -> str | None:
    """What the keyring has for a variable; it is waited for."""
    try:
        key = importlib.import_module(KEYRING).get_password(SERVICE, variable)
    except Exception:  # noqa: BLE001 - a backend of somebody else's may raise anything
        return None
    return key if isinstance(key, str) else None


def _missing(endpoint: Endpoint) -> Failed:
    """The error that says where the key of this server belongs."""
    variable = endpoint.variables[0]
    return Failed(
        f"there is no key for {endpoint.name}: set {variable}, or keep it in the keyring with"
        f" `keyring set {SERVICE} {variable}`",
        code="missing_key",
        data={"variable": variable},
    )


def _checked(key: str, variable: str) -> str:
    """The key, if it can be sent at all."""
    if not key.isascii() or not key.isprintable() or " " in key:
        raise Failed(
            f"the value of {variable} cannot be a key: it holds a space, or a character that no"
            f" key has; set it again",
            code="bad_key",
            data={"variable": variable},
        )
    return key
