"""A program that connects to the editor of a real server, as Claude Code does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from child_processes import clean_environment
from network import ANSWER_S, Server
from websockets.sync.client import ClientConnection, connect

__all__ = (
    "EditorClient",
    "connected",
    "connected_to",
    "editor_server",
    "lock_of",
    "locks",
    "respond",
    "wait_for",
)

HEADER = "x-claude-code-ide-authorization"


def wait_for(condition: Any, what: str, seconds: float = ANSWER_S) -> Any:
    """Return the first true value of a condition."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"no {what} in time"
        time.sleep(0.02)
    return value


@contextmanager
def editor_server(
    folder: Path, *options: str, settings: dict[str, str] | None = None, auth: str = "off"
) -> Iterator[Server]:
    """Run a server with the IDE in a project folder; its lock files are in `folder/claude`."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    given = {"CLAUDE_CONFIG_DIR": str(folder / "claude"), **(settings or {})}
    server = Server("--ide", *options, settings=given, cwd=work, auth=auth)
    try:
        wait_for(lambda: locks(folder), "lock file")
        yield server
    finally:
        server.stop()


def locks(folder: Path) -> list[Path]:
    """Return the lock files in a folder."""
    return sorted((folder / "claude" / "ide").glob("*.lock"))


def lock_of(folder: Path) -> tuple[int, dict[str, Any]]:
    """Return the port and the content of the only lock file."""
    [path] = locks(folder)
    content: dict[str, Any] = json.loads(path.read_text())
    return int(path.stem), content


class EditorClient:
    """One connection: requests, and the notifications that arrive meanwhile."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.notifications: list[dict[str, Any]] = []
        self._answers: dict[Any, dict[str, Any]] = {}
        self._last = 0

    def send(self, method: str, params: Any = None) -> int:
        """Send a request and return its id."""
        self._last += 1
        message = {"jsonrpc": "2.0", "id": self._last, "method": method, "params": params or {}}
        self.socket.send(json.dumps(message))
        return self._last

    def notify(self, method: str, params: Any = None) -> None:
        """Send a notification."""
        self.socket.send(json.dumps({"jsonrpc": "2.0", "method": method, "params": params or {}}))

    def answer(self, request: int, seconds: float = ANSWER_S) -> dict[str, Any]:
        """Return the answer to a request."""
        end = time.monotonic() + seconds
        while request not in self._answers:
            self._read(end - time.monotonic())
        return self._answers.pop(request)

    def notification(self, method: str, seconds: float = ANSWER_S) -> dict[str, Any]:
        """Return the params of the next notification with this method."""
        end = time.monotonic() + seconds
        while True:
            for number, each in enumerate(self.notifications):
                if each["method"] == method:
                    del self.notifications[number]
                    params: dict[str, Any] = each["params"]
                    return params
            self._read(end - time.monotonic())

    def _read(self, seconds: float) -> None:
        message = json.loads(self.socket.recv(timeout=max(seconds, 0.01)))
        if "id" in message:
            self._answers[message["id"]] = message
        else:
            self.notifications.append(message)

    def request(self, method: str, params: Any = None) -> dict[str, Any]:
        """Send a request and return its whole answer."""
        return self.answer(self.send(method, params))

    def start_tool(self, name: str, **arguments: Any) -> int:
        """Call a tool and return the id of the request."""
        return self.send("tools/call", {"name": name, "arguments": arguments})

    def texts(self, request: int) -> list[str]:
        """Return the text blocks of the result of a tool that did not fail."""
        result = self.answer(request)["result"]
        assert result["isError"] is False, result
        return [block["text"] for block in result["content"]]

    def tool(self, name: str, **arguments: Any) -> list[str]:
        """Call a tool and return the text blocks of its result."""
        return self.texts(self.start_tool(name, **arguments))

    def json(self, name: str, **arguments: Any) -> Any:
        """Call a tool and return the decoded JSON of its only text block."""
        [text] = self.tool(name, **arguments)
        return json.loads(text)

    def failure(self, name: str, **arguments: Any) -> str:
        """Call a tool that fails, and return the text of the error."""
        result = self.answer(self.start_tool(name, **arguments))["result"]
        assert result["isError"] is True, result
        text: str = result["content"][-1]["text"]
        return text


@contextmanager
def connected(folder: Path, **options: str) -> Iterator[EditorClient]:
    """Connect to the only running editor of a folder and complete the handshake."""
    port, _ = lock_of(folder)
    with connected_to(folder, port, **options) as peer:
        yield peer


@contextmanager
def connected_to(
    folder: Path, port: int, *, client: str = "claude-code", path: str = ""
) -> Iterator[EditorClient]:
    """Connect to the editor on a port and complete the handshake."""
    lock = json.loads((folder / "claude" / "ide" / f"{port}.lock").read_text())
    with connect(
        f"ws://127.0.0.1:{port}{path}",
        subprotocols=["mcp"],  # type: ignore[list-item]  # a NewType of str
        additional_headers={HEADER: lock["authToken"]},
        max_size=None,
    ) as socket:
        peer = EditorClient(socket)
        info = {"name": client, "version": "1.0"}
        peer.request(
            "initialize",
            {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": info},
        )
        peer.notify("notifications/initialized")
        peer.notify("ide_connected", {"pid": os.getpid()})
        yield peer


def respond(server: Server, *arguments: str) -> str:
    """Run `substrate respond` for a server and return its output."""
    command = [sys.executable, "-m", "substrate", "--port", str(server.port), "respond"]
    done = subprocess.run(
        [*command, *arguments],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
