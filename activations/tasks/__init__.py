"""The `tasks` activation: a to-do list that agents and people share."""

from __future__ import annotations

from activations.tasks.activation import Tasks

__all__ = ("Tasks",)
