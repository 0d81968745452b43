"""MCP messages of the benchmark's clients, as bytes."""

from __future__ import annotations

__all__ = (
    "ECHOED",
    "INITIALIZED",
    "REVISION",
    "STATELESS",
    "call_collect",
    "call_count",
    "call_echo",
    "call_health",
    "call_hold",
    "call_ticks",
    "discover",
    "initialize",
    "list_tools",
    "request_bytes",
)

#: The newest revision with a handshake. All measured servers support it.
REVISION = b"2025-11-25"
#: The revision without a handshake: each request describes its client.
STATELESS = b"2026-07-28"

ECHOED = b"The quick brown fox jumps over the lazy dog."
INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'

_ENVELOPE = (
    b'"io.modelcontextprotocol/protocolVersion":"%b",'
    b'"io.modelcontextprotocol/clientCapabilities":{}' % STATELESS
)


def request_bytes(request: int, method: bytes, params: bytes) -> bytes:
    """Return a request."""
    return b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":{%b}}' % (request, method, params)


def initialize(request: int = 1) -> bytes:
    """Return the first message of a handshake."""
    return request_bytes(
        request,
        b"initialize",
        b'"protocolVersion":"%b","capabilities":{},"clientInfo":{"name":"bench","version":"1"}'
        % REVISION,
    )


def discover(request: int = 1) -> bytes:
    """Return the first request of clients without a handshake."""
    return request_bytes(request, b"server/discover", b'"_meta":{%b}' % _ENVELOPE)


def list_tools(request: int = 1, cursor: bytes = b"") -> bytes:
    """Return the request for a page of tools."""
    return request_bytes(request, b"tools/list", b'"cursor":"%b"' % cursor if cursor else b"")


def call_echo(request: int = 1, *, stateless: bool = False) -> bytes:
    """Return a call that echoes a text."""
    meta = b',"_meta":{%b}' % _ENVELOPE if stateless else b""
    params = b'"name":"bench.echo","arguments":{"text":"%b"}%b' % (ECHOED, meta)
    return request_bytes(request, b"tools/call", params)


def call_count(to: int, request: int = 1) -> bytes:
    """Return a call that produces this number of events, with a progress token."""
    params = b'"name":"bench.count","arguments":{"to":%d},"_meta":{"progressToken":7}' % to
    return request_bytes(request, b"tools/call", params)


def call_collect(to: int, request: int = 1) -> bytes:
    """Return a call that produces this number of events, which are buffered into one result."""
    params = b'"name":"bench.count","arguments":{"to":%d}' % to
    return request_bytes(request, b"tools/call", params)


def call_ticks(times: int, request: int = 1) -> bytes:
    """Return a call that reports the time every millisecond, with a progress token."""
    params = b'"name":"bench.ticks","arguments":{"times":%d},"_meta":{"progressToken":7}' % times
    return request_bytes(request, b"tools/call", params)


def call_health(request: int = 1) -> bytes:
    """Return a call of the built-in health check."""
    return request_bytes(request, b"tools/call", b'"name":"health.check","arguments":{}')


def call_hold(request: int = 1) -> bytes:
    """Return a call that produces one event and then waits until it is cancelled."""
    params = b'"name":"bench.hold","arguments":{},"_meta":{"progressToken":%d}' % request
    return request_bytes(request, b"tools/call", params)
