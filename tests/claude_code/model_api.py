"""A scripted model behind Anthropic's Messages API on loopback, for Claude Code.

The model calls one tool once, or several in order, and ends its turn when it has received the
results. Tests inspect what it received, which is what a real model would have seen.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ("ModelApi", "model_api")


class ModelApi:
    """The scripted model: the tools that it calls, and the results."""

    def __init__(self, *calls: tuple[str, dict[str, Any]]) -> None:
        self.calls = calls
        self.url = ""
        #: The content of each tool result that the client has sent.
        self.results: list[Any] = []
        #: How often it ended its turn without a result: the tool was not offered yet.
        self.idle_turns = 0
        #: The text of the messages and the system prompt of the last request.
        self.requested = ""
        #: The tools that the client offered.
        self.offered: dict[str, dict[str, Any]] = {}

    def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the content block that answers this request."""
        self.requested = json.dumps([request.get("system"), request["messages"]])
        self.offered |= {tool["name"]: tool for tool in request.get("tools") or ()}
        results = [
            block
            for message in request["messages"]
            if isinstance(message["content"], list)
            for block in message["content"]
            if block.get("type") == "tool_result"
        ]
        if results:
            self.results = [block["content"] for block in results]
        if len(results) < len(self.calls):
            tool, arguments = self.calls[len(results)]
            if tool in self.offered:
                call = {"id": f"toolu_{len(results) + 1}", "name": tool, "input": arguments}
                return {"type": "tool_use", **call}
            self.idle_turns += 1
        return {"type": "text", "text": "done"}


@contextmanager
def model_api(
    tool: str, arguments: dict[str, Any], *more: tuple[str, dict[str, Any]]
) -> Iterator[ModelApi]:
    """Serve a scripted model until the block ends. It calls a tool, and `more` after it."""
    model = ModelApi((tool, arguments), *more)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if not self.path.startswith("/v1/messages"):
                self._send(404, "application/json", b"{}")
            elif "count_tokens" in self.path:
                self._send(200, "application/json", b'{"input_tokens": 10}')
            else:
                request = json.loads(body)
                block = model.reply(request)
                if request.get("stream"):
                    self._send(200, "text/event-stream", _streamed(request, block))
                else:
                    message = _message(request, [block])
                    self._send(200, "application/json", json.dumps(message).encode())

        def do_GET(self) -> None:
            self._send(404, "application/json", b"{}")

        def do_HEAD(self) -> None:
            self._send(404, "application/json", b"")

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Keep the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    model.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def _message(request: dict[str, Any], content: list[dict[str, Any]]) -> dict[str, Any]:
    stops = {"tool_use": "tool_use", "text": "end_turn"}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": content,
        "stop_reason": stops[content[0]["type"]] if content else None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def _streamed(request: dict[str, Any], block: dict[str, Any]) -> bytes:
    if block["type"] == "tool_use":
        empty = block | {"input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    else:
        empty = block | {"text": ""}
        delta = {"type": "text_delta", "text": block["text"]}
    stop = _message(request, [block])["stop_reason"]
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": _message(request, [])},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop, "stop_sequence": None},
            "usage": {"output_tokens": 1},
        },
        {"type": "message_stop"},
    ]
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events
    )
