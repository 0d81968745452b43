"""A bare MCP server on stdio behind the measured gateways: nothing but a loop over lines.

It has `bench.echo`, which repeats a text, and `bench.count`, which sends progress notifications. An
argument is a number of further tools, or `hang` for a server that never responds.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import orjson

_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
_COUNT: dict[str, Any] = {"type": "object", "properties": {"to": {"type": "integer"}}}
_INFO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "bare", "version": "1"},
}


def _answer(request: Any, result: dict[str, Any]) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": request, "result": result}) + b"\n"


def _text(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def _call(request: Any, params: dict[str, Any]) -> bytes:
    arguments = params.get("arguments", {})
    if "count" not in params["name"]:
        return _answer(request, _text(arguments.get("text", "")))
    token = params.get("_meta", {}).get("progressToken")
    notification = {"jsonrpc": "2.0", "method": "notifications/progress"}
    steps = [
        orjson.dumps({**notification, "params": {"progressToken": token, "progress": n}}) + b"\n"
        for n in range(1, arguments["to"] + 1)
    ]
    return b"".join(steps) + _answer(request, _text("counted"))


def main() -> None:
    """Serve until the end of the input."""
    more = sys.argv[1] if len(sys.argv) > 1 else "0"
    if more == "hang":
        time.sleep(3600)
    tools = [
        {"name": "bench.echo", "description": "Repeat a text.", "inputSchema": _SCHEMA},
        {"name": "bench.count", "description": "Count.", "inputSchema": _COUNT},
    ]
    tools += [
        {"name": f"tool_{n}", "description": "Repeat a text again.", "inputSchema": _SCHEMA}
        for n in range(int(more) - 2)
    ]
    output = sys.stdout.buffer
    for line in sys.stdin.buffer:
        message = orjson.loads(line)
        request, method = message.get("id"), message.get("method")
        if method == "initialize":
            output.write(_answer(request, _INFO))
        elif method == "tools/list":
            output.write(_answer(request, {"tools": tools}))
        elif method == "tools/call":
            output.write(_call(request, message["params"]))
        elif request is not None:
            error = {"code": -32601, "message": "unknown method"}
            output.write(orjson.dumps({"jsonrpc": "2.0", "id": request, "error": error}) + b"\n")
        output.flush()


if __name__ == "__main__":
    main()
