"""The client of MCP, sans-IO: what the gateway speaks to other servers."""
