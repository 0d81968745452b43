"""Runs of a stdio process, watched and controlled at the server of its project."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, TypeVar

import pytest
from child_processes import clean_environment
from project_folders import trust_always

from native_rpc.client import connect
from plexus.errors import Failed
from plexus.private_files import make_folders, state_folder
from substrate.build_hub import NO_FILES, RECORDING_MARKER
from substrate.project_server import ensure_server
from substrate.security.lockfile import RunningServer, find_by_project, find_running, lock_folder
from substrate.settings import Settings

WAIT_S = 30.0
COUNT = "for i in $(seq 50); do echo $i; sleep 0.01; done"
T = TypeVar("T")

PLUGIN = '''
import asyncio
from collections.abc import AsyncIterator
from plexus import Activation, AskText, Confirm, Content, Context, method


class Asks(Activation):
    """Asks questions."""

    namespace = "asks"
    version = "1.0.0"

    @method
    async def confirm(self, *, ctx: Context) -> bool:
        """Ask for a confirmation."""
        return await ctx.ask(Confirm("Really?"))

    @method
    async def name(self, *, ctx: Context) -> str:
        """Ask for a name."""
        return await ctx.ask(AskText("Your name?"))

    @method
    async def steps(self, number: int, every_s: float = 0.0) -> AsyncIterator[Content]:
        """Count."""
        for each in range(number):
            yield Content(f"{each}\\n")
            await asyncio.sleep(every_s)

    @method
    async def large(self, size: int) -> AsyncIterator[Content]:
        """Yield a large event."""
        yield Content("x" * size)
        yield Content("y" * size)
        await asyncio.sleep(3600)
'''


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    make_folders(state_folder())
    (state_folder() / RECORDING_MARKER).touch()  # a later start, which announces nothing


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


def make_project(folder: Path) -> Path:
    (folder / "activations.d").mkdir(parents=True)
    (folder / "activations.d" / "asks.py").write_text(PLUGIN)
    return trust_always(folder)


def eventually(found: Callable[[], T | None], what: str, within_s: float = WAIT_S) -> T:
    """Wait until a function returns a true value, and return it."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        value = found()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not in {within_s:g} s: {what}")


# --- a server ------------------------------------------------------------------------------------


