"""What the clients of the benchmark say over MCP, as bytes."""

from __future__ import annotations

__all__ = (
    "ECHOED",
    "INITIALIZED",
    "REVISION",
    "STATELESS",
    "ask",
    "call_count",
    "call_echo",
    "call_hold",
    "discover",
    "initialize",
    "list_tools",
)

#: The newest revision with a handshake, which all servers here know.
REVISION = b"2025-11-25"
#: The revision without one: each request says all about its client.
STATELESS = b"2026-07-28"

ECHOED = b"The quick brown fox jumps over the lazy dog."
INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'

_ENVELOPE = (
    b'"io.modelcontextprotocol/protocolVersion":"%b",'
    b'"io.modelcontextprotocol/clientCapabilities":{}' % STATELESS
)


def ask(request: int, method: bytes, params: bytes) -> bytes:
    """A request."""
    return b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":{%b}}' % (request, method, params)


def initialize(request: int = 1) -> bytes:
    """The first message of a handshake."""
    return ask(
        request,
        b"initialize",
        b'"protocolVersion":"%b","capabilities":{},"clientInfo":{"name":"bench","version":"1"}'
        % REVISION,
    )


def discover(request: int = 1) -> bytes:
    """What clients that know no handshake say first."""
    return ask(request, b"server/discover", b'"_meta":{%b}' % _ENVELOPE)


def list_tools(request: int = 1, cursor: bytes = b"") -> bytes:
    """The request for one page of tools."""
    return ask(request, b"tools/list", b'"cursor":"%b"' % cursor if cursor else b"")


def call_echo(request: int = 1, *, stateless: bool = False) -> bytes:
    """A call that says the text again."""
    meta = b',"_meta":{%b}' % _ENVELOPE if stateless else b""
    params = b'"name":"bench.echo","arguments":{"text":"%b"}%b' % (ECHOED, meta)
    return ask(request, b"tools/call", params)


def call_count(to: int, request: int = 1) -> bytes:
    """A call that makes so many events, with a token for their progress."""
    params = b'"name":"bench.count","arguments":{"to":%d},"_meta":{"progressToken":7}' % to
    return ask(request, b"tools/call", params)


def call_hold(request: int = 1) -> bytes:
    """A call that makes one event and then none, until it is cancelled."""
    params = b'"name":"bench.hold","arguments":{},"_meta":{"progressToken":%d}' % request
    return ask(request, b"tools/call", params)
