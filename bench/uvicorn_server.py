"""HTTP server for the limit and the peers: uvicorn with the configuration of the program.

It is faster than the servers that the frameworks start by default, so the comparison is between
frameworks and not between web servers.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import uvicorn
import uvloop

__all__ = ("serve",)


def serve(app: Any, **options: Any) -> None:
    """Serve an ASGI app on a free port with additional uvicorn options, and print the port."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        sock.listen(2048)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="httptools",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=1,
                **{"proxy_headers": False, **options},
            )
        )
        sys.stderr.write(f"on http://127.0.0.1:{sock.getsockname()[1]}\n")
        sys.stderr.flush()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.serve(sockets=[sock]))
