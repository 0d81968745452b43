"""The lock file: permissions, lifetime, and cleanup of stale files."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from network import Server, bearer, lock_file, serving

from plexus.version import __version__
from substrate.security import private_files
from substrate.security.lockfile import LockFile, find_by_project, find_running
from substrate.security.tokens import TokenFile

WAIT_S = 20.0


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of lock files for this test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "substrate" / "servers"


def entry(**fields: Any) -> dict[str, Any]:
    """Return the content of a lock file of this process."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return {"port": 1, "authToken": "t", "pid": os.getpid(), "startTime": started} | fields


def put(folder: Path, port: int, content: dict[str, Any] | str) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / f"{port}.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- a server ------------------------------------------------------------------------------------


def test_a_server_publishes_its_address_only_to_its_user(state: Path) -> None:
    os.umask(before := os.umask(0))
    with serving(auth="token") as server:
        file = state / f"{server.port}.json"
        assert mode(state) == 0o700
        assert mode(file) == 0o600
        assert server.lock == {
            "port": server.port,
            "authToken": server.token,
            "projectPath": str(Path(__file__).parents[2]),
            "pid": server.process.pid,
            "startTime": server.lock["startTime"],
            "version": __version__,
            "transports": ["http", "websocket"],
        }
        assert len(server.token) >= 43
        assert [path.name for path in state.iterdir()] == [file.name]
    assert os.umask(before) == before


def test_the_files_modes_do_not_depend_on_the_umask(state: Path) -> None:
    before = os.umask(0)
    try:
        LockFile(1, Path("/project")).write("secret")
    finally:
        os.umask(before)
    assert mode(state) == 0o700
    assert mode(state / "1.json") == 0o600


def test_files_of_a_server_are_usable_under_a_umask_that_forbids_everything(
    tmp_path: Path,
) -> None:
    names = ("XDG_STATE_HOME", "XDG_DATA_HOME")
    settings = {name: str(tmp_path / name / "missing") for name in names}
    before = os.umask(0o777)
    try:
        server = Server(auth="token", settings=settings)
        os.umask(before)
        lock = tmp_path / "XDG_STATE_HOME/missing/substrate/servers" / f"{server.port}.json"
        token = json.loads(lock.read_text())["authToken"]
        with server.call("arbor.tree_create", {}, **bearer(token)) as response:
            assert b'"complete"' in response.read()
        modes = {path.relative_to(tmp_path): mode(path) for path in tmp_path.rglob("*")}
        server.stop()
    finally:
        os.umask(before)
    assert {path.name for path in modes} >= {lock.name, "arbor.db", "arbor.db-wal"}
    for path, found in modes.items():
        assert found == (0o600 if path.suffix else 0o700), path


