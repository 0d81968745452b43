"""The `ide` activation: an editor that people share with programs such as Claude Code."""

from __future__ import annotations

from activations.ide.activation import Ide

__all__ = ("Ide",)
