"""Download a file over HTTP, with progress, and resume after an interruption.

A run that is recorded survives the loss of its server too: it stores the position in checkpoints,
and the next server continues from the last one.

    substrate --activation examples/download.py call download.fetch https://example.org/a.iso

Files are written to one folder: DOWNLOADS_FOLDER, or the current folder.

Warning: the request comes from the *server's* machine, so a caller reaches everything that this
machine reaches: services on localhost, the router, the metadata service of a cloud (server-side
request forgery). Grant the scope `download` only to callers that may use that network, or restrict
the hosts: `Download(hosts={"example.org"})`.
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
from typing import IO, NamedTuple, TypeVar
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from plexus import (
    Activation,
    Complete,
    Context,
    Denied,
    Event,
    Failed,
    InvalidParams,
    Progress,
    method,
)
from plexus.errors import DeadlineExceeded, TooBig

__all__ = ("Download",)

T = TypeVar("T")

CHUNK_BYTES = 64 * 1024
#: Socket timeout.
TIMEOUT_S = 30.0
#: Interval of progress events.
PROGRESS_S = 0.2
#: Bytes between two checkpoints. Each waits for the disk.
CHECKPOINT_BYTES = 16 * 1024 * 1024
MAX_REDIRECTS = 5
REDIRECT_STATUSES = (301, 302, 303, 307, 308)


class Resumed(Event):
    """The server continues a partial download."""

    at: int

    def as_line(self) -> str:
        return f"Resumed at byte {self.at}"


class Fetched(Complete):
    """The complete file."""

    path: str
    size: int
    sha256: str

    def as_text(self) -> str:
        return f"{self.path}: {self.size} bytes, sha256 {self.sha256}"


class Position(NamedTuple):
    """How far a download is; the value of a checkpoint."""

    at: int = 0
    #: Validator of this version of the file; empty if it cannot be resumed.
    tag: str = ""
    #: SHA-256 of the bytes up to there.
    sha256: str = ""


class Download(Activation):
    """Downloads files to a folder."""

    namespace = "download"
    version = "1.0.0"
    scope = "download"

    def __init__(self, folder: Path | None = None, hosts: Iterable[str] | None = None) -> None:
        self._folder = (folder or Path(os.environ.get("DOWNLOADS_FOLDER", "."))).resolve()
        self._hosts = None if hosts is None else frozenset(hosts)

    # No deadline for the run: `seconds` is the deadline. It may be restarted, because what it has
    # written is verified and not requested again.
    @method(destructive=False, open_world=True, deadline_s=None, restart="from_checkpoint")
    async def fetch(
        self,
        url: str,
        name: str | None = None,
        sha256: str | None = None,
        max_bytes: int = 1024**3,
        seconds: float = 600.0,
        *,
        ctx: Context,
    ) -> AsyncIterator[Progress | Resumed | Fetched]:
        """Download a file from a URL and return its path, size and checksum.

        An interrupted download is resumed if the server supports it.

        Args:
            url: URL of the file: http:// or https://.
            name: Name of the new file. Default: the last part of the URL. An existing file is
                never replaced.
            sha256: Expected SHA-256 checksum in hexadecimal. A file that differs is deleted.
            max_bytes: Maximum size in bytes.
            seconds: Timeout in seconds.
        """
        target = self._target(name or unquote(urlsplit(url).path).rpartition("/")[2])
        part = Part(target)
        last = None if ctx.restored is None else Position(*ctx.restored)
        if last is not None and await asyncio.to_thread(part.is_finished, last):
            yield Fetched(path=str(target), size=last.at, sha256=last.sha256)
            return
        _check_new(target)
        end = time.monotonic() + seconds
        transfer: Transfer | None = None
        try:
            saved = await asyncio.to_thread(part.saved, last)
            transfer = await _within(end, self._request(url, *saved))
            total = transfer.total
            if total is not None and total > max_bytes:
                raise TooBig(f"the file has {total} bytes", data={"limit": max_bytes})
            if transfer.start:
                yield Resumed(at=transfer.start)
            await asyncio.to_thread(part.open, transfer.start, transfer.tag)
            done, reported, stored = transfer.start, 0.0, transfer.start
            while chunk := await _within(end, asyncio.to_thread(transfer.read)):
                done += len(chunk)
                if done > max_bytes:
                    message = f"the file has more than {max_bytes} bytes"
                    raise TooBig(message, data={"limit": max_bytes})
                await asyncio.to_thread(part.write, chunk)
                if done - stored >= CHECKPOINT_BYTES:
                    stored = done
                    await ctx.checkpoint(await asyncio.to_thread(part.position))
                if time.monotonic() - reported >= PROGRESS_S:
                    reported = time.monotonic()
                    yield Progress(done=done, total=total, message=target.name)
            if total is not None and done != total:
                reason = f"connection lost after {done} of {total} bytes; call again to resume"
                raise Failed(reason, code="broken_off")
            yield Progress(done=done, total=done, message=target.name)
            await ctx.checkpoint(await asyncio.to_thread(part.position))
            found = await asyncio.to_thread(part.finish, sha256)
        finally:
            if transfer is not None:
                transfer.close()
            part.close()
        yield Fetched(path=str(target), size=done, sha256=found)

    def _target(self, name: str) -> Path:
        """Return the path of a file directly in the folder. Raises InvalidParams."""
        if not re.fullmatch(r"[\w. ()+-]{1,200}", name) or name.startswith("."):
            raise InvalidParams(f"{name!r} is not a valid file name; pass another `name`")
        return self._folder / name

    async def _request(self, url: str, start: int, tag: str) -> Transfer:
        """Request the file from byte `start` on and follow redirects. Raises Failed and Denied."""
        secure = False
        for _ in range(MAX_REDIRECTS + 1):
            address = self._checked(url)
            if secure and address.scheme == "http":
                raise Failed(f"refused an insecure redirect from https to {url}")
            secure = address.scheme == "https"
            transfer = await _open_transfer(address, start if tag else 0, tag)
            response = transfer.response
            location = response.getheader("Location")
            if response.status in REDIRECT_STATUSES and location:
                transfer.close()
                url = urljoin(url, location)
                continue
            if response.status == 416 and start:  # the partial file belongs to another version
                transfer.close()
                start, tag = 0, ""
                continue
            if response.status not in (200, 206):
                transfer.close()
                raise Failed(f"{address.hostname} returned {response.status} {response.reason}")
            if transfer.start not in (0, start):
                transfer.close()
                raise Failed(f"the server sent bytes from {transfer.start}, not from {start}")
            return transfer
        raise Failed(f"more than {MAX_REDIRECTS} redirects")

    def _checked(self, url: str) -> SplitResult:
        try:
            address = urlsplit(url)
            address.port  # noqa: B018 - raises if it is invalid
        except ValueError as error:
            raise InvalidParams(f"{url!r} is not a URL: {error}") from error
        if address.scheme not in ("http", "https") or not address.hostname:
            raise InvalidParams(f"{url!r} is not an HTTP URL, as in https://example.org/file")
        if self._hosts is not None and address.hostname not in self._hosts:
            raise Denied(f"host {address.hostname} is not allowed")
        return address


def _check_new(target: Path) -> None:
    if os.path.lexists(target):
        raise InvalidParams(f"{target.name} already exists; pass another `name`")


async def _within(end: float, work: Awaitable[T]) -> T:
    """Await something until a deadline. Raises DeadlineExceeded."""
    try:
        async with asyncio.timeout(max(end - time.monotonic(), 0)):
            return await work
    except TimeoutError:
        raise DeadlineExceeded("the download timed out; call again to resume") from None


# --- the network ----------------------------------------------------------------------------------


class Transfer:
    """HTTP response that is being read."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self.response = response
        self._connection = connection
        #: Kept because the response releases the connection's socket before its end.
        self._socket: socket.socket | None = connection.sock
        #: Validator of this version of the file, for a range request.
        self.tag = response.getheader("ETag") or response.getheader("Last-Modified") or ""
        if self.tag.startswith("W/"):  # versions with the same weak validator may differ in bytes
            self.tag = ""
        self.start, self.total = 0, _number(response.getheader("Content-Length"))
        if response.status == 206:
            header = response.getheader("Content-Range", "")
            found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", header)
            if found is None:
                raise Failed(f"the server sent an invalid Content-Range: {header!r}")
            self.start, self.total = int(found[1]), _number(found[2])

    def read(self) -> bytes:
        """Return the next bytes, empty at the end. Blocks. Raises Failed."""
        try:
            return self.response.read1(CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise Failed(f"connection lost: {error}", code="broken_off") from error

    def close(self) -> None:
        """Close the connection, also while a thread is reading."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._connection.close()


async def _open_transfer(address: SplitResult, start: int, tag: str) -> Transfer:
    """Request everything from byte `start` on. Raises Failed."""
    assert address.hostname is not None
    port = address.port
    if address.scheme == "https":
        tls = ssl.create_default_context()
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            address.hostname, port, timeout=TIMEOUT_S, context=tls
        )
    else:
        connection = http.client.HTTPConnection(address.hostname, port, timeout=TIMEOUT_S)
    # A compressed response would differ from the file in bytes and length.
    headers = {"Accept-Encoding": "identity", "User-Agent": "substrate-download"}
    if start:
        # If the file has changed, the server sends all of it.
        headers |= {"Range": f"bytes={start}-", "If-Range": tag}
    path = address.path or "/"
    resource = f"{path}?{address.query}" if address.query else path

    def request() -> http.client.HTTPResponse:
        connection.request("GET", resource, headers=headers)
        return connection.getresponse()

    try:
        response = await asyncio.to_thread(request)
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
    """Partial file in the target's folder.

    The validator of its version is stored in a separate file. Without it, or if the server has
    another version, the download starts again.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._part = target.with_name(f"{target.name}.part")
        self._tag = target.with_name(f"{target.name}.part.tag")
        self._file: IO[bytes] | None = None
        #: Validator of the version that is being written.
        self._version = ""
        #: Checksum of the bytes so far.
        self._sum = hashlib.sha256()

    def saved(self, last: Position | None) -> tuple[int, str]:
        """Return the bytes to keep and their validator, or 0 and an empty string.

        After a restart these are the bytes up to the last checkpoint, if they are unchanged: what
        was written later may be incomplete on disk. Otherwise it is the whole partial file.
        """
        if last is not None:
            kept = last.tag and _sum_of(self._part, last.at).hexdigest() == last.sha256
            return (last.at, last.tag) if kept else (0, "")
        try:
            return self._part.stat().st_size, self._tag.read_text()
        except (OSError, ValueError):
            return 0, ""

    def is_finished(self, last: Position) -> bool:
        """Return whether the file of this last checkpoint is complete and in its place."""
        try:
            complete = self._target.stat().st_size == last.at
        except OSError:
            return False
        if not complete or _sum_of(self._target, last.at).hexdigest() != last.sha256:
            return False
        self._part.unlink(missing_ok=True)
        self._tag.unlink(missing_ok=True)
        return True

    def open(self, start: int, tag: str) -> None:
        """Open the file to continue at byte `start`."""
        self._tag.write_text(tag)
        self._version = tag
        self._sum = _sum_of(self._part, start)
        self._file = self._part.open("r+b" if start else "wb")
        self._file.seek(start)
        self._file.truncate()

    def position(self) -> Position:
        """Return the position, once everything up to it is on disk."""
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        return Position(self._file.tell(), self._version, self._sum.hexdigest())

    def write(self, chunk: bytes) -> None:
        """Append bytes, unless the file was closed in the meantime."""
        if self._file is not None:
            self._file.write(chunk)
            self._sum.update(chunk)

    def finish(self, sha256: str | None) -> str:
        """Verify the complete file, rename it and return its checksum. Raises Failed."""
        found = self.position().sha256
        if sha256 is not None and found != sha256.lower():
            self._part.unlink()
            self._tag.unlink(missing_ok=True)
            raise Failed(f"wrong checksum {found}; the file was deleted", code="checksum")
        try:
            os.link(self._part, self._target)  # unlike a rename, this never replaces a file
        except FileExistsError as error:
            raise Failed(f"{self._target.name} already exists", code="exists") from error
        self._part.unlink()
        self._tag.unlink(missing_ok=True)
        return found

    def close(self) -> None:
        """Close the file and keep what was downloaded."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _sum_of(path: Path, size: int) -> hashlib._Hash:
    """Return the running SHA-256 of the first bytes of a file; of fewer if it is shorter."""
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while size > 0 and (chunk := file.read(min(size, CHUNK_BYTES))):
                found.update(chunk)
                size -= len(chunk)
    except FileNotFoundError:
        pass
    return found
