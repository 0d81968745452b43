"""The `arbor` activation: durable trees of text."""

from __future__ import annotations

from activations.arbor.activation import Arbor

__all__ = ("Arbor",)
