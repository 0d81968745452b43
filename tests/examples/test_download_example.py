"""The download example, with local servers with and without range support."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import download
import pytest
from download import Download, Fetched, Position, Resumed
from hub_calls import follow, until

from plexus import Denied, Event, Failed, InvalidParams, Progress
from plexus.errors import DeadlineExceeded, TooBig
from plexus.events import Restarted
from plexus.principal import LOCAL
from plexus.runtime.run import LocalRun
from plexus.testing import expect, local

pytestmark = pytest.mark.anyio

BODY = bytes(range(256)) * 4096  # 1 MiB
SHA256 = hashlib.sha256(BODY).hexdigest()


class Origin(ThreadingHTTPServer):
    """Server of one file with configurable behaviour."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body = BODY
        self.ranges = True
        self.etag: str | None = '"1"'
        self.sized = True
        #: Number of bytes after which the connection breaks.
        self.breaks_after: int | None = None
        #: Redirect location.
        self.moved_to: str | None = None
        self.status = 200
        #: Set to continue a response that stalls after its first bytes.
        self.hangs: threading.Event | None = None
        self.hangs_after = 1000
        self.asked: list[dict[str, str]] = []
        #: Set when a client disconnects during a response.
        self.left = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/files/a.bin"


class Handler(BaseHTTPRequestHandler):
    """Handler that follows the configuration of its server."""

    protocol_version = "HTTP/1.1"
    server: Origin

    def do_GET(self) -> None:
        origin = self.server
        origin.asked.append(dict(self.headers))
        self.close_connection = True
        if origin.moved_to is not None:
            self._send_head(302, {"Location": origin.moved_to, "Content-Length": "0"})
            return
        if origin.status != 200:
            self._send_head(origin.status, {"Content-Length": "0"})
            return
        body, headers, status = origin.body, {}, 200
        if origin.etag:
            headers["ETag"] = origin.etag
        wanted = self.headers.get("Range")
        if origin.ranges and wanted and self.headers.get("If-Range") in (None, origin.etag):
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                self._send_head(
                    416, {"Content-Range": f"bytes */{len(body)}", "Content-Length": "0"}
                )
                return
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            body, status = body[start:], 206
        if origin.sized:
            headers["Content-Length"] = str(len(body))
        self._send_head(status, headers)
        first = len(body) if origin.breaks_after is None else origin.breaks_after
        try:
            if origin.hangs is not None:
                sent = origin.hangs_after
                self.wfile.write(body[:sent])
                self.wfile.flush()
                origin.hangs.wait(20)
                body, first = body[sent:], first - sent
            self.wfile.write(body[:first])
        except OSError:
            origin.left.set()

    def _send_head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            if server.hangs is not None:
                server.hangs.set()
            server.shutdown()
            thread.join()


