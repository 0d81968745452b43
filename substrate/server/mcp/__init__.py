"""MCP over HTTP: Streamable HTTP and the older SSE transport."""
