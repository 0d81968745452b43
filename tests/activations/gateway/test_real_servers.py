"""Servers that people use, from the npm registry, as mounts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from conformance.node import UPSTREAMS, NotInstalled, installed, server
from gateway_kit import MountedHub, mounted, until
from upstream_sessions import processes_with

from plexus.events import ContentResult, Log, Progress
from plexus.principal import LOCAL
from plexus.questions import OpenUrl
from plexus.registry.roles import complete

#: npm may have to install the servers first.
pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module", autouse=True)
def _servers() -> None:
    try:
        installed(UPSTREAMS)
    except NotInstalled as error:
        pytest.skip(str(error))


@asynccontextmanager
async def real(
    folder: Path, name: str, *arguments: str, **options: Any
) -> AsyncIterator[MountedHub]:
    """Run a hub with a mount of an official server under its name, in one session."""
    program, *rest = server(name)
    table = {"command": program, "args": [*rest, *arguments], "session": "shared", **options}
    async with mounted(folder, {name: table}) as here:
        yield here


async def test_every_feature_of_the_everything_server_passes_through_a_mount(
    tmp_path: Path,
) -> None:
    async with real(tmp_path, "everything") as here:
        state = here.gateway.mounts["everything"].describe_state()
        assert (state["held"], state["problems"]) == ([], [])
        assert await here.text_of("everything.get_sum", a=2, b=3) == "The sum of 2 and 3 is 5."

        events = await here.caller().events(
            "everything.trigger_long_running_operation", duration=0.3, steps=3
        )
        steps = [event for event in events if isinstance(event, Progress)]
        assert [event.done for event in steps] == [1, 2, 3]
        assert {event.total for event in steps} == {3}

        weather = await here.end_of("everything.get_structured_content", location="Chicago")
        assert isinstance(weather, ContentResult)
        assert set(weather.value) == {"temperature", "conditions", "humidity"}
        image = await here.end_of("everything.get_tiny_image")
        assert isinstance(image, ContentResult)
        assert "image" in {block["type"] for block in image.content}

        links = await here.end_of("everything.get_resource_links", count=2)
        assert isinstance(links, ContentResult)
        uris = [block["uri"] for block in links.content if block["type"] == "resource_link"]
        assert len(uris) == 2
        for uri in uris:
            assert uri.startswith("mount://everything/demo://resource/")
            spec, arguments = here.hub.find_resource(uri)  # a link leads back to the server
            read = await here.end_of(spec.name, **arguments)
            assert isinstance(read, ContentResult), read
            assert read.content[0]["uri"] == uri
        prompt = await here.end_of("everything.args_prompt", city="Rome")
        assert "weather in Rome" in prompt.as_text()


async def test_arguments_of_a_prompt_are_suggested_by_the_everything_server(
    tmp_path: Path,
) -> None:
    async with real(tmp_path, "everything") as here:
        spec, _ = here.hub.find_prompt("everything.completable_prompt")
        found = await complete(spec, "department", "Eng", {}, LOCAL)
        assert found["values"] == ["Engineering"]
        context = {"department": "Engineering"}
        names = await complete(spec, "name", "", context, LOCAL)
        assert "Alice" in names["values"]  # the server saw the other argument


async def test_questions_of_the_everything_server_are_questions_of_the_run(
    tmp_path: Path,
) -> None:
    async with real(tmp_path, "everything") as here:
        person = {"name": "Ann", "check": True, "email": "ann@example.org", "integer": 7}
        answered = await here.end_of("everything.trigger_elicitation_request", answers=[person])
        assert "ann@example.org" in answered.as_text()
        declined = await here.end_of("everything.trigger_elicitation_request", answers=[None])
        assert "declined" in declined.as_text()
        sampled = await here.end_of(
            "everything.trigger_sampling_request", answers=["Four."], prompt="2+2?", maxTokens=9
        )
        assert "Four." in sampled.as_text()

        call = here.hub.call(
            "everything.trigger_url_elicitation",
            {"url": "https://example.org/pay", "message": "Pay"},
            LOCAL,
        )
        await until(lambda: call.run.questions)
        [question] = (call.run.questions or {}).values()
        assert isinstance(question.question, OpenUrl)
        assert question.question.url.startswith("https://example.org/pay")
        call.run.cancel("enough")
        await until(lambda: call.run.terminal is not None)


async def test_a_task_of_the_everything_server_ends_with_its_result(tmp_path: Path) -> None:
    async with real(tmp_path, "everything") as here:
        events = await here.caller().events(
            "everything.simulate_research_query", topic="tea", ambiguous=False
        )
        assert isinstance(events[-1], ContentResult), events[-1]
        assert "tea" in events[-1].as_text()
        assert any(isinstance(event, Log) for event in events)  # the status of the task


async def test_files_are_written_and_read_by_the_filesystem_server(tmp_path: Path) -> None:
    async with real(tmp_path, "filesystem", str(tmp_path)) as here:
        path = str(tmp_path / "note.txt")
        wrote = await here.end_of("filesystem.write_file", path=path, content="hello")
        assert not wrote.failed, wrote.as_text()
        assert "hello" in await here.text_of("filesystem.read_text_file", path=path)
        refused = await here.end_of("filesystem.read_text_file", path="/etc/passwd")
        assert refused.failed
        assert "Access denied" in refused.as_text()
    assert (tmp_path / "note.txt").read_text() == "hello"


async def test_the_memory_server_remembers_and_nothing_is_left_running(tmp_path: Path) -> None:
    file = tmp_path / "memory.jsonl"
    async with real(tmp_path, "memory", str(file), env={"MEMORY_FILE_PATH": str(file)}) as here:
        entity = {"name": "Ann", "entityType": "person", "observations": ["likes tea"]}
        created = await here.end_of("memory.create_entities", entities=[entity])
        assert not created.failed, created.as_text()
        graph = await here.end_of("memory.read_graph")
        assert isinstance(graph, ContentResult)
        assert json.loads(graph.content[0]["text"])["entities"] == [entity]
        assert processes_with(str(file))
    await until(lambda: not processes_with(str(file)))
    assert "Ann" in file.read_text()


async def test_every_official_server_is_found_by_search_and_fills_no_list(tmp_path: Path) -> None:
    tables = {}
    for name in ("everything", "memory", "filesystem"):
        program, *rest = server(name)
        arguments = [*rest, str(tmp_path)] if name == "filesystem" else rest
        tables[name] = {"command": program, "args": arguments}
    async with mounted(tmp_path, tables) as here:
        found = await here.caller().call("plexus.search", query="knowledge graph entities", limit=3)
        assert any(each["name"].startswith("memory.") for each in found)
        models = [spec.name for spec in here.hub.methods() if spec.audience == "model"]
        assert not any(name.startswith(tuple(tables)) for name in models)
