"""The `templates` activation: files and whole projects from templates."""

from __future__ import annotations

from activations.templates.activation import Templates

__all__ = ("Templates",)
