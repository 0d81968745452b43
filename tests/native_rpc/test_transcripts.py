"""The transcripts through the view and its driver, without a transport or process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from activations_for_tests import Demo
from bare_view import Bare
from conftest import OpenHub
from transcripts import TRANSCRIPTS, load, placeholders, replay

from native_rpc.framing import MESSAGES
from native_rpc.protocol import NativeConnection

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


@pytest.mark.parametrize("name", TRANSCRIPTS)
async def test_the_view_alone_answers_as_in_the_transcript(name: str, open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    view = NativeConnection(MESSAGES, hub.limits, hub.new_id)
    await replay(TRANSCRIPTS[name], Bare(hub, view))


class Canned:
    """A server that sends prepared messages."""

    def __init__(self, *messages: Any) -> None:
        self._messages = list(messages)

    async def send(self, message: str) -> None:
        self._messages.append(json.loads(message))

    async def receive(self) -> Any:
        return self._messages.pop(0)


def written(folder: Path, *steps: dict[str, Any]) -> Path:
    path = folder / "some.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in ({"about": "x"}, *steps)))
    return path


@pytest.mark.parametrize(
    ("expected", "received", "fits"),
    [
        ({"a": "$any"}, {"a": [1]}, True),
        ({"a": "$any"}, {"a": 1, "b": 2}, False),
        (["$x", "$x"], [1, 1], True),
        (["$x", "$x"], [1, 2], False),
        (1, True, False),
        (1, 1.0, False),
        ("a", "a", True),
        ([1, 2], [1], False),
    ],
)
async def test_a_replay_detects_differences(
    expected: Any, received: Any, fits: bool, tmp_path: Path
) -> None:
    transcript = load(written(tmp_path, {"expect": expected}))
    if fits:
        await replay(transcript, Canned(received))
    else:
        with pytest.raises(AssertionError, match=r"some\.jsonl:2"):
            await replay(transcript, Canned(received))


async def test_a_replay_sends_what_it_has_learned(tmp_path: Path) -> None:
    steps = ({"expect": "$x"}, {"send": {"y": "$x"}}, {"expect": {"y": 5}})
    await replay(load(written(tmp_path, *steps)), Canned(5))


async def test_a_replay_accepts_a_group_in_any_order(tmp_path: Path) -> None:
    transcript = load(written(tmp_path, {"expect_all": [1, 2, 3]}))
    await replay(transcript, Canned(3, 1, 2))
    with pytest.raises(AssertionError):
        await replay(transcript, Canned(3, 3, 2))


def test_no_transcript_sends_a_placeholder_before_it_is_known() -> None:
    for transcript in TRANSCRIPTS.values():
        known: set[str] = set()
        for step in transcript.steps:
            if isinstance(step.get("send"), dict | list):
                assert set(placeholders(step["send"])) <= known, transcript.name
            known |= set(placeholders([step.get("expect"), step.get("expect_all")]))
