"""The limit on stdio: a careful hand-written server with only asyncio and orjson.

It responds to `bench.count` with the messages of the native view, and to the benchmark's MCP
requests with the messages of the MCP view. It has no validation, runs, log or cancellation. It
reads all available lines, responds with one write, produces a long stream piece by piece as the
pipe accepts it, and never blocks the loop. Results that describe the MCP server are read, ready to
send, from a file.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, count
from typing import Any

import orjson

Message = dict[str, Any]

READ_BYTES = 64 * 1024
#: Capacity of a pipe.
PIPE_BYTES = 64 * 1024
#: The first write for a single request is small, so that the first event is sent immediately.
FIRST_BYTES = 512

#: Subscription numbers have 16 digits, like those of the program.
numbers = count(1 << 52)


def answer(request: Message) -> Iterable[bytes]:
    """Return the lines of the response."""
    method = request["method"]
    if method == "tools/call":
        return call(request)
    if method == "bench.count":
        return native(request)
    return describe_server(request) if "id" in request else ()


def native(request: Message) -> Iterator[bytes]:
    """Yield the response to a call of the native view."""
    method = request["method"]
    number = next(numbers)
    dumps, newline = orjson.dumps, orjson.OPT_APPEND_NEWLINE
    yield dumps({"jsonrpc": "2.0", "id": request["id"], "result": number}, option=newline)
    last = request["params"]["to"] + 1
    for seq in range(1, last):
        yield dumps(
            {
                "jsonrpc": "2.0",
                "method": method,
                "params": {
                    "subscription": number,
                    "seq": seq,
                    "result": {"type": "content", "text": f"{seq} "},
                },
            },
            option=newline,
        )
    yield dumps(
        {
            "jsonrpc": "2.0",
            "method": method,
            "params": {"subscription": number, "seq": last, "result": {"type": "complete"}},
        },
        option=newline,
    )


# --- MCP --------------------------------------------------------------------------------------

CALLED = (
    b'{"jsonrpc":"2.0","id":%b,"result":'
    b'{"content":[{"type":"text","text":%b}],"isError":false%b}}\n'
)
PROGRESS = (
    b'{"jsonrpc":"2.0","method":"notifications/progress",'
    b'"params":{"progressToken":%b,"progress":%d,"message":%b}}\n'
)
REVISION = "io.modelcontextprotocol/protocolVersion"

#: Constant results by method and, for a list, cursor.
ready: dict[str, bytes] = {}
#: End of every result for clients without and with a handshake.
endings = {True: b"", False: b""}


def load(file: str) -> None:
    """Read the constant results."""
    with open(file, "rb") as lines:  # noqa: PTH123 - pathlib would be one more import at start
        for line in lines:
            key, _, result = line.rstrip(b"\n").partition(b"\t")
            ready[key.decode()] = result
    _, mark, ending = ready["server/discover "].rpartition(b',"resultType":')
    endings[True] = mark + ending[:-1]


def describe_server(request: Message) -> Iterable[bytes]:
    """Return a constant result: server metadata or a list."""
    cursor = request.get("params", {}).get("cursor", "")
    head = b'{"jsonrpc":"2.0","id":%b,"result":' % orjson.dumps(request["id"])
    return head, ready[f"{request['method']} {cursor}"], b"}\n"


def call(request: Message) -> Iterable[bytes]:
    """Return the response to a tool call."""
    params = request["params"]
    if params["name"] == "bench.echo":
        return (call_result(request, params["arguments"]["text"]),)
    to = params["arguments"]["to"]
    if "_meta" not in params:
        return (call_result(request, "".join([f"{number} " for number in range(1, to + 1)])),)
    return count_progress(request, to, params["_meta"]["progressToken"])


def call_result(request: Message, text: str) -> bytes:
    """Return the result of a call."""
    dumps = orjson.dumps
    stateless = REVISION in request["params"].get("_meta", ())
    return CALLED % (dumps(request["id"]), dumps(text), endings[stateless])


def count_progress(request: Message, to: int, token: object) -> Iterator[bytes]:
    """Yield progress for each event, and the result with all of them."""
    dumps = orjson.dumps
    mark = dumps(token)
    texts: list[str] = []
    for number in range(1, to + 1):
        text = f"{number} "
        texts.append(text)
        yield PROGRESS % (mark, number, dumps(text))
    yield call_result(request, "".join(texts))


# --- the loop ---------------------------------------------------------------------------------


class Loop:
    """Reads lines from descriptor 0 and writes lines to descriptor 1."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rest = b""
        self._lines: deque[bytes] = deque()
        self._frames = self._answers()
        self._unsent = bytearray()
        self._waiting = False

    def readable(self) -> None:
        """Read all available lines."""
        data = os.read(0, READ_BYTES)
        if not data:
            self._loop.stop()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines += lines
        if not self._waiting:
            self.write(FIRST_BYTES if len(lines) == 1 else PIPE_BYTES)

    def write(self, size: int = PIPE_BYTES) -> None:
        """Write what the pipe accepts, and continue later if bytes are left."""
        unsent = self._unsent
        # Appending to one buffer frees each message immediately. Joining them later is five times
        # slower: orjson's buffers are large, so the heap would grow and shrink each time.
        for frame in self._frames:
            unsent += frame
            if len(unsent) >= size:
                more = True
                break
        else:
            more = False
            self._frames = self._answers()  # for lines that arrive later
        try:
            sent = os.write(1, unsent)
        except BlockingIOError:
            sent = 0
        del unsent[:sent]
        more = more or bool(unsent)
        if more and not self._waiting:
            self._loop.add_writer(1, self.write)
        elif self._waiting and not more:
            self._loop.remove_writer(1)
        self._waiting = more

    def _answers(self) -> Iterator[bytes]:
        return chain.from_iterable(map(answer, map(orjson.loads, self._pending_lines())))

    def _pending_lines(self) -> Iterator[bytes]:
        while self._lines:
            yield self._lines.popleft()


def main() -> None:
    """Serve until the input ends."""
    for file in sys.argv[1:]:
        load(file)
    os.set_blocking(0, False)
    os.set_blocking(1, False)
    loop = asyncio.new_event_loop()
    loop.add_reader(0, Loop(loop).readable)
    loop.run_forever()


if __name__ == "__main__":
    main()
