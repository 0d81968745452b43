"""Where a command sends its calls: a running server, or a hub in this process."""
