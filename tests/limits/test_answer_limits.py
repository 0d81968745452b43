"""Limits of answers to bad input: at the limit, past it, and afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import OpenHub
from mcp_peer import STATELESS, McpPeer
from network import Server
from raw_peer import RawPeer, call_of, limited

from plexus import Activation, InvalidParams, method
from plexus.limits import Limits

MEMBERS = 40
ENTRIES = 100
ID = 20
LISTED = 3
ERROR = 2048
URI = 60


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with limited(
        message_members=MEMBERS,
        message_values=ENTRIES,
        id_chars=ID,
        errors_listed=LISTED,
        error_bytes=ERROR,
    ) as running:
        yield running


@pytest.fixture
def peer(server: Server) -> Iterator[RawPeer]:
    with RawPeer(server.port) as connected:
        yield connected


ECHO = call_of("demo.echo", ["x"])


def still_works(peer: RawPeer) -> bool:
    """Whether the connection still works."""
    return "result" in peer.answer(ECHO)


@pytest.mark.limit("message_members", "at", "past", "after")
def test_a_message_past_the_members_is_refused_with_the_limit(peer: RawPeer) -> None:
    at, past = (
        {**ECHO, "padding": {f"k{number}:": ":{[" for number in range(MEMBERS - 5 + more)}}
        for more in (0, 1)
    )
    assert "result" in peer.answer(at)
    error = peer.answer(past)["error"]
    assert (error["code"], error["data"]) == (-32600, {"limit": MEMBERS})
    assert still_works(peer)


@pytest.mark.limit("message_values", "at", "past", "after")
def test_a_message_past_the_values_is_refused_with_the_limit(peer: RawPeer) -> None:
    # A container counts as a value. The message and its parameters have six in total.
    at, past = ({**ECHO, "padding": [","] * (ENTRIES - 6 + more)} for more in (0, 1))
    assert "result" in peer.answer(at)
    error = peer.answer(past)["error"]
    assert (error["code"], error["data"]) == (-32600, {"limit": ENTRIES})
    assert still_works(peer)


@pytest.mark.limit("id_chars", "at", "past", "after")
def test_an_id_past_the_limit_is_refused_and_not_repeated(peer: RawPeer) -> None:
    assert peer.answer({**ECHO, "id": "x" * ID})["id"] == "x" * ID
    refused = peer.answer({**ECHO, "id": "x" * (ID + 1)})
    assert refused["id"] is None
    assert (refused["error"]["code"], refused["error"]["data"]) == (-32600, {"limit": ID})
    assert still_works(peer)


@pytest.mark.limit("errors_listed", "at", "past", "after")
def test_errors_past_the_limit_are_counted_and_not_listed(peer: RawPeer) -> None:
    def data_of(count: int) -> Any:
        wrong = {f"k{number}": 1 for number in range(count)}
        return peer.answer(call_of("demo.echo", {"text": "x", **wrong}))["error"]["data"]

    at, past = data_of(LISTED), data_of(LISTED + 2)
    assert len(at["errors"]) == LISTED
    assert "more" not in at
    assert past == {"errors": at["errors"], "more": 2}
    assert still_works(peer)


class Refusing(Activation):
    """Quotes its argument in an error."""

    namespace = "refusing"
    version = "1.0.0"

    @method
    async def text(self, text: str) -> None:
        """Refuse a text.

        Args:
            text: What the error quotes.
        """
        raise InvalidParams(text, data={"quoted": text, "kept": 1})


@pytest.mark.anyio
@pytest.mark.limit("error_bytes", "at", "past", "after")
async def test_an_error_past_the_limit_is_shortened_and_lists_what_it_omits(
    open_hub: OpenHub,
) -> None:
    peer = McpPeer(open_hub(Refusing, limits=Limits(error_bytes=ERROR)), STATELESS, native=True)

    async def refused(text: str) -> tuple[Any, int]:
        number = peer.begin("prompts/get", {"name": text})
        answer = await peer.answer_to(number)
        return answer["error"], len(json.dumps(answer))

    async def failed(text: str) -> Any:
        """Return the terminal of a run that quotes a text."""
        request = f"native {len(peer.frames)}"
        peer.send({"id": request, "method": "refusing.text", "params": [text]})
        return (await peer.receive(lambda f: f.get("params", {}).get("seq") == 1))["params"][
            "result"
        ]

    at = await failed("x" * 500)
    assert at["data"] == {"quoted": "x" * 500, "kept": 1}
    past = await failed("x" * ERROR)
    assert past["data"] == {"kept": 1, "left_out": ["quoted"]}
    assert past["message"].endswith("...")
    assert len(json.dumps(past)) < ERROR
    error, size = await refused("x" * 10 * ERROR)
    assert size <= ERROR
    assert "Unknown prompt" in error["message"]
    assert (await failed("x"))["data"] == {"quoted": "x", "kept": 1}


@pytest.mark.anyio
@pytest.mark.limit("uri_chars", "at", "past", "after")
async def test_a_uri_past_the_limit_is_refused_and_not_kept(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Refusing, limits=Limits(uri_chars=URI)), "2025-11-25")
    at, past = "a://" + "x" * (URI - 4), "a://" + "x" * (URI - 3)
    for name in ("resources/subscribe", "resources/read", "resources/unsubscribe"):
        answer = await peer.call(name, {"uri": at})
        assert answer.get("error", {}).get("data") != {"limit": URI}
        error = await peer.error(name, {"uri": past})
        assert (error["code"], error["data"]) == (-32602, {"limit": URI})
    assert not peer.session.subscribed
    assert "result" in await peer.call("resources/subscribe", {"uri": at})


@pytest.mark.anyio
async def test_a_progress_token_past_the_limit_of_an_id_is_refused(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Refusing, limits=Limits(id_chars=ID)), "2025-11-25")
    arguments = {"name": "refusing.text", "arguments": {"text": "x"}}
    answer = await peer.call("tools/call", arguments, progressToken="x" * ID)
    assert answer["result"]["isError"] is True
    error = await peer.error("tools/call", arguments, progressToken="x" * (ID + 1))
    assert error["data"] == {"limit": ID}
