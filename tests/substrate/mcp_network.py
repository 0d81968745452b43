"""A minimal client for MCP over HTTP, without interpretation of the messages."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from network import ANSWER_S, Event, Server, read_events

__all__ = (
    "BOTH",
    "ENVELOPE",
    "JSON",
    "LATEST",
    "SSE",
    "STATELESS",
    "Client",
    "Event",
    "body_of",
    "messages",
    "read_events",
    "reading",
    "request",
    "runs",
    "send_raw",
    "stateless",
    "stateless_headers",
    "wait_for_state",
    "wait_until",
)

JSON = "application/json"
SSE = "text/event-stream"
BOTH = f"{JSON}, {SSE}"
LATEST = "2025-11-25"
STATELESS = "2026-07-28"
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientCapabilities": {},
}


def messages(response: http.client.HTTPResponse) -> list[Any]:
    """Return all messages of a response that ends, from JSON or a stream."""
    if response.headers["Content-Type"].startswith(SSE):
        return [event.message for event in read_events(response) if event.data]
    return [json.loads(response.read())]


def body_of(response: http.client.HTTPResponse) -> Any:
    """Return the JSON body of a response."""
    assert response.headers["Content-Type"] == JSON, response.read()
    return json.loads(response.read())


def request(method: str, params: Any = None, number: Any = 1) -> dict[str, Any]:
    """Return a request, without parameters if they are None."""
    message = {"jsonrpc": "2.0", "id": number, "method": method}
    return message if params is None else message | {"params": params}


def stateless(method: str, params: Any = None, number: Any = 1) -> dict[str, Any]:
    """Return a stateless request, with its envelope in `_meta`."""
    return request(method, {"_meta": ENVELOPE} | (params or {}), number)


def stateless_headers(method: str, name: str | None = None) -> dict[str, str]:
    """Return the headers of a stateless request."""
    headers = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": method, "Accept": BOTH}
    return headers if name is None else headers | {"Mcp-Name": name}


class Client:
    """A client with a session; the constructor performs the handshake."""

    def __init__(
        self, server: Server, revision: str = LATEST, capabilities: dict[str, Any] | None = None
    ) -> None:
        self._server = server
        params = {
            "protocolVersion": revision,
            "capabilities": capabilities or {},
            "clientInfo": {"name": "test", "version": "1"},
        }
        response = server.request("POST", "/mcp", request("initialize", params), {"Accept": BOTH})
        assert response.status == 200, response.read()
        self.session = response.headers["Mcp-Session-Id"]
        self.settled = body_of(response)["result"]
        self.headers = {"Mcp-Session-Id": self.session, "MCP-Protocol-Version": revision}
        assert self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}).status == 202

    def post(
        self, message: Any, accept: str = BOTH, headers: dict[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """POST a message."""
        given = self.headers | {"Accept": accept} | (headers or {})
        return self._server.request("POST", "/mcp", message, given)

    def call(
        self,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        token: Any = None,
        accept: str = BOTH,
        number: Any = 1,
    ) -> http.client.HTTPResponse:
        """Call a tool."""
        params: dict[str, Any] = {"name": tool, "arguments": arguments or {}}
        if token is not None:
            params["_meta"] = {"progressToken": token}
        return self.post(request("tools/call", params, number), accept)

    def notify(self, method: str, params: Any = None) -> int:
        """Send a notification, and return the HTTP status."""
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        with self.post(message) as response:
            assert response.read() == b""
            return response.status

    def get(self, last: str | None = None, accept: str = SSE) -> http.client.HTTPResponse:
        """GET a stream, after the event `last` if given."""
        extra = {"Accept": accept} | ({} if last is None else {"Last-Event-ID": last})
        return self._server.request("GET", "/mcp", headers=self.headers | extra)

    def delete(self) -> int:
        """Delete the session, and return the HTTP status."""
        return self._server.status("DELETE", "/mcp", self.headers)


def send_raw(server: Server, message: Any, headers: dict[str, str]) -> socket.socket:
    """POST a message on a separate socket, and return the open socket."""
    body = json.dumps(message).encode()
    lines = {
        "Host": f"127.0.0.1:{server.port}",
        "Content-Type": JSON,
        "Content-Length": str(len(body)),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in (lines | headers).items())
    sock = socket.create_connection(("127.0.0.1", server.port), ANSWER_S)
    sock.sendall(f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body)
    return sock


@contextmanager
def reading(response: http.client.HTTPResponse) -> Iterator[Iterator[Event]]:
    """Yield the events of a stream, and close it at the end of the block."""
    assert response.status == 200
    try:
        yield read_events(response)
    finally:
        response.close()


def runs(server: Server, method: str) -> list[str]:
    """Return the states of a server's own runs of a method, newest first."""
    found = body_of(server.call("plexus.runs"))["result"]["terminal"]["result"]
    return [run["state"] for run in found if run["method"] == method and "process" not in run]


def wait_for_state(server: Server, method: str, state: str) -> None:
    """Wait until the newest run of a method is in this state."""
    wait_until(lambda: runs(server, method)[:1] == [state])


def wait_until(true: Callable[[], bool]) -> None:
    """Wait until a condition is true, with a timeout."""
    end = time.monotonic() + ANSWER_S
    while not true():
        assert time.monotonic() < end, f"not true within {ANSWER_S:g} s"
        time.sleep(0.02)
