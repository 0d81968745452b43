"""The end of a call: exit codes, Ctrl-C, and a reader that disconnects."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from child_processes import is_alive
from command_line import (
    WAIT_S,
    Process,
    add_plugin,
    eventually,
    lines,
    run,
    server,
    started,
    terminal,
    without_colours,
)

#: Prints its pid and waits to be stopped.
WAITS = "echo pid $$; exec sleep 1000"

STUBBORN = '''
    import asyncio
    from collections.abc import AsyncIterator
    from plexus import Activation, Content, method

    class Stubborn(Activation):
        """Does not stop."""
        namespace = "stubborn"
        version = "1.0.0"

        @method
        async def wait(self) -> AsyncIterator[Content]:
            """Ignore being cancelled."""
            yield Content(text="waiting")
            while True:
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    yield Content(text="ignored")
'''


@pytest.fixture(params=["here", "server"])
def flags(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """Yield flags for a call in its own process, or on a server."""
    add_plugin(tmp_path, "stubborn", STUBBORN)
    if request.param == "here":
        yield ["--port", "0"]
    else:
        with server(tmp_path) as port:
            yield ["--port", port]


@contextmanager
def waiting(flags: list[str], cwd: Path) -> Iterator[tuple[Process, int]]:
    """Start a call whose command waits. Yields the call and the pid of the command."""
    with started(*flags, "call", "--json", "bash.execute", WAITS, cwd=cwd) as process:
        pid = int(process.out.wait_for(r"pid (\d+)\\n")[1])
        assert is_alive(pid)
        yield process, pid


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["bash.execute", "true"], 0),
        (["bash.execute", "exit 3"], 1),
        (["bash.execute", "sleep 9", "--timeout-s", "0.1"], 1),
        (["bash.execute", "true", "--timeout-s", "0"], 2),
        (["plexus.cancel", "--run", "1"], 1),
        (["plexus.attach", "--run", "1"], 1),
        (["bash.exec"], 2),
        (["bash.execute"], 2),
    ],
)
def test_the_exit_code_reports_the_outcome(
    arguments: list[str], code: int, flags: list[str], tmp_path: Path
) -> None:
    assert run(*flags, "call", "--json", *arguments, cwd=tmp_path).returncode == code


def test_ctrl_c_stops_the_run_where_it_runs(flags: list[str], tmp_path: Path) -> None:
    with waiting(flags, tmp_path) as (process, pid):
        process.signal(signal.SIGINT)
        assert process.end() == 130
        # The process exits after the terminal, and the terminal follows the end of the command.
        assert not is_alive(pid)
        last = lines(process.out.rest())[-1]
        assert last == {"type": "cancelled", "reason": "interrupted by its caller"}


def test_sigterm_stops_the_run_too(flags: list[str], tmp_path: Path) -> None:
    with waiting(flags, tmp_path) as (process, pid):
        process.signal(signal.SIGTERM)
        assert process.end() == 143
        assert not is_alive(pid)


def test_a_second_ctrl_c_does_not_wait(flags: list[str], tmp_path: Path) -> None:
    with started(*flags, "call", "--json", "stubborn.wait", cwd=tmp_path) as process:
        process.out.wait_for("waiting")
        process.signal(signal.SIGINT)
        process.err.wait_for("Press Ctrl-C again to end immediately")
        process.signal(signal.SIGINT)
        assert process.end() == 130
        assert "cancelled" not in process.out.rest()


def test_a_run_that_ignores_ctrl_c_is_abandoned(flags: list[str], tmp_path: Path) -> None:
    with started(*flags, "call", "--json", "stubborn.wait", cwd=tmp_path) as process:
        process.out.wait_for("waiting")
        process.signal(signal.SIGINT)
        assert process.end() == 130
        assert "abandoned" in lines(process.out.rest())[-1]["reason"]


def test_ctrl_c_on_a_terminal_leaves_a_clean_screen(flags: list[str], tmp_path: Path) -> None:
    with terminal(*flags, "call", "bash.execute", "echo on; sleep 1000", cwd=tmp_path) as screen:
        screen.screen.wait_for("on\r\n")
        screen.type("\x03")
        code, text = screen.end()
    assert code == 130
    seen = without_colours(text)
    assert seen.startswith("on\n^C\n")
    assert seen.endswith("\nCancelled: interrupted by its caller\n")


def test_ctrl_c_before_the_server_responds_exits_the_same_way(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"ws://127.0.0.1:{silent.getsockname()[1]}"
        with started("call", "--json", "--url", address, "plexus.hash", cwd=tmp_path) as process:
            silent.settimeout(WAIT_S)
            peer, _ = silent.accept()
            with peer:
                peer.recv(1)
                process.signal(signal.SIGINT)
                assert process.end() == 130
        assert "Traceback" not in process.err.text


def test_a_run_cancelled_by_another_client_has_failed(tmp_path: Path) -> None:
    with server(tmp_path) as port, waiting(["--port", port], tmp_path) as (process, _):
        listed = run(
            "--port", port, "call", "--json", "plexus.runs", "--state", "running", cwd=tmp_path
        )
        runs = lines(listed.stdout)[-1]["result"]
        number = next(entry["run"] for entry in runs if entry["method"] == "bash.execute")
        cancel = ["call", "--json", "plexus.cancel", str(number), "enough"]
        assert run("--port", port, *cancel, cwd=tmp_path).returncode == 0
        assert process.end() == 1
        assert lines(process.out.rest())[-1] == {"type": "cancelled", "reason": "enough"}


def test_following_a_run_shows_it_and_ctrl_c_detaches(tmp_path: Path) -> None:
    with server(tmp_path) as port, waiting(["--port", port], tmp_path) as (process, pid):
        listed = run(
            "--port", port, "call", "--json", "plexus.runs", "--state", "running", cwd=tmp_path
        )
        runs = lines(listed.stdout)[-1]["result"]
        number = next(entry["run"] for entry in runs if entry["method"] == "bash.execute")
        attach = ["--port", port, "call", "--json", "plexus.attach", str(number)]
        with started(*attach, cwd=tmp_path) as follower:
            follower.out.wait_for(f"pid {pid}")
            follower.signal(signal.SIGINT)
            assert follower.end() == 130
        assert is_alive(pid)
        process.signal(signal.SIGINT)
        assert process.end() == 130


def test_a_reader_that_goes_away_stops_the_run(flags: list[str], tmp_path: Path) -> None:
    script = "echo pid $$; while echo more; do sleep 0.01; done"
    with started(*flags, "call", "--json", "bash.execute", script, cwd=tmp_path) as process:
        pid = int(process.out.wait_for(r"pid (\d+)\\n")[1])
        process.close_stdout()
        assert process.end() != 0
        eventually(lambda: not is_alive(pid), "the command is gone")
        assert "Traceback" not in process.err.rest()


def test_a_defect_of_a_method_is_an_error_with_its_traceback_on_stderr(tmp_path: Path) -> None:
    source = '''
        from plexus import Activation, method

        class Bad(Activation):
            """Has a defect."""
            namespace = "bad"
            version = "1.0.0"

            @method
            async def divide(self) -> float:
                """Divide by nothing."""
                return 1 / 0
        '''
    add_plugin(tmp_path, "bad", source)
    called = run("call", "--json", "bad.divide", cwd=tmp_path)
    assert called.returncode == 1
    assert json.loads(called.stdout)["code"] == "internal"
    assert "ZeroDivisionError: division by zero (bad.py:" in json.loads(called.stdout)["message"]
    assert "ZeroDivisionError: division by zero" in called.stderr
