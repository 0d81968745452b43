"""Serve the fixture: `python -m tests.conformance --port N`, or with `--stdio`.

It is served without a token on 127.0.0.1 until a signal arrives, for any suite or client. A line
on stdout reports the address when the server is ready.
"""

from __future__ import annotations

import argparse
import asyncio
import signal

from mcp_view.protocol import McpConnection
from mcp_view.session import Session
from native_rpc.framing import LINES
from substrate.mcp_server import make_mcp_server
from substrate.security.authentication import Access
from substrate.server.serve import bind, make_server
from substrate.standard_streams import claim_stdio
from substrate.stdio import StdioServer

from .serving import build_hub, options_for

#: Seconds that runs may continue after the end of the input.
EOF_GRACE_S = 1.0


async def serve_http(port: int) -> None:
    """Serve on this port, or on a free one if it is 0."""
    hub = build_hub()
    sock = bind(port)
    port = sock.getsockname()[1]
    server = make_server(hub, port, mcp_options=options_for(hub), access=Access.open())
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    serving = loop.create_task(server.serve(sockets=[sock]))
    # The socket already listens; connections wait in it until uvicorn is ready.
    print(f"listening on http://127.0.0.1:{port}/mcp", flush=True)  # noqa: T201
    stop = loop.create_task(stopping.wait())
    await asyncio.wait([serving, stop], return_when=asyncio.FIRST_COMPLETED)
    await hub.close()
    server.should_exit = True
    await serving
    stop.cancel()


async def serve_stdio(input_fd: int, output_fd: int) -> None:
    """Serve on these descriptors until the input ends."""
    hub = build_hub()
    mcp = make_mcp_server(hub, options_for(hub))
    view = McpConnection(mcp, Session(), LINES)
    server = StdioServer(hub, view, input_fd, output_fd, eof_grace_s=EOF_GRACE_S)
    await server.serve()


def main() -> None:
    """Parse the arguments and serve."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--port", type=int, help="a port of 127.0.0.1, or 0 for any")
    where.add_argument("--stdio", action="store_true", help="one client, on stdin and stdout")
    given = parser.parse_args()
    asyncio.run(serve_stdio(*claim_stdio()) if given.stdio else serve_http(given.port))


if __name__ == "__main__":
    main()
