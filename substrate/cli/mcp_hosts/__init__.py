"""The configuration files of MCP hosts, for `substrate mcp install`."""
