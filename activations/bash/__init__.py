"""The `bash` activation: shell commands whose whole process tree is tracked and terminated."""

from __future__ import annotations

from activations.bash.activation import Bash
from activations.bash.events import Exit, Start, Stderr, Stdout, Truncated
from activations.processes.sandbox.hidden_paths import OwnPaths

__all__ = ("Bash", "Exit", "OwnPaths", "Start", "Stderr", "Stdout", "Truncated")
