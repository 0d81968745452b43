"""The `chat` and `claudecode` activations: conversations with models."""

from __future__ import annotations

from activations.chat.claudecode import ClaudeCode
from activations.chat.methods import Chat

__all__ = ("Chat", "ClaudeCode")
