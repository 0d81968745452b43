"""The limit on stdio: what a careful programmer would write by hand with asyncio and orjson.

It answers `bench.count` with the messages of the native view and knows nothing else: no
validation, no runs, no log, no cancelling. It reads every line that is there, answers in one
write, makes a long stream piece by piece as the pipe takes it, and never blocks the loop.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Iterator
from itertools import chain, count

import orjson

READ_BYTES = 64 * 1024
#: What a pipe holds.
PIPE_BYTES = 64 * 1024

#: Subscriptions are numbers of 16 digits, as the program's are.
numbers = count(1 << 52)


def answer(line: bytes) -> Iterator[bytes]:
    """The lines that answer this one."""
    request = orjson.loads(line)
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
        return chain.from_iterable(map(answer, self._taken()))

    def _taken(self) -> Iterator[bytes]:
        while self._lines:
            yield self._lines.popleft()


def main() -> None:
    """Answer until the input ends."""
    os.set_blocking(0, False)
    os.set_blocking(1, False)
    loop = asyncio.new_event_loop()
    loop.add_reader(0, Loop(loop).readable)
    loop.run_forever()


if __name__ == "__main__":
    main()
