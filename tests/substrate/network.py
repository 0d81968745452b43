"""A real server on a free port, and plain HTTP and WebSocket clients for it."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
DEMO = REPOSITORY / "tests" / "activations_for_tests.py"
ANSWER_S = 15.0


class Server:
    """`substrate` as a process."""

    def __init__(self, *options: str, settings: dict[str, str] | None = None) -> None:
        clean = {key: value for key, value in os.environ.items() if "SUBSTRATE" not in key}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "substrate", "--port", "0", "--activation", str(DEMO), *options],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=REPOSITORY,
            env=clean | (settings or {}),
        )
        assert self.process.stderr is not None
        said = b""
        while (line := self.process.stderr.readline()) and b" on http" not in line:
            said += line
        found = re.search(rb"http://127\.0\.0\.1:(\d+)", line)
        assert found is not None, said.decode()
        self.port = int(found[1])

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.port}/rpc"

    def request(
        self, verb: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """Send one request on a connection of its own; the response is not read yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        # Closing with the response, so that whoever is done with that is done with both.
        always = {"Connection": "close"}
        if data is not None:
            always["Content-Type"] = "application/json"
        connection.request(verb, path, data, always | (headers or {}))
        return connection.getresponse()

    def status(self, verb: str, path: str, headers: dict[str, str] | None = None) -> int:
        """The status of an answer that nobody reads."""
        with self.request(verb, path, headers=headers) as response:
            return response.status

    def call(self, method: str, params: Any = None, **headers: str) -> http.client.HTTPResponse:
        """POST one call."""
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        return self.request("POST", "/rpc", message, headers)

    def stream(self, method: str, params: Any = None) -> http.client.HTTPResponse:
        """POST one call whose answer is a stream."""
        return self.call(method, params, Accept="text/event-stream")

    def stop(self) -> int:
        """End it and return its exit code."""
        self.process.terminate()
        try:
            return self.process.wait(ANSWER_S)
        finally:
            self.process.kill()
            self.process.wait(ANSWER_S)
            assert self.process.stderr is not None
            self.process.stderr.close()


@contextmanager
def serving(*options: str, settings: dict[str, str] | None = None) -> Iterator[Server]:
    """A server for as long as the block lasts."""
    server = Server(*options, settings=settings)
    try:
        yield server
    finally:
        server.stop()


def events(response: http.client.HTTPResponse) -> Iterator[tuple[str | None, Any]]:
    """The server-sent events of a response as they come: id, and data decoded."""
    event_id, data = None, None
    for raw in response:
        line = raw.decode().rstrip("\n")
        if line.startswith("id: "):
            event_id = line[4:]
        elif line.startswith("data: "):
            data = json.loads(line[6:])
        elif not line and data is not None:
            yield event_id, data
            event_id, data = None, None
