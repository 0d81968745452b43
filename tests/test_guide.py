"""Every Python block of `docs/writing-an-activation.md` works as shown, and so does its table."""

from __future__ import annotations

import asyncio
import dataclasses
import decimal
import enum
import importlib
import json
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from child_processes import clean_environment
from conftest import OpenHub
from documents import ROOT
from mcp_peer import HANDSHAKES, McpPeer
from pydantic import BaseModel
from typing_extensions import TypedDict

import substrate
from plexus import Activation, Event, Image, Progress, Resource
from plexus.errors import InvalidParams, NotFound, PlexusError
from plexus.registry.plugins import find_activations
from plexus.registry.schema import parameters_schema
from plexus.rpc import wire
from plexus.testing import local

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

GUIDE = (ROOT / "docs" / "writing-an-activation.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", GUIDE, re.S))
PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)

#: The blocks that tests/test_documents.py runs.
IN_FOLDERS = {
    "activations.d/words.py",
    "activations.d/notes.py",
    "activations.d/letters.py",
    "test_words.py",
}
#: The files of functions, and calls of their methods with what they return.
CALLS: dict[str, list[tuple[str, dict[str, Any], Any]]] = {
    "count.py": [],
    "slow.py": [("slow.total", {"numbers": [1, 2.5]}, 3.5)],
    "prices.py": [
        ("prices.quote", {"name": "milk"}, {"name": "milk", "euros": 2.0}),
        ("prices.add", {"prices": [{"name": "a", "euros": 1}]}, {"euros": 1.0, "count": 1}),
    ],
    "search.py": [
        ("search.files", {"pattern": "a"}, "10 of a by name"),
        (
            "search.files",
            {"pattern": "a", "limit": 2, "sort": "size", "when": {"after": "2026-03-01"}},
            "2 of a by size since 01.03.2026",
        ),
    ],
    "copy_files.py": [],
    "shop.py": [("shop.buy", {"item": "tea"}, 2), ("shop.buy", {"item": "tea"}, 1)],
    "tally.py": [],
    "library.py": [],
    "accounts.py": [
        (
            "accounts.sign_in",
            {"user": "a", "password": "b", "proxy": {"url": "c", "password": "d"}},
            "a signed in through c",
        )
    ],
    "recipes.py": [
        ("recipes.recipe", {"name": "tea"}, "Boil water."),
        ("recipes.improve", {"name": "toast"}, "Improve this recipe:\n\nToast bread."),
    ],
    "tasks.py": [
        ("tasks.create", {"text": "a"}, 1),
        ("create_task", {"text": "b"}, 2),
        ("tasks.dump", {}, ["a", "b"]),
    ],
}
#: The files that use others, each with a test below.
PROGRAMS = {"tools.py", "app.py", "cell.py", "test_count.py", "test_library.py"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the files of functions and the programs into a folder from which Python imports."""
    for file in {*CALLS, *PROGRAMS}:
        (tmp_path / file).write_text(BLOCKS[file])
        monkeypatch.delitem(sys.modules, file.removesuffix(".py"), raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def imported(file: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    name = file.removesuffix(".py")
    module = importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    return module


def test_every_python_block_is_tested() -> None:
    assert len(BLOCKS) == GUIDE.count("```python\n")
    assert set(BLOCKS) == IN_FOLDERS | set(CALLS) | PROGRAMS


def plain(value: Any) -> Any:
    return json.loads(wire.encode(value))


@pytest.mark.parametrize("file", CALLS)
async def test_a_file_of_functions_works(file: str, folder: Path) -> None:
    [activation] = find_activations(str(folder / file))
    async with local(activation) as plexus:
        for method, params, result in CALLS[file]:
            assert plain(await plexus.call(method, **params)) == result, method


async def test_streams_progress_and_questions_are_as_described(folder: Path) -> None:
    found = [next(find_activations(str(folder / f"{name}.py"))) for name in ("count", "slow")]
    async with local(*found) as plexus:
        counted = await plexus.events("count.up", to=3)
        assert "".join(event.as_text() for event in counted) == "1 2 3 "
        stepped = await plexus.events("slow.steps", n=2)
        assert [event.type for event in stepped] == [*["progress", "content"] * 2, "complete"]
    [copying] = find_activations(str(folder / "copy_files.py"))
    async with local(copying) as plexus:
        events = await plexus.answering(True).events("copy_files.run", names=["a"])
        assert [event.type for event in events] == ["request", "log", "progress", "complete"]
        assert Progress(1, 1, "a") in events
        assert await plexus.answering(False).call("copy_files.run", names=["a"]) == 0


async def test_values_are_converted_and_constraints_enforced_as_described(folder: Path) -> None:
    files = ("prices.py", "search.py", "recipes.py")
    found = [next(find_activations(str(folder / file))) for file in files]
    async with local(*found) as plexus:
        quoted = await plexus.events("prices.quotes", names=["milk"])
        assert [event.type for event in quoted] == ["data", "content", "complete"]
        assert isinstance(await plexus.call("prices.picture"), Image)
        for wrong in ({"limit": 51}, {"limit": "5"}, {"kind": "link"}, {"pattern": "x" * 101}):
            with pytest.raises(InvalidParams):
                await plexus.call("search.files", **({"pattern": "a"} | wrong))
        with pytest.raises(NotFound, match="Unknown recipe 'soup'"):
            await plexus.call("recipes.recipe", name="soup")
        suggested = await plexus.call(
            "plexus.complete", method="recipes.improve", argument="name", value="te"
        )
        assert suggested["values"] == ["tea"]


@pytest.mark.usefixtures("folder")
async def test_storage_works_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = imported("cell.py", monkeypatch)
    assert await cell.main() == 5
    assert await cell.main() == 10
    async with substrate.local(cell.tally) as plexus:
        assert await plexus.call("tally.record", text="a") == 1
        assert await plexus.call("tally.record", text="b") == 2
    async with local(cell.tally) as plexus:
        with pytest.raises(PlexusError, match="no storage"):
            await plexus.call("tally.add", n=1)


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=clean_environment(XDG_DATA_HOME=str(cwd / "data")),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_script_serves_several_activations(folder: Path) -> None:
    listed = run("tools.py", "list", "--all", cwd=folder).stdout
    assert "count.up" in listed
    assert "tally.add" in listed
    assert "bash" not in listed
    assert "plexus.search" in listed
    called = run("tools.py", "call", "count.up", "2", cwd=folder)
    assert called.stdout == "1 2 "
    assert run("cell.py", cwd=folder).stdout == "5\n"


def test_the_tests_of_the_guide_pass(folder: Path) -> None:
    files = ("test_count.py", "test_library.py")
    tested = run("-m", "pytest", "-q", "-p", "no:cacheprovider", *files, cwd=folder)
    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout


async def test_parameters_are_kept_out_of_the_history_as_described(folder: Path) -> None:
    [accounts] = find_activations(str(folder / "accounts.py"))
    async with local(accounts) as plexus:
        spec = plexus.hub.resolve("accounts.sign_in")
        assert spec.secret_names == {"password", "proxy"}
        assert spec.record == "metadata"
        shown = parameters_schema(spec)["properties"]["password"]
        assert (shown["writeOnly"], shown["format"]) == (True, "password")


@pytest.mark.usefixtures("folder")
async def test_the_application_serves_the_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    module = imported("app.py", monkeypatch)
    call = {"jsonrpc": "2.0", "id": 1, "method": "count.up", "params": {"to": 2}}
    async with module.tools.lifespan(module.app):
        status, answer = await posted(module.app, "/tools/rpc", call, "secret")
        assert status == 200
        assert [event["text"] for event in answer["result"]["events"]] == ["1 ", "2 "]
        assert (await posted(module.app, "/tools/rpc", call, "wrong"))[0] == 401


async def posted(app: Any, path: str, body: Any, token: str) -> tuple[int, Any]:
    """Send one request to an ASGI application and return the status and the decoded body."""
    sent: list[dict[str, Any]] = []
    headers = {
        "host": "127.0.0.1:8000",
        "content-type": "application/json",
        "authorization": f"Bearer {token}",
    }
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
    }

    requests = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not requests:
            await asyncio.Event().wait()  # the client stays connected
        return requests.pop()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    content = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], json.loads(content)


def test_every_rule_of_the_check_command_is_described() -> None:
    table = GUIDE.partition("## Check it")[2].partition("## Ship it")[0]
    lint = (ROOT / "substrate" / "devtools" / "lint.py").read_text()
    rules = set(re.findall(r'"([a-z]+(?:-[a-z]+)+)",', lint))
    assert "docstring-missing" in rules
    assert rules - set(re.findall(r"`([a-z-]+)`", table)) == set()


# --- the table of values -------------------------------------------------------------------------


class Model(BaseModel):
    """A model."""

    a: int = 1


@dataclasses.dataclass
class Data:
    """A dataclass."""

    a: int = 1


class Typed(TypedDict):
    """A TypedDict."""

    a: int


class Colour(enum.Enum):
    """An enum."""

    RED = "red"


class Reading(Event):
    """An event with text."""

    a: int

    def as_text(self) -> str:
        return f"a is {self.a}"


def picture() -> Any:
    return pytest.importorskip("PIL.Image").new("RGB", (1, 1))


#: For each row of the table, values with their types.
SAMPLES: dict[str, list[tuple[Any, Any]]] = {
    "`str`": [(str, "text")],
    "`int`, `float`, `bool`": [(int, 5), (float, 1.5), (bool, True)],
    "`None`": [(None, None)],
    "pydantic model, dataclass, TypedDict": [
        (Model, Model()),
        (Data, Data()),
        (Typed, {"a": 1}),
    ],
    "`dict`, `list`, `tuple`": [
        (dict[str, int], {"a": 1}),
        (list[int], [1]),
        (tuple[int, int], (1, 2)),
    ],
    "`Path`, `date`, `Decimal`, `UUID`, enum": [
        (Path, Path("a/b")),
        (date, date(2026, 1, 2)),
        (decimal.Decimal, decimal.Decimal("1.5")),
        (uuid.UUID, uuid.UUID(int=1)),
        (Colour, Colour.RED),
    ],
    "`bytes` of a PNG, JPEG, GIF or WebP": [
        (bytes, PNG),
        (bytes, b"\xff\xd8\xff\xe0"),
        (bytes, b"GIF89a"),
        (bytes, b"RIFF0000WEBP"),
    ],
    "`bytes` of a WAV, MP3, Ogg or FLAC": [
        (bytes, b"RIFF0000WAVE"),
        (bytes, b"ID3\x04"),
        (bytes, b"OggS"),
        (bytes, b"fLaC"),
    ],
    "other `bytes`": [(bytes, b"\0\1")],
    "PIL image, matplotlib figure": [(Any, picture)],
    "`list` of images, sounds or files": [(list[bytes], [PNG, PNG])],
    "`Image`, `Audio`, `Resource`": [
        (Image, Image.of_bytes(PNG, "image/png")),
        (Resource, Resource("note://a", content="text")),
    ],
    "an event class of yours": [(Reading, Reading(a=1))],
}


def rows() -> dict[str, list[str]]:
    table = re.search(r"<!-- values -->\n(.*?)<!-- end of values -->", GUIDE, re.S)
    assert table is not None
    lines = [line.strip("| \n").split(" | ") for line in table[1].splitlines()[2:]]
    return {first: rest for first, *rest in lines}


def test_every_row_of_the_table_has_samples() -> None:
    assert list(rows()) == list(SAMPLES)


@pytest.mark.parametrize("row", SAMPLES)
async def test_a_row_of_the_table_of_values_is_true(row: str, open_hub: OpenHub) -> None:
    yielded_cell, returned_cell, content_cell, structured_cell = rows()[row]
    for kind, sample in SAMPLES[row]:
        value = sample() if sample is picture else sample
        hub = open_hub(giving(value, kind))
        peer = McpPeer(hub, HANDSHAKES[-1])
        streamed = await peer.tool("give.one")
        whole = await peer.tool("give.whole")
        bare = await peer.tool("give.bare")
        async with local(giving(value, kind)) as plexus:
            first = plain((await plexus.events("give.one"))[0])
            result = plain((await plexus.events("give.whole"))[-1])["result"]
            assert plain((await plexus.events("give.bare"))[-1])["result"] == result

        wanted = re.match(r"`(\w+)`", yielded_cell)
        if wanted is not None:
            assert first["type"] == wanted[1]
        elif yielded_cell == "itself":
            assert first == plain(value)
        else:
            assert yielded_cell.startswith("refused")
            assert first["code"] == "invalid_event"
        if returned_cell.startswith("the `"):
            assert result["type"] == returned_cell.split("`")[1]
        elif returned_cell == "a list of their events":
            assert [each["type"] for each in result] == ["image", "image"]
        else:
            assert result == plain(value)

        blocks = [block["type"] for block in whole["content"]]
        word = content_cell.split()[0]
        if word in {"image", "audio"}:
            assert blocks == [block["type"] for block in streamed["content"]] == [word]
        elif word == "embedded":
            assert blocks == ["resource"]
        elif word == "a":
            assert set(blocks) <= {"image", "resource"}
            assert len(blocks) == (len(value) if isinstance(value, list) else 1)
        else:
            assert blocks == ["text"]
            check_text(row, value, whole["content"][0]["text"], streamed["content"][0]["text"])
        structured = structured_cell.startswith("the object")
        assert whole.get("structuredContent") == (plain(value) if structured else None)
        assert "structuredContent" not in streamed
        assert "structuredContent" not in bare
        assert bare["content"] == whole["content"]


def check_text(row: str, value: Any, whole: str, streamed: str) -> None:
    encoded = json.dumps(plain(value), separators=(",", ":"))
    if row == "`None`":
        assert (streamed, whole) == ("null\n", "(no output)")
    elif row == "an event class of yours":
        assert (streamed, whole) == ("a is 1", encoded)
    elif row == "`str`":
        assert streamed == whole == value
    elif isinstance(plain(value), str):
        assert (streamed, whole) == (f"{plain(value)}\n", plain(value))
    else:
        assert (streamed, whole) == (f"{encoded}\n", encoded)


def giving(value: Any, kind: Any) -> Activation:
    """Return an activation that yields the value, returns it, and returns it unannotated."""
    give = Activation("give")

    async def one() -> AsyncIterator[Any]:
        """Yield the value."""
        yield value

    async def whole() -> Any:
        """Return the value."""
        return value

    @give.method
    async def bare():  # type: ignore[no-untyped-def]
        """Return the value, without an annotation."""
        return value

    one.__annotations__["return"] = AsyncIterator[kind]
    whole.__annotations__["return"] = kind
    give.method(one)
    give.method(whole)
    return give
