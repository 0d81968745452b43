"""The client on stdio. It moves bytes; what it parses, it parses outside of what is timed."""

from __future__ import annotations

import re

from bench.clients import STREAM_READ, read_some, write_all
from bench.mcp import messages
from bench.servers import Server, ServerGone

__all__ = ("exchange", "list_all", "read_lines", "shake_hands")

_CURSOR = re.compile(rb'"nextCursor":"([^"]+)"')


def exchange(server: Server, message: bytes) -> bytes:
    """One request and the line that answers it, where nothing else is under way."""
    write_all(server.input_fd, message + b"\n")
    return read_lines(server, 1)


def read_lines(server: Server, lines: int) -> bytes:
    """Read until so many lines have come, and no more than these."""
    parts: list[bytes] = []
    seen = 0
    while seen < lines:
        data = read_some(server.output_fd, STREAM_READ)
        seen += data.count(b"\n")
        parts.append(data)
    if seen > lines or not data.endswith(b"\n"):
        raise ServerGone(f"more than {lines} lines came: {b''.join(parts)[-500:]!r}")
    return b"".join(parts)


def shake_hands(server: Server) -> bytes:
    """The handshake; returns the answer to `initialize`."""
    answer = exchange(server, messages.initialize())
    if b'"protocolVersion":"%b"' % messages.REVISION not in answer:
        raise ServerGone(f"the handshake failed: {answer[:500]!r}")
    write_all(server.input_fd, messages.INITIALIZED + b"\n")
    return answer


def list_all(server: Server) -> list[bytes]:
    """Every page of tools, as the lines that answered."""
    pages = [exchange(server, messages.list_tools())]
    # A cursor stands beside the list, so at one end of the page: no need to search all of it.
    while found := _CURSOR.search(pages[-1][:200]) or _CURSOR.search(pages[-1][-200:]):
        pages.append(exchange(server, messages.list_tools(cursor=found[1])))
    return pages
