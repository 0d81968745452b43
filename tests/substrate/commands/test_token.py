"""`substrate token`: the server's token, rotation, additional tokens, and their use by commands."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import COUNT, add_plugin, run, server, started


@pytest.fixture(autouse=True)
def _homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use separate token and lock files for this test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    add_plugin(folder, "count", COUNT)
    return folder


@pytest.fixture
def port(project: Path) -> Iterator[str]:
    with server(project) as number:
        yield number


def printed(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line that a command printed."""
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    return line


def status(port: str, token: str, method: str = "health.check") -> int:
    """Return the status of a call with this token."""
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {}})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    try:
        connection.request("POST", "/rpc", body, headers)
        with connection.getresponse() as response:
            return response.status
    finally:
        connection.close()


# --- the server token ----------------------------------------------------------------------------


def test_it_prints_the_token_of_the_running_server_and_nothing_else(
    port: str, project: Path
) -> None:
    token = printed(run("--port", port, "token", cwd=project))
    assert re.fullmatch(r"[\w-]{43}", token)
    assert status(port, token) == 200
    link = printed(run("--port", port, "token", "--link", cwd=project))
    assert link == f"http://127.0.0.1:{port}/#token={token}"


def test_without_a_server_it_explains_what_to_do(project: Path) -> None:
    done = run("--port", "1", "token", cwd=project)
    assert done.returncode == 1
    assert "No server of yours runs on port 1" in done.stderr
    assert done.stdout == ""


def test_a_server_without_authentication_has_no_token(project: Path) -> None:
    with started("--port", "0", "--auth", "off", cwd=project) as process:
        port = process.err.wait_for(r"http://127\.0\.0\.1:(\d+)")[1]
        done = run("--port", port, "token", cwd=project)
        assert done.returncode == 1
        assert "requires no token" in done.stderr
        assert run("--port", port, "call", "count.up", "1", cwd=project).returncode == 0


def test_rotate_replaces_the_token_everywhere(port: str, project: Path) -> None:
    old = printed(run("--port", port, "token", cwd=project))
    new = printed(run("--port", port, "token", "rotate", cwd=project))
    assert new != old
    assert printed(run("--port", port, "token", cwd=project)) == new
    assert status(port, old) == 401
    assert status(port, new) == 200
    assert run("--port", port, "call", "count.up", "1", cwd=project).returncode == 0
    rotated = json.loads(run("--port", port, "token", "rotate", "--json", cwd=project).stdout)
    assert rotated["token"] == printed(run("--port", port, "token", cwd=project)) != new
    assert (str(rotated["port"]), rotated["link"].partition("#token=")[2]) == (
        port,
        rotated["token"],
    )


# --- additional tokens ---------------------------------------------------------------------------


def test_a_token_is_created_used_listed_and_revoked(port: str, project: Path) -> None:
    flags = ["--scope", "count", "--scope", "chat", "--expires", "30d"]
    secret = printed(run("token", "create", "phone", *flags, cwd=project))
    assert status(port, secret) == 200
    described = json.loads(printed(run("token", "list", "--json", cwd=project)))
    assert described["expires_ms"] - described["created_ms"] == 30 * 24 * 3600 * 1000
    assert described | {"created_ms": 0, "expires_ms": 0} == {
        "kind": "token",
        "name": "phone",
        "principal": "phone",
        "scopes": ["chat", "count"],
        "created_ms": 0,
        "expires_ms": 0,
        "expired": False,
    }
    listed = run("token", "list", cwd=project).stdout
    assert "phone" in listed
    assert secret not in listed + json.dumps(described)
    revoked = run("token", "revoke", "phone", cwd=project)
    assert revoked.returncode == 0
    assert revoked.stdout.startswith("Revoked the token phone of phone. Running servers close")
    assert status(port, secret) == 401
    assert run("token", "list", cwd=project).stdout == ""


