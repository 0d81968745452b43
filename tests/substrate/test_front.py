"""Runs of a process on stdio that execute in the server of its project."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from child_processes import clean_environment, is_alive
from project_servers import eventually, kill_servers, servers
from stdio_process import DEMO, ROOT, Server, ends, line, serving
from transcripts import MCP_TRANSCRIPTS, TRANSCRIPTS, replay

from plexus.private_files import state_folder
from substrate.front.address import connect, server_key, socket_folder
from substrate.front.hello import VIEW_SETTINGS, Hello, apply_view_settings, view_settings
from substrate.front.listener import HELLO_S
from substrate.security.lockfile import RunningServer
from substrate.settings import ProjectFiles, Settings

pytestmark = pytest.mark.timeout(120)

WAIT_S = 30.0
INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}
#: Runs until the file `gate` exists, then writes the file `over`.
UNTIL_GATE = "echo begun; while [ ! -e {0}/gate ]; do sleep 0.02; done; echo over > {0}/over"
PLUGIN = '''
import asyncio
from collections.abc import AsyncIterator
from plexus import Activation, Content, method
from plexus.caller_environment import caller_directory, caller_variables


class Own(Activation):
    """Decides what happens to its runs."""

    namespace = "own"
    version = "1.0.0"

    @method(on_disconnect="keep")
    async def kept(self) -> AsyncIterator[Content]:
        """Wait."""
        yield Content("begun")
        await asyncio.sleep(3600)

    @method(on_disconnect="cancel")
    async def cancelled(self) -> AsyncIterator[Content]:
        """Wait."""
        yield Content("begun")
        await asyncio.sleep(3600)

    @method
    async def who(self) -> str:
        """Return the caller."""
        return caller_variables().get("WHO", "") + " in " + str(caller_directory())
'''


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a test its own state folder, and stop all servers that were started with it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield tmp_path / "state"
    kill_servers()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "own.py").write_text(PLUGIN)
    return folder


def the_server() -> RunningServer:
    [server] = servers()
    return server


def ask(server: RunningServer, method: str, **params: Any) -> Any:
    """Call a method of a server over HTTP, and return its value."""
    http = HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    try:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {
            "Authorization": f"Bearer {server.token}",
            "Content-Type": "application/json",
        }
        http.request("POST", "/rpc", json.dumps(body), headers)
        answer = json.loads(http.getresponse().read())
    finally:
        http.close()
    return answer["result"]["terminal"]["result"]


def run_of(method: str) -> dict[str, Any]:
    """Return the only run of a method, as the server lists it."""
    listed = ask(the_server(), "plexus.runs", system=True)
    [run] = [run for run in listed if run["method"] == method]
    found: dict[str, Any] = run
    return found


@contextmanager
def front(folder: Path, *options: str, **variables: str) -> Iterator[Server]:
    """Start a front in a folder."""
    with serving("--background", *options, stdin=subprocess.PIPE, folder=folder, **variables) as it:
        yield it


def plugin(project: Path) -> tuple[str, str]:
    return "--activation", str(project.parent / "own.py")


# --- as if in the same process -------------------------------------------------------------------


class Pipes:
    """An exchange over the pipes of a process."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def send(self, message: str) -> None:
        self._server.write(message.encode() + b"\n")

    async def receive(self) -> Any:
        return self._server.read()


def test_a_front_follows_every_transcript_of_the_native_protocol_and_of_mcp() -> None:
    for options, transcripts in (((), TRANSCRIPTS), (("--mcp",), MCP_TRANSCRIPTS)):
        for name in transcripts:
            with front(ROOT, *options) as process:
                asyncio.run(replay(transcripts[name], Pipes(process)))
    assert len(servers()) == 1


def test_a_stream_a_cancellation_and_a_question_work_through_a_front(project: Path) -> None:
    with front(project) as process:
        count = process.start("demo.count", {"to": 3000})
        texts = []
        while not ends(event := process.item(count)):
            if event["type"] == "content":
                texts.append(event["text"])
        assert len(texts) == 3000
        waiting = process.start("demo.wait")
        process.item(waiting)
        process.request("plexus.cancel", {"run": waiting})
        assert process.terminal(waiting)["type"] == "cancelled"
        asking = process.start("demo.delete")
        for _ in range(2):
            while (event := process.item(asking))["type"] != "request":
                pass
            answer = True if event["kind"] == "confirm" else "here"
            process.request(
                "plexus.respond", {"run": asking, "request": event["request"], "answer": answer}
            )
        assert process.terminal(asking)["type"] == "complete"


