"""The `arbor` activation: trees that last."""

from __future__ import annotations

from activations.arbor.activation import Arbor

__all__ = ("Arbor",)
