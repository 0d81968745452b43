"""A peer that sends raw bytes over HTTP and WebSocket, to violate the protocols."""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from child_processes import limit_settings
from network import ANSWER_S, Server, serving

__all__ = ("RawPeer", "call_of", "frame_of", "limited", "post_of")


@contextmanager
def limited(*options: str, **limits: float) -> Iterator[Server]:
    """Start a server without authentication, with these limits."""
    with serving(*options, settings=limit_settings(**limits)) as server:
        yield server


def call_of(method: str, params: Any = None, request_id: Any = 1) -> dict[str, Any]:
    """Return a call as a message."""
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}}


def post_of(port: int, message: Any, path: str = "/rpc", accept: str = "application/json") -> bytes:
    """Return the bytes of a request that posts this message."""
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: {accept}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def frame_of(payload: bytes, opcode: int = 1) -> bytes:
    """Return a masked WebSocket frame."""
    mask = os.urandom(4)
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else bytes([0x80 | 126]) + struct.pack("!H", size)
    masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
    return bytes([0x80 | opcode]) + length + mask + masked


class RawPeer:
    """One connection."""

    def __init__(self, port: int, receive_bytes: int | None = None) -> None:
        """Connect; `receive_bytes` is the size of the receive buffer."""
        self.port = port
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_bytes is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.sock.settimeout(ANSWER_S)
        self.sock.connect(("127.0.0.1", port))

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def post(self, message: Any, path: str = "/rpc", accept: str = "application/json") -> None:
        """Post a message; the response is not read."""
        self.send(post_of(self.port, message, path, accept))

    def response(self) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Read the next response."""
        response = http.client.HTTPResponse(self.sock)
        response.begin()
        return response.status, response.headers, response.read()

    def answer(self, message: Any) -> Any:
        """Post a message, and return the JSON of the response."""
        self.post(message)
        return json.loads(self.response()[2])

    def read_until(self, mark: bytes) -> bytes:
        """Read until this mark is received."""
        data = bytearray()
        searched = 0
        while data.find(mark, searched) < 0:
            searched = max(len(data) - len(mark), 0)
            chunk = self.sock.recv(65536)
            assert chunk, data[-1000:]
            data += chunk
        return bytes(data)

    def read_to_end(self) -> bytes:
        """Read until the server closes or resets the connection."""
        data = b""
        try:
            while chunk := self.sock.recv(65536):
                data += chunk
        except ConnectionResetError:
            pass
        return data

    def upgrade(self, path: str = "/rpc") -> None:
        """Upgrade to a WebSocket."""
        self.send(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        assert b" 101 " in self.read_until(b"\r\n\r\n")

    def send_json(self, message: Any) -> None:
        """Send a message as a text frame."""
        self.send(frame_of(json.dumps(message).encode()))

    def reset(self) -> None:
        """Reset the connection."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()
