"""Other MCP servers as namespaces of this one."""
