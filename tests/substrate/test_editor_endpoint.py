"""The listener for editor clients: a plain WebSocket client against a real server."""

from __future__ import annotations

import http.client
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from child_processes import clean_environment
from editor_client import (
    EditorClient,
    connected,
    connected_to,
    editor_server,
    lock_of,
    locks,
    respond,
    wait_for,
)
from network import Server
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

pytestmark = pytest.mark.timeout(120)

OLD = "x = 1\nprint(x)\n"
NEW = "x = 2\nprint(x)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.py").write_text(OLD)
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with editor_server(folder) as running:
        yield running


def call(server: Server, method: str, **params: Any) -> Any:
    """Call a native method and return its result. Raises AssertionError for an error."""
    with server.call(method, params) as response:
        body = json.loads(response.read())
    assert "error" not in body, body
    return body["result"]


def error_of(server: Server, method: str, **params: Any) -> dict[str, Any]:
    with server.call(method, params) as response:
        error: dict[str, Any] = json.loads(response.read())["error"]
    return error


def result_of(server: Server, method: str, **params: Any) -> Any:
    return call(server, method, **params)["terminal"]["result"]


def open_diff(peer: EditorClient, folder: Path, new: str = NEW, tab: str = "tab") -> int:
    path = str(folder / "work" / "a.py")
    return peer.start_tool(
        "openDiff", old_file_path=path, new_file_path=path, new_file_contents=new, tab_name=tab
    )


def waiting(server: Server, count: int = 1) -> list[dict[str, Any]]:
    """Return the waiting diffs once there are this many."""

    def found() -> list[dict[str, Any]] | None:
        diffs: list[dict[str, Any]] = result_of(server, "ide.diffs")
        ready = len(diffs) == count and all(not each["approval_id"].endswith(".") for each in diffs)
        return diffs if ready else None

    if not count:
        wait_for(lambda: result_of(server, "ide.diffs") == [], "end of the diffs")
        return []
    diffs: list[dict[str, Any]] = wait_for(found, f"{count} diffs")
    return diffs


# --- the lock file --------------------------------------------------------------------------------


def test_the_lock_file_is_private_names_the_project_and_is_removed_at_exit(folder: Path) -> None:
    with editor_server(folder) as server:
        [path] = locks(folder)
        port, lock = lock_of(folder)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert lock["pid"] == server.process.pid
        assert lock["workspaceFolders"] == [str(folder / "work")]
        assert (lock["ideName"], lock["transport"]) == ("Substrate", "ws")
        assert len(lock["authToken"]) >= 32
        assert port != server.port
    assert locks(folder) == []


def test_two_servers_in_one_folder_have_two_lock_files_and_each_removes_its_own(
    folder: Path,
) -> None:
    def pids() -> dict[int, Path]:
        return {json.loads(path.read_text())["pid"]: path for path in locks(folder)}

    with editor_server(folder) as first:
        with editor_server(folder) as second:
            pair = {first.process.pid, second.process.pid}
            wait_for(lambda: pids().keys() == pair, "second lock file")
            found = pids()
            contents = {pid: json.loads(path.read_text()) for pid, path in found.items()}
            assert len({each["authToken"] for each in contents.values()}) == 2
            for path in found.values():
                with connected_to(folder, int(path.stem)) as peer:
                    assert "result" in peer.request("tools/list")
        assert pids() == {first.process.pid: found[first.process.pid]}
        kept = json.loads(found[first.process.pid].read_text())
        assert kept == contents[first.process.pid], "the other server has not written it again"
        with connected_to(folder, int(found[first.process.pid].stem)) as peer:
            assert "result" in peer.request("tools/list")
    assert locks(folder) == []


def test_a_stale_lock_file_of_ours_is_removed_and_those_of_others_stay(folder: Path) -> None:
    with editor_server(folder) as first:
        first.process.kill()
        first.process.wait()
    [stale] = locks(folder)
    others = {"pid": 2**22 - 7, "ideName": "Neovim", "workspaceFolders": [], "transport": "ws"}
    foreign = stale.with_name("1.lock")
    foreign.write_text(json.dumps(others))
    container = stale.with_name("2.lock")
    container.write_text(json.dumps(json.loads(stale.read_text()) | {"host": "another host"}))
    broken = stale.with_name("3.lock")
    broken.write_text("{")
    with editor_server(folder):
        wait_for(lambda: not stale.exists(), "removal of the stale file")
        assert foreign.exists()
        assert container.exists()
        assert broken.exists()