class Server:
    """`substrate` in a project."""

    def __init__(self, project: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "substrate", "--port", "0"],
            cwd=project,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert self.process.stderr is not None
        found = re.search(rb"http://127\.0\.0\.1:(\d+)", self.process.stderr.readline())
        assert found is not None
        self.port = int(found[1])

    def ask(self, method: str, **params: Any) -> Any:
        return ask(self.port, method, **params)

    def runs(self, method: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the runs of a method in other processes."""
        return [
            run
            for run in self.ask("plexus.runs")
            if run["method"] == method
            and "process" in run
            and all(run.get(name) == value for name, value in fields.items())
        ]

    def run(self, method: str, **fields: Any) -> dict[str, Any]:
        """Wait for the only run of a method, and return it."""
        found = eventually(lambda: self.runs(method, **fields), f"{method} {fields}")
        assert len(found) == 1
        return found[0]

    def items(self, run: int, after: int = 0) -> list[dict[str, Any]]:
        """Return all items of a run up to its terminal, whatever that is."""

        async def followed() -> list[dict[str, Any]]:
            running = find_running(self.port)
            assert running is not None
            items: list[dict[str, Any]] = []
            async with (
                asyncio.timeout(WAIT_S),
                connect(f"ws://127.0.0.1:{self.port}", token=running.token) as client,
                client.attach(run, after) as call,
            ):
                with suppress(Failed):
                    async for item in call:
                        items.append({"seq": item.seq, **item})  # noqa: PERF401
                last = call.terminal
            assert last is not None
            if not items or items[-1]["seq"] != last.seq:  # the error was raised
                items.append({"seq": last.seq, **last})
            return items

        return asyncio.run(followed())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        assert self.process.stderr is not None
        self.process.stderr.close()


def ask(port: int, method: str, **params: Any) -> Any:
    async def answer() -> Any:
        running = find_running(port)
        assert running is not None
        async with connect(f"ws://127.0.0.1:{port}", token=running.token) as client:
            async with asyncio.timeout(WAIT_S):
                return await client.call(method, params)

    return asyncio.run(answer())


@contextmanager
def serving(project: Path) -> Iterator[Server]:
    server = Server(project)
    try:
        yield server
    finally:
        server.kill()


# --- a process on stdio --------------------------------------------------------------------------


class Host:
    """`substrate --stdio`, with or without `--mcp`, as a host starts it."""

    def __init__(
        self, project: Path, *flags: str, program: Sequence[str] = ("-m", "substrate")
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *program, "--stdio", *flags],
            cwd=project,
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._called = 0
        if "--mcp" in flags:
            client = {"name": "test", "version": "1"}
            hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
            self.send("initialize", hello)
            self.answer()
            self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def send(self, method: str, params: dict[str, Any]) -> None:
        self._called += 1
        self.write({"jsonrpc": "2.0", "id": self._called, "method": method, "params": params})

    def use(self, tool: str, **arguments: Any) -> None:
        self.send("tools/call", {"name": tool, "arguments": arguments})

    def answer(self) -> dict[str, Any]:
        """Return the next answer; other messages are skipped."""
        assert self.process.stdout is not None
        while True:
            line = self.process.stdout.readline()
            assert line, "it has ended"
            message: dict[str, Any] = json.loads(line)
            if "id" in message and "method" not in message:
                return message

    def read_until(self, text: str) -> None:
        """Read lines up to one that contains this text."""
        assert self.process.stdout is not None
        until = time.monotonic() + WAIT_S
        while text.encode() not in self.process.stdout.readline():
            assert time.monotonic() < until, text

    def error_line(self) -> str:
        """Return the next line of stderr."""
        assert self.process.stderr is not None
        return self.process.stderr.readline().decode()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@contextmanager
def hosted(
    project: Path, *flags: str, program: Sequence[str] = ("-m", "substrate")
) -> Iterator[Host]:
    host = Host(project, *flags, program=program)
    try:
        yield host
    finally:
        host.kill()


# --- watching ------------------------------------------------------------------------------------


def test_a_run_of_another_process_is_listed_and_followed_from_its_first_item(project: Path) -> None:
    with serving(project) as server, hosted(project, "--mcp") as host:
        host.use("bash.execute", command=f"{COUNT}; sleep 1")
        run = server.run("bash.execute", state="running")
        assert run["process"] == {
            "pid": host.process.pid,
            "project": str(project),
            "connected": True,
        }
        items = server.items(run["run"])
        assert [item["seq"] for item in items] == list(range(1, len(items) + 1))
        assert items[0]["type"] == "start"
        output = "".join(item["data"] for item in items if item["type"] == "stdout")
        assert output == "".join(f"{number}\n" for number in range(1, 51))
        assert (items[-1]["type"], items[-1]["exit_code"]) == ("complete", 0)
        assert "50" in host.answer()["result"]["content"][0]["text"]
        ended = server.run("bash.execute", state="complete")
        assert ended["last_seq"] == len(items)
        assert ended["duration_ms"] > 1000


def test_a_run_is_there_within_a_second(project: Path) -> None:
    with serving(project) as server, hosted(project, "--mcp") as host:
        host.use("asks.steps", number=1)
        server.run("asks.steps")  # everything is imported and connected after this
        host.use("bash.execute", command="sleep 60")
        eventually(lambda: server.runs("bash.execute"), "the run", within_s=1.0)


def test_a_run_continues_when_the_server_that_shows_it_replaces_its_token(project: Path) -> None:
    with serving(project) as server, hosted(project, "--mcp") as host:
        host.use("bash.execute", command="echo one; sleep 60")
        run = server.run("bash.execute", state="running")["run"]
        old = find_running(server.port)
        assert old is not None
        rotated = HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
        headers = {"Authorization": f"Bearer {old.token}", "Content-Type": "application/json"}
        rotated.request("POST", "/token/rotate", b"{}", headers)
        assert rotated.getresponse().status == 200
        rotated.close()

        def connected(expected: bool) -> Callable[[], bool]:
            return lambda: server.run("bash.execute")["process"]["connected"] is expected

        # The connection with the old token is closed. The process reconnects with the new one.
        eventually(connected(False), "it is cut off")
        eventually(connected(True), "it reconnects")
        assert server.run("bash.execute")["state"] == "running"
        assert server.ask("plexus.cancel", run=run) is True
        assert server.items(run)[-1]["type"] == "cancelled"


def test_a_late_follower_starts_with_the_retained_items(project: Path) -> None:
    with hosted(project) as host:
        host.send("asks.steps", {"number": 20_000, "every_s": 0})
        host.send("asks.steps", {"number": 600, "every_s": 0.01})
        host.read_until('"complete"')
        with serving(project) as server:
            running = server.run("asks.steps", state="running")
            items = server.items(running["run"], after=5)
            assert [item["seq"] for item in items] == list(range(6, 602))
            [ended] = [run for run in server.runs("asks.steps") if run["run"] != running["run"]]
            gap, *rest = server.items(ended["run"])
            assert gap["type"] == "gap"
            assert (gap["from"], gap["seq"]) == (1, gap["to"])
            assert [item["seq"] for item in rest] == list(range(gap["to"] + 1, 20_002))


def test_an_item_that_is_too_large_for_a_message_arrives_whole(project: Path) -> None:
    with serving(project) as server, hosted(project) as host:
        host.send("asks.large", {"size": 900_000})
        run = server.run("asks.large", last_seq=2)["run"]
        server.ask("plexus.cancel", run=run)
        items = server.items(run)
        assert [item["type"] for item in items] == ["content", "content", "cancelled"]
        assert items[0]["text"] == "x" * 900_000
        assert items[1]["text"] == "y" * 900_000


def test_items_can_be_read_after_their_process_has_ended(project: Path) -> None:
    with serving(project) as server:
        with hosted(project, "--mcp") as host:
            host.use("bash.execute", command="echo one; sleep 0.5; echo two")
            run = server.run("bash.execute")["run"]
            host.answer()
            assert host.process.stdin is not None
            host.process.stdin.close()
            assert host.process.wait(WAIT_S) == 0
        items = server.items(run)
        assert "".join(item.get("data", "") for item in items) == "one\ntwo\n"
        assert items[-1]["type"] == "complete"
        transcript = server.ask("plexus.transcript", run=run)
        assert "one\ntwo\n" in transcript


# --- steering ------------------------------------------------------------------------------------


def test_a_run_is_stopped_from_the_server_with_all_its_processes(project: Path) -> None:
    with serving(project) as server, hosted(project, "--mcp") as host:
        host.use("bash.execute", command="sleep 3600 & echo $! > child; wait")
        run = server.run("bash.execute")["run"]
        file = project / "child"
        child = eventually(lambda: file.exists() and int(file.read_text() or 0), "the child")
        assert server.ask("plexus.cancel", run=run, reason="enough") is True
        assert server.items(run)[-1]["type"] == "cancelled"
        assert "enough" in json.dumps(host.answer())
        eventually(lambda: not Path(f"/proc/{child}").exists(), "its process is gone")
        assert server.ask("plexus.cancel", run=run) is False


def test_a_question_is_answered_from_the_server(project: Path) -> None:
    with serving(project) as server, hosted(project) as host:
        host.send("asks.name", {})
        run = server.run("asks.name", state="asking")["run"]
        [pending] = eventually(
            lambda: server.ask("approvals.pending")["approvals"], "an open question"
        )
        assert (pending["run"], pending["message"]) == (run, "Your name?")
        with pytest.raises(Exception, match="must be text"):
            server.ask("plexus.respond", run=run, request=pending["request"], answer=5)
        with pytest.raises(Exception, match="no open question"):
            server.ask("plexus.respond", run=run, request="77", answer="x")
        assert server.ask("plexus.respond", run=run, request=pending["request"], answer="Ada")
        assert server.items(run)[-1] == {"seq": 2, "type": "complete", "result": "Ada"}
        assert server.ask("approvals.pending")["approvals"] == []


def test_an_approval_and_a_permission_can_be_granted_from_the_server(project: Path) -> None:
    with serving(project) as server, hosted(project, "--mcp") as host:
        for tool, arguments, outcome in (
            ("approvals.permit", {"tool_name": "Write", "input": {"a": 1}}, '"allow"'),
            ("asks.confirm", {}, "true"),
        ):
            host.use(tool, **arguments)
            run = server.run(tool)["run"]
            [pending] = eventually(
                lambda: server.ask("approvals.pending")["approvals"], f"{tool} asks"
            )
            assert pending["run"] == run
            server.ask("approvals.respond", approval_id=pending["approval_id"], approve=True)
            assert outcome in json.dumps(server.items(run)[-1]).replace("\\", "")
            if tool == "approvals.permit":
                assert outcome in json.dumps(host.answer()).replace("\\", "")
        assert server.ask("approvals.pending")["approvals"] == []
        assert not server.runs("approvals.respond")  # forwarded calls are not published


# --- what goes wrong -----------------------------------------------------------------------------


def test_a_run_outlives_the_server_and_is_published_to_the_next_one(project: Path) -> None:
    with hosted(project) as host:
        with serving(project) as server:
            host.send("asks.steps", {"number": 400, "every_s": 0.02})
            run = server.run("asks.steps")["run"]
        with serving(project) as server:  # after the first was killed
            assert server.run("asks.steps")["run"] == run
            items = server.items(run)
            assert [item["seq"] for item in items] == list(range(1, 402))
            assert items[-1]["type"] == "complete"


def test_the_runs_of_a_process_that_was_killed_end_with_an_error(project: Path) -> None:
    with serving(project) as server:
        with hosted(project, "--mcp") as host:
            host.use("bash.execute", command="echo one; sleep 3600")
            run = server.run("bash.execute")["run"]
            eventually(lambda: "one" in server.ask("plexus.transcript", run=run), "its output")
            host.process.send_signal(signal.SIGKILL)
        eventually(lambda: server.runs("bash.execute", state="error"), "its end", within_s=5.0)
        *_, item, last = server.items(run)
        assert item["data"] == "one\n"
        assert (last["type"], last["code"]) == ("error", "gone")
        assert last["message"] == "its process has disconnected"
        with pytest.raises(Exception, match="has ended"):
            server.ask("plexus.respond", run=run, request="1", answer=True)


def test_a_server_that_does_not_read_does_not_block_a_run(project: Path) -> None:
    with serving(project) as server, hosted(project) as host:
        host.send("asks.steps", {"number": 1})
        server.run("asks.steps")
        server.process.send_signal(signal.SIGSTOP)
        try:
            host.send("bash.execute", {"command": "seq 1000000"})
            host.read_until('"exit_code":0')
        finally:
            server.process.send_signal(signal.SIGCONT)
        ended = server.run("bash.execute", state="complete")
        assert server.items(ended["run"])[-1]["exit_code"] == 0


def test_runs_are_not_published_to_the_server_of_another_project(
    project: Path, tmp_path: Path
) -> None:
    other = make_project(tmp_path / "other")
    with serving(other) as stranger, hosted(project) as host:
        host.send("asks.steps", {"number": 100, "every_s": 0.02})
        host.read_until('"complete"')
        assert stranger.runs("asks.steps") == []
        with serving(project) as server:
            host.send("asks.confirm", {})
            server.run("asks.confirm")
        assert stranger.runs("asks.confirm") == []


def test_only_the_servers_own_token_can_publish_runs(project: Path) -> None:
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect as open_socket

    with serving(project) as server:
        made = subprocess.run(
            [sys.executable, "-m", "substrate", "token", "create", "guest", "--scope", "read"],
            cwd=project,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=True,
        )
        header = {"Authorization": f"Bearer {made.stdout.split()[0]}"}
        with (
            open_socket(
                f"ws://127.0.0.1:{server.port}/publish", additional_headers=header, proxy=None
            ) as socket,
            pytest.raises(ConnectionClosed) as closed,
        ):
            socket.recv(WAIT_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


@pytest.mark.parametrize("frame", [b"", b"[]", b'{"kind":"hello"}', b"\xff\n"])
def test_an_invalid_frame_ends_the_channel_and_nothing_else(project: Path, frame: bytes) -> None:
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect as open_socket

    with serving(project) as server:
        running = find_running(server.port)
        assert running is not None
        header = {"Authorization": f"Bearer {running.token}"}
        address = f"ws://127.0.0.1:{server.port}/publish"
        with open_socket(address, additional_headers=header, proxy=None) as socket:
            socket.send(frame)
            with pytest.raises(ConnectionClosed):
                socket.recv(WAIT_S)
        assert server.ask("plexus.runs") is not None


def test_without_a_server_nothing_is_imported_for_it(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "substrate", "--stdio", "--eof-grace", "5"],
        cwd=project,
        env=clean_environment(),
        input=b'{"jsonrpc":"2.0","id":1,"method":"asks.steps","params":[3,0.5]}\n',
        capture_output=True,
        timeout=WAIT_S,
        check=True,
    )
    assert b'"complete"' in done.stdout
    imported = set(re.findall(rb"^import time:[^|]*\|[^|]*\|\s*(\S+)$", done.stderr, re.MULTILINE))
    assert b"substrate.publishing.lookout" in imported
    unwanted = {b"websockets", b"substrate.publishing.channel", b"substrate.security.lockfile"}
    assert imported & unwanted == set()


# --- a server beside -----------------------------------------------------------------------------


def test_watch_starts_one_server_for_all_processes_of_a_project(project: Path) -> None:
    pid = 0
    try:
        with hosted(project, "--watch", "--mcp") as one, hosted(project, "--watch") as other:
            running = eventually(lambda: find_by_project(project), "the server")
            pid = running.pid
            assert os.getsid(pid) != os.getsid(one.process.pid)
            for host in (one, other):
                line = host.error_line()
                assert f"http://127.0.0.1:{running.port}/" in line
                assert running.token not in line
            one.use("bash.execute", command="sleep 60")
            other.send("asks.confirm", {})
            expected = {"bash.execute", "asks.confirm"}
            eventually(
                lambda: expected <= {run["method"] for run in ask(running.port, "plexus.runs")},
                "the runs of both",
            )
            assert len(list(lock_folder().iterdir())) == 1
        assert find_by_project(project) == running  # it outlives the processes that started it
    finally:
        if pid:
            os.kill(pid, signal.SIGTERM)
            eventually(lambda: find_by_project(project) is None, "the server has ended")


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


def test_the_server_beside_a_script_is_the_script(tmp_path: Path) -> None:
    script = tmp_path / "tools.py"
    script.write_text(SCRIPT)
    with hosted(tmp_path, "--watch", program=[str(script)]) as host, server_of(tmp_path) as server:
        assert namespaces(server) == {"count", "health", "plexus"}
        host.send("count.wait", {})
        eventually(
            lambda: [each["method"] for each in waiting(server)] == ["count.wait"], "the run"
        )


def waiting(server: RunningServer) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = ask(server.port, "plexus.runs", state="running")
    return [each for each in runs if not each["method"].startswith("plexus.")]


@pytest.mark.parametrize(
    ("flags", "offered"),
    [
        (("--without", "bash,arbor,chat", "--without", "claudecode"), {"approvals", "asks"}),
        (("--only", "asks"), {"asks"}),
    ],
)
def test_the_server_beside_offers_no_more_than_the_process_that_started_it(
    project: Path, flags: tuple[str, ...], offered: set[str]
) -> None:
    with hosted(project, "--watch", *flags), server_of(project) as server:
        assert namespaces(server) - {"health", "plexus"} == offered


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


def test_an_unused_server_stops_automatically(project: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "substrate", "--port", "0", "--idle-exit", "1"],
        cwd=project,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        running = eventually(lambda: find_by_project(project), "the server")

        async def stay() -> None:
            async with connect(f"ws://127.0.0.1:{running.port}", token=running.token) as client:
                await client.call("plexus.hash")
                await asyncio.sleep(3.0)
                assert process.poll() is None

        asyncio.run(stay())
        assert process.wait(WAIT_S) == 0
        assert find_by_project(project) is None
    finally:
        process.kill()
        process.wait(WAIT_S)


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
def test_a_server_beside_imports_no_module_of_the_project(project: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (project / "uvicorn.py").write_text(f"open({str(canary)!r}, 'w').close()\n")

    async def start() -> None:
        async with asyncio.timeout(40):
            await ensure_server(Settings(), NO_FILES, project, lambda: None)

    asyncio.run(start())
    assert not canary.exists()
    server = find_by_project(project)
    assert server is not None
    os.kill(server.pid, signal.SIGTERM)
    os.waitpid(server.pid, 0)
