"""Mutations of the golden transcripts' messages.

Half of the mutations change one place of a decoded message; the other half change bytes. Both use
one seed, so an input can be reproduced.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from transcripts import MCP_TRANSCRIPTS, TRANSCRIPTS, Transcript

__all__ = ("CORPUS", "MCP_CORPUS", "Mutator")


def _sent(transcripts: dict[str, Transcript]) -> list[bytes]:
    found = {
        (sent if isinstance(sent, str) else json.dumps(sent)).encode()
        for transcript in transcripts.values()
        for step in transcript.steps
        if (sent := step.get("send")) is not None
    }
    return sorted(message for message in found if len(message) < 4096)


#: Requests of the MCP methods that the transcripts do not contain, with their parameters.
REQUESTS: dict[str, dict[str, Any]] = {
    "tools/list": {"cursor": "demo.count"},
    "prompts/list": {"cursor": "x"},
    "prompts/get": {"name": "demo.letter", "arguments": {"name": "Ada"}},
    "resources/list": {},
    "resources/templates/list": {},
    "resources/read": {"uri": "note://x?after=1"},
    "resources/subscribe": {"uri": "note://x"},
    "resources/unsubscribe": {"uri": "note://x"},
    "completion/complete": {
        "ref": {"type": "ref/prompt", "name": "demo.letter"},
        "argument": {"name": "name", "value": "A"},
        "context": {"arguments": {"name": "Alan"}},
    },
    "logging/setLevel": {"level": "debug"},
    "server/info": {},
    "tasks/list": {},
    "tasks/get": {"taskId": "1"},
    "tasks/result": {"taskId": "1"},
    "tasks/cancel": {"taskId": "1"},
    "tasks/update": {"taskId": "1", "inputResponses": {"1": {"action": "accept"}}},
    "subscriptions/listen": {"notifications": {"toolsListChanged": True, "resourcesChanged": []}},
    "tools/call": {
        "name": "demo.delete",
        "arguments": {},
        "task": {"ttl": 1000},
        "inputResponses": {"1": {"action": "accept", "content": {"answer": True}}},
        "requestState": "x",
    },
}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {
        "elicitation": {},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    },
    "progressToken": 1,
}


def _requests() -> list[bytes]:
    made = []
    for number, (method, params) in enumerate(REQUESTS.items()):
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        made.append(json.dumps(message).encode())
        made.append(json.dumps(message | {"params": params | {"_meta": ENVELOPE}}).encode())
    return made


#: The messages that the transcripts send, valid and invalid.
CORPUS = _sent(TRANSCRIPTS)
MCP_CORPUS = _sent(MCP_TRANSCRIPTS) + _requests()

#: Values that often cause defects.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, -0.0, 1.0, 1.5, 1e400, float("nan"), 2**53, 2**53 + 1),
    *(2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**400, 1e308, 5e-324),
    *("", "x", "\x00", "\ud800", "\u2028", "\ufeff", "é", "😀", "a" * 300, "\r\n", "$run1", "%s"),
    *("__proto__", "constructor", "../../etc/passwd", "-rf", "2.0", "1", "null", "ping"),
    *([], {}, [[]], [None], [1, 2, 3], {"": 0}, {"a": {"b": [1]}}, [{}] * 5),
    *(json.loads("[" * 70 + "]" * 70), {"_run": "k", "_after": 1}, {"type": "error"}),
)
#: Keys with a meaning in some protocol.
KEYS = (
    *("jsonrpc", "id", "method", "params", "result", "error", "_meta", "progressToken", "name"),
    *("arguments", "cursor", "uri", "task", "taskId", "subscription", "run", "after", "request"),
    *("answer", "_run", "_after", "capabilities", "protocolVersion", "inputResponses", "level"),
    *("requestState", "ref", "argument", "notifications", "requestId", "", "text", "to", "times"),
)
#: Delimiters, and invalid bytes.
TOKENS = (
    *(
        b"\n",
        b"\r\n",
        b"\x00",
        b"\xff",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xef\xbb\xbf",
    ),
    *(b"{", b"}", b"[", b"]", b'"', b":", b",", b"\\", b"\\u", b"\\ud800", b"\\x", b"//", b"/*"),
    *(b"NaN", b"Infinity", b"-", b"-0", b"00", b"1e400", b"1" * 400, b"0.1e-999", b"true", b"nul"),
    *(
        b"[" * 1200,
        b"{" * 70,
        b'{"a":' * 70,
        b"[]," * 30,
        b" " * 50,
        b"\t",
        b"\x0b",
        b"\xe2\x80\xa8",
    ),
    *(b'"id":1,', b'"id":2,"id":"3",', b'"method":"ping",', b'"jsonrpc":"2.0",', b'"params":7,'),
)


class Mutator:
    """Generator of inputs."""

    def __init__(self, corpus: Sequence[bytes], seed: int) -> None:
        self._corpus = corpus
        self._random = random.Random(seed)

    def next(self) -> bytes:
        """Return an input, which may contain several lines."""
        chance = self._random
        data = chance.choice(self._corpus)
        kind = chance.random()
        if kind < 0.08:
            return data
        if kind < 0.55:
            data = self._restructured(data)
            if kind < 0.45:
                return data
        for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
            data = chance.choice(BYTE_EDITS)(self, data)
        return data

    # --- one place of a message ---------------------------------------------------------------

    def _restructured(self, data: bytes) -> bytes:
        try:
            value = json.loads(data)
        except ValueError:
            return data
        for _ in range(self._random.choice((1, 1, 2, 4))):
            value = self._changed(value)
        return json.dumps(value, ensure_ascii=self._random.random() < 0.5).encode(
            errors="surrogatepass"
        )

    def _changed(self, whole: Any) -> Any:
        chance = self._random
        places = _places(whole)
        if not places or chance.random() < 0.05:
            return self._rewrapped(whole)
        container, key = chance.choice(places)
        act = chance.randrange(6)
        if act == 0:
            del container[key]
        elif act == 1:
            container[key] = self._value()
        elif act == 2:
            container[key] = [container[key]]
        elif act == 3 and isinstance(container, dict):
            container[chance.choice(KEYS)] = container.pop(key)
        elif act == 4 and isinstance(container, dict):
            container[chance.choice(KEYS)] = self._value()
        else:
            # A value from another place in the same message, so that types often match.
            other, at = chance.choice(places)
            if key in container if isinstance(container, dict) else True:
                container[key] = json.loads(json.dumps(other[at]))
        return whole

    def _rewrapped(self, whole: Any) -> Any:
        chance = self._random
        if chance.random() < 0.5:
            return [whole, *(json.loads(json.dumps(whole)) for _ in range(chance.randrange(3)))]
        return {chance.choice(KEYS): whole}

    def _value(self) -> Any:
        value = self._random.choice(VALUES)
        return json.loads(json.dumps(value)) if isinstance(value, list | dict) else value

    # --- bytes --------------------------------------------------------------------------------

    def _flip(self, data: bytes) -> bytes:
        if not data:
            return data
        at = self._random.randrange(len(data))
        return data[:at] + bytes((data[at] ^ (1 << self._random.randrange(8)),)) + data[at + 1 :]

    def _insert(self, data: bytes) -> bytes:
        at = self._random.randint(0, len(data))
        return data[:at] + self._random.choice(TOKENS) + data[at:]

    def _drop(self, data: bytes) -> bytes:
        at = self._random.randint(0, len(data))
        return data[:at] + data[at + self._random.choice((1, 1, 2, 5, 20)) :]

    def _cut(self, data: bytes) -> bytes:
        return data[: self._random.randint(0, len(data))]

    def _repeat(self, data: bytes) -> bytes:
        start, end = sorted(
            (self._random.randint(0, len(data)), self._random.randint(0, len(data)))
        )
        return data[:end] + data[start:end] * self._random.choice((1, 2, 5)) + data[end:]

    def _splice(self, data: bytes) -> bytes:
        other = self._random.choice(self._corpus)
        return self._cut(data) + other[self._random.randint(0, len(other)) :]

    def _noise(self, data: bytes) -> bytes:
        at = self._random.randint(0, len(data))
        return data[:at] + self._random.randbytes(self._random.choice((1, 2, 4, 30))) + data[at:]


BYTE_EDITS: tuple[Callable[[Mutator, bytes], bytes], ...] = (
    Mutator._flip,  # noqa: SLF001 - its own methods, as a table
    Mutator._insert,  # noqa: SLF001
    Mutator._insert,  # noqa: SLF001
    Mutator._drop,  # noqa: SLF001
    Mutator._cut,  # noqa: SLF001
    Mutator._repeat,  # noqa: SLF001
    Mutator._splice,  # noqa: SLF001
    Mutator._noise,  # noqa: SLF001
)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return every place in a value, as its container and its key."""
    found: list[tuple[Any, Any]] = []
    left = [value]
    while left:
        holder = left.pop()
        if isinstance(holder, dict):
            found += [(holder, key) for key in holder]
            left += holder.values()
        elif isinstance(holder, list):
            found += [(holder, index) for index in range(len(holder))]
            left += holder
    return found