def test_an_mcp_client_calls_a_tool_through_a_front(project: Path) -> None:
    with front(project, "--mcp", "--mcp-tools", "demo.echo") as process:
        process.request("initialize", INITIALIZE)
        assert process.read()["result"]["serverInfo"]["name"] == "substrate"
        process.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        process.request("tools/list")
        [tool] = process.read()["result"]["tools"]
        assert tool["name"] == "demo.echo"
        process.request("tools/call", {"name": "demo.echo", "arguments": {"text": "tea"}})
        assert process.read()["result"]["content"][0]["text"] == "tea"
    with front(project, "--mcp", "--mcp-tool-names", "underscore") as process:
        process.request("initialize", INITIALIZE)
        process.read()
        process.request("tools/list")
        names = [tool["name"] for tool in process.read()["result"]["tools"]]
        assert "bash_execute" in names
    assert len(servers()) == 1, "what only concerns a view does not need another server"


def test_piped_input_is_answered_and_the_front_ends_well(project: Path, tmp_path: Path) -> None:
    with front(project) as process:
        process.write(line(1, "demo.echo", ["a"]))
        process.close_input()
        _, item = process.rest()
        assert item["params"]["result"] == {"type": "complete", "result": "a"}
        assert process.ends_within(WAIT_S) == 0
        assert process.stderr() == ""
    requests = tmp_path / "requests"
    requests.write_bytes(line(1, "demo.echo", ["b"]))
    with (
        requests.open("rb") as file,
        serving("--background", stdin=file, folder=project) as process,
    ):
        assert process.rest()[-1]["params"]["result"]["result"] == "b"
        assert process.ends_within(WAIT_S) == 0


def test_a_front_imports_nothing_that_builds_a_hub(project: Path) -> None:
    with front(project) as process:
        process.start("demo.echo", ["a"])  # the server runs
        words = ["-X", "importtime", "-m", "substrate", *DEMO, "--stdio", "--background"]
        done = subprocess.run(
            [sys.executable, *words],
            cwd=project,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=True,
        )
    imported = {text.rpartition("|")[2].strip() for text in done.stderr.splitlines()}
    assert "substrate.front.address" in imported
    assert imported & {"substrate.stdio", "substrate.build_hub", "native_rpc", "mcp_view"} == set()


# --- servers -------------------------------------------------------------------------------------


def test_fronts_that_start_together_share_one_server(project: Path) -> None:
    with front(project) as one, front(project) as two, front(project, "--mcp") as three:
        for process in (one, two, three):
            process.write(line(7, "demo.echo", ["a"]))
        for process in (one, two, three):
            process.read_until(lambda message: message.get("id") == 7)
        assert len(servers()) == 1


@pytest.mark.parametrize(
    "restriction",
    [
        ("--without", "chat"),
        ("--only", "bash,demo"),
        ("--bash-sandbox", "workspace"),
        ("--database", "trees.db"),
        ("--trust",),
    ],
)
def test_a_front_with_other_restrictions_gets_another_server(
    project: Path, restriction: tuple[str, ...]
) -> None:
    with front(project) as free, front(project, *restriction) as restricted:
        free.start("demo.echo", ["a"])
        restricted.start("demo.echo", ["a"])
        assert len(servers()) == 2


def test_every_difference_that_matters_changes_the_name_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tools.py"
    file.write_text("one")
    plain = Settings(activation=(str(file),))

    def key(settings: Settings = plain, files: ProjectFiles | None = None, at: str = "/p") -> str:
        return server_key(settings, files or ProjectFiles(), Path(at))

    keys = [key(), key(at="/q"), key(Settings())]
    keys += [key(Settings(log_arguments=True)), key(Settings(chat_claude_unconfined=True))]
    keys += [key(files=ProjectFiles(sources={"a.py": text})) for text in (b"1", b"2")]
    file.write_text("another version")
    keys.append(key())
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    keys.append(key())
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    keys.append(key())
    assert len(set(keys)) == len(keys)
    assert all("a-key" not in each for each in keys)
    other_view = Settings(port=1, mcp_tools=("all",), log_level="debug", activation=(str(file),))
    assert key(other_view) == key()