def test_an_unknown_scope_is_a_warning_with_the_known_ones(port: str, project: Path) -> None:
    made = run("token", "create", "typo", "--scope", "cuont", "--json", cwd=project)
    assert made.returncode == 0
    assert status(port, json.loads(made.stdout)["token"]) == 200
    assert "Warning: no method here has the scope cuont. Known scopes: " in made.stderr
    assert {"bash,", "count,", "read."} & set(made.stderr.split()) >= {"bash,", "count,"}
    revoked = json.loads(printed(run("token", "revoke", "typo", "--json", cwd=project)))
    assert revoked == {"kind": "token", "name": "typo", "sessions_ended": []}


def test_a_token_may_call_what_its_scopes_allow(port: str, project: Path) -> None:
    reads = printed(run("token", "create", "reads", cwd=project))
    counts = printed(run("token", "create", "counts", "--scope", "count", cwd=project))
    everything = printed(run("token", "create", "all", "--scope", "*", cwd=project))
    for token, code in ((reads, 1), (counts, 0), (everything, 0)):
        done = run("--port", port, "call", "count.up", "1", cwd=project, SUBSTRATE_TOKEN=token)
        assert (done.returncode == 0) == (code == 0), done.stderr
        called = run("--token", token, "--port", port, "call", "health.check", cwd=project)
        assert called.returncode == 0, called.stderr


def test_a_token_can_be_for_the_local_principal(port: str, project: Path) -> None:
    own = printed(run("token", "create", "phone", "--as", "local", cwd=project))
    other = printed(run("token", "create", "guest", cwd=project))
    assert run("--port", port, "call", "count.up", "1", cwd=project).returncode == 0
    for token, seen in ((own, True), (other, False)):
        done = run("--token", token, "--port", port, "call", "plexus.runs", cwd=project)
        assert ("count.up" in done.stdout) == seen


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["create", "Phone"], "is not a valid name"),
        (["create", "phone", "--scope", "a b"], "is not a valid scope"),
        (["create", "phone", "--as", "ada@example.org"], "is not a valid name"),
        (["create", "phone", "--expires", "soon"], "is not a lifetime"),
        (["create", "phone", "--expires", "0d"], "is not a lifetime"),
        (["revoke", "phone"], "Unknown token 'phone'"),
        (["revoke", "session:12345678"], "Unknown session 'session:12345678'"),
        (["create", "session:12345678"], "is not a valid name"),
    ],
)
def test_invalid_arguments_are_explained(
    project: Path, arguments: list[str], expected: str
) -> None:
    done = run("token", *arguments, cwd=project)
    assert done.returncode != 0
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_token_name_is_unique(project: Path) -> None:
    assert run("token", "create", "phone", cwd=project).returncode == 0
    done = run("token", "create", "phone", cwd=project)
    assert done.returncode == 1
    assert "revoke it first" in done.stderr


def test_a_damaged_file_is_reported(project: Path, tmp_path: Path) -> None:
    assert run("token", "create", "phone", cwd=project).returncode == 0
    (tmp_path / "data" / "substrate" / "tokens.json").write_text("{")
    for arguments in (["list"], ["create", "x"], ["revoke", "phone"]):
        done = run("token", *arguments, cwd=project)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr


# --- browser sessions ----------------------------------------------------------------------------


def create_session(port: str, token: str, agent: str) -> str:
    """Create a session, as a page does that was opened by the link."""
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    try:
        connection.request("POST", "/session", "{}", headers | {"User-Agent": agent})
        with connection.getresponse() as response:
            return str(json.loads(response.read())["session"])
    finally:
        connection.close()


