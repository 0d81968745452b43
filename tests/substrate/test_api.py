"""Activations served from Python code: a script, another web application, and this process."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from child_processes import clean_environment
from fastapi import FastAPI
from network import bearer
from starlette.applications import Starlette
from starlette.routing import Mount

import substrate
from native_rpc.client import connect
from plexus import Activation, Context
from substrate.server.embedded import EmbeddedApp

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

SCRIPT = '''from plexus import Activation

count = Activation("count")

@count.method
async def up(to: int):
    """Count from 1 to TO."""
    for i in range(1, to + 1):
        yield f"{i} "

if __name__ == "__main__":
    count.serve()
'''


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "tools.py"
    file.write_text(SCRIPT)
    return file


def run(script: Path, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script), *words],
        input=given,
        capture_output=True,
        text=True,
        cwd=script.parent,
        env=clean_environment(),
        timeout=30,
        check=False,
    )


# --- a script ------------------------------------------------------------------------------------


def test_a_script_is_a_whole_command_line(script: Path) -> None:
    called = run(script, "call", "--json", "count.up", "3")
    assert called.returncode == 0, called.stderr
    assert [json.loads(line) for line in called.stdout.splitlines()][:2] == [
        {"type": "content", "text": "1 "},
        {"type": "content", "text": "2 "},
    ]
    assert "count.up" in run(script, "list").stdout
    assert "Usage: tools.py" in run(script, "--help").stdout


def test_a_script_speaks_native_rpc_and_mcp_on_stdio(script: Path) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": "count.up", "params": [1]}
    native = run(script, "--stdio", given=json.dumps(request) + "\n")
    assert '"text":"1 "' in native.stdout
    requests: list[dict[str, Any]] = [
        {
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            },
        },
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
        {"id": 3, "method": "tools/call", "params": {"name": "count.up", "arguments": {"to": 2}}},
    ]
    given = "".join(json.dumps({"jsonrpc": "2.0"} | each) + "\n" for each in requests)
    answers = {
        each["id"]: each
        for each in map(
            json.loads, run(script, "--stdio", "--mcp", given=given).stdout.splitlines()
        )
    }
    names = [tool["name"] for tool in answers[2]["result"]["tools"]]
    assert {"count.up", "plexus.runs", "plexus.search", "health.check"} <= set(names)
    assert "bash.execute" not in names  # a program serves its own tools
    assert answers[3]["result"]["content"] == [{"type": "text", "text": "1 2 "}]


def test_the_entry_for_a_host_starts_the_script(script: Path) -> None:
    shown = json.loads(run(script, "mcp", "show", "gemini").stdout)
    assert shown["mcpServers"]["substrate"] == {
        "command": sys.executable,
        "args": [str(script), "--stdio", "--mcp"],
    }


def test_a_wrong_word_is_an_error_without_a_traceback(script: Path) -> None:
    wrong = run(script, "cal")
    assert wrong.returncode == 2
    assert "Did you mean 'call'?" in wrong.stderr
    unknown = run(script, "call", "count.down")
    assert unknown.returncode != 0
    assert "Traceback" not in unknown.stderr


def test_an_activation_of_the_script_that_is_wrong_is_named(tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    file.write_text(SCRIPT.replace("(to: int)", "(*to: int)"))
    wrong = run(file, "list")
    assert wrong.returncode == 1
    assert "count.up: argument 'to': *args" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_a_script_checks_itself(script: Path) -> None:
    checked = run(script, "check", "--json")
    assert checked.returncode == 0, checked.stderr
    found = [json.loads(line) for line in checked.stdout.splitlines()]
    assert {Path(each["file"]) for each in found} == {script}


def test_the_same_script_is_a_plugin_file(script: Path) -> None:
    called = subprocess.run(
        [sys.executable, "-m", "substrate", "--activation", "tools.py", "call", "count.up", "1"],
        capture_output=True,
        text=True,
        cwd=script.parent,
        env=clean_environment(),
        timeout=30,
        check=False,
    )
    assert called.stdout == "1 ", called.stderr


# --- another web application ---------------------------------------------------------------------


def counting(log: list[str]) -> Activation:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        log.append("open")
        yield
        log.append("close")

    count = Activation("count", lifespan=lifespan)

    @count.method
    async def up(to: int) -> AsyncIterator[str]:
        """Count."""
        for number in range(1, to + 1):
            yield f"{number} "

    return count


def in_fastapi(tools: EmbeddedApp) -> Any:
    app = FastAPI(lifespan=tools.lifespan)
    app.mount("/tools", tools)

    @app.get("/hello")
    def hello() -> dict[str, bool]:
        return {"ok": True}

    return app


def in_starlette(tools: EmbeddedApp) -> Any:
    return Starlette(routes=[Mount("/tools", tools)], lifespan=tools.lifespan)


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[int]:
    """Serve an application with a plain uvicorn, as its users would."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        config = uvicorn.Config(app, log_level="warning", lifespan="on")
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve([sock]))
        try:
            async with asyncio.timeout(15):
                while not server.started:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.01)
            yield port
        finally:
            server.should_exit = True
            await asyncio.wait_for(task, 15)


