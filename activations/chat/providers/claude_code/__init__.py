"""The Claude Code provider: runs the `claude` program once per round."""
