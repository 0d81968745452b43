"""How a process on stdio tells the server of its project what it runs."""
