"""The limit of a gateway on stdio: a hand-written relay with only asyncio and orjson.

It starts the command of its arguments, removes the first part of a tool's name, and gives every
request another id. It has no validation, runs, log or cancellation. What it adds to a call is the
price of two more pipes, two wake-ups of a process, and two passes of JSON.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import orjson

Message = dict[str, Any]

READ_BYTES = 64 * 1024


class Relay:
    """Passes lines between descriptors 0 and 1 and the pipes of the other server."""

    def __init__(self, server_input: int) -> None:
        self._server_input = server_input
        self._last_id = 0
        #: The ids of the client by ours.
        self._ids: dict[int, Any] = {}

    def to_server(self, line: bytes) -> None:
        """Pass on a message of the client."""
        message: Message = orjson.loads(line)
        if "method" in message and "id" in message:
            self._last_id += 1
            self._ids[self._last_id] = message["id"]
            message["id"] = self._last_id
            if message["method"] == "tools/call":
                params = message["params"]
                params["name"] = params["name"].partition(".")[2]
        write(self._server_input, message)

    def to_client(self, line: bytes) -> None:
        """Pass on a message of the server."""
        message: Message = orjson.loads(line)
        if "method" not in message:
            message["id"] = self._ids.pop(message["id"])
        write(1, message)


def write(fd: int, message: Message) -> None:
    """Write a message as a line. Blocks while the pipe is full."""
    data = orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE)
    while data:
        data = data[os.write(fd, data) :]


def follow(loop: asyncio.AbstractEventLoop, fd: int, handle: Callable[[bytes], None]) -> None:
    """Pass each line of a descriptor to `handle`; the loop stops at the end of the input."""
    rest = b""

    def readable() -> None:
        nonlocal rest
        data = os.read(fd, READ_BYTES)
        if not data:
            loop.stop()
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            handle(line)

    loop.add_reader(fd, readable)


def main() -> None:
    """Relay until the client or the server ends."""
    pipe = subprocess.PIPE
    with subprocess.Popen(sys.argv[1:], stdin=pipe, stdout=pipe) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        relay = Relay(server.stdin.fileno())
        loop = asyncio.new_event_loop()
        follow(loop, 0, relay.to_server)
        follow(loop, server.stdout.fileno(), relay.to_client)
        loop.run_forever()


if __name__ == "__main__":
    main()
