"""Requests that lead to a run: tools, prompts, resources, and runs seen as tasks."""
