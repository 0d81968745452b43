"""The limit on stdio: what a careful programmer would write by hand with asyncio and orjson.

It answers `bench.count` with the messages of the native view, and what the benchmark asks of MCP
with those of the MCP view. It knows nothing else: no validation, no runs, no log, no cancelling.
It reads every line that is there, answers in one write, makes a long stream piece by piece as the
pipe takes it, and never blocks the loop. What an MCP server says about itself it reads, ready to
be sent, from the file that it is given.
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
#: What a pipe holds.
PIPE_BYTES = 64 * 1024

#: Subscriptions are numbers of 16 digits, as the program's are.
numbers = count(1 << 52)


def answer(request: Message) -> Iterable[bytes]:
    """The lines that answer this one."""
    method = request["method"]
    if method == "tools/call":
        return call(request)
    if method == "bench.count":
        return native(request)
    return about(request) if "id" in request else ()


def native(request: Message) -> Iterator[bytes]:
    """A call of the native view."""
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

#: Results that are the same each time: by method, and for a list by its cursor too.
ready: dict[str, bytes] = {}
#: How every result ends for clients that know no handshake, and for those that do.
endings = {True: b"", False: b""}


def load(file: str) -> None:
    """Read the results that are the same each time."""
    with open(file, "rb") as lines:  # noqa: PTH123 - pathlib is an import more to start with
        for line in lines:
            key, _, result = line.rstrip(b"\n").partition(b"\t")
            ready[key.decode()] = result
    _, mark, ending = ready["server/discover "].rpartition(b',"resultType":')
    endings[True] = mark + ending[:-1]


def about(request: Message) -> Iterable[bytes]:
    """What a server says about itself, and its lists."""
    cursor = request.get("params", {}).get("cursor", "")
    head = b'{"jsonrpc":"2.0","id":%b,"result":' % orjson.dumps(request["id"])
    return head, ready[f"{request['method']} {cursor}"], b"}\n"


def call(request: Message) -> Iterable[bytes]:
    """A call of a tool."""
    params = request["params"]
    if params["name"] == "bench.echo":
        return (called(request, params["arguments"]["text"]),)
    return counted(request, params["arguments"]["to"], params["_meta"]["progressToken"])


def called(request: Message, text: str) -> bytes:
    """The answer to a call."""
    dumps = orjson.dumps
    stateless = REVISION in request["params"].get("_meta", ())
    return CALLED % (dumps(request["id"]), dumps(text), endings[stateless])


def counted(request: Message, to: int, token: object) -> Iterator[bytes]:
    """Progress for each event, and the answer with all of them."""
    dumps = orjson.dumps
    mark = dumps(token)
    texts: list[str] = []
    for number in range(1, to + 1):
        text = f"{number} "
        texts.append(text)
        yield PROGRESS % (mark, number, dumps(text))
    yield called(request, "".join(texts))


# --- the loop ---------------------------------------------------------------------------------


class Loop:
    """Lines in at 0, lines out at 1."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rest = b""
        self._lines: deque[bytes] = deque()
        self._frames = self._answers()
        self._unsent = bytearray()
        self._waiting = False

    def readable(self) -> None:
        """Take every line that is there."""
        data = os.read(0, READ_BYTES)
        if not data:
            self._loop.stop()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines += lines
        if not self._waiting:
            self.write()

    def write(self) -> None:
        """Write what the pipe takes; if something is left, come back when it has room."""
        unsent = self._unsent
        # Adding to one buffer lets go of each message at once. Keeping them to join them is five
        # times as slow: orjson's buffers are large, and the heap then grows and shrinks each time.
        for frame in self._frames:
            unsent += frame
            if len(unsent) >= PIPE_BYTES:
                more = True
                break
        else:
            more = False
            self._frames = self._answers()  # for lines that come from now on
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
        return chain.from_iterable(map(answer, map(orjson.loads, self._taken())))

    def _taken(self) -> Iterator[bytes]:
        while self._lines:
            yield self._lines.popleft()


def main() -> None:
    """Answer until the input ends."""
    for file in sys.argv[1:]:
        load(file)
    os.set_blocking(0, False)
    os.set_blocking(1, False)
    loop = asyncio.new_event_loop()
    loop.add_reader(0, Loop(loop).readable)
    loop.run_forever()


if __name__ == "__main__":
    main()
