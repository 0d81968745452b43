"""The listener for editor clients such as Claude Code, and the lock files that they find it by."""
