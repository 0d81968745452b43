"""Claude Code as a provider: its program, started once for each round."""