def test_a_server_that_was_killed_is_replaced_and_its_front_ends_with_a_message(
    project: Path,
) -> None:
    with front(project) as process:
        process.start("demo.wait")
        os.kill(the_server().pid, signal.SIGKILL)
        assert process.ends_within(WAIT_S) == 1
        process.rest()
        assert "has died" in process.stderr()
    with front(project) as process:
        process.start("demo.echo", ["a"])


def test_a_server_that_stops_writes_the_terminals_and_ends_its_fronts(project: Path) -> None:
    with front(project) as process:
        subscription = process.start("demo.wait")
        server = the_server()
        os.kill(server.pid, signal.SIGTERM)
        eventually(lambda: not is_listening(project), "the server has stopped accepting")
        os.kill(server.pid, signal.SIGTERM)
        assert process.terminal(subscription)["type"] == "cancelled"
        assert process.ends_within(10) == 1
        assert "has stopped" in process.stderr()


def test_a_server_that_is_stopped_by_the_system_does_not_block_its_next_front(
    project: Path,
) -> None:
    with front(project) as process:
        process.start("demo.echo", ["a"])
        server = the_server()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with front(project) as other:
                other.start("demo.echo", ["b"])
                other.close_input()
                assert other.ends_within(WAIT_S) == 0
                assert "does not respond" in other.stderr()
        finally:
            os.kill(server.pid, signal.SIGCONT)


def test_without_a_usable_server_the_front_reports_it_and_executes_runs_itself(
    project: Path, state: Path
) -> None:
    (state / "substrate").mkdir(parents=True, mode=0o700)
    (state / "substrate" / "fronts").write_text("not a folder")
    with front(project) as process:
        process.start("demo.echo", ["a"])
        process.close_input()
        assert process.ends_within(WAIT_S) == 0
        assert "runs end with this process" in process.stderr()
    assert servers() == []


def test_a_long_path_of_the_state_folder_is_no_obstacle(project: Path, tmp_path: Path) -> None:
    deep = tmp_path / ("long" * 40)
    os.environ["XDG_STATE_HOME"] = str(deep)
    with front(project) as process:
        process.start("demo.echo", ["a"])
        process.close_input()
        process.rest()
        assert process.stderr() == ""
    assert len(servers()) == 1


