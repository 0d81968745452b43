"""The stdio transport, for the native protocol and for MCP."""
