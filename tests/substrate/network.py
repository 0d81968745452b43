"""A real server on a free port, and plain HTTP and WebSocket clients for it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from child_processes import clean_environment

REPOSITORY = Path(__file__).parents[2]
DEMO = REPOSITORY / "tests" / "activations_for_tests.py"
ANSWER_S = 15.0


class Server:
    """`substrate` as a process, by default without authentication."""

    def __init__(
        self,
        *options: str,
        settings: dict[str, str] | None = None,
        auth: str = "off",
        activation: Path = DEMO,
        cwd: Path = REPOSITORY,
    ) -> None:
        command = [sys.executable, "-m", "substrate", "--port", "0", "--auth", auth]
        self.process = subprocess.Popen(
            [*command, "--activation", str(activation), *options],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=clean_environment(**settings or {}),
        )
        assert self.process.stderr is not None
        output = b""
        while (line := self.process.stderr.readline()) and b" on http" not in line:
            output += line
        found = re.search(rb"http://127\.0\.0\.1:(\d+)", line)
        assert found is not None, output.decode()
        self.port = int(found[1])

    @property
    def token(self) -> str:
        """The server token, from the lock file."""
        return str(self.lock["authToken"])

    @property
    def lock(self) -> dict[str, Any]:
        """The content of the lock file."""
        content: dict[str, Any] = json.loads(lock_file(self.port).read_text())
        return content

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.port}/rpc"

    def request(
        self, verb: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """Send a request on a separate connection, and return the unread response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        # Closing the response closes the connection too.
        always = {"Connection": "close"}
        if data is not None:
            always["Content-Type"] = "application/json"
        connection.request(verb, path, data, always | (headers or {}))
        return connection.getresponse()

    def status(self, verb: str, path: str, headers: dict[str, str] | None = None) -> int:
        """Send a request and return the status, without reading the body."""
        with self.request(verb, path, headers=headers) as response:
            return response.status

    def call(self, method: str, params: Any = None, **headers: str) -> http.client.HTTPResponse:
        """POST a call."""
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        return self.request("POST", "/rpc", message, headers)

    def stream(self, method: str, params: Any = None) -> http.client.HTTPResponse:
        """POST a call, and request an event stream."""
        return self.call(method, params, Accept="text/event-stream")

    def stop(self, *, kill: bool = False) -> int:
        """Stop or kill the server without waiting for its runs, and return its exit code."""
        self.process.kill() if kill else self.process.terminate()
        self.process.send_signal(signal.SIGINT)  # two pending signals of one kind are merged
        try:
            return self.process.wait(ANSWER_S)
        finally:
            self.process.kill()
            self.process.wait(ANSWER_S)
            assert self.process.stderr is not None
            self.process.stderr.close()


def lock_file(port: int) -> Path:
    """Return the path of the lock file of a server on this port."""
    return Path(os.environ["XDG_STATE_HOME"]) / "substrate" / "servers" / f"{port}.json"


def bearer(token: str) -> dict[str, str]:
    """Return the header with a token."""
    return {"Authorization": f"Bearer {token}"}


@contextmanager
def serving(
    *options: str,
    settings: dict[str, str] | None = None,
    auth: str = "off",
    cwd: Path = REPOSITORY,
) -> Iterator[Server]:
    """Run a server for the duration of the block."""
    server = Server(*options, settings=settings, auth=auth, cwd=cwd)
    try:
        yield server
    finally:
        server.stop()


def events(response: http.client.HTTPResponse) -> Iterator[tuple[str | None, Any]]:
    """Yield the id and the decoded data of each server-sent event of a response."""
    for event in read_events(response):
        yield event.id, event.message


class Event(NamedTuple):
    """A server-sent event."""

    id: str | None
    data: str
    name: str | None = None
    retry: str | None = None

    @property
    def message(self) -> Any:
        return json.loads(self.data)


def read_events(response: http.client.HTTPResponse) -> Iterator[Event]:
    """Yield the events of a response, without comments."""
    fields: dict[str, str] = {}
    for raw in response:
        line = raw.decode().rstrip("\n")
        if not line:
            if "data" in fields:
                data = fields["data"]
                yield Event(fields.get("id"), data, fields.get("event"), fields.get("retry"))
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