def test_a_token_can_be_added_twice_under_a_umask_that_forbids_everything(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        tokens = TokenFile(tmp_path / "missing" / "folder" / "tokens.json")
        tokens.add("a", None)
        tokens.add("b", None)
    finally:
        os.umask(before)
    modes = {path.name: mode(path) for path in tmp_path.rglob("*")}
    assert modes == {
        "missing": 0o700,
        "folder": 0o700,
        "tokens.json": 0o600,
        "tokens.lock": 0o600,
    }


def put_fifo(path: Path) -> None:
    os.mkfifo(path)


def put_huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: it takes no space on the disk


def put_link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def put_loop(path: Path) -> None:
    path.symlink_to(path)


STRANGE = [put_fifo, put_huge, put_link_to_device, put_loop, Path.mkdir]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("strange", STRANGE)
def test_a_non_regular_file_in_the_lock_folder_neither_blocks_nor_hides_a_server(
    state: Path, strange: Callable[[Path], None]
) -> None:
    state.mkdir(mode=0o700, parents=True)
    for name in ("1.json", "\N{SUPERSCRIPT TWO}.json", "x.json"):
        strange(state / name)
    assert find_running(1) is None
    lock = LockFile(2, Path("/project"))
    lock.write("secret")
    found = find_by_project(Path("/project"))
    assert found is not None
    assert (found.port, found.token) == (2, "secret")
    lock.remove()
    assert find_by_project(Path("/project")) is None
    assert os.path.lexists(state / "1.json")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("strange", STRANGE)
def test_a_non_regular_token_file_contains_no_tokens(
    tmp_path: Path, strange: Callable[[Path], None]
) -> None:
    strange(tmp_path / "tokens.json")
    tokens = TokenFile(tmp_path / "tokens.json")
    assert tokens.find(b"x" * 32) is None
    with pytest.raises((OSError, ValueError)):
        tokens.add("a", None)
    os.mkfifo(tmp_path / "other.lock")
    TokenFile(tmp_path / "other.json").add("a", None)


@pytest.mark.timeout(30)
def test_a_lock_that_another_process_never_releases_is_an_error(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_files, "LOCK_S", 0.1)
    state.mkdir(mode=0o700, parents=True)
    held = os.open(state, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="another process has held the lock"):
            LockFile(1, Path("/project")).write("secret")
    finally:
        os.close(held)


def test_a_folder_that_others_could_read_is_restricted(state: Path) -> None:
    state.mkdir(mode=0o755, parents=True)
    LockFile(1, Path("/project")).write("secret")
    assert mode(state) == 0o700


def test_a_folder_that_is_a_link_is_not_written_into(state: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    state.parent.mkdir(parents=True)
    state.symlink_to(elsewhere)
    with pytest.raises(OSError, match="folder that you own"):
        LockFile(1, Path("/project")).write("secret")
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_file_is_removed_when_the_server_exits(state: Path, number: signal.Signals) -> None:
    server = Server(auth="token")
    assert (state / f"{server.port}.json").exists()
    server.process.send_signal(number)
    server.process.wait(WAIT_S)
    server.stop()
    assert list(state.iterdir()) == []


def test_two_servers_have_two_files_and_two_tokens(state: Path) -> None:
    with serving(auth="token") as one, serving(auth="token") as other:
        assert one.token != other.token
        assert {path.stem for path in state.iterdir()} == {str(one.port), str(other.port)}
        for server, token, expected in (
            (one, one.token, 200),
            (one, other.token, 401),
            (other, one.token, 401),
            (other, other.token, 200),
        ):
            with server.call("health.check", **bearer(token)) as response:
                assert response.status == expected
    assert list(state.iterdir()) == []


def test_a_server_without_authentication_has_no_file(state: Path) -> None:
    with serving():
        assert not state.exists()


def test_the_file_of_a_killed_server_is_ignored_and_removed(state: Path) -> None:
    server = Server(auth="token")
    file = state / f"{server.port}.json"
    server.process.kill()
    server.process.wait(WAIT_S)
    server.stop()
    assert file.exists()
    assert find_running(server.port) is None
    assert not file.exists()


def test_a_new_server_removes_stale_files_and_keeps_the_rest(state: Path) -> None:
    gone = put(state, 1, entry(pid=2**22 + 1))
    there = put(state, 2, entry())
    with serving(auth="token"):
        assert not gone.exists()
        assert there.exists()


def test_a_server_that_cannot_write_the_file_reports_it_and_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    done = subprocess.run(
        [sys.executable, "-m", "substrate", "--port", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 1
    assert "XDG_STATE_HOME" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_token_is_shown_to_a_person_and_not_to_a_log(state: Path) -> None:
    ours, theirs = os.openpty()
    with serving(auth="token") as server:
        port = server.port
    process = subprocess.Popen(
        [sys.executable, "-m", "substrate", "--port", str(port)], stderr=theirs, cwd="/"
    )
    os.close(theirs)
    try:
        output = b""
        end = time.monotonic() + WAIT_S
        while b"#token=" not in output or not output.endswith(b"\n"):
            assert time.monotonic() < end
            output += os.read(ours, 65536)
        token = json.loads((state / f"{port}.json").read_text())["authToken"]
        assert output.decode().count(f"http://127.0.0.1:{port}/#token={token}") == 1
    finally:
        process.kill()
        process.wait(WAIT_S)
        os.close(ours)
    logged = Server(auth="token")
    token = logged.token
    logged.process.terminate()
    assert logged.process.stderr is not None
    assert token not in logged.process.stderr.read().decode()
    logged.stop()


# --- reading -------------------------------------------------------------------------------------


def test_the_file_of_a_running_server_is_found(state: Path) -> None:
    put(state, 1, entry(authToken="secret"))
    running = find_running(1)
    assert running is not None
    assert (running.port, running.token, running.pid) == (1, "secret", os.getpid())
    assert find_running(2) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"pid": 2**22 + 1},
        {"pid": 1, "startTime": 123456789},
        {"startTime": 1},
        {"startTime": None},
    ],
)
def test_the_file_of_another_process_is_removed(state: Path, fields: dict[str, Any]) -> None:
    file = put(state, 1, entry(**fields))
    assert find_running(1) is None
    assert not file.exists()


def test_the_file_of_a_zombie_process_is_removed(state: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    end = time.monotonic() + WAIT_S
    while " Z " not in (status := Path(f"/proc/{child.pid}/stat").read_text()):
        assert time.monotonic() < end
        time.sleep(0.01)
    started = int(status.rpartition(")")[2].split()[19])
    file = put(state, 1, entry(pid=child.pid, startTime=started))
    assert find_running(1) is None
    assert not file.exists()
    child.wait(WAIT_S)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"authToken":5,"pid":1,"startTime":1}', '{"pid":-1}']
)
def test_an_invalid_lock_file_is_not_a_server(state: Path, text: str) -> None:
    put(state, 1, text)
    assert find_running(1) is None


def test_a_server_does_not_remove_the_file_of_another(state: Path) -> None:
    lock = LockFile(1, Path("/project"))
    lock.write("secret")
    other = put(state, 1, entry(pid=1))
    lock.remove()
    assert other.exists()


def test_a_reader_finds_either_the_old_or_the_new_content(state: Path) -> None:
    lock = LockFile(1, Path("/project"))
    lock.write("0" * 1000)
    writer = subprocess.Popen([sys.executable, "-c", WRITER], cwd=Path(__file__).parents[2])
    seen = set()
    try:
        while writer.poll() is None:
            running = json.loads((state / "1.json").read_text())
            seen.add(running["authToken"][0])
            assert running["authToken"] == running["authToken"][0] * 1000
    finally:
        writer.kill()
        writer.wait(WAIT_S)
    assert writer.returncode == 0
    assert len(seen) > 1
    assert [path.name for path in state.iterdir()] == ["1.json"]


WRITER = """
from pathlib import Path
from substrate.security.lockfile import LockFile
for number in range(300):
    LockFile(1, Path("/project")).write(str(number % 10) * 1000)
"""


def test_lock_files_are_in_the_users_state_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = tmp_path / ".local" / "state" / "substrate" / "servers" / "7.json"
    assert LockFile(7, Path("/project")).path == expected
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "x"))
    assert LockFile(7, Path("/project")).path == lock_file(7)
