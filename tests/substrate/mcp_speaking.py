"""A strict MCP client for any revision over any wire.

It asserts that every response belongs to a pending request, arrives once and not after the end,
and that every message matches the official schema of the revision if that is available.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mcp_schema import FOLDER, STATELESS, validate
from mcp_wires import Wire
from network import ANSWER_S

__all__ = ("CAPABILITIES", "CLIENT", "META", "Peer", "speaking")

META = "io.modelcontextprotocol/"
CLIENT = {"name": "wire-test", "version": "1.0.0"}
#: The capabilities of the client; a server ignores those that a revision does not define.
CAPABILITIES: dict[str, Any] = {"roots": {}, "sampling": {}, "elicitation": {}}
#: The client's responses to requests of the server.
REPLIES: dict[str, dict[str, Any]] = {
    "elicitation/create": {"action": "accept", "content": {"name": "Ada"}},
    "roots/list": {"roots": [{"uri": "file:///here", "name": "here"}]},
    "sampling/createMessage": {
        "role": "assistant",
        "content": {"type": "text", "text": "Hello!"},
        "model": "none",
    },
}


class Peer:
    """A client of one revision."""

    def __init__(self, wire: Wire, revision: str) -> None:
        self.wire = wire
        self.revision = revision
        #: The result of the handshake or of `server/discover`.
        self.settled: dict[str, Any] = {}
        #: Notifications that were not yet read.
        self.notices: list[dict[str, Any]] = []
        #: The methods that the server has requested.
        self.asked: list[str] = []
        #: How many messages were received, and how many of them were validated.
        self.received = self.checked = 0
        self._numbers = itertools.count(1)
        #: The method of each pending request, and its progress token if it has one.
        self._methods: dict[Any, str | None] = {}
        self._tokens: dict[Any, Any] = {}
        self._progress: dict[Any, float] = {}
        self._answers: dict[Any, dict[str, Any]] = {}

    def introduce(self) -> None:
        """Perform the handshake, or `server/discover` in a revision without one."""
        if self.revision == STATELESS:
            self.settled = self.result("server/discover")
            return
        client = {"protocolVersion": self.revision, "clientInfo": CLIENT}
        self.settled = self.result("initialize", capabilities=CAPABILITIES, **client)
        self.notify("notifications/initialized")

    # --- out ----------------------------------------------------------------------------------

    def begin(self, method: str, *, meta: dict[str, Any] | None = None, **params: Any) -> int:
        """Send a request and return its id."""
        message = self.request(method, meta=meta, **params)
        number: int = message["id"]
        self.expect(number, method)
        token = (meta or {}).get("progressToken")
        if token is not None:
            self._tokens[token] = number
        self.wire.send(json.dumps(message))
        return number

    def request(
        self, method: str, *, meta: dict[str, Any] | None = None, **params: Any
    ) -> dict[str, Any]:
        """Return a request in the form of this revision."""
        if self.revision == STATELESS:
            meta = {
                META + "protocolVersion": self.revision,
                META + "clientInfo": CLIENT,
                META + "clientCapabilities": CAPABILITIES,
            } | (meta or {})
        if meta:
            params["_meta"] = meta
        number = next(self._numbers)
        return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}

    def notify(self, method: str) -> None:
        """Send a notification."""
        self.wire.send(json.dumps({"jsonrpc": "2.0", "method": method}))

    def expect(self, number: Any, method: str | None = None) -> None:
        """Expect a response with this id."""
        self._methods[number] = method

    def cancel(self, number: int) -> None:
        """Cancel a request; any later message about it is a fault."""
        self._forget(number)
        self.wire.cancel(number)

    # --- in -----------------------------------------------------------------------------------

    def answer(self, number: Any) -> dict[str, Any]:
        """Wait for the response to a request."""
        self.wait_until(lambda: number in self._answers)
        return self._answers.pop(number)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return the response, after answering the server's requests."""
        answer = self.answer(self.begin(method, **params))
        result = answer.get("result", {})
        if result.get("resultType") != "input_required":
            return answer
        replies = {key: self._reply(asked) for key, asked in result["inputRequests"].items()}
        state = {"requestState": result["requestState"], "inputResponses": replies}
        return self.ask(method, **params | state)

    def result(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of a request that succeeds."""
        answer = self.ask(method, **params)
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def error(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the error of a request that fails."""
        answer = self.ask(method, **params)
        assert "error" in answer, answer
        error: dict[str, Any] = answer["error"]
        return error

    def call(self, tool: str, *, meta: dict[str, Any] | None = None, **arguments: Any) -> Any:
        """Call a tool, and return its first text and whether it failed."""
        result = self.result("tools/call", name=tool, arguments=arguments, meta=meta)
        assert result["content"][0]["type"] == "text", result
        return result["content"][0]["text"], result.get("isError", False)

    def notice(self, method: str) -> dict[str, Any]:
        """Wait for a notification, and return its parameters."""
        self.wait_until(lambda: any(each["method"] == method for each in self.notices))
        found = next(each for each in self.notices if each["method"] == method)
        self.notices.remove(found)
        params: dict[str, Any] = found.get("params", {})
        return params

    def take_notices(self, method: str) -> list[dict[str, Any]]:
        """Return the parameters of the notifications of one method received so far."""
        found = [each for each in self.notices if each["method"] == method]
        self.notices = [each for each in self.notices if each["method"] != method]
        return [each["params"] for each in found]

    def wait_until(self, true: Callable[[], bool]) -> None:
        """Read messages until a condition is true, with a timeout."""
        end = time.monotonic() + ANSWER_S
        while not true():
            assert time.monotonic() < end, "it did not become true"
            self.take()

    def repeat_until(self, true: Callable[[], bool]) -> None:
        """Repeat a condition that calls the server until it is true, with a timeout."""
        end = time.monotonic() + ANSWER_S
        while not true():
            assert time.monotonic() < end, "it did not become true"

    def take(self) -> None:
        """Read the next message of the server."""
        self._take_all(self.wire.receive())

    def _take_all(self, message: Any) -> None:
        """Process a message, or a batch of messages."""
        for frame in message if isinstance(message, list) else [message]:
            self.received += 1
            if FOLDER is not None:
                validate(self.revision, frame, self._methods.get(frame.get("id")))
                self.checked += 1
            self._take(frame)

    def _take(self, frame: dict[str, Any]) -> None:
        if "method" not in frame:
            number = frame["id"]
            assert number in self._methods, f"no request is pending for this: {frame}"
            self._forget(number)
            self._answers[number] = frame
        elif "id" in frame:
            assert self.revision != STATELESS, f"servers send no requests in this revision: {frame}"
            reply = {"jsonrpc": "2.0", "id": frame["id"], "result": self._reply(frame)}
            self.wire.send(json.dumps(reply))
        else:
            if frame["method"] == "notifications/progress":
                self._check_progress(frame["params"])
            self.notices.append(frame)

    def _check_progress(self, params: dict[str, Any]) -> None:
        token, progress = params["progressToken"], params["progress"]
        assert token in self._tokens, f"no request has this progress token: {params}"
        assert progress > self._progress.get(token, -1), f"progress does not increase: {params}"
        self._progress[token] = progress

    def _forget(self, number: Any) -> None:
        del self._methods[number]
        self._tokens = {token: of for token, of in self._tokens.items() if of != number}

    def _reply(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(asked["method"])
        return REPLIES[asked["method"]]

    def close(self) -> None:
        """Check the messages received meanwhile, and close the connection."""
        try:
            for message in self.wire.rest():
                self._take_all(message)
        finally:
            self.wire.close()


@contextmanager
def speaking(wire: Wire, revision: str) -> Iterator[Peer]:
    """Connect a client of this revision, with its handshake."""
    peer = Peer(wire, revision)
    try:
        peer.introduce()
        yield peer
    finally:
        peer.close()
