"""MCP measured: ours beside the limit, and beside the servers of other people."""
