"""The HTTP server: its routes, connections, streams and shutdown."""
