"""The guard: what every request passes before anything else sees it, WebSocket upgrades too.

It wraps the whole app, so no route can be forgotten, and it fails closed: a request without a
Host that is ours is refused, and so is one that a foreign web page sent. Nothing of the body
has been read by then.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from substrate.responses import send_json

__all__ = ("Guard", "local_names")

#: "Misdirected request": this server does not answer for that name.
MISDIRECTED = 421
FORBIDDEN = 403
#: The WebSocket close code for a policy violation.
POLICY_VIOLATION = 1008


def local_names(port: int) -> frozenset[bytes]:
    """What a client on this machine may call a server on this port, as a Host header has it."""
    names = (b"127.0.0.1", b"localhost", b"[::1]")
    full = {b"%b:%d" % (name, port) for name in names}
    return frozenset(full | set(names) if port == 80 else full)


class Guard:
    """Refuses requests for other hosts (DNS rebinding) and from other origins (web pages)."""

    def __init__(self, app: ASGIApp, hosts: frozenset[bytes]) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = frozenset(b"http://" + host for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        found = dict(headers)
        host, origin = found.get(b"host"), found.get(b"origin")
        repeated = len(found) != len(headers)
        if (
            host is None
            or host.lower() not in self._hosts
            or (repeated and _count(headers, b"host") > 1)
        ):
            await _refuse(scope, send, MISDIRECTED, "this server does not answer for that Host")
        elif origin is not None and (
            origin.lower() not in self._origins or (repeated and _count(headers, b"origin") > 1)
        ):
            await _refuse(scope, send, FORBIDDEN, "requests from that Origin are not allowed")
        else:
            await self._app(scope, receive, send)


def _count(headers: list[tuple[bytes, bytes]], name: bytes) -> int:
    return sum(key == name for key, _ in headers)


async def _refuse(scope: Scope, send: Send, status: int, reason: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})
    else:
        await send_json(send, status, {"error": reason})