def test_the_lock_file_in_the_project_is_written_only_if_asked_for(folder: Path) -> None:
    project = folder / "work" / ".claude-code"
    with editor_server(folder):
        assert not project.exists()
    with editor_server(folder, settings={"SUBSTRATE_IDE_LOCK": "seed"}):
        port, lock = lock_of(folder)
        path = project / f"{port}.json"
        content = json.loads(path.read_text())
        assert content == {
            "port": port,
            "authToken": lock["authToken"],
            "projectPath": str(folder / "work"),
        }
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not project.exists()


def test_the_listener_is_off_until_it_is_switched_on(folder: Path) -> None:
    settings = {"CLAUDE_CONFIG_DIR": str(folder / "claude")}
    server = Server(settings=settings, cwd=folder / "work")
    try:
        status = result_of(server, "ide.status")
        assert (status["on"], status["available"], status["port"]) == (False, True, None)
        assert locks(folder) == []
        assert result_of(server, "ide.switch", on=True)["on"] is True
        with connected(folder) as peer:
            assert peer.request("ping")["result"] == {}
            assert result_of(server, "ide.switch", on=True)["port"] == lock_of(folder)[0]
            assert result_of(server, "ide.switch", on=False)["on"] is False
            with pytest.raises(ConnectionClosed):
                peer.request("ping")
        assert locks(folder) == []
        assert result_of(server, "ide.switch", on=False)["on"] is False
    finally:
        server.stop()


def test_a_folder_that_cannot_be_written_is_reported_and_the_server_runs(folder: Path) -> None:
    (folder / "claude").write_text("a file")
    settings = {"CLAUDE_CONFIG_DIR": str(folder / "claude")}
    server = Server("--ide", settings=settings, cwd=folder / "work")
    try:
        error = error_of(server, "ide.switch", on=True)
        assert "cannot start" in error["message"]
        assert result_of(server, "ide.status")["on"] is False
        assert result_of(server, "ide.status")["reason"]
    finally:
        server.stop()


def ide_command(folder: Path, *arguments: str, port: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "substrate", "--port", str(port), "ide", *arguments],
        env=clean_environment(CLAUDE_CONFIG_DIR=str(folder / "claude")),
        cwd=folder / "work",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_command_prints_what_to_do_and_switches_the_editor(folder: Path) -> None:
    without_server = ide_command(folder, port=1)
    assert "substrate --ide" in without_server.stdout
    assert ide_command(folder, "on", port=1).returncode == 1
    settings = {"CLAUDE_CONFIG_DIR": str(folder / "claude")}
    server = Server(settings=settings, cwd=folder / "work")
    try:
        off = ide_command(folder, port=server.port).stdout
        assert f"The editor is off.\nSwitch it on:\n  substrate --port {server.port} ide on" in off
        state = json.loads(ide_command(folder, "on", "--json", port=server.port).stdout)
        assert state["on"] is True
        other = folder / "claude" / "ide" / "1.lock"
        entry = {"ideName": "Neovim", "pid": os.getpid(), "workspaceFolders": [str(folder)]}
        other.write_text(json.dumps(entry))
        (folder / "claude" / "ide" / "2.lock").write_text("[]")
        with connected_to(folder, state["port"]):
            shown = ide_command(folder, port=server.port)
        assert f"The editor is on for {folder / 'work'}, port {state['port']}" in shown.stdout
        assert f"  claude-code/1.0, process {os.getpid()}\n" in shown.stdout
        assert "  claude --ide\n" in shown.stdout
        assert f"CLAUDE_CODE_SSE_PORT={state['port']} " in shown.stdout
        assert "Other editors are running for this folder: Neovim (port 1)." in shown.stderr
        assert ide_command(folder, "off", port=server.port).stdout == "The editor is off.\n"
        assert [path.name for path in locks(folder)] == ["1.lock", "2.lock"]
    finally:
        server.stop()


def test_the_flag_is_refused_where_there_is_no_server(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "substrate", "--stdio", "--mcp", "--ide"],
        env=clean_environment(),
        cwd=folder / "work",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "--ide needs a server: start it with `substrate --ide`." in done.stderr


