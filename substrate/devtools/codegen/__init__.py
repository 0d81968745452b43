"""Typed clients, written from the schema of a hub."""
