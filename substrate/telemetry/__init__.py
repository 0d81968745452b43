"""Logs, metrics and traces of what the server does."""
