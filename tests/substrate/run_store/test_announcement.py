"""The announcement of recording: once, at the first start that records, on every transport."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from child_processes import clean_environment

from plexus.private_files import data_folder, state_folder
from substrate.build_hub import RECORDING_MARKER, notify_of_recording
from substrate.run_store.announcement import announce_recording, recording_notice
from substrate.settings import Settings

WAIT_S = 30.0


@pytest.fixture(autouse=True)
def _first_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def test_recording_is_announced_once(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        notify_of_recording(Settings())
        announce_recording(Settings())
    [line] = capsys.readouterr().err.splitlines()
    assert line == recording_notice(Settings())
    for words in ("recorded", f"{data_folder()}/runs.db", "7 days", "substrate runs"):
        assert words in line
    assert "SUBSTRATE_RECORD=off" in line
    assert 'record = "off"' in line


def test_only_the_user_can_use_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    announce_recording(Settings())
    assert capsys.readouterr().err
    assert stat.S_IMODE(state_folder().stat().st_mode) == 0o700
    assert stat.S_IMODE((state_folder() / RECORDING_MARKER).stat().st_mode) == 0o600


def test_nothing_is_announced_while_recording_is_off(capsys: pytest.CaptureFixture[str]) -> None:
    off = Settings(record="off")
    notify_of_recording(off)
    announce_recording(off)
    assert capsys.readouterr().err == ""
    assert not state_folder().exists()
    notify_of_recording(Settings(record="metadata"))
    assert "without their arguments and output" in capsys.readouterr().err


def test_the_password_of_a_database_is_not_announced() -> None:
    notice = recording_notice(Settings(database="postgresql://me:hunter2@db/x"))
    assert "in the PostgreSQL database" in notice
    assert "hunter2" not in notice


def test_of_several_starts_one_announces(capsys: pytest.CaptureFixture[str]) -> None:
    together = threading.Barrier(8)

    def start() -> None:
        together.wait(WAIT_S)
        announce_recording(Settings())

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_state_folder_that_cannot_be_written_does_not_silence_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").write_text("a file, so that no folder can be created here")
    for _ in range(2):
        notify_of_recording(Settings())
    assert len(capsys.readouterr().err.splitlines()) == 2


def start(*flags: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "substrate", *flags],
        env=clean_environment(**variables),
        input=b"",
        capture_output=True,
        timeout=WAIT_S,
        check=True,
    )


@pytest.mark.parametrize("flags", [("--stdio",), ("--stdio", "--mcp"), ("--port", "0")])
def test_the_first_start_announces_recording_after_its_address(flags: tuple[str, ...]) -> None:
    first, second = (start(*flags, SUBSTRATE_IDLE_EXIT_S="0.1") for _ in range(2))
    lines = first.stderr.decode().splitlines()
    assert [line for line in lines if line.startswith("Runs are recorded")] == lines[-1:]
    assert first.stdout == second.stdout == b""
    assert b"recorded" not in second.stderr
    if "--port" in flags:
        assert " on http" in lines[0]


def test_a_start_without_recording_announces_nothing() -> None:
    assert start("--stdio", SUBSTRATE_RECORD="off").stderr == b""
    assert not (state_folder() / RECORDING_MARKER).exists()


def test_the_announcement_is_a_record_if_the_log_is_json() -> None:
    [line] = start("--stdio", "--log-format", "json").stderr.splitlines()
    assert json.loads(line)["code"] == "recording"


def test_a_start_without_stderr_succeeds(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    for stderr in (writer, subprocess.DEVNULL):
        (state_folder() / RECORDING_MARKER).unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "substrate", "--stdio"],
            cwd=tmp_path,
            env=clean_environment(),
            input=b'{"jsonrpc":"2.0","id":1,"method":"plexus.hash"}\n',
            stdout=subprocess.PIPE,
            stderr=stderr,
            timeout=WAIT_S,
            check=True,
        )
        assert b'"id":1' in done.stdout
    os.close(writer)
