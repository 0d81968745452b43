"""Client on stdio. It only moves bytes while time is measured."""

from __future__ import annotations

import re

from bench.clients import STREAM_READ, read_some, write_all
from bench.mcp import messages
from bench.servers import Server, ServerExited

__all__ = ("exchange", "handshake", "list_all", "read_lines")

_CURSOR = re.compile(rb'"nextCursor":"([^"]+)"')


def exchange(server: Server, message: bytes) -> bytes:
    """Send a request and return the line of its response. No other request may be in flight."""
    write_all(server.input_fd, message + b"\n")
    return read_lines(server, 1)


def read_lines(server: Server, lines: int) -> bytes:
    """Read exactly this number of lines. Raises ServerExited."""
    parts: list[bytes] = []
    seen = 0
    while seen < lines:
        data = read_some(server.output_fd, STREAM_READ)
        seen += data.count(b"\n")
        parts.append(data)
    if seen > lines or not data.endswith(b"\n"):
        raise ServerExited(f"received more than {lines} lines: {b''.join(parts)[-500:]!r}")
    return b"".join(parts)


def handshake(server: Server) -> bytes:
    """Do the handshake. Returns the response to `initialize`. Raises ServerExited."""
    answer = exchange(server, messages.initialize())
    if b'"protocolVersion":"%b"' % messages.REVISION not in answer:
        raise ServerExited(f"the handshake failed: {answer[:500]!r}")
    write_all(server.input_fd, messages.INITIALIZED + b"\n")
    return answer


def list_all(server: Server) -> list[bytes]:
    """Return the responses with all pages of tools."""
    pages = [exchange(server, messages.list_tools())]
    # The cursor is next to the list, so it is near the start or the end of the page.
    while found := _CURSOR.search(pages[-1][:200]) or _CURSOR.search(pages[-1][-200:]):
        pages.append(exchange(server, messages.list_tools(cursor=found[1])))
    return pages
