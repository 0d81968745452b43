"""A scripted model server on loopback.

It implements Anthropic's Messages, OpenAI's Chat Completions and Google's streamGenerateContent,
depending on the path of a request.

    async with ModelServer() as server:
        server.script(reply("Hello there."), Refusal(429, headers={"retry-after": "1"}))
        environment = server.environment()      # addresses and keys of all three providers
        ...                                     # the first request gets the reply, the next the 429
        [request] = server.requests             # dialect, path, model, headers, body, gone

- `script(*answers)`: the answers to the next requests, in order; a string is a reply with that
  text. When none is left, each request gets `server.otherwise` (a reply with "Hello.").
- `reply(*steps, stop=None, tokens=(sent, received))`: an answer made of steps: a text (one event
  per word), `Think(text, signature)`, `Use(name, arguments, id)` (arguments may be invalid JSON as
  a string), `Ping()`, `Pause(seconds)`, `Gate(event)` (waits for an asyncio.Event),
  `Fail(kind, message)` (an error event, then the end), `Raw(bytes)`, `HangUp()` (disconnects),
  `End()` (the body ends normally, but the answer is incomplete) and `Silence()` (sends nothing
  until the client disconnects). The answer ends with `stop`, a stop reason of Anthropic; by
  default "tool_use" if a tool is used, else "end_turn".
- `Refusal(status, message, headers, kind)`: an error instead of an answer.
- `requests`: every `Request` so far. `request.gone` is set when the client disconnects before the
  answer is complete; `await server.asked(n)` waits for the n-th request.
- `url`, `openai_url` (with /v1, for endpoints too), `environment(key="sk-test")`.

Every wait has a timeout; leaving the block closes everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from model_dialects import DIALECTS, Dialect, words

__all__ = (
    "WAIT_S",
    "End",
    "Fail",
    "Gate",
    "HangUp",
    "ModelServer",
    "Pause",
    "Ping",
    "Raw",
    "Refusal",
    "Reply",
    "Request",
    "Silence",
    "Think",
    "Use",
    "reply",
)

#: Timeout of every wait, sufficient on a busy machine.
WAIT_S = 30.0
KEY = "sk-test"


class Think(NamedTuple):
    text: str
    signature: str = "signed"


class Use(NamedTuple):
    name: str
    arguments: dict[str, Any] | str = {}  # noqa: RUF012 - never changed
    id: str = "use_1"


class Ping(NamedTuple):
    pass


class Pause(NamedTuple):
    seconds: float


class Gate(NamedTuple):
    event: asyncio.Event


class Fail(NamedTuple):
    kind: str = "overloaded_error"
    message: str = "Overloaded"


class Raw(NamedTuple):
    data: bytes


class HangUp(NamedTuple):
    pass


class End(NamedTuple):
    pass


class Silence(NamedTuple):
    pass


Step: TypeAlias = str | Think | Use | Ping | Pause | Gate | Fail | Raw | HangUp | End | Silence


class Reply(NamedTuple):
    """An answer: its steps, stop reason, and numbers of tokens sent and received."""

    steps: tuple[Step, ...]
    stop: str
    tokens: tuple[int, int]


class Refusal(NamedTuple):
    """An error instead of an answer."""

    status: int
    message: str = "no"
    headers: Mapping[str, str] = {}
    kind: str = "some_error"


Answer: TypeAlias = Reply | Refusal


def reply(*steps: Step, stop: str | None = None, tokens: tuple[int, int] = (12, 34)) -> Reply:
    """Return an answer with these steps."""
    uses = any(isinstance(step, Use) for step in steps)
    return Reply(steps, stop or ("tool_use" if uses else "end_turn"), tokens)


class Request(NamedTuple):
    """A received request; header names are in lower case."""

    dialect: str
    path: str
    model: str
    headers: dict[str, str]
    body: dict[str, Any]
    #: Set when the client disconnects before the answer is complete.
    gone: asyncio.Event


class Cut(Exception):
    """The signal to cut the connection."""


class ModelServer:
    """The scripted model server; see the module."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.otherwise: Answer = reply("Hello.")
        #: The number of accepted connections.
        self.connections = 0
        self._script: deque[Answer] = deque()
        self._news = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ModelServer:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        async with asyncio.timeout(WAIT_S):
            await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    def environment(self, key: str = KEY) -> dict[str, str]:
        """Return the variables that direct all providers to this server, with separate keys."""
        return {
            "ANTHROPIC_API_KEY": f"{key}-anthropic",
            "ANTHROPIC_BASE_URL": self.url,
            "OPENAI_API_KEY": f"{key}-openai",
            "OPENAI_BASE_URL": self.openai_url,
            "GOOGLE_API_KEY": f"{key}-google",
            "GOOGLE_GEMINI_BASE_URL": self.url,
        }

    def script(self, *answers: Answer | str) -> None:
        """Add the answers to the next requests, after those added before."""
        self._script.extend(reply(each) if isinstance(each, str) else each for each in answers)

    async def asked(self, count: int) -> Request:
        """Wait until `count` requests were received, and return the last of them."""
        async with asyncio.timeout(WAIT_S), self._news:
            await self._news.wait_for(lambda: len(self.requests) >= count)
        return self.requests[count - 1]

    # --- a connection ------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._served(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        except Cut:
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _served(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer a request, and return whether another may follow."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        path = first.split(" ")[1].partition("?")[0]
        found = next(((name, d, m) for name, p, d in DIALECTS if (m := p.search(path))), None)
        if found is None:
            await self._refused(writer, 404, {}, {"error": f"nothing at {path}"})
            return True
        name, dialect, match = found
        decoded = json.loads(body)
        model = match.groupdict().get("model") or decoded.get("model", "")
        request = Request(name, path, model, headers, decoded, asyncio.Event())
        self.requests.append(request)
        async with self._news:
            self._news.notify_all()
        answer = self._script.popleft() if self._script else self.otherwise
        if isinstance(answer, Refusal):
            error = dialect.refusal(answer.status, answer.kind, answer.message)
            await self._refused(writer, answer.status, answer.headers, error)
            return True
        return await self._answered(
            request, dialect(model, decoded, answer.tokens), answer, reader, writer
        )

    async def _refused(
        self, writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str], body: Any
    ) -> None:
        data = json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} No", *(f"{name}: {value}" for name, value in headers.items())]
        lines += ["content-type: application/json", f"content-length: {len(data)}"]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        await writer.drain()

    async def _answered(
        self,
        request: Request,
        dialect: Dialect,
        answer: Reply,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Write an answer, and stop when the client disconnects."""
        writing = asyncio.create_task(self._write(dialect, answer, writer))
        leaving = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not writing.done():
                request.gone.set()
                return False
            await writing
            # The next request cannot have arrived yet: these clients do not pipeline.
            return not leaving.done()
        except ConnectionError:
            request.gone.set()
            return False
        finally:
            for task in (writing, leaving):
                task.cancel()
            await asyncio.gather(writing, leaving, return_exceptions=True)

    async def _write(self, dialect: Dialect, answer: Reply, writer: asyncio.StreamWriter) -> None:
        async def send(data: bytes) -> None:
            if data:
                writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                await writer.drain()

        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        await writer.drain()
        started = False
        whole = True
        for step in answer.steps:
            if not started and not isinstance(step, Silence | HangUp | Fail | Raw | End):
                await send(dialect.start())
                started = True
            if isinstance(step, str):
                for word in words(step):
                    await send(dialect.say(word))
            elif isinstance(step, Think):
                await send(dialect.think(*step))
            elif isinstance(step, Use):
                given = step.arguments
                arguments = given if isinstance(given, str) else json.dumps(given)
                await send(dialect.use(step.id, step.name, arguments))
            elif isinstance(step, Ping):
                await send(dialect.ping())
            elif isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            elif isinstance(step, Gate):
                async with asyncio.timeout(WAIT_S):
                    await step.event.wait()
            elif isinstance(step, Fail):
                await send(dialect.fail(*step))
                whole = False
                break
            elif isinstance(step, Raw):
                await send(step.data)
            elif isinstance(step, HangUp):
                raise Cut
            elif isinstance(step, End):
                whole = False
                break
            else:
                await asyncio.sleep(WAIT_S)
        if whole:
            await send((b"" if started else dialect.start()) + dialect.end(answer.stop))
        writer.write(b"0\r\n\r\n")
        await writer.drain()
