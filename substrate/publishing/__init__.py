"""Publishes the runs of a stdio process to the server of its project."""
