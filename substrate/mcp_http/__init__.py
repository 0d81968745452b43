"""MCP over HTTP: one endpoint for both eras, sessions with replay, and the old pair of routes."""