# --- the handshake --------------------------------------------------------------------------------


@pytest.mark.usefixtures("server")
def test_the_handshake_is_that_of_an_editor(folder: Path) -> None:
    port, lock = lock_of(folder)
    header = {"x-claude-code-ide-authorization": lock["authToken"]}
    for path in ("", "/", "/mcp"):
        with connect(
            f"ws://127.0.0.1:{port}{path}",
            subprotocols=["mcp"],  # type: ignore[list-item]  # a NewType of str
            additional_headers=header,
        ) as socket:
            assert socket.subprotocol == "mcp"
            peer = EditorClient(socket)
            result = peer.request(
                "initialize",
                {
                    "protocolVersion": "2024-11-05",
                    "capabilities": {},
                    "clientInfo": {"name": "claude-code", "version": "2"},
                },
            )["result"]
            assert result["protocolVersion"] == "2024-11-05"
            assert result["serverInfo"]["name"] == "Substrate"
            assert "instructions" not in result
            peer.notify("notifications/initialized")
            assert peer.request("prompts/list")["result"] == {"prompts": []}
            assert peer.request("resources/list")["result"] == {"resources": []}
            names = {tool["name"] for tool in peer.request("tools/list")["result"]["tools"]}
            assert names >= {"openDiff", "openFile", "getDiagnostics", "closeAllDiffTabs"}
            assert not any("." in name for name in names)


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("token", ["", "wrong", "x" * 5000])
def test_a_wrong_token_closes_with_1008(folder: Path, token: str) -> None:
    port, _ = lock_of(folder)
    headers = {"x-claude-code-ide-authorization": token}
    with (
        connect(
            f"ws://127.0.0.1:{port}",
            subprotocols=["mcp"],  # type: ignore[list-item]  # a NewType of str
            additional_headers=headers,
        ) as socket,
        pytest.raises(ConnectionClosed) as closed,
    ):
        socket.recv(timeout=10)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    "headers", [{"Origin": "http://example.org"}, {"Host": "example.org"}], ids=["origin", "host"]
)
def test_a_web_page_cannot_connect_even_with_the_token(
    folder: Path, headers: dict[str, str]
) -> None:
    port, lock = lock_of(folder)
    given = {"x-claude-code-ide-authorization": lock["authToken"], **headers}
    with pytest.raises(InvalidStatus), connect(f"ws://127.0.0.1:{port}", additional_headers=given):
        pass


@pytest.mark.usefixtures("server")
def test_the_port_serves_nothing_but_the_tools(folder: Path) -> None:
    port, lock = lock_of(folder)
    bearer = {"Authorization": f"Bearer {lock['authToken']}", "Content-Type": "application/json"}
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "health.check"})
    for verb, path in (("POST", "/rpc"), ("POST", "/mcp"), ("GET", "/"), ("GET", "/metrics")):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
        connection.request(verb, path, message if verb == "POST" else None, bearer)
        assert connection.getresponse().status == 404
        connection.close()
    with connected(folder) as peer:
        for method in ("ide.answer_diff", "bash.execute", "resources/read", "prompts/get"):
            error = peer.request(method, {"diff": "1", "accept": True})["error"]
            assert error["code"] == -32601
        for name in ("bash.execute", "ide.answer_diff", "ide_answer_diff", "plexus.call"):
            error = peer.request("tools/call", {"name": name, "arguments": {}})["error"]
            assert error["code"] == -32602


def test_the_token_of_the_editor_is_no_token_of_the_server(folder: Path) -> None:
    with editor_server(folder, auth="token") as server:
        _, lock = lock_of(folder)
        assert (
            server.status("GET", "/metrics", {"Authorization": f"Bearer {lock['authToken']}"})
            == 401
        )


