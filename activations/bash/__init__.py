"""The `bash` activation: shell commands whose whole process tree is known and ended."""

from __future__ import annotations

from activations.bash.activation import Bash
from activations.bash.events import Exit, Start, Stderr, Stdout, Truncated

__all__ = ("Bash", "Exit", "Start", "Stderr", "Stdout", "Truncated")
