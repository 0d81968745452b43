"""Golden transcripts: messages and the expected replies, the same over every transport.

A transcript is a file of JSON lines. The first contains `about`, a description, and
`connection: true` if the transcript needs one connection throughout. Then, in order:

    {"send": <message>}            a JSON value, or a string for exactly these characters
    {"expect": <message>}          the next message of the server
    {"expect_all": [<message>..]}  the next messages of the server, in any order

A string that begins with `$` is a placeholder: `$any` matches everything, any other name matches
anything the first time and the same value from then on, including in sent messages.

To replay over another transport, implement `Exchange` and pass it to `replay`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

__all__ = ("MCP_TRANSCRIPTS", "TRANSCRIPTS", "Exchange", "Transcript", "load", "replay")

FOLDER = Path(__file__).parent / "vectors"
ANSWER_S = 10.0
#: Members with the name of the client, which only some transports know.
CLIENT_NAMES = frozenset({"client", "by"})


class Exchange(Protocol):
    """A client's end of some transport, to a server that has `demo` and `plexus`."""

    async def send(self, message: str) -> None:
        """Send one message."""

    async def receive(self) -> Any:
        """Return the next message of the server, decoded."""


@dataclasses.dataclass(frozen=True)
class Transcript:
    """The content of one transcript file."""

    name: str
    about: str
    connection: bool
    steps: tuple[dict[str, Any], ...]


def load(path: Path) -> Transcript:
    head, *steps = (json.loads(line) for line in path.read_text().splitlines() if line.strip())
    for number, step in enumerate(steps, 2):
        assert len(step) == 1, f"{path.name}:{number}: one step per line"
        assert step.keys() <= {"send", "expect", "expect_all"}, f"{path.name}:{number}"
    return Transcript(path.stem, head["about"], head.get("connection", False), tuple(steps))


#: Every transcript of the native view, by name.
TRANSCRIPTS = {path.stem: load(path) for path in sorted(FOLDER.glob("*.jsonl"))}
#: Every transcript of MCP, by name.
MCP_TRANSCRIPTS = {path.stem: load(path) for path in sorted(FOLDER.glob("mcp/*.jsonl"))}


async def replay(transcript: Transcript, exchange: Exchange) -> None:
    """Replay a transcript. Raises AssertionError where the server differs from it."""
    known: dict[str, Any] = {}
    for number, step in enumerate(transcript.steps, 2):
        where = f"{transcript.name}.jsonl:{number}"
        if "send" in step:
            message = step["send"]
            text = message if isinstance(message, str) else json.dumps(_filled(message, known))
            await exchange.send(text)
            continue
        expected = step["expect_all"] if "expect_all" in step else [step["expect"]]
        for _ in range(len(expected)):
            async with asyncio.timeout(ANSWER_S):
                received = await exchange.receive()
            for candidate in expected:
                found = dict(known)
                if _fits(candidate, received, found):
                    known = found
                    expected = [entry for entry in expected if entry is not candidate]
                    break
            else:
                wanted = " or ".join(json.dumps(_filled(entry, known)) for entry in expected)
                raise AssertionError(f"{where}: expected {wanted}, got {json.dumps(received)}")


def _fits(expected: Any, received: Any, known: dict[str, Any]) -> bool:
    if isinstance(expected, str) and expected.startswith("$"):
        if expected == "$any":
            return True
        if expected not in known:
            known[expected] = received
            return True
        expected = known[expected]
    if isinstance(expected, dict) and isinstance(received, dict):
        received = {
            key: value
            for key, value in received.items()
            if key in expected or key not in CLIENT_NAMES
        }
        return expected.keys() == received.keys() and all(
            _fits(value, received[key], known) for key, value in expected.items()
        )
    if isinstance(expected, list) and isinstance(received, list):
        return len(expected) == len(received) and all(
            _fits(one, other, known) for one, other in zip(expected, received, strict=True)
        )
    return type(expected) is type(received) and bool(expected == received)


def _filled(value: Any, known: dict[str, Any]) -> Any:
    if isinstance(value, str):
        return known.get(value, value)
    if isinstance(value, dict):
        return {key: _filled(entry, known) for key, entry in value.items()}
    if isinstance(value, list):
        return [_filled(entry, known) for entry in value]
    return value


def placeholders(value: Any) -> Iterator[str]:
    """Return every placeholder in a message."""
    if isinstance(value, str) and value.startswith("$"):
        yield value
    elif isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from placeholders(entry)
