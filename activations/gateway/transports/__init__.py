"""Connections to other MCP servers: pipes, HTTP and WebSocket under one session."""
