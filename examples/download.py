"""Downloads a file over HTTP: with progress, and going on where it was broken off.

    substrate --activation examples/download.py call download.fetch https://example.org/a.iso

Files go into one folder: that of DOWNLOADS_FOLDER, or the current one.

Warning: whoever may call this makes the *server's* machine ask, and so reaches whatever that
machine reaches: services on localhost, the router, the metadata of a cloud (server-side request
forgery). Give the scope `download` only to callers whom you would let use that network, or give
the class the hosts that it may ask: `Download(hosts={"example.org"})`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import os
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Iterable
from pathlib import Path
from typing import IO, TypeVar
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from plexus import Activation, Complete, Denied, Event, Failed, InvalidParams, Progress, method
from plexus.errors import DeadlineExceeded, TooBig

__all__ = ("Download",)

T = TypeVar("T")

CHUNK_BYTES = 64 * 1024
#: How long the server may be silent.
SILENT_S = 30.0
#: How often progress is told of.
TOLD_S = 0.2
REDIRECTS = 5
MOVED = (301, 302, 303, 307, 308)


class Resumed(Event):
    """A part was there already, and the server gives the rest."""

    at: int

    def as_line(self) -> str:
        return f"Goes on at byte {self.at}"


class Fetched(Complete):
    """The file is there, whole."""

    path: str
    size: int
    sha256: str

    def as_text(self) -> str:
        return f"{self.path}: {self.size} bytes, sha256 {self.sha256}"


class Download(Activation):
    """Downloads files into one folder."""

    namespace = "download"
    version = "1.0.0"
    scope = "download"

    def __init__(self, folder: Path | None = None, hosts: Iterable[str] | None = None) -> None:
        self._folder = (folder or Path(os.environ.get("DOWNLOADS_FOLDER", "."))).resolve()
        self._hosts = None if hosts is None else frozenset(hosts)

    # Its own `seconds` is the deadline.
    @method(destructive=False, open_world=True, deadline_s=None)
    async def fetch(
        self,
        url: str,
        name: str | None = None,
        sha256: str | None = None,
        max_bytes: int = 1024**3,
        seconds: float = 600.0,
    ) -> AsyncIterator[Progress | Resumed | Fetched]:
        """Download a file. What is there of it already, from a download that was broken off, is
        not fetched again if the server can give the rest.

        Args:
            url: Where it is: http:// or https://.
            name: What to call it; else as the address ends. A file that is there is not replaced.
            sha256: Its checksum in hexadecimal, if it is known: what differs is not kept.
            max_bytes: How large it may be.
            seconds: How long it may take.
        """
        target = self._target(name or unquote(urlsplit(url).path).rpartition("/")[2])
        part = Part(target)
        end = time.monotonic() + seconds
        transfer: Transfer | None = None
        try:
            transfer = await _within(end, self._ask(url, part))
            total = transfer.total
            if total is not None and total > max_bytes:
                raise TooBig(f"it is {total} bytes", data={"limit": max_bytes})
            if transfer.start:
                yield Resumed(at=transfer.start)
            part.open(transfer.start, transfer.tag)
            done, told = transfer.start, 0.0
            while chunk := await _within(end, asyncio.to_thread(transfer.read)):
                done += len(chunk)
                if done > max_bytes:
                    raise TooBig(f"it is over {max_bytes} bytes", data={"limit": max_bytes})
                await asyncio.to_thread(part.write, chunk)
                if time.monotonic() - told >= TOLD_S:
                    told = time.monotonic()
                    yield Progress(done=done, total=total, message=target.name)
            if total is not None and done != total:
                reason = f"the connection broke after {done} of {total} bytes; fetch it again"
                raise Failed(reason, code="broken_off")
            yield Progress(done=done, total=done, message=target.name)
            found = await asyncio.to_thread(part.finish, sha256)
        finally:
            if transfer is not None:
                transfer.close()
            part.close()
        yield Fetched(path=str(target), size=done, sha256=found)

    def _target(self, name: str) -> Path:
        """Where it goes, which must be a new file of the folder itself."""
        if not re.fullmatch(r"[\w. ()+-]{1,200}", name) or name.startswith("."):
            raise InvalidParams(f"{name!r} cannot be the name of a file here; give `name`")
        target = self._folder / name
        if os.path.lexists(target):
            raise InvalidParams(f"{name} is there already; give it another `name`")
        return target

    async def _ask(self, url: str, part: Part) -> Transfer:
        """Ask for the file, and where that leads to; raises Failed and Denied."""
        start, tag = part.there()
        secure = False
        for _ in range(REDIRECTS + 1):
            address = self._checked(url)
            if secure and address.scheme == "http":
                raise Failed(f"it was sent on to {url}, where others could change it")
            secure = address.scheme == "https"
            transfer = await _answer(address, start if tag else 0, tag)
            response = transfer.response
            if response.status in MOVED and (place := response.getheader("Location")):
                transfer.close()
                url = urljoin(url, place)
                continue
            if response.status == 416 and start:  # the part is no part of what is there now
                transfer.close()
                start, tag = 0, ""
                continue
            if response.status not in (200, 206):
                transfer.close()
                raise Failed(f"{address.hostname} says {response.status} {response.reason}")
            if transfer.start not in (0, start):
                transfer.close()
                raise Failed(f"the server gives bytes from {transfer.start}, not from {start}")
            return transfer
        raise Failed(f"it was sent on more than {REDIRECTS} times")

    def _checked(self, url: str) -> SplitResult:
        try:
            address = urlsplit(url)
            address.port  # noqa: B018 - raises if it is none
        except ValueError as error:
            raise InvalidParams(f"{url!r} is no address: {error}") from error
        if address.scheme not in ("http", "https") or not address.hostname:
            raise InvalidParams(f"{url!r} is not like https://example.org/file")
        if self._hosts is not None and address.hostname not in self._hosts:
            raise Denied(f"{address.hostname} is none of the hosts that may be asked")
        return address


async def _within(end: float, work: Awaitable[T]) -> T:
    """Wait for this, but not past the end; raises DeadlineExceeded."""
    try:
        async with asyncio.timeout(max(end - time.monotonic(), 0)):
            return await work
    except TimeoutError:
        raise DeadlineExceeded("it took too long; fetch it again to go on") from None


# --- the network ----------------------------------------------------------------------------------


class Transfer:
    """An answer that is being read."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self.response = response
        self._connection = connection
        #: The response lets go of it before its end.
        self._socket: socket.socket | None = connection.sock
        #: What tells this version of the file from others, for asking for the rest of it.
        self.tag = response.getheader("ETag") or response.getheader("Last-Modified") or ""
        if self.tag.startswith("W/"):  # such a version may differ in bytes
            self.tag = ""
        self.start, self.total = 0, _number(response.getheader("Content-Length"))
        if response.status == 206:
            given = response.getheader("Content-Range", "")
            found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", given)
            if found is None:
                raise Failed(f"the server gives a part that it does not name: {given!r}")
            self.start, self.total = int(found[1]), _number(found[2])

    def read(self) -> bytes:
        """The next bytes; none at the end. Blocks. Raises Failed."""
        try:
            return self.response.read1(CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise Failed(f"the connection broke: {error}", code="broken_off") from error

    def close(self) -> None:
        """Break it off, also if a thread is reading."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._connection.close()


async def _answer(address: SplitResult, start: int, tag: str) -> Transfer:
    """Ask for everything after this byte; raises Failed."""
    assert address.hostname is not None
    port = address.port
    if address.scheme == "https":
        tls = ssl.create_default_context()
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            address.hostname, port, timeout=SILENT_S, context=tls
        )
    else:
        connection = http.client.HTTPConnection(address.hostname, port, timeout=SILENT_S)
    # A compressed answer would have other bytes and another length than the file.
    headers = {"Accept-Encoding": "identity", "User-Agent": "substrate-download"}
    if start:
        # If it is another file by now, the server shall give all of it.
        headers |= {"Range": f"bytes={start}-", "If-Range": tag}
    path = address.path or "/"
    whole = f"{path}?{address.query}" if address.query else path

    def ask() -> http.client.HTTPResponse:
        connection.request("GET", whole, headers=headers)
        return connection.getresponse()

    try:
        response = await asyncio.to_thread(ask)
    except (OSError, http.client.HTTPException, ValueError) as error:
        connection.close()
        raise Failed(f"cannot reach {address.hostname}: {error}", code="unreachable") from error
    except asyncio.CancelledError:
        if connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
        raise
    return Transfer(connection, response)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


# --- the file -------------------------------------------------------------------------------------


class Part:
    """A file that is not whole yet, beside the one that it becomes.

    What tells its version from others stands in a file of its own: without it, or if the server
    says otherwise, the download begins anew.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._part = target.with_name(f"{target.name}.part")
        self._tag = target.with_name(f"{target.name}.part.tag")
        self._file: IO[bytes] | None = None

    def there(self) -> tuple[int, str]:
        """How much of it there is, and of which version; nothing if that is not known."""
        try:
            return self._part.stat().st_size, self._tag.read_text()
        except (OSError, ValueError):
            return 0, ""

    def open(self, start: int, tag: str) -> None:
        """Go on after this byte."""
        self._tag.write_text(tag)
        self._file = self._part.open("r+b" if start else "wb")
        self._file.seek(start)
        self._file.truncate()

    def write(self, chunk: bytes) -> None:
        """Add bytes, unless it was closed meanwhile."""
        if self._file is not None:
            self._file.write(chunk)

    def finish(self, sha256: str | None) -> str:
        """It is whole: check it, and give it its name. The checksum; raises Failed."""
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        with self._part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if sha256 is not None and found != sha256.lower():
            self._part.unlink()
            self._tag.unlink(missing_ok=True)
            raise Failed(f"its checksum is {found}; it was not kept", code="checksum")
        try:
            os.link(self._part, self._target)  # unlike renaming, this never replaces a file
        except FileExistsError as error:
            raise Failed(f"{self._target.name} is there now", code="exists") from error
        self._part.unlink()
        self._tag.unlink(missing_ok=True)
        return found

    def close(self) -> None:
        """Keep what there is of it."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
