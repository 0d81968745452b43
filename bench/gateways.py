"""`python -m bench.gateways`: what passes through gateways in front of a tool that streams.

Each gateway serves the same upstream, `gateway_upstream.py`, and the client of the official SDK
talks to the gateway: does progress arrive while the tool runs, does a cancelled call stop the
function, what happens to a question, and what does a second client see? The first row is the
upstream without a gateway. FastMCP is taken from this environment; the others are installed into
a temporary folder with pip and npm; one that cannot be installed is reported with the reason.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

__all__ = ("COLUMNS", "GATEWAYS", "NotInstalled", "Served", "main", "probe", "upstream")

UPSTREAM = str(Path(__file__).with_name("gateway_upstream.py"))

MCP_PROXY = ("mcp-proxy==0.13.0", "mcp<2")
SUPERGATEWAY = "supergateway@4.0.0"
MCP_HUB = "mcp-hub@4.2.1"

#: Numbers that the streaming tool yields, 0.2 s apart.
NUMBERS = 5
#: Numbers for a call that is watched by a process that starts after it.
WATCHED_NUMBERS = 20
#: Timeout of one step: an answer, or the end of the upstream function.
STEP_S = 20.0
#: A function that still runs this long after its call was cancelled was not cancelled.
CANCELLED_S = 3.0
INSTALL_S = 300.0
STOP_S = 5.0

COLUMNS = ("progress", "cancel", "question", "no elicitation", "second client", "terminal")


class NotInstalled(Exception):
    """A gateway could not be installed; the text has the reason."""


@dataclass(frozen=True, slots=True)
class Served:
    """A gateway that runs: the command of its process for stdio, or its URL."""

    address: tuple[str, ...] | str
    #: Whether the URL is one of HTTP+SSE, and not of Streamable HTTP.
    is_sse: bool = False


def _variables(folder: Path) -> dict[str, str]:
    """Keep the runs of the upstream apart from those of the user."""
    return {"XDG_DATA_HOME": str(folder / "data"), "XDG_STATE_HOME": str(folder / "state")}


def upstream(folder: Path) -> tuple[str, ...]:
    """Return the command of the upstream.

    It sets its own variables, because clients and gateways pass on only some of theirs.
    """
    variables = (f"{name}={value}" for name, value in _variables(folder).items())
    return "env", *variables, sys.executable, UPSTREAM, "--stdio", "--mcp"


# --- gateways ------------------------------------------------------------------------------------


@asynccontextmanager
async def direct(folder: Path) -> AsyncIterator[Served]:
    """No gateway: the client starts the upstream itself."""
    yield Served(upstream(folder))


def _fastmcp_config(folder: Path) -> Path:
    command, *arguments = upstream(folder)
    path = folder / "mcp.json"
    entry = {"command": command, "args": arguments}
    path.write_text(json.dumps({"mcpServers": {"upstream": entry}}))
    return path


def _fastmcp(folder: Path) -> tuple[str, ...]:
    program = shutil.which("fastmcp", path=str(Path(sys.executable).parent)) or shutil.which(
        "fastmcp"
    )
    if program is None:
        raise NotInstalled("fastmcp is missing; install the extra `bench`")
    return program, "run", str(_fastmcp_config(folder)), "--no-banner", "--skip-env"


@asynccontextmanager
async def fastmcp_stdio(folder: Path) -> AsyncIterator[Served]:
    """`fastmcp run mcp.json`, a proxy over stdio."""
    yield Served(_fastmcp(folder))


@asynccontextmanager
async def fastmcp_http(folder: Path) -> AsyncIterator[Served]:
    """`fastmcp run mcp.json --transport http`."""
    port = _free_port()
    command = (*_fastmcp(folder), "--transport", "http", "--port", str(port))
    async with _served(command, port, folder):
        yield Served(f"http://127.0.0.1:{port}/mcp")


@asynccontextmanager
async def mcp_proxy(folder: Path) -> AsyncIterator[Served]:
    """`mcp-proxy`, from stdio to streamable HTTP."""
    environment = folder / "mcp-proxy"
    python = environment / "bin" / "python"
    await asyncio.to_thread(_install, [sys.executable, "-m", "venv", str(environment)], folder)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    await asyncio.to_thread(_install, [*pip, *MCP_PROXY], folder)
    port = _free_port()
    command = (str(python.with_name("mcp-proxy")), "--port", str(port), "--", *upstream(folder))
    async with _served(command, port, folder):
        yield Served(f"http://127.0.0.1:{port}/mcp")


async def _npm(folder: Path, name: str, package: str) -> Path:
    """Install a package and return its program. Raises NotInstalled."""
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalled("npm is missing")
    place = folder / name
    place.mkdir()
    quiet = ("--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(place))
    await asyncio.to_thread(_install, [npm, "install", *quiet, package], place)
    return place / "node_modules" / ".bin" / name


@asynccontextmanager
async def supergateway(folder: Path) -> AsyncIterator[Served]:
    """`supergateway --stateful`, from stdio to streamable HTTP."""
    program = await _npm(folder, "supergateway", SUPERGATEWAY)
    port = _free_port()
    options = ("--outputTransport", "streamableHttp", "--stateful", "--port", str(port))
    command = (str(program), "--stdio", shlex.join(upstream(folder)), *options)
    async with _served(command, port, folder):
        yield Served(f"http://127.0.0.1:{port}/mcp")


@asynccontextmanager
async def mcp_hub(folder: Path) -> AsyncIterator[Served]:
    """`mcp-hub`, one endpoint of HTTP+SSE for all servers of a file."""
    program = await _npm(folder, "mcp-hub", MCP_HUB)
    port = _free_port()
    options = ("--port", str(port), "--config", str(_fastmcp_config(folder)))
    async with _served((str(program), *options), port, folder):
        yield Served(f"http://127.0.0.1:{port}/mcp", is_sse=True)


@asynccontextmanager
async def substrate_mount(folder: Path) -> AsyncIterator[Served]:
    """A mount of this program, over stdio."""
    file = folder / "mounts.toml"
    command, *arguments = upstream(folder)
    file.write_text(
        f"[mounts.up]\ncommand = {json.dumps(command)}\nargs = {json.dumps(arguments)}\n"
    )
    # Its runs are in another file than those of the upstream.
    variables = _variables(folder / "mount") | {"SUBSTRATE_MOUNTS_FILE": str(file)}
    set_variables = tuple(f"{name}={value}" for name, value in variables.items())
    program = ("env", *set_variables, sys.executable, "-m", "substrate")
    await asyncio.to_thread(_install, [*program, "mount", "refresh"], folder)
    yield Served((*program, "--stdio", "--mcp", "--mcp-tools", "all"))


GATEWAYS: Mapping[str, Callable[[Path], Any]] = {
    "none": direct,
    "fastmcp stdio": fastmcp_stdio,
    "fastmcp http": fastmcp_http,
    "mcp-proxy": mcp_proxy,
    "supergateway": supergateway,
    "mcp-hub": mcp_hub,
    "substrate mount": substrate_mount,
}


def _install(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{shlex.join(command)} timed out") from None
    if done.returncode:
        raise NotInstalled(f"{shlex.join(command)} failed: {done.stderr.strip()[-500:]}")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


@asynccontextmanager
async def _served(command: Sequence[str], port: int, folder: Path) -> AsyncIterator[None]:
    """Run a gateway in its own process group until it is no longer needed."""
    with (folder / "gateway.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        async with asyncio.timeout(STEP_S):
            while True:
                if process.returncode is not None:
                    text = (folder / "gateway.log").read_text(errors="replace")[-500:]
                    raise NotInstalled(f"{shlex.join(command)} exited: {text}")
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.05)
                    continue
                writer.close()
                break
        yield
    finally:
        await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    for sent in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sent)
        except ProcessLookupError:
            break
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            continue


# --- the probe -----------------------------------------------------------------------------------


class Visitor:
    """A client of a gateway, and the notifications that it has received."""

    def __init__(self, served: Served, *, can_answer: bool = True) -> None:
        import mcp

        server: Any = served.address
        if not isinstance(server, str):
            command, *arguments = server
            server = mcp.StdioServerParameters(command=command, args=arguments)
        elif served.is_sse:
            from mcp.client.sse import sse_client

            server = sse_client(server)
        self.asked: list[str] = []
        self.received: list[str] = []
        self.client = mcp.Client(
            server,
            elicitation_callback=self._answer if can_answer else None,
            message_handler=self._note,
        )

    async def _answer(self, context: Any, params: Any) -> Any:
        from mcp import types

        del context
        self.asked.append(params.message)
        # A question that only needs a confirmation has no fields.
        fields = params.requested_schema.get("properties", {})
        return types.ElicitResult(action="accept", content=dict.fromkeys(fields, True))

    async def _note(self, message: Any) -> None:
        self.received.append(type(message).__name__)

    async def tool(self, word: str) -> str:
        """Return the name under which the gateway offers a tool, when the upstream is started."""
        names = (f"upstream.{word}", f"upstream_{word}")
        async with asyncio.timeout(STEP_S):
            while True:
                listed = await self.client.list_tools()
                for each in listed.tools:
                    if each.name.endswith(names):
                        return str(each.name)
                await asyncio.sleep(0.1)


async def probe(served: Served, folder: Path) -> dict[str, str]:
    """Try everything through one gateway, and return a text for each column."""
    steps = {
        "progress": _progress,
        "cancel": _cancel,
        "question": _question,
        "no elicitation": _no_elicitation,
        "second client": _second_client,
        "terminal": _terminal,
    }
    found = {}
    for column, step in steps.items():
        log = folder / f"{column.replace(' ', '-')}.log"
        try:
            async with asyncio.timeout(4 * STEP_S):
                found[column] = await step(served, log)
        except Exception as error:  # noqa: BLE001 - whatever a gateway does is the finding
            found[column] = f"failed: {_innermost(error)}"
    return found


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return (str(error) or type(error).__name__).splitlines()[0][:100]


async def _progress(served: Served, log: Path) -> str:
    visitor = Visitor(served)
    arrived: list[float] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        del progress, total, message
        arrived.append(time.monotonic())

    async with visitor.client as client:
        arguments = {"to": NUMBERS, "log": str(log)}
        name = await visitor.tool("count")
        await client.call_tool(name, arguments, progress_callback=report)
        ended = time.monotonic()
    if not arrived:
        return f"0 of {NUMBERS}"
    return f"{len(arrived)} of {NUMBERS}, the first {ended - arrived[0]:.1f} s before the result"


async def _cancel(served: Served, log: Path) -> str:
    visitor = Visitor(served)
    async with visitor.client as client:
        name = await visitor.tool("count")
        # Long enough that only a cancellation ends it within the time that is waited for.
        arguments = {"to": 100, "log": str(log)}
        call = asyncio.create_task(client.call_tool(name, arguments))
        await _wait_until(lambda: log.exists() and log.read_text() != "", STEP_S)
        call.cancel()
        cancelled = time.monotonic()
        await asyncio.gather(call, return_exceptions=True)
        try:
            await _wait_until(lambda: "cancelled" in log.read_text(), CANCELLED_S)
        except TimeoutError:
            return f"the function still runs after {CANCELLED_S:g} s"
        return f"the function stops after {time.monotonic() - cancelled:.2f} s"


async def _question(served: Served, _log: Path) -> str:
    visitor = Visitor(served)
    async with visitor.client as client, asyncio.timeout(STEP_S):
        result: Any = await client.call_tool(await visitor.tool("ask"), {})
    text = _text_of(result)
    return f"{'asked' if visitor.asked else 'not asked'}; {text}"


async def _no_elicitation(served: Served, _log: Path) -> str:
    visitor = Visitor(served, can_answer=False)
    async with visitor.client as client, asyncio.timeout(STEP_S):
        result: Any = await client.call_tool(await visitor.tool("ask"), {})
    return ("error; " if result.is_error else "") + _text_of(result)


def _text_of(result: Any) -> str:
    text = " ".join(str(getattr(each, "text", "")) for each in result.content)
    return " ".join(text.split())[:100]


async def _second_client(served: Served, log: Path) -> str:
    first, second = Visitor(served), Visitor(served)
    async with first.client as caller, second.client:
        name = await first.tool("count")
        await second.tool("count")
        second.received.clear()
        await caller.call_tool(name, {"to": NUMBERS, "log": str(log)})
        again = log.with_name("again.log")
        await second.client.call_tool(name, {"to": 1, "log": str(again)})
    shared = _process_of(log) == _process_of(again)
    received = len(second.received) or "no"
    upstream = "one upstream process" if shared else "an upstream process for each client"
    return f"receives {received} messages; {upstream}"


def _process_of(log: Path) -> str:
    return log.read_text().split()[0]


async def _terminal(served: Served, log: Path) -> str:
    """Follow the call of a client from outside, with `substrate attach`."""
    visitor = Visitor(served)
    environment = os.environ | _variables(log.parent)
    async with visitor.client as client:
        name = await visitor.tool("count")
        arguments = {"to": WATCHED_NUMBERS, "log": str(log)}
        call = asyncio.create_task(client.call_tool(name, arguments))
        try:
            async with asyncio.timeout(STEP_S):
                # A process that has just started records its first run after some 10 ms. On a busy
                # machine the call may end before the command has started.
                while not await _substrate(environment, "runs", "--json", "--state", "running"):
                    if call.done():
                        call = asyncio.create_task(client.call_tool(name, arguments))
                output = await _substrate(environment, "attach", "last")
        finally:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
    shown = sum(word.isdecimal() for word in output.split())
    return f"substrate attach shows {shown} of {WATCHED_NUMBERS} numbers"


async def _substrate(environment: Mapping[str, str], *arguments: str) -> str:
    """Return what a command of the program prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "substrate", *arguments),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode()


async def _wait_until(condition: Callable[[], bool], timeout_s: float) -> None:
    # The condition is in a file that another process writes.
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# --- the report ----------------------------------------------------------------------------------


async def _measure(names: Sequence[str]) -> dict[str, dict[str, str]]:
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="gateways-") as folder:
            try:
                async with GATEWAYS[name](Path(folder)) as served:
                    found[name] = await probe(served, Path(folder))
            except NotInstalled as error:
                found[name] = {"not installed": str(error)}
    return found


@click.command()
@click.option(
    "--only", "names", multiple=True, type=click.Choice(list(GATEWAYS)), help="Try this gateway."
)
def main(names: Sequence[str]) -> None:
    """Try gateways in front of a tool that streams, and print what passes through them."""
    for name, found in asyncio.run(_measure(names or list(GATEWAYS))).items():
        click.echo(name)
        for column, text in found.items():
            click.echo(f"  {column:<16} {text}")


if __name__ == "__main__":
    main()
