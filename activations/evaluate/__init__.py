"""The `evaluate` activation: live Python sessions that agents and people share."""

from __future__ import annotations

from activations.evaluate.activation import Evaluate

__all__ = ("Evaluate",)