def test_sessions_are_listed_and_revoked_like_tokens(port: str, project: Path) -> None:
    own = printed(run("--port", port, "token", cwd=project))
    phone = printed(run("token", "create", "phone", "--scope", "chat", cwd=project))
    first = create_session(port, own, "Browser/1 \x9b31m" + "x" * 500)
    second = create_session(port, phone, "Pocket/2")
    third = create_session(port, own, "")
    listed = run("token", "list", "--json", cwd=project).stdout
    assert not any(secret in listed for secret in (own, phone, first, second, third))
    tokens, *sessions = map(json.loads, listed.splitlines())
    assert tokens["kind"] == "token"
    assert [each["kind"] for each in sessions] == ["session"] * 3
    assert [each["principal"] for each in sessions] == ["local", "phone", "local"]
    assert [each["scopes"] for each in sessions] == [None, ["chat"], None]
    server_of = f"the server on port {port}"
    assert [each["begun_with"] for each in sessions] == [server_of, "the token phone", server_of]
    assert sessions[0]["user_agent"].startswith("Browser/1 31mxxx")
    assert all(each["created_ms"] <= each["used_ms"] for each in sessions)
    plain = run("token", "list", cwd=project).stdout
    assert len(plain.splitlines()) == 4
    assert plain.replace("\n", "").isprintable()
    assert "Pocket/2" in plain
    # One session by its name, and another with its token.
    assert run("token", "revoke", sessions[0]["name"], cwd=project).returncode == 0
    assert [status(port, each) for each in (first, second, third)] == [401, 200, 200]
    assert run("token", "revoke", "phone", cwd=project).returncode == 0
    assert [status(port, each) for each in (first, second, third)] == [401, 401, 200]
    left = json.loads(printed(run("token", "list", "--json", cwd=project)))
    assert left["name"] == sessions[2]["name"]
    printed(run("--port", port, "token", "rotate", cwd=project))
    assert status(port, third) == 401
    assert run("token", "list", cwd=project).stdout == ""


def test_a_damaged_session_file_is_reported(project: Path, tmp_path: Path) -> None:
    assert run("token", "create", "phone", cwd=project).returncode == 0
    (tmp_path / "data" / "substrate" / "sessions.json").write_text("{")
    done = run("token", "list", cwd=project)
    assert done.returncode == 1
    assert "sessions.json" in done.stderr
    assert "Traceback" not in done.stderr
    assert run("token", "revoke", "phone", cwd=project).returncode == 0
    assert "phone" not in (tmp_path / "data" / "substrate" / "tokens.json").read_text()


# --- commands with a server -----------------------------------------------------------------------


def test_commands_find_the_token_automatically(port: str, project: Path) -> None:
    for arguments in (
        ["--port", port, "call", "count.up", "1"],
        ["--port", port, "list"],
        ["--port", port, "schema", "count.up"],
        ["call", "--url", f"http://localhost:{port}", "count.up", "1"],
        ["call", "--url", f"ws://127.0.0.1:{port}", "count.up", "1"],
    ):
        done = run(*arguments, cwd=project)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("scheme", ["ws", "http"])
def test_a_wrong_token_is_reported_immediately(port: str, project: Path, scheme: str) -> None:
    url = f"{scheme}://127.0.0.1:{port}"
    for arguments in (["call", "--url", url, "count.up", "1"], ["list", "--url", url]):
        done = run("--token", "wrong", *arguments, cwd=project)
        assert done.returncode == 1
        assert "SUBSTRATE_TOKEN" in done.stderr
        assert "Traceback" not in done.stderr
        assert "wrong" not in done.stderr


def test_a_server_of_another_user_is_not_sent_our_token(port: str, project: Path) -> None:
    """A server that reuses the port of a server that has exited does not get the token either."""
    lock = Path(os.environ["XDG_STATE_HOME"]) / "substrate" / "servers" / f"{port}.json"
    content = json.loads(lock.read_text())
    lock.write_text(json.dumps(content | {"startTime": 1}))
    done = run("--port", port, "call", "count.up", "1", cwd=project)
    assert done.returncode == 1
    assert "token" in done.stderr


def test_the_token_variable_is_not_reported_as_unknown(project: Path) -> None:
    done = run("config", cwd=project, SUBSTRATE_TOKEN="t0ken-of-this-test")
    assert done.returncode == 0
    assert "t0ken-of-this-test" not in done.stdout + done.stderr
    assert "Warning" not in done.stderr
