"""The limit on HTTP and WebSocket: bare ASGI on uvicorn, set up as the program sets it up.

It answers `bench.count` with the messages of the native view, and at `/mcp` what the benchmark
asks with those of the MCP view. It knows nothing else: no guard, no validation, no runs, no
sessions, no cancelling. Server-sent events go out many in one send; a WebSocket message is one
send, because ASGI has no other way.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import chain, count, islice

import orjson

from bench import limit_stdio
from bench.limit_stdio import Message
from bench.uvicorn_server import serve

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: How many events go out in one send.
PIECE = 512
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
JSON = (b"content-type", b"application/json")
SESSION = (b"mcp-session-id", b"0123456789abcdef0123456789abcdef")
#: How a stream begins: an event with nothing but its id, and when to come back.
PRIMING = b"id: %d:0\nretry: 300\ndata: \n\n"

#: Subscriptions are numbers of 16 digits, as the program's are.
numbers = count(1 << 52)
#: Streams of MCP are numbered too.
streams = count(1)


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
    elif scope["path"] == "/mcp":
        await post(scope, receive, send)
    else:
        request = orjson.loads(await body_of(receive))
        await stream(event_stream(request, next(numbers)), send)


async def body_of(receive: Receive) -> bytes:
    """What was posted."""
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def stream(frames: Iterator[bytes], send: Send) -> None:
    """Events out, many in one send."""
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    while piece := b"".join(islice(frames, PIECE)):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def post(scope: Message, receive: Receive, send: Send) -> None:
    """One MCP message in; its answer as JSON, or as events to a client that wants them."""
    request = orjson.loads(await body_of(receive))
    if "id" not in request:
        await reply(send, 202, [], b"")
        return
    if request["method"] == "tools/call" and request["params"]["name"] == "bench.hold":
        await hold(request, receive, send)
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


def unnumbered(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The events of a stream to which nobody can come back."""
    for line in lines:
        yield b"data: %b\n" % line


def numbered(number: int, lines: Iterable[bytes]) -> Iterator[bytes]:
    """The events of a stream to which a client could come back."""
    yield PRIMING % number
    template = b"id: %d:%%d\ndata: %%b\n" % number
    for event, line in enumerate(lines, 1):
        yield template % (event, line)


async def reply(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """A whole answer."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def hold(request: Message, receive: Receive, send: Send) -> None:
    """One event, and then nothing until the peer is gone."""
    mark = orjson.dumps(request["params"]["_meta"]["progressToken"])
    frames = numbered(next(streams), [limit_stdio.PROGRESS % (mark, 1, b'"held "')])
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    await send({"type": "http.response.body", "body": b"".join(frames), "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


async def talk(receive: Receive, send: Send) -> None:
    """Requests in, messages out, until the peer is gone."""
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        for answered in answer(orjson.loads(message["text"]), next(numbers)):
            await send({"type": "websocket.send", "text": answered.decode()})


def main() -> None:
    """Serve on a free port and say which."""
    for file in sys.argv[1:]:
        limit_stdio.load(file)
    # With uvicorn's default for proxy headers, as in all figures so far.
    serve(
        app,
        ws="websockets-sansio",
        lifespan="off",
        ws_per_message_deflate=False,
        proxy_headers=True,
    )


if __name__ == "__main__":
    main()