def test_other_clients_get_the_notifications_in_their_form(folder: Path, server: Server) -> None:
    with connected(folder) as claude, connected(folder, client="Nexus CLI") as other:
        greeting = other.notification("notifications/ide_connected")
        assert greeting == {"project_path": str(folder / "work")}
        call(server, "ide.open_document", path="a.py")
        position = {"start_line": 0, "start_character": 4, "end_line": 1, "end_character": 0}
        call(server, "ide.select", path="a.py", **position)
        path = str(folder / "work" / "a.py")
        selection = {"start": {"line": 0, "character": 4}, "end": {"line": 1, "character": 0}}
        assert claude.notification("selection_changed") == {
            "text": "1\n",
            "filePath": path,
            "fileUrl": f"file://{path}",
            "selection": selection | {"isEmpty": False},
        }
        changed = other.notification("notifications/selection_changed")
        assert changed == {"file_path": path, "range": selection}
        assert result_of(server, "ide.mention", path="a.py", line_start=1) == 2
        mention = {"filePath": path, "lineStart": 1, "lineEnd": 1}
        assert claude.notification("at_mentioned") == mention
        assert result_of(server, "ide.mention", path="a.py") == 2
        # Without lines: Claude Code ignores a mention with lines that are null.
        assert claude.notification("at_mentioned") == {"filePath": path}
    assert result_of(server, "ide.mention", path="a.py") == 0


def test_dragging_sends_few_notifications(folder: Path, server: Server) -> None:
    with connected(folder) as peer:
        call(server, "ide.open_document", path="a.py")
        for character in range(6):
            position = {"start_line": 0, "start_character": 0}
            call(server, "ide.select", path="a.py", **position, end_line=0, end_character=character)
        while peer.notification("selection_changed")["selection"]["end"]["character"] != 5:
            pass
        assert len(peer.notifications) < 6


def test_the_page_sees_who_is_connected(folder: Path, server: Server) -> None:
    with connected(folder):
        [client] = wait_for(lambda: result_of(server, "ide.status")["connections"], "client")
        assert client["client"].startswith("claude-code")
        wait_for(
            lambda: result_of(server, "ide.status")["connections"][0]["pid"] == os.getpid(), "pid"
        )
        assert client["claude_code"] is True
    wait_for(lambda: result_of(server, "ide.status")["connections"] == [], "end of the connection")


# --- diffs ----------------------------------------------------------------------------------------


def test_an_accepted_diff_returns_the_text_and_writes_no_file(folder: Path, server: Server) -> None:
    with connected(folder) as peer:
        request = open_diff(peer, folder)
        [diff] = waiting(server)
        assert (diff["path"], diff["added"], diff["removed"]) == ("a.py", 1, 1)
        closed = result_of(server, "ide.answer_diff", diff=diff["diff"], accept=True)
        assert closed["outcome"] == "accepted"
        assert peer.texts(request) == ["FILE_SAVED", NEW]
        assert (folder / "work" / "a.py").read_text() == OLD


def test_an_edited_diff_returns_the_edited_text(folder: Path, server: Server) -> None:
    edited = "x = 3  # \N{SNOWMAN}\r\n" + "é" * 100_000
    with connected(folder) as peer:
        request = open_diff(peer, folder)
        [diff] = waiting(server)
        answer = {"diff": diff["diff"], "accept": True, "text": edited}
        assert result_of(server, "ide.answer_diff", **answer)["outcome"] == "edited"
        assert peer.texts(request) == ["FILE_SAVED", edited]


def test_chosen_hunks_alone_are_applied(folder: Path, server: Server) -> None:
    old = "".join(f"line {number}\n" for number in range(30))
    (folder / "work" / "a.py").write_text(old)
    new = old.replace("line 2\n", "line two\n").replace("line 25\n", "")
    with connected(folder) as peer:
        request = open_diff(peer, folder, new)
        [diff] = waiting(server)
        shown = result_of(server, "ide.diff", diff=diff["diff"])
        assert (shown["old_text"], shown["new_text"]) == (old, new)
        assert [hunk["old_start"] for hunk in shown["hunks"]] == [2, 25]
        error = error_of(server, "ide.answer_diff", diff=diff["diff"], accept=True, hunks=[2])
        assert "hunks" in error["message"]
        call(server, "ide.answer_diff", diff=diff["diff"], accept=True, hunks=[1])
        assert peer.texts(request) == ["FILE_SAVED", old.replace("line 25\n", "")]


