"""Who is measured beside whom: ours, the limit, and those peers that are installed."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import metadata
from typing import Literal, TypeAlias

from bench.mcp import messages, stdio_client
from bench.measure import LIMIT, OURS
from bench.servers import LIMIT_ASGI, LIMIT_STDIO, Server, ServerGone, port_of, start

__all__ = (
    "PEERS",
    "STARLETTE",
    "Answered",
    "Command",
    "http_commands",
    "installed",
    "missing",
    "ours_http",
    "ours_stdio",
    "start_all",
    "start_all_http",
    "stdio_commands",
)

Command: TypeAlias = tuple[str, ...]
#: How a peer is told to answer over HTTP; ours goes by what the client accepts.
Answered = Literal["json", "sse"]

#: By name: the distribution, the first major version that has what is used here, and the module.
PEERS = {
    "mcp": ("mcp", 2, "bench.peers.mcp_server"),
    "mcp low": ("mcp", 2, "bench.peers.mcp_lowlevel"),
    "fastmcp": ("fastmcp", 3, "bench.peers.fastmcp_server"),
}
STARLETTE = "starlette"

_SUBSTRATE = (sys.executable, "-m", "substrate")
_RESULT = b'{"jsonrpc":"2.0","id":1,"result":'


def ours_stdio(activation: str = "Bench") -> Command:
    """The program on stdio. Every event is to be sent, so that there is something to measure."""
    flags = ("--stdio", "--mcp", "--mcp-progress-rate", "0")
    return (*_SUBSTRATE, *flags, "--activation", f"bench.activation:{activation}")


def ours_http() -> Command:
    """The program over HTTP, likewise."""
    flags = ("--port", "0", "--auth", "off", "--mcp-progress-rate", "0")
    return (*_SUBSTRATE, *flags, "--activation", "bench.activation:Bench")


def installed() -> dict[str, str]:
    """The modules of the peers that can be measured here."""
    return {name: peer[2] for name, peer in PEERS.items() if _major(peer[0]) >= peer[1]}


def missing(taken: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float] | None]:
    """The rounds, with nothing for each peer that is not installed."""
    return {**taken, **{name: None for name in PEERS if name not in installed()}}


@contextmanager
def stdio_commands(
    activation: str = "Bench", *, listing: bool = False
) -> Iterator[dict[str, Command]]:
    """What to start on stdio. For lists the peers have as many tools as ours has in all."""
    ours = ours_stdio(activation)
    with _ready(ours) as (file, tools):
        number = str(tools if listing else 0)
        yield {
            OURS: ours,
            LIMIT: (*LIMIT_STDIO, file),
            **{
                name: (sys.executable, "-m", module, "stdio", number)
                for name, module in installed().items()
            },
        }


@contextmanager
def http_commands(answered: Answered) -> Iterator[dict[str, Command]]:
    """What to start for HTTP."""
    with _ready(ours_stdio()) as (file, _):
        yield {
            OURS: ours_http(),
            LIMIT: (*LIMIT_ASGI, file),
            **{
                name: (sys.executable, "-m", module, answered, "0")
                for name, module in installed().items()
            },
        }


@contextmanager
def start_all(commands: Mapping[str, Command]) -> Iterator[dict[str, Server]]:
    """All of them on stdio, after their handshakes."""
    with _started(commands) as servers:
        for server in servers.values():
            stdio_client.shake_hands(server)
        yield servers


@contextmanager
def start_all_http(commands: Mapping[str, Command]) -> Iterator[dict[str, int]]:
    """The ports of all of them."""
    with _started(commands) as servers:
        yield {name: port_of(server) for name, server in servers.items()}


@contextmanager
def _started(commands: Mapping[str, Command]) -> Iterator[dict[str, Server]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(start(command)) for name, command in commands.items()}


@contextmanager
def _ready(ours: Command) -> Iterator[tuple[str, int]]:
    """A file with what ours says about itself, for the limit to say the same, and its tools."""
    with start(ours) as server:
        found = {"server/discover ": stdio_client.exchange(server, messages.discover())}
        found["initialize "] = stdio_client.shake_hands(server)
        cursor = ""
        tools = 0
        for page in stdio_client.list_all(server):
            found[f"tools/list {cursor}"] = page
            result = json.loads(page)["result"]
            tools += len(result["tools"])
            cursor = result.get("nextCursor", "")
    with tempfile.NamedTemporaryFile() as file:
        for key, line in found.items():
            if not line.startswith(_RESULT):
                raise ServerGone(f"{key}was answered by {line[:200]!r}")
            file.write(b"%b\t%b\n" % (key.encode(), line[len(_RESULT) : -len(b"}\n")]))
        file.flush()
        yield file.name, tools


def _major(distribution: str) -> int:
    """The first number of an installed version; 0 if there is none."""
    try:
        return int(metadata.version(distribution).partition(".")[0])
    except metadata.PackageNotFoundError:
        return 0
