"""Generators of typed clients from the schema of a hub."""
