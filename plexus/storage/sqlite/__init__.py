"""The embedded engine, on one SQLite file."""