def test_a_rejection_carries_its_reason_and_the_comments(folder: Path, server: Server) -> None:
    with connected(folder) as peer:
        request = open_diff(peer, folder)
        [diff] = waiting(server)
        call(server, "ide.comment", diff=diff["diff"], line=0, text="why 2?")
        call(server, "ide.answer_diff", diff=diff["diff"], accept=False, reason="not now")
        assert peer.texts(request) == ["DIFF_REJECTED", "not now\nLine 1: why 2?"]
        request = open_diff(peer, folder)
        [diff] = waiting(server)
        call(server, "ide.answer_diff", diff=diff["diff"], accept=False)
        assert peer.texts(request) == ["DIFF_REJECTED"]
        [stored] = result_of(server, "ide.diff_comments")
        assert (stored["path"], stored["comments"][0]["text"]) == ("a.py", "why 2?")
        wait_for(
            lambda: result_of(server, "ide.diff_comments")[0]["outcome"] == "rejected", "outcome"
        )


def test_comments_outlive_the_server(folder: Path) -> None:
    with editor_server(folder) as server, connected(folder) as peer:
        open_diff(peer, folder)
        [diff] = waiting(server)
        call(server, "ide.comment", diff=diff["diff"], line=1, text="first", side="old")
    with editor_server(folder) as server:
        [stored] = result_of(server, "ide.diff_comments", path="a.py")
        assert stored["comments"][0]["text"] == "first"


def test_a_diff_is_answered_in_the_terminal(folder: Path, server: Server) -> None:
    with connected(folder) as peer:
        request = open_diff(peer, folder)
        waiting(server)
        assert "Approved" in respond(server, "last", "--yes")
        assert peer.texts(request) == ["FILE_SAVED", NEW]
        request = open_diff(peer, folder)
        waiting(server)
        respond(server, "last", "--no", "--message", "use y")
        assert peer.texts(request) == ["DIFF_REJECTED", "use y"]
        request = open_diff(peer, folder)
        waiting(server)
        respond(server, "last", "--answer", json.dumps({"decision": "accept", "text": "y"}))
        assert peer.texts(request) == ["FILE_SAVED", "y"]


