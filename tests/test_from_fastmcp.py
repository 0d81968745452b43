"""Every pair in `docs/from-fastmcp.md` does the same with FastMCP and with Substrate."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import uvicorn
from child_processes import clean_environment
from documents import ROOT
from fastmcp import Client
from fastmcp.client.transports import StdioTransport

from plexus import Activation, Image, Log, Progress
from plexus.errors import Failed
from plexus.rpc import wire
from plexus.testing import local

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    # FastMCP warns that clients of 2026-07-28 get no log messages.
    pytest.mark.filterwarnings("ignore:The logging capability is deprecated"),
]

DOCUMENT = (ROOT / "docs" / "from-fastmcp.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", DOCUMENT, re.S))

#: Calls of tools whose results are equal.
CALLS: list[tuple[str, str, dict[str, Any], Any]] = [
    ("greeter", "greet", {"name": "Ann"}, "Hello, Ann!"),
    ("greeter", "greet", {"name": "Ann", "times": 2}, "Hello, Ann! Hello, Ann!"),
    ("mover", "move", {"names": ["a", "b"]}, 2),
    ("shop", "double", {"order": {"item": "tea", "count": 2}}, {"item": "tea", "count": 4}),
    ("reader", "read", {"key": "tea"}, "green"),
    ("counter", "add", {"n": 3}, 3),
    ("opener", "open_door", {"code": "1234"}, "open"),
]
#: The other pairs, each with a test below.
OTHERS = {"notes", "cleaner", "painter", "web", "test_greeter"}


@contextmanager
def imported(side: str, name: str, folder: Path) -> Iterator[ModuleType]:
    """Import the block of one side, which may import others of the same side."""
    write(side, folder)
    sys.path.insert(0, str(folder))
    before = dict(sys.modules)
    try:
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(folder))
        for added in {"greeter", name} & set(sys.modules):
            del sys.modules[added]
        sys.modules.update({key: before[key] for key in {"greeter", name} & set(before)})


def write(side: str, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for file, text in BLOCKS.items():
        if file.startswith(f"{side}/"):
            (folder / file.partition("/")[2]).write_text(text)


@contextmanager
def pair(name: str, folder: Path) -> Iterator[tuple[Any, Activation]]:
    """Return the FastMCP server and the activation of a pair."""
    with imported("fastmcp", name, folder / "fastmcp") as theirs:
        server = theirs.mcp
    with imported("plexus", name, folder / "plexus") as ours:
        activation = getattr(ours, name)
    assert isinstance(activation, Activation)
    yield server, activation


def plain(value: Any) -> Any:
    return json.loads(wire.encode(value))


def text_of(result: Any) -> str:
    return "".join(block.text for block in result.content)


def value_of(result: Any) -> Any:
    """Return the value of a FastMCP result, without the object that it wraps plain values in."""
    value = result.structured_content
    return value["result"] if set(value) == {"result"} else value


def test_every_block_belongs_to_a_pair_that_is_tested() -> None:
    assert len(BLOCKS) == DOCUMENT.count("```python\n")
    names = {name for name, *_ in CALLS} | OTHERS
    assert set(BLOCKS) == {f"{side}/{name}.py" for side in ("fastmcp", "plexus") for name in names}


@pytest.mark.parametrize(("name", "tool", "arguments", "expected"), CALLS)
async def test_both_return_the_same(
    name: str, tool: str, arguments: dict[str, Any], expected: Any, tmp_path: Path
) -> None:
    with pair(name, tmp_path) as (server, activation):
        async with Client(server) as client:
            theirs = value_of(await client.call_tool(tool, arguments))
            [described] = [each for each in await client.list_tools() if each.name == tool]
        async with local(activation) as plexus:
            ours = plain(await plexus.call(f"{name}.{tool}", **arguments))
            [spec] = [each for each in plexus.hub.methods() if each.name == f"{name}.{tool}"]
    assert ours == theirs == expected
    assert spec.description == described.description
    assert set(spec.names) == set(described.input_schema["properties"])


async def test_both_report_the_same_progress_and_log_messages(tmp_path: Path) -> None:
    steps: list[tuple[float, float | None, str | None]] = []
    logs: list[str] = []

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        steps.append((done, total, message))

    async def on_log(message: Any) -> None:
        logs.append(message.data["msg"])

    arguments = {"names": ["a", "b"]}
    with pair("mover", tmp_path) as (server, activation):
        handlers = {"progress_handler": on_progress, "log_handler": on_log}
        async with Client(server, mode="legacy", **handlers) as client:
            await client.call_tool("move", arguments)
        async with local(activation) as plexus:
            events = await plexus.events("mover.move", **arguments)
    assert steps == [(1, 2, "a"), (2, 2, "b")]
    assert steps == [(e.done, e.total, e.message) for e in events if isinstance(e, Progress)]
    assert logs == [event.message for event in events if isinstance(event, Log)]
    assert logs == ["moving a", "moving b"]


async def test_a_lifespan_surrounds_the_calls_of_both(tmp_path: Path) -> None:
    with pair("counter", tmp_path) as (server, activation):
        for _ in range(2):
            async with Client(server) as client:
                theirs = [(await client.call_tool("add", {"n": n})).data for n in (1, 2)]
            async with local(activation) as plexus:
                ours = [await plexus.call("counter.add", n=n) for n in (1, 2)]
            assert ours == theirs == [1, 3]


async def test_resources_and_prompts_are_the_same(tmp_path: Path) -> None:
    with pair("notes", tmp_path) as (server, activation):
        async with Client(server) as client:
            [content] = await client.read_resource("note://tea")
            prompt = await client.get_prompt("improve", {"name": "tea"})
        async with local(activation) as plexus:
            spec, arguments = plexus.hub.find_resource("note://tea")
            assert await plexus.call(spec.name, **arguments) == content.text == "Boil water."
            made = await plexus.call("notes.improve", name="tea")
    assert made == prompt.messages[0].content.text == "Improve this note: Boil water."


async def test_both_ask_and_use_the_answer(tmp_path: Path) -> None:
    answers: list[dict[str, Any] | None] = [{"folder": "tmp", "days": 3}, None]
    with pair("cleaner", tmp_path) as (server, activation):
        for answer in answers:
            theirs = await asked(server, answer)
            async with local(activation) as plexus:
                assert await plexus.answering(answer).call("cleaner.clean") == theirs
        assert theirs == "nothing"
        assert await asked(server, answers[0]) == "tmp older than 3 days"


async def asked(server: Any, answer: dict[str, Any] | None) -> Any:
    """Call the FastMCP tool that asks, with this answer; None declines."""
    from fastmcp.client.elicitation import ElicitResult

    async def on_question(message: str, kind: Any, *_: Any) -> Any:
        assert message == "What should be deleted?"
        return ElicitResult(action="decline") if answer is None else kind(**answer)

    async with Client(server, mode="legacy", elicitation_handler=on_question) as client:
        return (await client.call_tool("clean", {})).data


async def test_both_return_the_same_picture(tmp_path: Path) -> None:
    with pair("painter", tmp_path) as (server, activation):
        async with Client(server) as client:
            [block] = (await client.call_tool("paint", {})).content
        async with local(activation) as plexus:
            image = await plexus.call("painter.paint")
    assert isinstance(image, Image)
    assert (image.data, image.mime_type) == (block.data, block.mime_type)
    assert base64.b64decode(image.data) == b"\x89PNG\r\n\x1a\n"


async def test_both_fail_with_the_same_words(tmp_path: Path) -> None:
    with pair("opener", tmp_path) as (server, activation):
        async with Client(server) as client:
            failed = await client.call_tool("open_door", {"code": "0"}, raise_on_error=False)
        async with local(activation) as plexus:
            with pytest.raises(Failed) as caught:
                await plexus.call("opener.open_door", code="0")
    assert failed.is_error
    assert text_of(failed) == caught.value.message == "The code is wrong."
    assert caught.value.code == "wrong_code"


# --- other processes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "flags", "tool"),
    [("fastmcp", [], "greet"), ("plexus", ["--stdio", "--mcp"], "greeter.greet")],
)
async def test_both_scripts_are_served_over_stdio(
    side: str, flags: list[str], tool: str, tmp_path: Path
) -> None:
    write(side, tmp_path / side)
    script = tmp_path / side / "greeter.py"
    transport = StdioTransport(
        sys.executable, [str(script), *flags], env=clean_environment(), keep_alive=False
    )
    async with asyncio.timeout(60), Client(transport) as client:
        assert text_of(await client.call_tool(tool, {"name": "Ann"})) == "Hello, Ann!"


@pytest.mark.parametrize(
    ("side", "token", "tool"), [("fastmcp", None, "greet"), ("plexus", "secret", "greeter.greet")]
)
async def test_both_are_mounted_into_an_application(
    side: str, token: str | None, tool: str, tmp_path: Path
) -> None:
    with imported(side, "web", tmp_path / side) as web:
        async with (
            served(web.app) as port,
            Client(f"http://127.0.0.1:{port}/tools/mcp", auth=token) as client,
        ):
            assert text_of(await client.call_tool(tool, {"name": "Ann"})) == "Hello, Ann!"


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
        task = asyncio.create_task(server.serve([sock]))
        try:
            async with asyncio.timeout(15):
                while not server.started:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.01)
            yield sock.getsockname()[1]
        finally:
            server.should_exit = True
            await asyncio.wait_for(task, 15)


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("side", ["fastmcp", "plexus"])
def test_both_tests_pass(side: str, tmp_path: Path) -> None:
    write(side, tmp_path / side)
    tested = run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_greeter.py", cwd=tmp_path / side
    )
    assert tested.returncode == 0, tested.stdout


def test_a_server_is_imported_by_the_command_and_by_the_flag(tmp_path: Path) -> None:
    write("fastmcp", tmp_path / "fastmcp")
    folder = tmp_path / "fastmcp"
    listed = run("-m", "substrate", "import", "fastmcp", "greeter:mcp", cwd=folder)
    assert "greeter.greet  Greet someone." in listed.stdout, listed.stderr
    assert "substrate --activation fastmcp:greeter:mcp" in listed.stderr
    flag = ["--activation", "fastmcp:greeter:mcp"]
    called = run("-m", "substrate", *flag, "call", "--local", "greeter.greet", "Ann", cwd=folder)
    assert called.stdout == "Hello, Ann!\n", called.stderr


async def test_an_imported_server_returns_what_it_returns_itself(tmp_path: Path) -> None:
    from activations.fastmcp_server import from_fastmcp

    for name, tool, arguments, expected in CALLS:
        with pair(name, tmp_path) as (server, _):
            async with local(from_fastmcp(server)) as plexus:
                assert plain(await plexus.call(f"{name}.{tool}", **arguments)) == expected
