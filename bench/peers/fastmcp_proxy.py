"""FastMCP's proxy on stdio, as its documentation shows it, in front of a command."""

from __future__ import annotations

import sys

from fastmcp.server import create_proxy


def main() -> None:
    """Serve the server that the arguments start."""
    program, *arguments = sys.argv[1:]
    config = {"mcpServers": {"upstream": {"command": program, "args": arguments}}}
    create_proxy(config, name="proxy").run("stdio", show_banner=False)


if __name__ == "__main__":
    main()
