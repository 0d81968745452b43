"""Malformed WebSocket upgrade requests, each with one fault."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from raw_peer import frame_of

__all__ = ("KEY", "MALFORMED", "Malformed", "upgrade_of")

KEY = "AAAAAAAAAAAAAAAAAAAAAA=="
#: More header lines than the WebSocket library accepts.
MANY_LINES = tuple(f"X-{number}: 1" for number in range(300))
FIELDS = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": KEY,
}


def upgrade_of(
    port: int,
    *lines: str,
    request: str = "GET /rpc HTTP/1.1",
    without: str = "",
    **replaced: str,
) -> bytes:
    """Return an upgrade with additional lines, without a field, or with replaced values.

    A replaced field is passed by its name in lower case, with `_` for `-`.
    """
    fields = {name: replaced.get(name.lower().replace("-", "_"), FIELDS[name]) for name in FIELDS}
    fields.pop(without, None)
    own = [f"{name}: {value}" for name, value in fields.items()]
    head = [request, f"Host: 127.0.0.1:{port}", *own, *lines]
    return ("\r\n".join(head) + "\r\n\r\n").encode("latin-1")


class Malformed(NamedTuple):
    """A malformed upgrade, and the statuses that are correct responses."""

    lines: tuple[str, ...] = ()
    request: str = "GET /rpc HTTP/1.1"
    without: str = ""
    replaced: Mapping[str, str] = MappingProxyType({})
    #: Bytes sent after the header.
    behind: bytes = b""
    statuses: frozenset[int] = frozenset({400})

    def sent_to(self, port: int) -> bytes:
        """Return all bytes that the peer sends."""
        head = upgrade_of(
            port, *self.lines, request=self.request, without=self.without, **self.replaced
        )
        return head + self.behind

    @property
    def refused_by_app(self) -> bool:
        """Whether the upgrade is well-formed but its path has no WebSocket."""
        return 403 in self.statuses


def _any(*statuses: int) -> frozenset[int]:
    return frozenset(statuses)


CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"
#: Statuses of a request that is not an upgrade, with and without a token: its route answers it.
NO_UPGRADE = _any(400, 401, 404, 405, 426)

MALFORMED = {
    "a body that comes": Malformed(("Content-Length: 10",), behind=b"0123456789"),
    "a body that does not come": Malformed(("Content-Length: 10",)),
    "half a body": Malformed(("Content-Length: 10",), behind=b"01234"),
    "more than its body": Malformed(("Content-Length: 2",), behind=b"01" + frame_of(b"{}")),
    "a length that is no number": Malformed(("Content-Length: ten",)),
    "two lengths": Malformed(("Content-Length: 0", "Content-Length: 5")),
    "chunks that come": Malformed(("Transfer-Encoding: chunked",), behind=CHUNKS),
    "chunks that do not come": Malformed(("Transfer-Encoding: chunked",)),
    "a broken chunk": Malformed(("Transfer-Encoding: chunked",), behind=b"zz\r\n"),
    "an unknown coding": Malformed(("Transfer-Encoding: tea",)),
    "POST": Malformed(request="POST /rpc HTTP/1.1", statuses=_any(400, 405)),
    "POST with a body": Malformed(
        ("Content-Type: application/json", "Content-Length: 2"),
        request="POST /rpc HTTP/1.1",
        behind=b"{}",
        statuses=_any(400, 405),
    ),
    "POST whose body does not come": Malformed(
        ("Content-Type: application/json", "Content-Length: 2"),
        request="POST /mcp HTTP/1.1",
        statuses=_any(400, 405),
    ),
    "PUT": Malformed(request="PUT /rpc HTTP/1.1", statuses=_any(400, 405)),
    "HEAD": Malformed(request="HEAD /rpc HTTP/1.1", statuses=_any(400, 405)),
    "OPTIONS": Malformed(request="OPTIONS /rpc HTTP/1.1", statuses=_any(400, 405)),
    "CONNECT": Malformed(request="CONNECT 127.0.0.1:80 HTTP/1.1", statuses=_any(400, 405)),
    "HTTP/1.0": Malformed(request="GET /rpc HTTP/1.0", statuses=NO_UPGRADE | {505}),
    "HTTP/2.0": Malformed(request="GET /rpc HTTP/2.0", statuses=NO_UPGRADE | {505}),
    "HTTP/9.9": Malformed(request="GET /rpc HTTP/9.9", statuses=_any(400, 505)),
    "no path": Malformed(request="GET HTTP/1.1"),
    "a path that is not ASCII": Malformed(request="GET /r\xe4c HTTP/1.1", statuses=NO_UPGRADE),
    "an absolute path elsewhere": Malformed(
        request="GET http://example.com/nothing HTTP/1.1", statuses=_any(400, 401, 403, 404)
    ),
    "no key": Malformed(without="Sec-WebSocket-Key"),
    "an empty key": Malformed(replaced={"sec_websocket_key": ""}),
    "a short key": Malformed(replaced={"sec_websocket_key": "AAAA"}),
    "a key that is not base64": Malformed(replaced={"sec_websocket_key": "%" * 24}),
    "a key that is not ASCII": Malformed(replaced={"sec_websocket_key": "\xe4" * 24}),
    "two keys": Malformed((f"Sec-WebSocket-Key: {KEY}",)),
    "no version": Malformed(without="Sec-WebSocket-Version", statuses=_any(400, 426)),
    "another version": Malformed(replaced={"sec_websocket_version": "8"}, statuses=_any(400, 426)),
    "two versions": Malformed(("Sec-WebSocket-Version: 13",), statuses=_any(400, 426)),
    "no Connection": Malformed(without="Connection", statuses=NO_UPGRADE),
    "another Connection": Malformed(replaced={"connection": "keep-alive"}, statuses=NO_UPGRADE),
    "h2c": Malformed(replaced={"upgrade": "h2c"}, statuses=NO_UPGRADE),
    "two protocols": Malformed(replaced={"upgrade": "websocket, foo"}, statuses=NO_UPGRADE),
    "two upgrades": Malformed(("Upgrade: websocket",), statuses=NO_UPGRADE),
    "another upgrade first": Malformed(
        ("Upgrade: websocket",), replaced={"upgrade": "h2c"}, statuses=NO_UPGRADE
    ),
    "two origins": Malformed(
        ("Origin: http://a.example", "Origin: http://b.example"), statuses=_any(400, 403)
    ),
    "a subprotocol that is none": Malformed(("Sec-WebSocket-Protocol: ,,;\x7f=",)),
    "a subprotocol that is quoted": Malformed(('Sec-WebSocket-Protocol: "mcp"',)),
    "a long line": Malformed(("X-Long: " + "x" * 20_000,), statuses=_any(400, 431)),
    "a long path": Malformed(request=f"GET /rpc?{'x' * 20_000} HTTP/1.1", statuses=_any(400, 414)),
    "many lines": Malformed(MANY_LINES, statuses=_any(400, 431)),
    "a header over the limit": Malformed(("X-Long: " + "x" * 70_000,), statuses=_any(431)),
    "a folded line": Malformed(("X-Folded: a", " b")),
    "a name that is none": Malformed(("X Y: 1",)),
    "a value with a control character": Malformed(("X-Y: a\x01b",)),
    "a value with a zero": Malformed(("X-Y: a\x00b",)),
    "no socket at /": Malformed(request="GET / HTTP/1.1", statuses=_any(403, 404)),
    "no socket at /nothing": Malformed(request="GET /nothing HTTP/1.1", statuses=_any(403, 404)),
    "no socket at /metrics": Malformed(request="GET /metrics HTTP/1.1", statuses=_any(403, 404)),
}
