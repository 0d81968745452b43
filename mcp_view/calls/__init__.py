"""Requests that start or read a run: tools, prompts, resources and tasks."""
