"""Runs that outlive the process on stdio: the front, and what accepts it in the server."""
