"""Tokens of servers: in the keyring of the user if there is one, or else in a file of mode 0600.

A lock file makes processes take turns, so that two of them do not use up one refresh token. A
keyring can be slow, locked or broken: it is used in a separate thread with a timeout, and any
failure means that the file is used.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import fcntl
import hashlib
import importlib
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from mcp_view.client.errors import SignInRequired
from plexus.limits import Limits
from plexus.rpc import wire

__all__ = ("TokenStore",)

#: The service name of tokens in a keyring; the user name is the URL of the server.
SERVICE: Final = "substrate-mcp"
KEYRING_TIMEOUT_S: Final = 5.0
#: Timeout for another process to complete a sign-in.
LOCK_S: Final = 330.0
LOCK_POLL_S: Final = 0.05
MAX_BYTES: Final = 4 * 1024 * 1024
_LIMITS: Final = Limits(message_bytes=MAX_BYTES)


class TokenStore:
    """The tokens and registrations of one user, by the URL of the server."""

    def __init__(self, path: Path, *, keyring: bool = True) -> None:
        self._path = path
        self._keyring = keyring

    @contextlib.asynccontextmanager
    async def lock(self, url: str) -> AsyncIterator[None]:
        """Exclude other processes from signing in to a server. Raises SignInRequired."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = hashlib.sha256(url.encode()).hexdigest()[:16]
        fd = os.open(f"{self._path}.{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            await _acquire(fd, url)
            yield
        finally:
            os.close(fd)  # this releases the lock

    async def load(self, url: str) -> dict[str, Any]:
        """Return the entry of a server; empty if there is none."""
        if self._keyring:
            text = await _in_thread("get_password", SERVICE, url)
            if isinstance(text, str):
                stored = _decode(text.encode())
                if stored:
                    return stored
        entries = await asyncio.to_thread(self._read)
        entry = entries.get(url)
        return entry if isinstance(entry, dict) else {}

    async def save(self, url: str, entry: dict[str, Any]) -> None:
        """Replace the entry of a server; an empty one deletes it."""
        if self._keyring and entry:
            text = wire.encode(entry).decode()
            if await _in_thread("set_password", SERVICE, url, text) is not _FAILED:
                entry = {}
        elif self._keyring:
            await _in_thread("delete_password", SERVICE, url)
        await asyncio.to_thread(self._update, url, entry)

    def _read(self) -> dict[str, Any]:
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    os.fchmod(file.fileno(), 0o600)
                return _decode(file.read(MAX_BYTES + 1))
        except FileNotFoundError:
            return {}

    def _update(self, url: str, entry: dict[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held only while a small file is written
            entries = self._read()
            before = entries.pop(url, None)
            if entry:
                entries[url] = entry
            elif before is None:
                return
            self._write(wire.encode_pretty(entries))
        finally:
            os.close(lock)

    def _write(self, data: bytes) -> None:
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(new, flags, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        new.replace(self._path)


_FAILED: Final = object()


async def _acquire(fd: int, url: str) -> None:
    until = asyncio.get_running_loop().time() + LOCK_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if asyncio.get_running_loop().time() > until:
                raise SignInRequired(
                    f"Another process has been signing in to {url} for {LOCK_S:g} s."
                ) from None
            await asyncio.sleep(LOCK_POLL_S)
        else:
            return


def _decode(data: bytes) -> dict[str, Any]:
    """Return the object; empty if it is damaged, which requires a new sign-in."""
    if not data.strip():
        return {}
    try:
        value = wire.decode_value(data, _LIMITS)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


async def _in_thread(function: str, *args: str) -> Any:
    """Call a function of the keyring; `_FAILED` if that is not possible."""
    answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
    # A running future cannot be cancelled, so the thread can always set its result.
    answer.set_running_or_notify_cancel()
    # Not from a pool: the exit of the process would wait for the pool, and this may hang.
    threading.Thread(
        target=lambda: answer.set_result(_call(function, args)), name="keyring", daemon=True
    ).start()
    try:
        async with asyncio.timeout(KEYRING_TIMEOUT_S):
            return await asyncio.wrap_future(answer)
    except TimeoutError:
        return _FAILED


def _call(function: str, args: tuple[str, ...]) -> Any:
    try:
        return getattr(importlib.import_module("keyring"), function)(*args)
    except Exception:  # noqa: BLE001 - a third-party backend may raise anything
        return _FAILED