def files(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def content(file: Path) -> bytes:
    return file.read_bytes()


@contextlib.asynccontextmanager
async def _interrupted(folder: Path, origin: Origin, after: int) -> Any:
    """Yield a client after a download that was interrupted after this number of bytes."""
    async with local(Download(folder)) as plexus:
        origin.breaks_after = after
        events = await plexus.events("download.fetch", url=origin.url)
        expect(events).fails("broken_off", saying=str(after))
        assert files(folder)["a.bin.part"] == after
        origin.breaks_after = None
        yield plexus


# --- complete file --------------------------------------------------------------------------------


async def test_a_file_is_fetched_with_progress_and_has_its_checksum(
    tmp_path: Path, origin: Origin
) -> None:
    async with local(Download(tmp_path)) as plexus:
        events = await plexus.events("download.fetch", url=origin.url, sha256=SHA256.upper())
    result = expect(events).completes(size=len(BODY), sha256=SHA256).progresses(to=len(BODY))
    assert result.of(Progress)[0].total == len(BODY)
    assert content(tmp_path / "a.bin") == BODY
    assert files(tmp_path) == {"a.bin": len(BODY)}


async def test_a_file_of_unknown_size_is_fetched_too(tmp_path: Path, origin: Origin) -> None:
    origin.sized = False
    async with local(Download(tmp_path)) as plexus:
        found = await plexus.call("download.fetch", url=origin.url, name="other name.bin")
    assert isinstance(found, Fetched)
    assert files(tmp_path) == {"other name.bin": len(BODY)}


async def test_an_empty_file_is_downloaded(tmp_path: Path, origin: Origin) -> None:
    origin.body = b""
    async with local(Download(tmp_path)) as plexus:
        await plexus.call("download.fetch", url=origin.url)
    assert files(tmp_path) == {"a.bin": 0}


# --- resuming -------------------------------------------------------------------------------------


async def test_an_interrupted_download_is_resumed(tmp_path: Path, origin: Origin) -> None:
    async with _interrupted(tmp_path, origin, 300_000) as plexus:
        events = await plexus.events("download.fetch", url=origin.url, sha256=SHA256)
    assert expect(events).completes(size=len(BODY)).of(Resumed) == [Resumed(at=300_000)]
    assert origin.asked[-1]["Range"] == "bytes=300000-"
    assert files(tmp_path) == {"a.bin": len(BODY)}


async def test_without_range_support_the_whole_file_is_requested(
    tmp_path: Path, origin: Origin
) -> None:
    origin.ranges = False
    async with _interrupted(tmp_path, origin, 300_000) as plexus:
        events = await plexus.events("download.fetch", url=origin.url, sha256=SHA256)
    assert expect(events).completes(size=len(BODY)).of(Resumed) == []
    assert content(tmp_path / "a.bin") == BODY


async def test_a_part_of_an_older_version_is_not_resumed(tmp_path: Path, origin: Origin) -> None:
    async with _interrupted(tmp_path, origin, 300_000) as plexus:
        origin.body, origin.etag = BODY[::-1], '"2"'
        events = await plexus.events("download.fetch", url=origin.url)
    assert expect(events).completes(size=len(BODY)).of(Resumed) == []
    assert content(tmp_path / "a.bin") == BODY[::-1]


@pytest.mark.parametrize("etag", [None, 'W/"1"'])
async def test_without_a_validator_the_download_restarts(
    tmp_path: Path, origin: Origin, etag: str | None
) -> None:
    origin.etag = etag
    async with _interrupted(tmp_path, origin, 300_000) as plexus:
        events = await plexus.events("download.fetch", url=origin.url, sha256=SHA256)
    assert "Range" not in origin.asked[-1]
    assert expect(events).completes().of(Resumed) == []


async def test_a_part_that_is_too_long_restarts(tmp_path: Path, origin: Origin) -> None:
    async with _interrupted(tmp_path, origin, 300_000) as plexus:
        origin.body = BODY[:1000]
        events = await plexus.events("download.fetch", url=origin.url)
    expect(events).completes(size=1000)
    assert content(tmp_path / "a.bin") == BODY[:1000]


async def test_a_cancelled_download_can_be_resumed(tmp_path: Path, origin: Origin) -> None:
    origin.hangs = threading.Event()
    async with local(Download(tmp_path)) as plexus:
        async with plexus.stream("download.fetch", url=origin.url) as stream:
            assert (await anext(stream)).type == "progress"
        origin.hangs.set()
        assert origin.left.wait(10), "the connection was not closed"
        part = files(tmp_path)["a.bin.part"]
        assert 0 < part < len(BODY)
        origin.hangs = None
        events = await plexus.events("download.fetch", url=origin.url, sha256=SHA256)
    assert expect(events).of(Resumed) == [Resumed(at=part)]


# --- restarting -----------------------------------------------------------------------------------


async def _lost(
    folder: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> tuple[LocalRun, Position]:
    """Return the run of a process that was lost in mid-download, and its last checkpoint."""
    monkeypatch.setattr(download, "CHECKPOINT_BYTES", 64 * 1024)
    origin.hangs, origin.hangs_after = threading.Event(), 300_000
    async with local(Download(folder)) as plexus:
        run = plexus.hub.call("download.fetch", {"url": origin.url}).run
        assert isinstance(run, LocalRun)
        await until(lambda: _position(run).at > 200_000)
    origin.hangs.set()
    origin.hangs = None
    return run, _position(run)


def _position(run: LocalRun) -> Position:
    return Position() if run.checkpoint is None else Position(*json.loads(run.checkpoint))


async def _restarted(folder: Path, origin: Origin, lost: LocalRun) -> list[Event]:
    """Return the events of the run in the next process."""
    async with local(Download(folder)) as plexus:
        run = plexus.hub.restart(
            "download.fetch",
            run_id=lost.id,
            principal=LOCAL,
            arguments={"url": origin.url},
            epoch=1,
            checkpoint=lost.checkpoint,
            first_seq=lost.log.last,
            started_at=lost.started_at,
            parent=None,
            key=None,
        )
        return await follow(run, lost.log.last - 1)


async def test_a_download_continues_after_its_process_is_lost(
    tmp_path: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, last = await _lost(tmp_path, origin, monkeypatch)
    assert last.tag == '"1"'
    part = tmp_path / "a.bin.part"
    # What was written after the checkpoint may be anything.
    part.write_bytes(content(part)[: last.at] + b"not a part of the file")
    events = await _restarted(tmp_path, origin, lost)
    assert events[:2] == [Restarted(1), Resumed(at=last.at)]
    expect(events).completes(size=len(BODY), sha256=SHA256).progresses(to=len(BODY))
    assert content(tmp_path / "a.bin") == BODY
    assert files(tmp_path) == {"a.bin": len(BODY)}
    assert len(origin.asked) == 2
    assert (origin.asked[1]["Range"], origin.asked[1]["If-Range"]) == (f"bytes={last.at}-", '"1"')


@pytest.mark.parametrize("loss", ["changed", "shortened", "deleted"])
async def test_a_part_that_differs_from_the_checkpoint_is_downloaded_again(
    tmp_path: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    lost, _ = await _lost(tmp_path, origin, monkeypatch)
    part = tmp_path / "a.bin.part"
    if loss == "deleted":
        part.unlink()
    else:
        part.write_bytes(b"x" + content(part)[1:] if loss == "changed" else content(part)[:1000])
    events = await _restarted(tmp_path, origin, lost)
    assert expect(events).completes(size=len(BODY), sha256=SHA256).of(Resumed) == []
    assert "Range" not in origin.asked[1]
    assert content(tmp_path / "a.bin") == BODY


async def test_a_file_that_was_complete_when_the_process_was_lost_is_not_requested_again(
    tmp_path: Path, origin: Origin
) -> None:
    async with local(Download(tmp_path)) as plexus:
        run = plexus.hub.call("download.fetch", {"url": origin.url}).run
        await follow(run)
    assert isinstance(run, LocalRun)
    (tmp_path / "a.bin.part").hardlink_to(tmp_path / "a.bin")
    events = await _restarted(tmp_path, origin, run)
    expect(events).types("restarted", "complete").completes(size=len(BODY), sha256=SHA256)
    assert files(tmp_path) == {"a.bin": len(BODY)}
    assert len(origin.asked) == 1


async def test_another_file_in_its_place_is_not_replaced_after_a_restart(
    tmp_path: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, last = await _lost(tmp_path, origin, monkeypatch)
    (tmp_path / "a.bin").write_bytes(bytes(last.at))
    expect(await _restarted(tmp_path, origin, lost)).fails("invalid_params", saying="exists")


# --- bounds --------------------------------------------------------------------------------------


async def test_a_file_that_is_too_large_is_refused_before_it_is_fetched(
    tmp_path: Path, origin: Origin
) -> None:
    async with local(Download(tmp_path)) as plexus:
        with pytest.raises(TooBig):
            await plexus.call("download.fetch", url=origin.url, max_bytes=len(BODY) - 1)
        assert files(tmp_path) == {}
        await plexus.call("download.fetch", url=origin.url, max_bytes=len(BODY))


async def test_a_file_that_turns_out_too_large_is_aborted(tmp_path: Path, origin: Origin) -> None:
    origin.sized = False
    async with local(Download(tmp_path)) as plexus:
        with pytest.raises(TooBig):
            await plexus.call("download.fetch", url=origin.url, max_bytes=200_000)
    assert files(tmp_path)["a.bin.part"] <= 200_000


async def test_a_slow_download_times_out(tmp_path: Path, origin: Origin) -> None:
    origin.hangs = threading.Event()
    async with local(Download(tmp_path)) as plexus:
        with pytest.raises(DeadlineExceeded):
            await plexus.call("download.fetch", url=origin.url, seconds=0.3)


async def test_a_silent_server_times_out(
    tmp_path: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "TIMEOUT_S", 0.2)
    origin.hangs = threading.Event()
    async with local(Download(tmp_path)) as plexus:
        expect(await plexus.events("download.fetch", url=origin.url)).fails("broken_off")


async def test_a_file_with_a_wrong_checksum_is_deleted(tmp_path: Path, origin: Origin) -> None:
    async with local(Download(tmp_path)) as plexus:
        events = await plexus.events("download.fetch", url=origin.url, sha256="0" * 64)
    expect(events).fails("checksum", saying=SHA256)
    assert files(tmp_path) == {}


# --- rejected inputs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://127.0.0.1/a", "/etc/passwd", "http://", "http://[::1", "data:,a"],
)
async def test_only_http_is_fetched(tmp_path: Path, url: str) -> None:
    async with local(Download(tmp_path)) as plexus:
        with pytest.raises(InvalidParams):
            await plexus.call("download.fetch", url=url, name="a")
    assert files(tmp_path) == {}


@pytest.mark.parametrize("name", ["../a", "a/b", ".bashrc", "", "a\n", "x" * 201, None])
async def test_a_file_is_written_only_to_the_folder(
    tmp_path: Path, origin: Origin, name: str | None
) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    url = origin.url if name else origin.url.replace("a.bin", "%2E%2E")
    async with local(Download(inner)) as plexus:
        with pytest.raises(InvalidParams):
            await plexus.call("download.fetch", url=url, name=name)
    assert set(files(tmp_path)) == {"inner"}
    assert files(inner) == {}


async def test_an_existing_file_is_not_replaced(tmp_path: Path, origin: Origin) -> None:
    async with local(Download(tmp_path)) as plexus:
        await plexus.call("download.fetch", url=origin.url)
        with pytest.raises(InvalidParams, match="already exists"):
            await plexus.call("download.fetch", url=origin.url)
    assert len(origin.asked) == 1


async def test_redirects_are_followed_within_limits(tmp_path: Path, origin: Origin) -> None:
    async with local(Download(tmp_path)) as plexus:
        with Origin() as proxy:
            thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                proxy.moved_to = origin.url
                await plexus.call("download.fetch", url=proxy.url, name="redirected")
                proxy.moved_to = proxy.url
                with pytest.raises(Failed, match="more than 5 redirects"):
                    await plexus.call("download.fetch", url=proxy.url)
                proxy.moved_to = "file:///etc/passwd"
                with pytest.raises(InvalidParams):
                    await plexus.call("download.fetch", url=proxy.url)
            finally:
                proxy.shutdown()
                thread.join()
    assert files(tmp_path) == {"redirected": len(BODY)}


async def test_only_allowed_hosts_are_requested(tmp_path: Path, origin: Origin) -> None:
    async with local(Download(tmp_path, hosts={"example.org"})) as plexus:
        with pytest.raises(Denied):
            await plexus.call("download.fetch", url=origin.url)
    assert origin.asked == []


async def test_the_status_of_the_server_is_reported(tmp_path: Path, origin: Origin) -> None:
    origin.status = 404
    async with local(Download(tmp_path)) as plexus:
        with pytest.raises(Failed, match="404 Not Found"):
            await plexus.call("download.fetch", url=origin.url)


async def test_an_unreachable_server_is_reported(tmp_path: Path) -> None:
    with Origin() as gone:
        url = gone.url
    async with local(Download(tmp_path)) as plexus:
        expect(await plexus.events("download.fetch", url=url)).fails("unreachable")
