"""A contender on HTTP and WebSocket: bare ASGI on uvicorn with the program's configuration.

It responds to `bench.count` with the messages of the native view, and at `/mcp` to the benchmark's
requests with the messages of the MCP view. It has no guard, validation, runs, sessions or
cancellation. Many server-sent events go into one send; a WebSocket message needs one send each,
because ASGI offers nothing else. It shows what the program would need without its own code.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain, islice

import orjson

from bench import limit_stdio
from bench.limit_http import (
    TICK_S,
    called,
    event_stream,
    numbered,
    progress,
    streams,
    unnumbered,
)
from bench.limit_stdio import Message
from bench.limit_websocket import answer, numbers
from bench.uvicorn_server import serve

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: Events per send. The first send is smaller, so that the first event is sent immediately.
PIECE = 512
FIRST_PIECE = 4
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
JSON = (b"content-type", b"application/json")
SESSION = (b"mcp-session-id", b"0123456789abcdef0123456789abcdef")


async def app(scope: Message, receive: Receive, send: Send) -> None:
    """Handle a request or a WebSocket connection."""
    if scope["type"] == "websocket":
        await serve_websocket(receive, send)
    elif scope["path"] == "/mcp":
        await post(scope, receive, send)
    else:
        request = orjson.loads(await body_of(receive))
        await stream(event_stream(request), send)


async def body_of(receive: Receive) -> bytes:
    """Return the body of a request."""
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def stream(frames: Iterator[bytes], send: Send) -> None:
    """Send events, many per send."""
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    first = b"".join(islice(frames, FIRST_PIECE))
    await send({"type": "http.response.body", "body": first, "more_body": True})
    while piece := b"".join(islice(frames, PIECE)):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def post(scope: Message, receive: Receive, send: Send) -> None:
    """Handle an MCP message. Responds with JSON, or with events if the client asks for them."""
    request = orjson.loads(await body_of(receive))
    if "id" not in request:
        await reply(send, 202, [], b"")
        return
    if called(request) == "bench.hold":
        await hold(request, receive, send)
        return
    if called(request) == "bench.ticks":
        await tick(request, send)
        return
    lines = limit_stdio.answer(request)
    meta = request["params"].get("_meta", ())
    if "progressToken" not in meta and (b"accept", b"text/event-stream") not in scope["headers"]:
        headers = [JSON, SESSION] if request["method"] == "initialize" else [JSON]
        await reply(send, 200, headers, b"".join(lines)[:-1])
        return
    stateless = limit_stdio.REVISION in meta
    frames = unnumbered(lines) if stateless else numbered(next(streams), lines)
    first = b"".join(islice(frames, PIECE))
    more = next(frames, None)
    if more is None:
        await reply(send, 200, STREAM_HEADERS[:1], first)
    else:
        await stream(chain((first, more), frames), send)


async def reply(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Send a complete response."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def hold(request: Message, receive: Receive, send: Send) -> None:
    """Send one event, then wait for the client to disconnect."""
    frames = numbered(next(streams), [progress(request, 1, "held ")])
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    await send({"type": "http.response.body", "body": b"".join(frames), "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


async def tick(request: Message, send: Send) -> None:
    """Send the time every millisecond, then the result."""
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    for number in range(1, request["params"]["arguments"]["times"] + 1):
        await asyncio.sleep(TICK_S)
        frame = b"data: %b\n" % progress(request, number, f"{time.monotonic_ns()} ")
        await send({"type": "http.response.body", "body": frame, "more_body": True})
    await send(
        {"type": "http.response.body", "body": b"data: %b\n" % limit_stdio.call_result(request, "")}
    )


async def serve_websocket(receive: Receive, send: Send) -> None:
    """Respond to requests until the client disconnects."""
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        for answered in answer(orjson.loads(message["text"]), next(numbers)):
            await send({"type": "websocket.send", "text": answered.decode()})


def main() -> None:
    """Serve on a free port and print it."""
    for file in sys.argv[1:]:
        limit_stdio.load(file)
    # uvicorn's default for proxy headers, so that figures stay comparable with earlier ones.
    serve(
        app,
        ws="websockets-sansio",
        lifespan="off",
        ws_per_message_deflate=False,
        proxy_headers=True,
    )


if __name__ == "__main__":
    main()
