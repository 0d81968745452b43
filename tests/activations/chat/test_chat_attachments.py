"""Attachments: texts, files and resources of a message, and invalid attachments."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from chat_hub import ENGINES, Room, new_database, talking, text_in

from activations.arbor.model import NewNode
from activations.chat.attachments import ATTACHMENT_BYTES, ATTACHMENTS
from plexus import InvalidParams

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(256))).decode()


@pytest.fixture(params=ENGINES)
async def room(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Room]:
    async with talking(new_database(request.param, tmp_path)) as room:
        await room.create()
        yield room


async def attach(room: Room, *attachments: dict[str, Any]) -> list[Any]:
    """Send a message with these attachments, and return those that the model received."""
    await room.send("look", attachments=list(attachments))
    *files, said = room.script.asks[-1].messages
    assert (said.kind, said.text) == ("user", "look")
    assert all(each.kind == "attachment" for each in files)
    return files


async def test_a_text_is_sent_unchanged(room: Room) -> None:
    [file] = await attach(room, {"text": "a = 1\n", "name": "a.py", "mime_type": "text/x-python"})
    assert file.text == "a = 1\n"
    assert file.meta == {"name": "a.py", "mime_type": "text/x-python", "encoding": "text"}
    [shown, *_] = await room.history()
    assert (shown["kind"], shown["text"], shown["name"]) == ("attachment", "a = 1\n", "a.py")


async def test_a_text_needs_neither_a_name_nor_a_type(room: Room) -> None:
    files = await attach(room, {"text": "x"}, {"text": ""})
    assert [each.meta["name"] for each in files] == ["attachment 1", "attachment 2"]
    assert {each.meta["mime_type"] for each in files} == {"text/plain"}


async def test_a_file_is_sent_as_base64_and_omitted_from_lists(room: Room) -> None:
    [file] = await attach(room, {"data": PNG, "mime_type": "image/png", "name": "x.png"})
    assert file.text == PNG
    assert file.meta == {"name": "x.png", "mime_type": "image/png", "encoding": "base64"}
    [shown, *_] = await room.history()
    assert "text" not in shown
    assert (shown["size"], shown["mime_type"]) == (len(PNG), "image/png")


async def test_attachments_are_nodes_before_the_message_and_stay_with_it(room: Room) -> None:
    await room.send("before")
    events = await room.send("look", attachments=[{"text": "1"}, {"text": "2"}])
    kinds = [kind for kind, _ in await room.messages()]
    assert kinds == ["user", "assistant", "attachment", "attachment", "user", "assistant"]
    nodes = await room.nodes()
    assert [node["parent"] for node in nodes[1:]] == [node["node_id"] for node in nodes[:-1]]
    assert events[0]["user_position"]["node_id"] == nodes[4]["node_id"]
    await room.send("and?")
    assert [kind for kind, _ in room.script.seen()] == [*kinds, "user"]


async def test_a_resource_of_another_activation_is_read(room: Room) -> None:
    store = await room.arbor.store()
    tree = await store.create_tree("local", "local")
    items = [NewNode("plain text"), NewNode("# Hi", metadata={"media_type": "text/markdown"})]
    plain, marked = await store.append("local", tree.id, None, items)
    uris = [f"arbor://tree/{tree.id}/node/{node.id}" for node in (plain, marked)]
    files = await attach(room, {"uri": uris[0]}, {"uri": uris[1], "name": "note"})
    assert [each.text for each in files] == ["plain text", "# Hi"]
    assert files[1].meta["name"] == "note"
    assert files[1].meta["mime_type"] == "text/markdown"
    # The content is stored, so it remains after the node is deleted.
    await store.delete_node("local", tree.id, marked.id)
    await room.send("still?")
    assert ("attachment", "# Hi") in room.script.seen()


async def test_the_echo_model_names_the_attachments(room: Room) -> None:
    await room.value("create", name="e", model="echo:echo")
    events = await room.send("look", "e", attachments=[{"text": "x", "name": "notes.txt"}])
    assert "Attached: notes.txt." in text_in(events)


# --- invalid attachments -------------------------------------------------------------------------

BIG = base64.b64encode(b"x" * (ATTACHMENT_BYTES + 1)).decode()

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("no source", {"name": "x"}, "bad_attachment"),
    ("two sources", {"text": "x", "data": PNG, "mime_type": "image/png"}, "bad_attachment"),
    ("two others", {"text": "x", "uri": "run://1"}, "bad_attachment"),
    ("no base64", {"data": "not base64!", "mime_type": "image/png"}, "bad_attachment"),
    ("something in base64", {"data": "iVBO*Rw0K", "mime_type": "image/png"}, "bad_attachment"),
    ("half a base64", {"data": "abcde", "mime_type": "image/png"}, "bad_attachment"),
    ("no type", {"data": PNG}, "bad_attachment"),
    ("an empty type", {"data": PNG, "mime_type": ""}, "bad_attachment"),
    ("much text", {"text": "x" * (ATTACHMENT_BYTES + 1)}, "attachment_too_big"),
    ("much text of others", {"text": "é" * (ATTACHMENT_BYTES // 2 + 1)}, "attachment_too_big"),
    ("much data", {"data": BIG, "mime_type": "image/png"}, "attachment_too_big"),
    ("a NUL", {"text": "a\0b"}, "bad_text"),
    ("a NUL in a name", {"text": "a", "name": "a\0b"}, ""),
    ("no such node", {"uri": "arbor://tree/x/node/y"}, "not_found"),
    ("no such scheme", {"uri": "nothing://at/all"}, "not_found"),
    ("no address", {"uri": ""}, "not_found"),
]


@pytest.mark.parametrize(("what", "attachment", "code"), WRONG, ids=[each[0] for each in WRONG])
async def test_an_invalid_attachment_is_refused_and_nothing_is_stored(
    what: str, attachment: dict[str, Any], code: str, room: Room
) -> None:
    events = await room.events(
        "send", session="s", message="look", attachments=[{"text": "fine"}, attachment]
    )
    if not code:  # harmless in metadata
        assert events[-1]["type"] == "complete", what
        return
    assert [event["type"] for event in events] == ["error"], what
    assert events[0]["code"] == code, events[0]
    if code == "bad_attachment":
        assert events[0]["data"]["errors"][0]["at"] == "attachments[1]"
    assert await room.nodes() == []
    assert room.script.asks == []
    assert await room.is_free()


async def test_too_many_attachments_are_refused(room: Room) -> None:
    many = [{"text": str(n)} for n in range(ATTACHMENTS + 1)]
    error = await room.error("send", session="s", message="look", attachments=many)
    assert (error["code"], error["data"]) == ("too_big", {"limit": ATTACHMENTS})
    assert await room.nodes() == []
    await room.send("look", attachments=many[1:])
    assert len(await room.nodes()) == ATTACHMENTS + 2


async def test_the_largest_attachment_is_stored_completely(room: Room) -> None:
    room.script.context = None
    data = base64.b64encode(b"x" * ATTACHMENT_BYTES).decode()
    [file] = await attach(room, {"data": data, "mime_type": "image/png"})
    assert file.text == data
    await room.send("still there?")
    assert room.script.asks[-1].messages[0].text == data


async def test_an_attachment_of_the_wrong_type_is_refused(room: Room) -> None:
    for wrong in ({"text": "x", "colour": "red"}, {"text": 5}, "x"):
        with pytest.raises(InvalidParams):
            room.hub.call("chat.send", {"session": "s", "message": "look", "attachments": [wrong]})


async def test_a_resource_of_another_principal_cannot_be_attached(room: Room) -> None:
    store = await room.arbor.store()
    tree = await store.create_tree("other", "other")
    uri = f"arbor://tree/{tree.id}/node/{tree.root}"
    events = await room.events("send", session="s", message="look", attachments=[{"uri": uri}])
    assert events[-1]["code"] == "not_found"
    assert await room.nodes() == []
