"""A client of any revision over any wire, which trusts the server in nothing.

It knows what it has asked for: whatever comes must be an answer to that, must not come twice, must
not come after the end, and must fit the official schema of the revision if that is at hand.
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
#: What is said about the client; what a revision does not know, it must pass over.
CAPABILITIES: dict[str, Any] = {"roots": {}, "sampling": {}, "elicitation": {}}
#: What the client says when it is asked.
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
        #: What the server has said of itself.
        self.settled: dict[str, Any] = {}
        #: Notifications that nobody has asked after yet.
        self.notices: list[dict[str, Any]] = []
        #: What the server has asked for.
        self.asked: list[str] = []
        #: How many messages came, and how many of them were held against the schema.
        self.received = self.checked = 0
        self._numbers = itertools.count(1)
        #: What is under way: the method of each request, and its progress token if it has one.
        self._methods: dict[Any, str | None] = {}
        self._tokens: dict[Any, Any] = {}
        self._progress: dict[Any, float] = {}
        self._answers: dict[Any, dict[str, Any]] = {}

    def introduce(self) -> None:
        """Make the handshake; a revision without one is asked what there is."""
        if self.revision == STATELESS:
            self.settled = self.result("server/discover")
            return
        said = {"protocolVersion": self.revision, "clientInfo": CLIENT}
        self.settled = self.result("initialize", capabilities=CAPABILITIES, **said)
        self.notify("notifications/initialized")

    # --- out ----------------------------------------------------------------------------------

    def begin(self, method: str, *, meta: dict[str, Any] | None = None, **params: Any) -> int:
        """Send a request and give its number."""
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
        """A request as this revision has it."""
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
        """An answer with this number is to come."""
        self._methods[number] = method

    def cancel(self, number: int) -> None:
        """Leave a request; whatever still comes of it is a fault."""
        self._forget(number)
        self.wire.cancel(number)

    # --- in -----------------------------------------------------------------------------------

    def answer(self, number: Any) -> dict[str, Any]:
        """Wait for the answer to a request."""
        self.wait_until(lambda: number in self._answers)
        return self._answers.pop(number)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and give the whole answer; whatever is asked before that is answered."""
        answer = self.answer(self.begin(method, **params))
        result = answer.get("result", {})
        if result.get("resultType") != "input_required":
            return answer
        replies = {key: self._reply(asked) for key, asked in result["inputRequests"].items()}
        state = {"requestState": result["requestState"], "inputResponses": replies}
        return self.ask(method, **params | state)

    def result(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a request that succeeds."""
        answer = self.ask(method, **params)
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def error(self, method: str, **params: Any) -> dict[str, Any]:
        """The error of a request that is refused."""
        answer = self.ask(method, **params)
        assert "error" in answer, answer
        error: dict[str, Any] = answer["error"]
        return error

    def call(self, tool: str, *, meta: dict[str, Any] | None = None, **arguments: Any) -> Any:
        """Call a tool that has something to say: its first text, and whether it failed."""
        result = self.result("tools/call", name=tool, arguments=arguments, meta=meta)
        assert result["content"][0]["type"] == "text", result
        return result["content"][0]["text"], result.get("isError", False)

    def notice(self, method: str) -> dict[str, Any]:
        """Wait for a notification, and give what it says."""
        self.wait_until(lambda: any(each["method"] == method for each in self.notices))
        found = next(each for each in self.notices if each["method"] == method)
        self.notices.remove(found)
        params: dict[str, Any] = found.get("params", {})
        return params

    def take_notices(self, method: str) -> list[dict[str, Any]]:
        """What the notifications of one kind said that came so far."""
        found = [each for each in self.notices if each["method"] == method]
        self.notices = [each for each in self.notices if each["method"] != method]
        return [each["params"] for each in found]

    def wait_until(self, true: Callable[[], bool]) -> None:
        """Take messages until this is true, but not for ever."""
        end = time.monotonic() + ANSWER_S
        while not true():
            assert time.monotonic() < end, "it did not become true"
            self.take()

    def repeat_until(self, true: Callable[[], bool]) -> None:
        """Try this, which itself asks the server, until it is true, but not for ever."""
        end = time.monotonic() + ANSWER_S
        while not true():
            assert time.monotonic() < end, "it did not become true"

    def take(self) -> None:
        """Take the next message of the server."""
        self._take_all(self.wire.receive())

    def _take_all(self, message: Any) -> None:
        """Take a message, or a batch of them."""
        for frame in message if isinstance(message, list) else [message]:
            self.received += 1
            if FOLDER is not None:
                validate(self.revision, frame, self._methods.get(frame.get("id")))
                self.checked += 1
            self._take(frame)

    def _take(self, frame: dict[str, Any]) -> None:
        if "method" not in frame:
            number = frame["id"]
            assert number in self._methods, f"nobody waits for this: {frame}"
            self._forget(number)
            self._answers[number] = frame
        elif "id" in frame:
            assert self.revision != STATELESS, f"servers do not ask here: {frame}"
            reply = {"jsonrpc": "2.0", "id": frame["id"], "result": self._reply(frame)}
            self.wire.send(json.dumps(reply))
        else:
            if frame["method"] == "notifications/progress":
                self._check_progress(frame["params"])
            self.notices.append(frame)

    def _check_progress(self, params: dict[str, Any]) -> None:
        token, progress = params["progressToken"], params["progress"]
        assert token in self._tokens, f"nobody wants to know: {params}"
        assert progress > self._progress.get(token, -1), f"it does not rise: {params}"
        self._progress[token] = progress

    def _forget(self, number: Any) -> None:
        del self._methods[number]
        self._tokens = {token: of for token, of in self._tokens.items() if of != number}

    def _reply(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(asked["method"])
        return REPLIES[asked["method"]]

    def close(self) -> None:
        """End the connection, after whatever has come meanwhile was looked at."""
        try:
            for message in self.wire.rest():
                self._take_all(message)
        finally:
            self.wire.close()


@contextmanager
def speaking(wire: Wire, revision: str) -> Iterator[Peer]:
    """A client of this revision, from its handshake on."""
    peer = Peer(wire, revision)
    try:
        peer.introduce()
        yield peer
    finally:
        peer.close()