def test_the_socket_is_private(project: Path) -> None:
    with front(project) as process:
        process.start("demo.echo", ["a"])
        folder = socket_folder()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_server_exits_only_after_the_last_kept_run(project: Path, tmp_path: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "substrate", "--port", "0", "--idle-exit", "0.5"],
        cwd=project,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(servers, "the server")
        hosting = [sys.executable, "-m", "substrate", "--stdio", "--background"]
        with subprocess.Popen(
            hosting,
            cwd=project,
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as host:
            assert host.stdin is not None
            assert host.stdout is not None
            command = UNTIL_GATE.format(tmp_path)
            host.stdin.write(line(1, "bash.execute", {"command": command}))
            host.stdin.flush()
            while b"begun" not in host.stdout.readline():
                pass
            host.kill()
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(3)
        (tmp_path / "gate").touch()
        assert server.wait(WAIT_S) == 0
        assert (tmp_path / "over").exists()
    finally:
        server.kill()
        server.wait(WAIT_S)


# --- disconnects ---------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [(), ("--mcp",)])
def test_a_run_outlives_a_front_that_was_killed(
    project: Path, tmp_path: Path, protocol: tuple[str, ...]
) -> None:
    command = UNTIL_GATE.format(tmp_path)
    with front(project, *protocol) as process:
        if protocol:
            process.request("initialize", INITIALIZE)
            process.read()
            arguments = {"name": "bash.execute", "arguments": {"command": command}}
            process.request("tools/call", arguments)
        else:
            process.start("bash.execute", {"command": command})
        eventually(lambda: run_of("bash.execute")["last_seq"] == 2, "the command writes")
        process.signal(signal.SIGKILL)
        assert process.ends_within(WAIT_S) == -signal.SIGKILL
        process.rest()  # the server closes its side of the pipes
    assert run_of("bash.execute")["state"] == "running"
    with front(project) as process:
        attached = process.start("plexus.attach", {"run": run_of("bash.execute")["run"]})
        assert process.item(attached)["type"] == "start"
        assert process.item(attached)["data"] == "begun\n"
        (tmp_path / "gate").touch()
        assert process.terminal(attached)["exit_code"] == 0
    assert (tmp_path / "over").exists()


def test_a_run_is_cancelled_with_its_front_if_that_is_the_setting(
    project: Path, tmp_path: Path
) -> None:
    with front(project, SUBSTRATE_ON_DISCONNECT="cancel") as process:
        subscription = process.start("bash.execute", {"command": UNTIL_GATE.format(tmp_path)})
        pid = process.item(subscription)["pid"]
        process.item(subscription)
        process.signal(signal.SIGKILL)
        eventually(lambda: not is_alive(pid), "the command is gone")
    eventually(lambda: run_of("bash.execute")["state"] == "cancelled", "the end of the run")


def test_a_method_decides_for_its_own_runs(project: Path) -> None:
    for setting in ("keep", "cancel"):
        with front(project, *plugin(project), SUBSTRATE_ON_DISCONNECT=setting) as process:
            for method in ("own.kept", "own.cancelled"):
                process.item(process.start(method))
            process.signal(signal.SIGKILL)
            process.ends_within(WAIT_S)

    def runs() -> list[tuple[str, str]]:
        listed = ask(the_server(), "plexus.runs")
        return [(run["method"], run["state"]) for run in listed if "own." in run["method"]]

    expected = [("own.cancelled", "cancelled")] * 2 + [("own.kept", "running")] * 2
    eventually(lambda: sorted(runs()) == expected, "the ends of the runs")


def test_a_standing_watch_never_outlives_its_front(project: Path) -> None:
    with front(project) as process:
        process.item(process.start("plexus.watch"))
        process.signal(signal.SIGKILL)
        process.ends_within(WAIT_S)
    eventually(lambda: run_of("plexus.watch")["state"] == "cancelled", "the watch ends")


def test_a_run_continues_after_the_input_of_its_front_has_ended(
    project: Path, tmp_path: Path
) -> None:
    with front(project, "--eof-grace", "0.2") as process:
        process.item(process.start("bash.execute", {"command": UNTIL_GATE.format(tmp_path)}))
        process.close_input()
        assert process.ends_within(WAIT_S) == 0
    assert run_of("bash.execute")["state"] == "running"
    (tmp_path / "gate").touch()
    eventually(lambda: run_of("bash.execute")["state"] == "complete", "the end of the run")


def test_a_kept_run_is_not_slowed_by_the_front_that_left(project: Path) -> None:
    with front(project) as process:
        process.start("demo.flood", {"size": 10_000})
        eventually(lambda: run_of("demo.flood")["last_seq"], "the run begins")
        process.signal(signal.SIGKILL)
        process.ends_within(WAIT_S)
    before = run_of("demo.flood")["last_seq"]
    eventually(lambda: run_of("demo.flood")["last_seq"] > before + 1000, "the run continues")


# --- environments --------------------------------------------------------------------------------


def test_commands_run_in_the_folder_and_with_the_variables_of_their_own_front(
    project: Path,
) -> None:
    echo = {"command": 'echo "$WHO in $PWD"', "timeout_s": 20}
    with front(project, WHO="one") as one, front(project, WHO="two") as two:
        subscriptions = [(one, "one", one.request("bash.execute", echo)) for _ in range(20)]
        subscriptions += [(two, "two", two.request("bash.execute", echo)) for _ in range(20)]
        for process, who in ((one, "one"), (two, "two")):
            seen = ""
            while seen.count("\n") < 20:
                event = process.read().get("params", {}).get("result", {})
                seen += event.get("data", "")
            assert set(seen.splitlines()) == {f"{who} in {project}"}
        assert len(servers()) == 1


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_sandboxed_commands_cannot_read_the_secrets_that_variables_of_their_front_name(
    project: Path,
) -> None:
    # Not in /tmp, which a sandbox hides anyway.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        secret = Path(folder, "kube.yaml")
        secret.write_text("the secret")
        reading = {"command": f"cat {secret}; echo end", "timeout_s": 20}
        options = ("--bash-sandbox", "workspace")
        with front(project, *options) as other:
            # The server has the variables of the front that starts it.
            assert _output(other, reading) == "the secretend\n"
            with front(project, *options, KUBECONFIG=str(secret)) as owner:
                for _ in range(5):
                    outputs = [_output(process, reading) for process in (owner, other)]
                    assert outputs == ["end\n", "the secretend\n"]
        assert len(servers()) == 1


def _output(process: Server, params: dict[str, Any]) -> str:
    """Execute a command through a front, and return what it wrote to its standard output."""
    subscription = process.start("bash.execute", params)
    text = ""
    while not ends(event := process.item(subscription)):
        text += event["data"] if event["type"] == "stdout" else ""
    return text


def test_short_calls_of_two_fronts_are_never_mixed(project: Path) -> None:
    options = plugin(project)
    with front(project, *options, WHO="one") as one, front(project, *options, WHO="two") as two:
        for process in (one, two):
            process.start("own.who")
        for _ in range(20):
            requests = b"".join(line(number, "own.who", {}) for number in range(100))
            one.write(requests)
            two.write(requests)
            for process, who in ((one, "one"), (two, "two")):
                results: list[str] = []
                while len(results) < 100:
                    event = process.read().get("params", {}).get("result", {})
                    results += [event["result"]] if "result" in event else []
                assert set(results) == {f"{who} in {project}"}


def test_values_of_variables_are_in_no_file_of_the_server(project: Path, tmp_path: Path) -> None:
    secret = "value-that-is-never-stored"
    with front(project, "--log-level", "debug", WHO="other") as first:
        first.start("demo.echo", ["a"])  # starts the server, with its own environment
        with front(project, "--log-level", "debug", SECRET=secret) as process:
            process.terminal(process.start("bash.execute", {"command": "true"}))
            for folder in (tmp_path / "state", tmp_path / "data"):
                for file in folder.rglob("*"):
                    if file.is_file():
                        assert secret.encode() not in file.read_bytes(), file


def test_a_hello_is_read_as_it_was_written() -> None:
    settings = Settings(
        mcp_tools=("bash.*", "arbor"), eof_grace_s=0.25, on_disconnect="cancel", mcp_page_size=7
    )
    odd = {"A": "", "B": "=x=\n", "C": os.fsdecode(b"\xff\xfe"), "D": "ö"}
    hello = Hello("mcp", "/a b", view_settings(settings), odd)
    again = Hello.decode(hello.encode()[4:])
    assert again == hello
    assert apply_view_settings(Settings(), again.settings) == settings
    assert "\\udcff" not in repr(hello)


# --- bad peers -----------------------------------------------------------------------------------


def connect_to(project: Path) -> socket.socket | None:
    """Connect to the server of the fronts in a project."""
    demo = Settings(activation=("tests.activations_for_tests:Demo",))
    return connect(server_key(demo, ProjectFiles(), project), WAIT_S)


def is_listening(project: Path) -> bool:
    sock = connect_to(project)
    if sock is not None:
        sock.close()
    return sock is not None


@contextmanager
def peer(project: Path) -> Iterator[socket.socket]:
    sock = connect_to(project)
    assert sock is not None
    with sock:
        yield sock


def all_of(sock: socket.socket) -> bytes:
    data = b""
    with suppress(ConnectionResetError):
        while received := sock.recv(4096):
            data += received
    return data


def hello_of(project: Path, protocol: str = "native", **settings: Any) -> bytes:
    texts = view_settings(Settings(**settings))
    return Hello(protocol, str(project), texts, {"WHO": "peer"}).encode()


def test_a_peer_that_sends_something_else_is_refused_with_the_reason(project: Path) -> None:
    valid = hello_of(project)[4:]
    broken = [
        b"GET / HTTP/1.1\r\n\r\n",
        (2**32 - 1).to_bytes(4, "big"),
        *(
            len(body).to_bytes(4, "big") + body
            for body in (
                b"",
                b"\0" * 100,
                os.urandom(1000),
                valid.replace(b"native", b"nothing"),
                valid.replace(b"front 1", b"front 2"),
                valid.replace(os.fsencode(project), b"relative"),
                valid.replace(b"\0keep\0", b"\0sometimes\0"),
            )
        ),
    ]
    with front(project) as process:
        process.start("demo.echo", ["a"])
        for message in broken:
            with peer(project) as sock:
                sock.sendall(message)
                assert all_of(sock).startswith(b"NO "), message[:40]
        with peer(project) as sock:
            sock.sendall(hello_of(project))
            assert sock.recv(100).startswith(b"OK ")
            sock.sendall(b"+")
            assert all_of(sock).startswith(b"NO ")
        process.start("demo.echo", ["a"])


def test_a_peer_that_sends_nothing_is_disconnected(project: Path) -> None:
    with front(project) as process:
        process.start("demo.echo", ["a"])
        with peer(project) as silent, peer(project) as slow:
            slow.sendall(hello_of(project)[:50])
            for sock in (silent, slow):
                sock.settimeout(HELLO_S + WAIT_S)
            assert all_of(silent) == all_of(slow) == b""
        process.start("demo.echo", ["a"])


def test_a_process_of_another_user_is_refused(project: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as folder, front(project) as process:
        process.start("demo.echo", ["a"])
        # The permissions alone would keep the process out, so they are removed here.
        link = Path(folder) / "link.sock"
        [path] = socket_folder().glob("*.sock")
        os.link(path, link)
        link.chmod(0o666)
        Path(folder).chmod(0o755)
        child = os.fork()
        if child == 0:
            with suppress(OSError):
                os.setuid(65534)
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.settimeout(10)
                    sock.connect(str(link))
                    with suppress(BrokenPipeError):
                        sock.sendall(hello_of(project))
                    os._exit(0 if all_of(sock) == b"" else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def open_files(pid: int) -> list[str]:
    """Return the targets of a process's descriptors; some may close meanwhile."""
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found.append(str(each.readlink()))
    return found


def connections_of(pid: int) -> int:
    """Return the number of sockets and pipes. The run store opens files whenever it needs them."""
    return sum(target.startswith(("socket:", "pipe:")) for target in open_files(pid))


def settled_connections(pid: int) -> int:
    """Return the number of connections when it has not changed for a while."""
    counts = [connections_of(pid)]

    def is_settled() -> bool:
        time.sleep(0.2)
        counts.append(connections_of(pid))
        return len(counts) > 5 and len(set(counts[-5:])) == 1

    eventually(is_settled, "no connection is opened or closed")
    return counts[-1]


def has_store(pid: int) -> bool:
    return any(target.endswith("runs.db") for target in open_files(pid))


def test_a_hundred_fronts_that_come_and_go_leave_nothing_behind(project: Path) -> None:
    with front(project) as process:
        process.start("demo.echo", ["a"])
        server = the_server()
        eventually(lambda: has_store(server.pid), "the run store is open")
        before = settled_connections(server.pid)
        for number in range(100):
            protocol = "mcp" if number % 2 else "native"
            to_server, from_server = os.pipe(), os.pipe()
            with peer(project) as sock:
                sock.sendall(hello_of(project, protocol, mcp_page_size=1 + number % 30))
                assert sock.recv(100).startswith(b"OK ")
                socket.send_fds(sock, [b"+"], [to_server[0], from_server[1]])
                os.close(to_server[0])
                os.close(from_server[1])
                os.write(to_server[1], line(1, "demo.echo", {"text": "a"}))
                assert b'"id":1' in os.read(from_server[0], 4096)
                if number % 3 == 0:  # the input ends first
                    os.close(to_server[1])
                    assert all_of(sock) == b"END 0\n"
            if number % 3:
                os.close(to_server[1])
            while os.read(from_server[0], 4096):  # the server closes its side
                pass
            os.close(from_server[0])
        eventually(lambda: connections_of(server.pid) == before, "all descriptors are closed")
        process.start("demo.echo", ["a"])


# --- command line --------------------------------------------------------------------------------


def command(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "substrate", *words],
        cwd=project,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_background_without_stdio_is_a_usage_error(project: Path) -> None:
    done = command(project, "--background")
    assert done.returncode == 2
    assert "--background requires --stdio" in done.stderr


def test_an_entry_for_a_host_can_have_the_flag(project: Path) -> None:
    shown = command(project, "mcp", "show", "claude-code", "--background").stdout
    [entry] = json.loads(shown)["mcpServers"].values()
    assert entry["args"][-3:] == ["--stdio", "--mcp", "--background"]
    assert "--background" not in command(project, "mcp", "show", "claude-code").stdout


def test_every_setting_of_a_view_is_a_setting() -> None:
    assert set(VIEW_SETTINGS) <= set(Settings.__struct_fields__)


def test_the_log_of_the_server_is_in_the_state_folder(project: Path) -> None:
    with front(project) as process:
        process.start("demo.echo", ["a"])
        [log] = (state_folder() / "project_servers").glob("*.log")
        assert f":{the_server().port}" in log.read_text()
