"""The limit on HTTP and WebSocket: bare ASGI on uvicorn, set up as the program sets it up.

It answers `bench.count` with the messages of the native view and knows nothing else: no routes,
no guard, no validation, no runs, no cancelling. Server-sent events go out many in one send; a
WebSocket message is one send, because ASGI has no other way.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from itertools import count, islice
from typing import Any

import orjson
import uvicorn
import uvloop

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: How many events go out in one send.
PIECE = 512
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]

#: Subscriptions are numbers of 16 digits, as the program's are.
numbers = count(1 << 52)


def answer(request: Message, number: int) -> Iterator[bytes]:
    """The messages that answer this one; the reply is the first."""
    method = request["method"]
    dumps = orjson.dumps
    yield dumps({"jsonrpc": "2.0", "id": request["id"], "result": number})
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
            }
        )
    yield dumps(
        {
            "jsonrpc": "2.0",
            "method": method,
            "params": {"subscription": number, "seq": last, "result": {"type": "complete"}},
        }
    )


def event_stream(request: Message, number: int) -> Iterator[bytes]:
    """The same as server-sent events."""
    messages = answer(request, number)
    yield b"retry: 500\n\n"
    yield b"data: %b\n\n" % next(messages)
    for seq, message in enumerate(messages, 1):
        yield b"id: %d:%d\ndata: %b\n\n" % (number, seq, message)


async def app(scope: Message, receive: Receive, send: Send) -> None:
    """Answer one request, or everything on one WebSocket."""
    if scope["type"] == "websocket":
        await talk(receive, send)
    else:
        await stream(receive, send)


async def stream(receive: Receive, send: Send) -> None:
    """One request in, its events out."""
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    frames = event_stream(orjson.loads(body), next(numbers))
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    while piece := b"".join(islice(frames, PIECE)):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def talk(receive: Receive, send: Send) -> None:
    """Requests in, messages out, until the peer is gone."""
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        for answered in answer(orjson.loads(message["text"]), next(numbers)):
            await send({"type": "websocket.send", "text": answered.decode()})


def main() -> None:
    """Serve on a free port and say which."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        sock.listen(512)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="httptools",
                ws="websockets-sansio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                ws_per_message_deflate=False,
                timeout_graceful_shutdown=1,
            )
        )
        sys.stderr.write(f"on http://127.0.0.1:{sock.getsockname()[1]}\n")
        sys.stderr.flush()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.serve(sockets=[sock]))


if __name__ == "__main__":
    main()
