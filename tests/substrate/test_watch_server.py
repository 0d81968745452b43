"""`--watch`: the server that a stdio process starts, so that its runs can be watched."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from child_processes import clean_environment
from project_processes import (
    WAIT_S,
    Host,
    ask,
    eventually,
    hosted,
    make_project,
    skip_announcement,
)
from project_servers import kill_servers

from native_rpc.client import connect
from substrate.build_hub import NO_FILES
from substrate.project_server import ensure_server
from substrate.security.lockfile import RunningServer, find_by_project, lock_folder
from substrate.settings import Settings

pytestmark = pytest.mark.timeout(120)

SCRIPT = """
import asyncio
from plexus import Activation

count = Activation("count")

@count.method
async def wait() -> None:
    await asyncio.sleep(3600)

if __name__ == "__main__":
    count.serve()
"""


#: The program, which checks at every run whether the server has stopped.
IMPATIENT = """
from substrate import stdio
from substrate.cli.main import main

stdio.WATCH_CHECK_S = 0.0
main()
"""


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    skip_announcement()
    yield
    kill_servers()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


@contextmanager
def server_of(project: Path) -> Iterator[RunningServer]:
    """Wait for the server that a process started, and stop it at the end of the block."""
    running = eventually(lambda: find_by_project(project), "the server")
    try:
        yield running
    finally:
        os.kill(running.pid, signal.SIGTERM)
        eventually(lambda: find_by_project(project) is None, "the server has ended")


def namespaces(server: RunningServer) -> set[str]:
    found = ask(server.port, "plexus.schema")["activations"]
    return {each["namespace"] for each in found}


def methods_in(server: RunningServer, state: str) -> list[str]:
    """Return the methods of the runs in this state."""
    runs: list[dict[str, Any]] = ask(server.port, "plexus.runs", state=state)
    return [each["method"] for each in runs if not each["method"].startswith("plexus.")]


# --- starting -------------------------------------------------------------------------------------


def test_watch_starts_one_server_for_all_processes_of_a_project(project: Path) -> None:
    with (
        hosted(project, "--watch", "--mcp") as one,
        hosted(project, "--watch") as other,
        server_of(project) as running,
    ):
        assert os.getsid(running.pid) != os.getsid(one.process.pid)
        for host in (one, other):
            line = host.error_line()
            assert f"http://127.0.0.1:{running.port}/" in line
            assert running.token not in line
        one.use("bash.execute", command="sleep 60")
        other.call("asks.confirm")
        expected = {"bash.execute", "asks.confirm"}
        eventually(
            lambda: expected <= {run["method"] for run in ask(running.port, "plexus.runs")},
            "the runs of both",
        )
        assert len(list(lock_folder().iterdir())) == 1
        for host in (one, other):
            host.process.kill()
            host.process.wait(WAIT_S)
        assert find_by_project(project) == running  # it outlives those that started it


def test_the_server_of_a_script_is_the_script(tmp_path: Path) -> None:
    script = tmp_path / "tools.py"
    script.write_text(SCRIPT)
    with hosted(tmp_path, "--watch", program=[str(script)]) as host, server_of(tmp_path) as server:
        assert namespaces(server) == {"count", "health", "plexus"}
        host.call("count.wait")
        eventually(lambda: methods_in(server, "running") == ["count.wait"], "the run")


@pytest.mark.parametrize(
    ("flags", "offered"),
    [
        (
            ("--without", "bash,arbor,chat", "--without", "claudecode"),
            {"analysis", "approvals", "asks", "ide", "tasks", "templates"},
        ),
        (("--only", "asks"), {"asks"}),
    ],
)
def test_the_server_offers_no_more_than_the_process_that_started_it(
    project: Path, flags: tuple[str, ...], offered: set[str]
) -> None:
    with hosted(project, "--watch", *flags), server_of(project) as server:
        assert namespaces(server) - {"health", "plexus"} == offered


def test_a_later_run_starts_the_server_again_without_a_second_announcement(project: Path) -> None:
    with hosted(project, "--watch", program=["-c", IMPATIENT]) as host:
        first = eventually(lambda: find_by_project(project), "the server")
        assert f"http://127.0.0.1:{first.port}/" in host.error_line()
        assert f"--port {first.port}" in host.error_line()
        kill_servers()
        host.call("asks.confirm")
        with server_of(project) as second:
            assert second.pid != first.pid
            eventually(lambda: "asks.confirm" in methods_in(second, "asking"), "the run")
        assert host.close_input() == 0
        assert host.process.stderr is not None
        assert host.process.stderr.read() == b""


def test_watch_without_stdio_is_a_usage_error(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "substrate", "--watch"],
        cwd=project,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 2
    assert "--watch requires --stdio" in done.stderr


# The server outlives this process on purpose. It is stopped below.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_the_server_imports_no_module_of_the_project(project: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (project / "uvicorn.py").write_text(f"open({str(canary)!r}, 'w').close()\n")

    async def start() -> None:
        async with asyncio.timeout(40):
            await ensure_server(Settings(), NO_FILES, project)

    asyncio.run(start())
    assert not canary.exists()
    server = find_by_project(project)
    assert server is not None
    os.kill(server.pid, signal.SIGTERM)
    os.waitpid(server.pid, 0)


# --- stopping when idle ---------------------------------------------------------------------------


@contextmanager
def idle_server(project: Path) -> Iterator[tuple[subprocess.Popen[bytes], RunningServer]]:
    """Run a server that stops after a second without use."""
    process = subprocess.Popen(
        [sys.executable, "-m", "substrate", "--port", "0", "--idle-exit", "1"],
        cwd=project,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process, eventually(lambda: find_by_project(project), "the server")
    finally:
        process.kill()
        process.wait(WAIT_S)


def stays(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Return whether a process is still running after this time."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def test_an_unused_server_stops(project: Path) -> None:
    with idle_server(project) as (process, running):

        async def stay() -> None:
            async with connect(f"ws://127.0.0.1:{running.port}", token=running.token) as client:
                await client.call("plexus.hash")
                assert await asyncio.to_thread(stays, process, 3.0)

        asyncio.run(stay())
        assert process.wait(WAIT_S) == 0
        assert find_by_project(project) is None


def begin(host: Host) -> None:
    """Start a run that asks, and wait until it does."""
    host.call("asks.confirm")
    host.read_until("Really?")


def test_a_server_does_not_stop_while_another_process_of_the_project_has_a_run(
    project: Path, tmp_path: Path
) -> None:
    other = make_project(tmp_path / "other")
    with hosted(project) as host, hosted(other) as stranger:
        begin(host)
        begin(stranger)  # runs of other projects do not count
        with idle_server(project) as (process, _):
            assert stays(process, 4.0)
            host.kill()
            assert process.wait(WAIT_S) == 0
