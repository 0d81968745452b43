"""Calls of tools: results, failures, logs and cancellation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from activations_for_tests import Demo
from conftest import OpenHub
from hub_calls import happened
from mcp_activations import PIXEL, SOUND, Show, Watched
from mcp_peer import HANDSHAKES, REVISIONS, STATELESS, McpPeer, text_of

from mcp_view.server import McpOptions
from plexus import Activation, Audio, Content, Image, Resource, method
from plexus.limits import Limits
from plexus.rpc import wire

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


# --- results -------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", REVISIONS)
async def test_text_is_joined_into_one_block(open_hub: OpenHub, revision: str) -> None:
    peer = McpPeer(open_hub(Show), revision)
    result = await peer.tool("show.words", {"texts": ["a", "", "b\n", "é"]})
    assert result["content"] == [text("ab\né")]
    assert result["isError"] is False
    assert ("resultType" in result) == (revision == STATELESS)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_run_without_output_has_a_placeholder(open_hub: OpenHub, revision: str) -> None:
    peer = McpPeer(open_hub(Show), revision)
    for result in (
        await peer.tool("show.silence"),
        await peer.tool("show.words", {"texts": [""]}),
        await peer.tool("show.value", {"kind": "none"}),
    ):
        assert result["content"] == [text("(no output)")]


@pytest.mark.parametrize(
    ("kind", "shown"), [("text", "a text"), ("list", '[1,{"a":2}]'), ("number", "5")]
)
async def test_a_value_is_text_as_it_is_or_json(open_hub: OpenHub, kind: str, shown: str) -> None:
    result = await McpPeer(open_hub(Show), "2025-11-25").tool("show.value", {"kind": kind})
    assert result == {"content": [text(shown)], "isError": False}


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_model_is_structured_content_where_the_revision_has_it(
    open_hub: OpenHub, revision: str
) -> None:
    peer = McpPeer(open_hub(Show), revision)
    result = await peer.tool("show.found", {"name": "key"})
    [block] = result["content"]
    assert json.loads(block["text"]) == {"name": "key", "size": 3}
    if revision >= "2025-06-18":
        assert result["structuredContent"] == json.loads(block["text"])
    else:
        assert "structuredContent" not in result


@pytest.mark.parametrize("revision", REVISIONS)
async def test_nothing_but_a_model_is_structured_content(open_hub: OpenHub, revision: str) -> None:
    peer = McpPeer(open_hub(Show), revision)
    for tool, arguments in (
        ("show.words", {"texts": ["x"]}),
        ("show.value", {"kind": "list"}),
        ("show.loose", {}),
        ("show.found", {"name": "nothing"}),
        ("plexus.schema", {}),
    ):
        assert "structuredContent" not in await peer.tool(tool, arguments)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_pictures_sounds_and_resources_are_blocks_after_the_text(
    open_hub: OpenHub, revision: str
) -> None:
    result = await McpPeer(open_hub(Show), revision).tool("show.media")
    output, image, audio, note, binary, link = result["content"]
    assert output == text("before after")
    assert image == {"type": "image", "data": PIXEL, "mimeType": "image/png"}
    if revision >= "2025-03-26":
        assert audio == {"type": "audio", "data": SOUND, "mimeType": "audio/wav"}
    else:
        assert audio == text("[audio audio/wav]")
    resource = {"uri": "note://1", "mimeType": "text/plain", "text": "a note"}
    assert note == {"type": "resource", "resource": resource}
    resource = {"uri": "note://2", "mimeType": "application/x-note", "blob": "Ynl0ZXM="}
    assert binary == {"type": "resource", "resource": resource}
    if revision >= "2025-06-18":
        assert link == {"type": "resource_link", "uri": "note://3", "name": "third"}
    else:
        assert link == text("[resource note://3]")


async def test_the_tools_that_were_used_are_blocks(open_hub: OpenHub) -> None:
    result = await McpPeer(open_hub(Show), "2025-11-25").tool("show.tools")
    assert result["content"] == [
        text("done"),
        text('[Tool: search] {"q":"x"}'),
        text("[Tool result] two hits"),
        text("[Tool failed] no route"),
    ]


async def test_an_event_without_text_is_a_line_of_json(open_hub: OpenHub) -> None:
    result = await McpPeer(open_hub(Show), "2025-11-25").tool("show.readings")
    lines = text_of(result).splitlines()
    assert [json.loads(line) for line in lines] == [
        {"type": "reading", "value": 1},
        {"type": "reading", "value": 2},
    ]


async def test_the_terminal_is_shown_if_there_is_no_other_output(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Show), "2025-11-25")
    assert text_of(await peer.tool("show.counted", {"aloud": False})) == '{"total":3}'
    assert text_of(await peer.tool("show.counted", {"aloud": True})) == "three"


# --- refusals and failures -----------------------------------------------------------------------


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize(
    "name", ["no.such", "", "demo", "plexus.unsubscribe", "plexus.transcript", "x" * 9999]
)
async def test_an_unknown_tool_is_refused(open_hub: OpenHub, revision: str, name: str) -> None:
    error = await McpPeer(open_hub(Demo), revision).error("tools/call", {"name": name})
    assert error["code"] == wire.INVALID_PARAMS
    assert error["message"] == f"Unknown tool: {name[:128]}"


@pytest.mark.parametrize("name", [None, 5, ["demo.echo"], {}])
async def test_a_call_without_a_name_is_refused(open_hub: OpenHub, name: Any) -> None:
    error = await McpPeer(open_hub(Demo), "2025-11-25").error("tools/call", {"name": name})
    assert error["code"] == wire.INVALID_PARAMS


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize(
    "arguments", [{}, {"text": 5}, {"text": "x", "times": "2"}, {"text": "x", "no_such": 1}]
)
async def test_bad_arguments_are_an_error_or_a_failed_result(
    open_hub: OpenHub, revision: str, arguments: dict[str, Any]
) -> None:
    peer = McpPeer(open_hub(Demo), revision)
    answer = await peer.call("tools/call", {"name": "demo.echo", "arguments": arguments})
    if revision <= "2025-06-18":
        assert answer["error"]["code"] == wire.INVALID_PARAMS
    else:
        assert answer["result"]["isError"] is True
        assert "demo.echo" in text_of(answer["result"])


@pytest.mark.parametrize("arguments", [5, "x", [1]])
@pytest.mark.parametrize("revision", REVISIONS)
async def test_arguments_that_are_no_object_are_always_an_error(
    open_hub: OpenHub, revision: str, arguments: Any
) -> None:
    peer = McpPeer(open_hub(Demo), revision)
    error = await peer.error("tools/call", {"name": "demo.echo", "arguments": arguments})
    assert error["code"] == wire.INVALID_PARAMS


async def test_arguments_may_be_absent_or_null(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Show), "2025-11-25")
    for params in ({"name": "show.value"}, {"name": "show.value", "arguments": None}):
        assert text_of(await peer.result("tools/call", params)) == "a text"


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_failure_keeps_all_output(open_hub: OpenHub, revision: str) -> None:
    result = await McpPeer(open_hub(Show), revision).tool("show.fails")
    assert result["isError"] is True
    output, image, why = result["content"]
    assert output == text("so far, so good")
    assert image["type"] == "image"
    assert why == text("and then it broke")


async def test_a_failed_model_has_no_structured_content(open_hub: OpenHub) -> None:
    result = await McpPeer(open_hub(Show), "2025-11-25").tool("show.found", {"name": "nothing"})
    assert result == {"content": [text("there is nothing")], "isError": True}


async def test_an_unexpected_error_does_not_show_its_text(open_hub: OpenHub) -> None:
    result = await McpPeer(open_hub(Show), "2025-11-25").tool("show.crash")
    assert result["isError"] is True
    assert "this text" not in text_of(result)


async def test_a_run_cancelled_by_another_client_is_a_failure(open_hub: OpenHub) -> None:
    watched = Watched()
    peer = McpPeer(open_hub(watched), "2025-11-25")
    call = peer.begin_tool("watched.wait")
    await happened(watched.started)
    [run] = [run for run in peer.hub.runs.running() if run.method == "watched.wait"]
    other = McpPeer(peer.hub, "2025-11-25")
    await other.tool("plexus.cancel", {"run": run.id, "reason": "enough"})
    result = (await peer.answer_to(call))["result"]
    assert result == {"content": [text("waiting"), text("Cancelled: enough")], "isError": True}


async def test_a_stopping_server_answers_its_calls(open_hub: OpenHub) -> None:
    watched = Watched()
    hub = open_hub(watched)
    peer = McpPeer(hub, "2025-11-25")
    call = peer.begin_tool("watched.wait")
    await happened(watched.started)
    await hub.close()
    assert (await peer.answer_to(call))["result"]["isError"] is True
    refused = await peer.error("tools/call", {"name": "watched.wait"})
    assert refused["code"] == -32003  # like busy: retry later or on another server


# --- large results -------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", REVISIONS)
async def test_an_oversized_result_keeps_its_ends_and_links_to_the_full_output(
    open_hub: OpenHub, revision: str
) -> None:
    peer = McpPeer(open_hub(Show), revision, options=McpOptions(result_chars=100))
    texts = [f"{number:04d} " for number in range(200)]
    whole = "".join(texts)
    result = await peer.tool("show.words", {"texts": texts})
    output = result["content"][0]["text"]
    assert output.startswith(whole[:50] + "\n[... ")
    assert output.endswith(" ...]\n" + whole[-50:])
    assert f"[... {len(whole) - 100} characters omitted; " in output
    uri = output.partition("full output: ")[2].partition(" ")[0]
    if revision >= "2025-06-18":
        link = result["content"][1]
        assert (link["type"], link["uri"], link["mimeType"]) == (
            "resource_link",
            uri,
            "text/plain",
        )
    else:
        assert len(result["content"]) == 1
    read = await peer.result("resources/read", {"uri": uri})
    assert read["contents"] == [{"uri": uri, "mimeType": "text/plain", "text": whole}]


async def test_an_oversized_value_keeps_its_ends_and_links_to_the_full_output(
    open_hub: OpenHub,
) -> None:
    peer = McpPeer(open_hub(Demo), "2025-11-25", options=McpOptions(result_chars=10))
    result = await peer.tool("demo.echo", {"text": "abcdefgh", "times": 100})
    output = result["content"][0]["text"]
    assert output.startswith("abcde\n[... 790 characters omitted; ")
    assert output.endswith("]\ndefgh")
    read = await peer.result("resources/read", {"uri": result["content"][1]["uri"]})
    assert read["contents"][0]["text"] == "abcdefgh" * 100


@pytest.mark.parametrize(("size", "cut"), [(99, False), (100, False), (101, True)])
async def test_only_output_above_the_limit_is_truncated(
    open_hub: OpenHub, size: int, cut: bool
) -> None:
    peer = McpPeer(open_hub(Demo), "2025-11-25", options=McpOptions(result_chars=100))
    result = await peer.tool("demo.echo", {"text": "x", "times": size})
    assert ("omitted" in text_of(result)) is cut
    assert len(result["content"]) == 1 + cut


async def test_a_failure_of_an_oversized_run_comes_last(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Show), "2025-11-25", options=McpOptions(result_chars=6))
    result = await peer.tool("show.fails")
    assert [block["type"] for block in result["content"]] == [
        *("text", "image", "resource_link"),
        "text",
    ]
    assert result["content"][-1] == text("and then it broke")
    assert result["isError"] is True


async def test_blocks_above_the_size_of_an_answer_are_omitted(open_hub: OpenHub) -> None:
    hub = open_hub(Show, limits=Limits(answer_bytes=100))
    result = await McpPeer(hub, "2025-11-25").tool("show.media")
    kinds = [block["type"] for block in result["content"]]
    assert kinds[:2] == ["text", "image"]
    assert "omitted" in result["content"][-1]["text"]


# --- logs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", HANDSHAKES)
@pytest.mark.parametrize("level", [None, *LEVELS])
async def test_log_messages_are_sent_from_the_configured_level(
    open_hub: OpenHub, revision: str, level: str | None
) -> None:
    peer = McpPeer(open_hub(Show), revision)
    if level is not None:
        assert await peer.result("logging/setLevel", {"level": level}) == {}
    call = peer.begin_tool("show.remarks")
    await peer.answer_to(call)
    sent = peer.notifications("notifications/message")
    wanted = LEVELS[LEVELS.index(level or "info") :]
    assert sent == [
        {"level": each, "logger": "show.remarks", "data": f"this is {each}"} for each in wanted
    ]
    assert peer.frames[-1]["id"] == call


@pytest.mark.parametrize("level", ["loud", "", None, 5, ["info"], "INFO"])
async def test_an_unknown_level_is_refused(open_hub: OpenHub, level: Any) -> None:
    peer = McpPeer(open_hub(Show), "2025-11-25")
    assert (await peer.error("logging/setLevel", {"level": level}))["code"] == wire.INVALID_PARAMS
    modern = McpPeer(open_hub(Show), STATELESS)
    meta = {"io.modelcontextprotocol/logLevel": level}
    error = await modern.error("tools/call", {"name": "show.remarks"}, **meta)
    assert error["code"] == wire.INVALID_PARAMS


async def test_without_a_handshake_log_messages_are_sent_only_on_request(
    open_hub: OpenHub,
) -> None:
    peer = McpPeer(open_hub(Show), STATELESS)
    await peer.tool("show.remarks")
    assert peer.notifications("notifications/message") == []
    level: dict[str, Any] = {"io.modelcontextprotocol/logLevel": "alert"}
    await peer.tool("show.remarks", **level)
    assert [each["level"] for each in peer.notifications("notifications/message")] == LEVELS[-2:]


async def test_a_connection_for_answers_only_sends_nothing_else(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Show), "2025-11-25", streaming=False)
    call = peer.begin_tool("show.remarks", progressToken=1)
    assert (await peer.answer_to(call))["result"]["isError"] is False
    assert [frame.get("id") for frame in peer.frames] == [call]


# --- cancelling ----------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_cancelled_call_is_stopped_and_never_answered(
    open_hub: OpenHub, revision: str
) -> None:
    watched = Watched()
    peer = McpPeer(open_hub(watched), revision)
    call = peer.begin_tool("watched.wait", progressToken="t")
    await happened(watched.started)
    await peer.quiet()
    assert peer.notify("notifications/cancelled", {"requestId": call, "reason": "enough"}) == []
    await happened(watched.stopped)
    assert await peer.quiet() == []
    assert peer.view.idle
    [run] = peer.hub.runs.list_for(peer.view.peer.principal)
    assert run.state == "cancelled"


async def test_a_call_may_be_cancelled_before_it_has_started(open_hub: OpenHub) -> None:
    watched = Watched()
    peer = McpPeer(open_hub(watched), "2025-11-25")
    call = peer.begin_tool("watched.wait")
    peer.notify("notifications/cancelled", {"requestId": call})
    assert await peer.quiet() == []
    assert watched.calls == 0


@pytest.mark.parametrize(
    "params",
    [None, {}, *({"requestId": each} for each in (None, "100", [100], 101, 1.5, True))],
)
async def test_cancelling_an_unknown_request_does_nothing(
    open_hub: OpenHub, params: dict[str, Any] | None
) -> None:
    peer = McpPeer(open_hub(Demo), "2025-11-25")
    peer.send(
        {
            "id": 1,
            "method": "tools/call",
            "params": {"name": "demo.echo", "arguments": {"text": "a"}},
        }
    )
    call = peer.begin_tool("demo.echo", {"text": "b"})
    assert call == 100
    assert peer.notify("notifications/cancelled", params) == []
    assert text_of((await peer.answer_to(1))["result"]) == "a"
    assert text_of((await peer.answer_to(call))["result"]) == "b"
    assert peer.notify("notifications/cancelled", {"requestId": call}) == []
    assert "result" in await peer.call("tools/list")


async def test_a_disconnect_ends_the_calls_of_a_client(open_hub: OpenHub) -> None:
    watched = Watched()
    peer = McpPeer(open_hub(watched), "2025-11-25")
    peer.begin_tool("watched.wait", progressToken=1)
    await happened(watched.started)
    peer.connection.lost()
    await happened(watched.stopped)
    assert peer.view.idle


async def test_following_a_run_does_not_end_with_it(open_hub: OpenHub) -> None:
    watched = Watched()
    peer = McpPeer(open_hub(watched), "2025-11-25")
    peer.begin_tool("watched.wait")
    await happened(watched.started)
    [run] = peer.hub.runs.running()
    other = McpPeer(peer.hub, "2025-11-25")
    attached = other.begin_tool("plexus.attach", {"run": run.id})
    await other.quiet()
    other.notify("notifications/cancelled", {"requestId": attached})
    await other.quiet()
    assert not watched.stopped.is_set()


# --- media that a method returns -----------------------------------------------------------------


class Camera(Activation):
    """Methods that return media instead of yielding them."""

    namespace = "camera"
    version = "1.0.0"

    @method
    async def picture(self) -> Image:
        """Return one picture."""
        return Image(PIXEL, "image/png")

    @method
    async def album(self) -> list[Content | Image | Audio]:
        """Return a text, a picture and a sound."""
        return [Content("two: "), Image(PIXEL, "image/png"), Audio("AAAA", "audio/wav")]

    @method
    async def file(self) -> Resource:
        """Return a file that is no text."""
        return Resource.of_bytes("file:///a.bin", b"\x00\x01", "application/octet-stream")


@pytest.mark.parametrize("revision", REVISIONS)
async def test_an_image_that_a_method_returns_is_an_image(open_hub: OpenHub, revision: str) -> None:
    peer = McpPeer(open_hub(Camera), revision)
    image = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
    picture = await peer.tool("camera.picture")
    assert picture["content"] == [image]
    assert "structuredContent" not in picture  # hosts would show it instead of the image
    words, second, *_ = (await peer.tool("camera.album"))["content"]
    assert (words, second) == (text("two: "), image)
    [file] = (await peer.tool("camera.file"))["content"]
    assert (file["type"], file["resource"]["blob"]) == ("resource", "AAE=")
    tools = {tool["name"]: tool for tool in (await peer.result("tools/list"))["tools"]}
    assert "outputSchema" not in tools["camera.picture"]


@pytest.mark.parametrize("revision", REVISIONS)
async def test_following_a_run_that_does_not_exist_is_a_failed_result(
    open_hub: OpenHub, revision: str
) -> None:
    peer = McpPeer(open_hub(Show), revision)
    result = await peer.tool("plexus.attach", {"run": 12345})
    assert result["isError"] is True
    assert result["content"] == [text("Unknown run 12345. List your runs with plexus.runs.")]
