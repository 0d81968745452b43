"""Stand-in for a model provider: streams an answer in Anthropic's format, with send times as text.

It needs no network access. The events follow the published protocol; the text is the time of the
monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

__all__ = ("PIECES",)

Event = dict[str, Any]

#: Number of pieces of an answer.
PIECES = 5
#: Delay before each piece, long enough that all other processes wait for the model, as with a real
#: one.
PAUSE_S = 0.02

MESSAGE: Event = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "stand-in",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": {"input_tokens": 10, "output_tokens": 1},
}
BEGIN: tuple[Event, ...] = (
    {"type": "message_start", "message": MESSAGE},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
)
END: tuple[Event, ...] = (
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": PIECES},
    },
    {"type": "message_stop"},
)
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def _chunk(event: Event) -> bytes:
    data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            sizes = [int(line[15:]) for line in lines if line.startswith(b"content-length:")]
            await reader.readexactly(sizes[0] if sizes else 0)
            writer.write(HEAD + b"".join(map(_chunk, BEGIN)))
            for _ in range(PIECES):
                await asyncio.sleep(PAUSE_S)
                delta = {"type": "text_delta", "text": f"@{time.monotonic_ns()} "}
                writer.write(_chunk({"type": "content_block_delta", "index": 0, "delta": delta}))
                await writer.drain()
            writer.write(b"".join(map(_chunk, END)) + b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _main() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}", file=sys.stderr, flush=True)  # noqa: T201 - the parent process reads this
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