def test_the_first_of_two_answers_counts_and_is_on_record(folder: Path, server: Server) -> None:
    with connected(folder) as peer:
        request = open_diff(peer, folder)
        [diff] = waiting(server)
        outcomes: list[int] = []

        def answer(text: str) -> None:
            params = {"diff": diff["diff"], "accept": True, "text": text}
            headers = {"Substrate-Client": text}
            with server.call("ide.answer_diff", params, **headers) as response:
                outcomes.append("error" in json.loads(response.read()))

        threads = [threading.Thread(target=answer, args=(name,)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(15)
        assert sorted(outcomes) == [False, True]
        [_, final] = peer.texts(request)
        answered = result_of(server, "ide.diff", diff=diff["diff"])["answered"]
        assert answered["by"] == final
        events = call(server, "plexus.attach", run=diff["run"])["events"]
        [record] = [each for each in events if each["type"] == "answered"]
        assert record["by"] == final


def test_the_client_withdraws_its_diff_everywhere(folder: Path, server: Server) -> None:
    with connected(folder) as peer, connected(folder) as other:
        request = open_diff(peer, folder, tab="mine")
        kept = open_diff(other, folder, tab="mine")
        waiting(server, 2)
        assert peer.tool("close_tab", tab_name="mine") == ["TAB_CLOSED"]
        assert peer.texts(request) == ["DIFF_REJECTED"]
        [diff] = waiting(server)
        assert peer.tool("closeAllDiffTabs") == ["CLOSED_0_DIFF_TABS"]
        assert len(result_of(server, "approvals.pending")["approvals"]) == 1
        assert other.tool("closeAllDiffTabs") == ["CLOSED_1_DIFF_TABS"]
        assert other.texts(kept) == ["DIFF_REJECTED"]
        assert peer.tool("close_tab", tab_name="unknown") == ["TAB_CLOSED"]
        error = error_of(server, "ide.answer_diff", diff=diff["diff"], accept=True)
        assert "waits for an answer" in error["message"]
        assert result_of(server, "ide.diff", diff=diff["diff"])["answered"]["outcome"] == "closed"


def test_a_diff_ends_with_its_connection(folder: Path, server: Server) -> None:
    with connected(folder) as peer:
        open_diff(peer, folder)
        waiting(server)
    waiting(server, 0)
    assert result_of(server, "approvals.pending")["approvals"] == []


def test_a_second_diff_with_the_same_title_replaces_the_first(folder: Path, server: Server) -> None:
    with connected(folder) as peer:
        first = open_diff(peer, folder, "first\n")
        waiting(server)
        second = open_diff(peer, folder, "second\n")
        assert peer.texts(first) == ["DIFF_REJECTED"]
        [diff] = waiting(server)
        call(server, "ide.answer_diff", diff=diff["diff"], accept=True)
        assert peer.texts(second) == ["FILE_SAVED", "second\n"]


def test_a_diff_of_a_new_file_and_the_short_form_of_other_clients(
    folder: Path, server: Server
) -> None:
    with connected(folder, client="Nexus CLI") as peer:
        request = peer.start_tool("openDiff", old_file_path="new/b.ts", new_file_contents="1\n")
        [diff] = waiting(server)
        assert (diff["new_file"], diff["path"], diff["tab_name"]) == (True, "new/b.ts", "new/b.ts")
        call(server, "ide.answer_diff", diff=diff["diff"], accept=True)
        assert peer.texts(request) == ["FILE_SAVED", "1\n"]
        assert not (folder / "work" / "new").exists()


# --- hostile clients ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"old_file_path": "../secret", "new_file_contents": "x"}, "outside the workspace"),
        ({"old_file_path": "/etc/passwd", "new_file_contents": "x"}, "outside the workspace"),
        ({"old_file_path": "link", "new_file_contents": "x"}, "outside the workspace"),
        ({"old_file_path": "a\0b", "new_file_contents": "x"}, "NUL"),
        ({"old_file_path": "a.py", "new_file_contents": "x" * 3_000_000}, "maximum"),
        ({"old_file_path": "pipe", "new_file_contents": "x"}, "not a regular file"),
        ({"old_file_path": "binary", "new_file_contents": "x"}, "not a text file"),
        ({"old_file_path": "sub", "new_file_contents": "x"}, "folder"),
        ({"old_file_path": ".", "new_file_contents": "x"}, "workspace itself"),
        ({"new_file_contents": "x"}, "old_file_path"),
        ({"old_file_path": 7, "new_file_contents": "x"}, "old_file_path"),
    ],
)
def test_a_diff_outside_the_workspace_or_of_no_text_is_refused(
    folder: Path, server: Server, arguments: dict[str, Any], reason: str
) -> None:
    work = folder / "work"
    (work / "link").symlink_to("/etc/hosts")
    os.mkfifo(work / "pipe")
    (work / "binary").write_bytes(b"\xff\0")
    (work / "sub").mkdir()
    with connected(folder) as peer:
        answer = peer.answer(peer.start_tool("openDiff", **arguments))
        assert reason in json.dumps(answer)
        assert answer.get("result", {"isError": True})["isError"] is True
        assert peer.request("ping")["result"] == {}
    assert result_of(server, "ide.diffs") == []


def test_hostile_messages_are_answered_and_close_nothing(folder: Path, server: Server) -> None:
    with connected(folder) as peer:
        for text in ("{", "[]", "null", '"x"', '{"jsonrpc":"2.0","id":{},"method":"ping"}'):
            peer.socket.send(text)
            assert "error" in json.loads(peer.socket.recv(timeout=15))
        deep = "[" * 10_000 + "]" * 10_000
        peer.socket.send(deep)
        assert "error" in json.loads(peer.socket.recv(timeout=15))
        for params in ({"pid": -1}, {"pid": "x"}, {"pid": 2**80}, None):
            peer.notify("ide_connected", params)
        assert peer.request("ping")["result"] == {}
        assert result_of(server, "ide.status")["connections"][0]["pid"] is None


def test_a_flood_of_diffs_is_bounded_and_the_page_still_answers(
    folder: Path, server: Server
) -> None:
    with connected(folder) as peer:
        requests = [open_diff(peer, folder, tab=f"tab {number}") for number in range(140)]
        refused = [peer.answer(each) for each in requests[128:]]
        assert all("error" in each or each["result"]["isError"] for each in refused)
        assert len(result_of(server, "ide.diffs")) <= 100
    waiting(server, 0)


def test_the_server_stops_at_once_while_a_diff_waits(folder: Path) -> None:
    with editor_server(folder) as server, connected(folder) as peer:
        open_diff(peer, folder)
        waiting(server)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
    assert locks(folder) == []
