"""The compared servers: the program, the limit, and the installed peers."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import metadata
from typing import Literal, TypeAlias

from bench.mcp import messages, stdio_client, typescript
from bench.measure import ASGI, LIMIT, OURS
from bench.servers import (
    BARE_ASGI,
    LIMIT_HTTP,
    LIMIT_STDIO,
    Server,
    ServerExited,
    port_of,
    start,
)

__all__ = (
    "FAST",
    "PEERS",
    "STARLETTE",
    "Command",
    "ResponseFormat",
    "http_commands",
    "installed",
    "ours_http",
    "ours_stdio",
    "start_all",
    "start_all_http",
    "stdio_commands",
    "with_missing_peers",
)

Command: TypeAlias = tuple[str, ...]
#: Response format over HTTP. Peers take it as an argument; the program follows the Accept header.
ResponseFormat = Literal["json", "sse"]

#: Python peers by name: the distribution, its first supported major version, and the module.
PYTHON = {
    "mcp": ("mcp", 2, "bench.peers.mcp_server"),
    "mcp low": ("mcp", 2, "bench.peers.mcp_lowlevel"),
    "fastmcp": ("fastmcp", 3, "bench.peers.fastmcp_server"),
}
#: Names of all peers.
PEERS = (*PYTHON, *typescript.NAMES)
STARLETTE = "starlette"
#: Contenders that do all of the work of a round; the others do a share of it.
FAST = frozenset({OURS, LIMIT, ASGI, STARLETTE})

_SUBSTRATE = (sys.executable, "-m", "substrate")
_RESULT = b'{"jsonrpc":"2.0","id":1,"result":'


def ours_stdio(activation: str = "Bench") -> Command:
    """Return the command for the program on stdio, with a progress notification per event."""
    flags = ("--stdio", "--mcp", "--mcp-progress-rate", "0")
    return (*_SUBSTRATE, *flags, "--activation", f"bench.activation:{activation}")


def ours_http() -> Command:
    """Return the command for the program over HTTP, with a progress notification per event."""
    flags = ("--port", "0", "--auth", "off", "--mcp-progress-rate", "0")
    return (*_SUBSTRATE, *flags, "--activation", "bench.activation:Bench")


def installed() -> dict[str, Command]:
    """Return the commands of the installed peers by name, without arguments."""
    python = {
        name: (sys.executable, "-m", module)
        for name, (distribution, major, module) in PYTHON.items()
        if _major(distribution) >= major
    }
    return {**python, **typescript.commands()}


def with_missing_peers(taken: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float] | None]:
    """Return the rounds, with None for each peer that is not installed."""
    return {**taken, **dict.fromkeys(name for name in PEERS if name not in taken)}


@contextmanager
def stdio_commands(
    activation: str = "Bench", *, listing: bool = False
) -> Iterator[dict[str, Command]]:
    """Yield the commands for stdio. For lists, peers get as many tools as the program has."""
    ours = ours_stdio(activation)
    with _recorded_results(ours) as (file, tools):
        number = str(tools if listing else 0)
        yield {
            OURS: ours,
            LIMIT: (*LIMIT_STDIO, file),
            **{name: (*command, "stdio", number) for name, command in installed().items()},
        }


@contextmanager
def http_commands(response_format: ResponseFormat) -> Iterator[dict[str, Command]]:
    """Yield the commands for HTTP."""
    with _recorded_results(ours_stdio()) as (file, _):
        yield {
            OURS: ours_http(),
            LIMIT: (*LIMIT_HTTP, file),
            ASGI: (*BARE_ASGI, file),
            **{name: (*command, response_format, "0") for name, command in installed().items()},
        }


@contextmanager
def start_all(commands: Mapping[str, Command]) -> Iterator[dict[str, Server]]:
    """Start all servers on stdio and do their handshakes."""
    with _start_servers(commands) as servers:
        for server in servers.values():
            stdio_client.handshake(server)
        yield servers


@contextmanager
def start_all_http(commands: Mapping[str, Command]) -> Iterator[dict[str, int]]:
    """Start all HTTP servers. Yields their ports."""
    with _start_servers(commands) as servers:
        yield {name: port_of(server) for name, server in servers.items()}


@contextmanager
def _start_servers(commands: Mapping[str, Command]) -> Iterator[dict[str, Server]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(start(command)) for name, command in commands.items()}


@contextmanager
def _recorded_results(ours: Command) -> Iterator[tuple[str, int]]:
    """Record the program's metadata in a file for the limit. Yields the file and the tool count."""
    with start(ours) as server:
        found = {"server/discover ": stdio_client.exchange(server, messages.discover())}
        found["initialize "] = stdio_client.handshake(server)
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
                raise ServerExited(f"unexpected response to {key.strip()}: {line[:200]!r}")
            file.write(b"%b\t%b\n" % (key.encode(), line[len(_RESULT) : -len(b"}\n")]))
        file.flush()
        yield file.name, tools


def _major(distribution: str) -> int:
    """Return the major version of an installed distribution, or 0."""
    try:
        return int(metadata.version(distribution).partition(".")[0])
    except metadata.PackageNotFoundError:
        return 0
