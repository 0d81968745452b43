"""`substrate --stdio` as a process: pipes, end of input, signals, bad input, stalled readers."""

from __future__ import annotations

import asyncio
import os
import select
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from stdio_process import MIB, WAIT_S, Server, events, line, serving
from transcripts import MCP_TRANSCRIPTS, TRANSCRIPTS, replay

pytestmark = pytest.mark.timeout(60)

#: A request that is refused immediately.
BAD = b'{"jsonrpc":"2.0","id":%d,"method":1}\n'


# --- transcripts ---------------------------------------------------------------------------------


class Pipes:
    """An exchange over the pipes of a process."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def send(self, message: str) -> None:
        self._server.write(message.encode() + b"\n")

    async def receive(self) -> Any:
        return self._server.read()


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_the_command_follows_the_transcript(name: str) -> None:
    with serving() as server:
        asyncio.run(replay(TRANSCRIPTS[name], Pipes(server)))


@pytest.mark.parametrize("name", MCP_TRANSCRIPTS)
def test_the_mcp_command_follows_the_transcript(name: str) -> None:
    with serving("--mcp") as server:
        asyncio.run(replay(MCP_TRANSCRIPTS[name], Pipes(server)))


# --- piping --------------------------------------------------------------------------------------


def test_a_request_piped_in_is_answered_and_the_command_ends_well() -> None:
    with serving() as server:
        server.write(line(1, "demo.echo", ["a"]))
        server.close_input()
        reply, item = server.rest()
        assert item["params"]["subscription"] == reply["result"]
        assert item["params"]["result"] == {"type": "complete", "result": "a"}
        assert server.ends_within(WAIT_S) == 0
        assert server.stderr() == ""


def test_the_last_line_needs_no_newline() -> None:
    with serving() as server:
        server.write(line(1, "demo.echo", ["a"]).rstrip())
        server.close_input()
        assert len(server.rest()) == 2


def test_no_input_at_all_is_no_error() -> None:
    with serving(stdin=subprocess.DEVNULL) as server:
        assert server.rest() == []
        assert server.ends_within(WAIT_S) == 0
    with serving() as server:
        server.close_input()
        assert server.rest() == []
        assert server.ends_within(WAIT_S) == 0


def test_a_file_as_input_is_read_like_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "requests"
    path.write_bytes(b"".join(line(n, "demo.echo", [str(n)]) for n in range(500)))
    with path.open("rb") as file, serving(stdin=file) as server:
        messages = server.rest()
        results = {m["params"]["result"]["result"] for m in messages if "params" in m}
        refused = [m for m in messages if "error" in m]
        assert len(results) + len(refused) == 500
        assert len(results) >= 128
        assert server.ends_within(WAIT_S) == 0


def test_a_file_with_more_requests_than_replies_can_wait_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "requests"
    count = 200_000
    path.write_bytes(b"".join(BAD % n for n in range(count)))
    with path.open("rb") as file, serving(stdin=file) as server:
        # The replies are a few MiB, and are not read for a while.
        with suppress(subprocess.TimeoutExpired):
            server.ends_within(0.3)
        assert [message["id"] for message in server.rest(30)] == list(range(count))
        assert server.ends_within(WAIT_S) == 0


def test_more_requests_than_replies_can_wait_are_all_answered_over_a_pipe() -> None:
    count = 60_000
    requests = b"".join(BAD % n for n in range(count))
    with serving() as server:
        assert server.process.stdin is not None
        os.set_blocking(server.process.stdin.fileno(), False)
        answered = 0
        while answered < count:
            _, writable, _ = select.select([], [server.process.stdin], [], 0)
            if requests and writable:
                written = os.write(server.process.stdin.fileno(), requests[:MIB])
                requests = requests[written:]
                if written:
                    continue
            assert server.read()["id"] == answered
            answered += 1


def test_what_a_plugin_prints_goes_to_stderr() -> None:
    with serving() as server:
        run = server.start("demo.shout", {"text": "hello from a plugin"})
        server.terminal(run)
        run = server.start("bash.execute", {"command": "cat; echo from a child >&2"})
        assert server.terminal(run)["exit_code"] == 0  # it could not read our input
        server.close_input()
        assert server.rest() == []
        assert server.ends_within(WAIT_S) == 0
        assert server.stderr().count("hello from a plugin") == 2


def test_a_broken_plugin_is_reported_and_the_others_serve() -> None:
    with serving("--activation", "no_such_module:Nothing") as server:
        assert server.terminal(server.start("demo.echo", ["a"]))["result"] == "a"
        server.close_input()
        server.rest()
        assert server.ends_within(WAIT_S) == 0
        assert "no_such_module" in server.stderr()


# --- the end of the input ------------------------------------------------------------------------


def test_a_short_run_finishes_after_the_input_ended() -> None:
    with serving() as server:
        run = server.start("demo.wait", {"seconds": 0.3})
        server.close_input()
        items = events(server.rest(), run)
        assert [event.get("text") for event in items] == ["waiting", "waited", None]
        assert items[-1] == {"type": "complete"}
        assert server.ends_within(WAIT_S) == 0


def test_a_long_run_is_cancelled_after_the_grace_and_its_terminal_is_written() -> None:
    with serving("--eof-grace", "0.3") as server:
        run = server.start("demo.wait")
        server.close_input()
        [*_, last] = events(server.rest(), run)
        assert last["type"] == "cancelled"
        assert "input ended" in last["reason"]
        assert server.ends_within(WAIT_S) == 0


def test_a_signal_during_the_grace_ends_it() -> None:
    with serving("--eof-grace", "30") as server:
        run = server.start("demo.wait")
        assert server.item(run)["type"] == "content"
        server.close_input()
        with pytest.raises(subprocess.TimeoutExpired):
            server.ends_within(0.3)  # by now it has seen the end of input and waits for the run
        server.signal(signal.SIGTERM)
        assert events(server.rest(), run)[-1]["type"] == "cancelled"
        server.ends_within(WAIT_S)


def test_a_client_that_follows_a_finished_run_does_not_delay_the_exit() -> None:
    with serving() as server:
        run = server.start("demo.echo", ["a"])
        server.terminal(run)
        server.start("plexus.attach", {"run": run, "after": 1})
        server.close_input()
        server.ends_within(WAIT_S)


# --- signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_with_every_terminal_written(number: signal.Signals) -> None:
    with serving() as server:
        runs = [server.start("demo.wait") for _ in range(3)]
        server.signal(number)
        messages = server.rest()
        for run in runs:
            assert events(messages, run)[-1]["type"] == "cancelled"
        server.ends_within(WAIT_S)


def test_two_signals_end_a_server_that_runs_commands_quickly_and_leave_no_process() -> None:
    script = "sleep 1000 & echo $!; setsid sleep 1000 & echo $!; echo $$; wait"
    with serving() as server:
        run = server.start("bash.execute", {"command": script})
        output = ""
        while len(output.split()) < 3:
            output += server.item(run).get("data", "")
        watched = [os.pidfd_open(int(word)) for word in output.split()]
        # Like a host that stops its servers: the input stays open.
        server.signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            server.ends_within(0.1)
        with suppress(ProcessLookupError):
            server.signal(signal.SIGTERM)
        [last] = events(server.rest(), run)[-1:]
        assert last["type"] == "cancelled"
        server.ends_within(WAIT_S)
        for fd in watched:
            assert select.select([fd], [], [], WAIT_S)[0], "a child was left behind"
            os.close(fd)


def test_a_run_that_refuses_to_stop_does_not_delay_the_exit() -> None:
    with serving(SUBSTRATE_LIMITS__CANCEL_S="0.3") as server:
        server.terminal(server.start("demo.echo", ["a"]))
        with pytest.raises(subprocess.TimeoutExpired):
            server.ends_within(0.6)  # idle time without deadlines
        run = server.start("demo.refuse_to_stop")
        assert server.item(run)["type"] == "content"
        server.signal(signal.SIGTERM)
        assert events(server.rest(), run)[-1]["type"] == "cancelled"
        server.ends_within(WAIT_S)


def test_a_signal_stops_a_server_whose_output_is_not_read() -> None:
    with serving(SUBSTRATE_LIMITS__WRITE_S="1") as server:
        server.start("demo.flood", {"size": 10_000})
        with pytest.raises(subprocess.TimeoutExpired):
            server.ends_within(0.3)  # by now the pipe is full
        server.signal(signal.SIGTERM)
        server.ends_within(10)


# --- bad input -----------------------------------------------------------------------------------


def test_after_three_hundred_garbage_lines_a_good_one_is_answered() -> None:
    garbage = [b"nonsense", b"{", b"\xff\xfe", b"\x00" * 10, b"[1,2", b'{"jsonrpc":"2.0"}']
    with serving() as server:
        server.write(b"".join(garbage[n % 6] + b"\n" for n in range(300)))
        answers = [server.read() for _ in range(300)]
        assert all(answer["error"]["code"] in (-32700, -32600) for answer in answers)
        assert server.terminal(server.start("demo.echo", ["a"]))["result"] == "a"


def test_a_line_of_two_mib_is_refused_and_the_next_one_is_answered() -> None:
    with serving() as server:
        server.write(line(1, "demo.echo", ["x" * 2 * MIB]))
        answer = server.read()
        assert (answer["id"], answer["error"]["code"]) == (None, -32600)
        assert answer["error"]["data"] == {"limit": MIB}
        assert server.terminal(server.start("demo.echo", ["a"]))["result"] == "a"


def test_input_byte_by_byte_is_processed_alike() -> None:
    with serving() as server:
        for byte in line(7, "demo.echo", ["a\u00e9\u2028"]):
            server.write(bytes([byte]))
        assert server.read()["id"] == 7
        assert server.read()["params"]["result"]["result"] == "a\u00e9\u2028"


# --- readers that stop ---------------------------------------------------------------------------


def test_a_reader_that_stops_reading_blocks_the_run_and_memory_stays_bounded() -> None:
    with serving() as server:
        server.terminal(server.start("demo.echo", ["warm"]))
        before = server.memory_kib()
        run = server.start("demo.flood")
        # The output is not read: the server must become idle without buffering much.
        rested = 0
        peak = before
        used = cpu_ticks(server.process.pid)
        while rested < 5:
            with suppress(subprocess.TimeoutExpired):
                server.ends_within(0.1)
            peak = max(peak, server.memory_kib())
            now = cpu_ticks(server.process.pid)
            rested = rested + 1 if now == used else 0
            used = now
        assert peak - before < 16 * 1024
        # When the reader resumes, the server answers other requests again.
        number = server.request("demo.echo", ["still here"])
        server.read_until(lambda message: message.get("id") == number)
        server.request("plexus.unsubscribe", [run])
        assert server.terminal(server.start("demo.echo", ["b"]))["result"] == "b"


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_closed_output_stops_the_server() -> None:
    with serving() as server:
        server.start("demo.flood")
        assert server.process.stdout is not None
        server.process.stdout.close()
        server.ends_within(WAIT_S)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_descriptors_that_a_parent_has_closed_are_no_reason_to_fail(closed: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m substrate --stdio {closed}"
    line = b'{"jsonrpc":"2.0","id":1,"method":"plexus.runs"}\n'
    done = subprocess.run(["/bin/sh", "-c", command], input=line, timeout=WAIT_S, check=False)
    assert done.returncode == 0
