"""Who may come in over the network: tokens, the lock file, browser sessions, and who is who."""
