"""The Model Context Protocol as a view of runs: five revisions, buffered and streaming."""
