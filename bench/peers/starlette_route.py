"""A Starlette route that accepts and returns JSON, with the bytes of a tool's response.

It implements no protocol, so it shows the cost of a web service without MCP.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from bench.uvicorn_server import serve


async def answer(request: Request) -> JSONResponse:
    """Echo the argument `text`."""
    message = await request.json()
    text = message["params"]["arguments"]["text"]
    result = {"content": [{"type": "text", "text": text}], "isError": False}
    return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result})


if __name__ == "__main__":
    serve(Starlette(routes=[Route("/mcp", answer, methods=["POST"])]))