async def request(
    port: int, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    def send() -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
        data = None if body is None else json.dumps(body)
        all_headers = {"Content-Type": "application/json"} | (headers or {})
        connection.request("GET" if body is None else "POST", path, data, all_headers)
        with closing(connection):
            response = connection.getresponse()
            return response.status, response.read()

    return await asyncio.to_thread(send)


CALL = {"jsonrpc": "2.0", "id": 1, "method": "count.up", "params": {"to": 2}}


@pytest.mark.parametrize("embed", [in_fastapi, in_starlette])
async def test_tools_are_served_inside_another_application(embed: Any) -> None:
    log: list[str] = []
    tools = substrate.asgi_app(counting(log), token="secret")
    async with served(embed(tools)) as port:
        assert log == ["open"]
        status, body = await request(port, "/tools/rpc", CALL, bearer("secret"))
        assert status == 200
        assert [each["text"] for each in json.loads(body)["result"]["events"]] == ["1 ", "2 "]
        status, body = await request(
            port,
            "/tools/mcp",
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "initialize",
                "params": {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {},
                    "clientInfo": {"name": "test", "version": "1"},
                },
            },
            bearer("secret") | {"Accept": "application/json"},
        )
        assert status == 200
        async with connect(f"ws://127.0.0.1:{port}/tools/rpc", token="secret") as client:
            events = [each async for each in client.call("count.up", {"to": 2})]
        assert [event["type"] for event in events] == ["content", "content", "complete"]
    assert log == ["open", "close"]


async def test_the_guard_stands_before_embedded_tools() -> None:
    tools = substrate.asgi_app(counting([]), token="secret")
    async with served(in_fastapi(tools)) as port:
        assert (await request(port, "/hello"))[0] == 200
        assert (await request(port, "/tools/rpc", CALL))[0] == 401
        assert (await request(port, "/tools/rpc", CALL, bearer("wrong")))[0] == 401
        other = bearer("secret") | {"Host": "evil.example"}
        assert (await request(port, "/tools/rpc", CALL, other))[0] == 421
        page = bearer("secret") | {"Origin": "https://evil.example"}
        assert (await request(port, "/tools/rpc", CALL, page))[0] == 403


def test_tools_are_not_embedded_without_a_decision_about_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SUBSTRATE_TOKEN", raising=False)
    with pytest.raises(ValueError, match="set SUBSTRATE_TOKEN, or pass"):
        substrate.asgi_app(counting([]))
    monkeypatch.setenv("SUBSTRATE_TOKEN", "secret")
    assert substrate.asgi_app(counting([]))


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_without_authentication_other_machines_are_refused(kind: str) -> None:
    tools = substrate.asgi_app(counting([]), auth="off")
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the request must not be read")

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": kind, "client": ("192.0.2.7", 5000), "headers": [(b"host", b"localhost")]}
    await tools(scope | {"path": "/rpc", "method": "POST", "query_string": b""}, receive, send)
    assert sent[0].get("status") == (403 if kind == "http" else None)
    assert sent[0]["type"] in ("http.response.start", "websocket.close")


async def test_a_prefix_and_other_hosts_can_be_named() -> None:
    tools = substrate.asgi_app(counting([]), path="/tools/", auth="off", hosts=["tools.example"])
    async with served(tools) as port:
        named = {"Host": "tools.example"}
        assert (await request(port, "/tools/rpc", CALL, named))[0] == 200
        assert (await request(port, "/rpc", CALL))[0] == 200
        assert (await request(port, "/tools/rpc", CALL, {"Host": "other.example"}))[0] == 421


async def test_without_a_lifespan_the_tools_start_with_the_first_request() -> None:
    log: list[str] = []
    tools = substrate.asgi_app(counting(log), token="secret")
    app = FastAPI()
    app.mount("/tools", tools)
    async with served(app) as port:
        assert (await request(port, "/tools/rpc", CALL, bearer("secret")))[0] == 200
    assert log == ["open"]


# --- this process --------------------------------------------------------------------------------


@contextmanager
def folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_DATA_HOME", str(path))
    yield


async def test_activations_are_called_in_this_process_with_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = Activation("keep")

    @keep.method
    async def add(n: int, ctx: Context) -> int:
        """Add to what is stored."""
        total: int = n + await ctx.storage.get("total", 0)
        await ctx.storage.set("total", total)
        return total

    with folder(tmp_path, monkeypatch):
        for expected in (2, 4):
            async with substrate.local(keep) as plexus:
                assert await plexus.call("keep.add", n=2) == expected


def test_the_package_offers_three_names_and_no_others() -> None:
    assert substrate.__all__ == ("asgi_app", "local", "serve")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = substrate.nothing
