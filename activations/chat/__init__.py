"""The `chat` and `claudecode` activations: conversations with models."""

from __future__ import annotations

from activations.chat.activation import Chat
from activations.chat.claudecode import ClaudeCode
from activations.chat.opening import LazyProviders

__all__ = ("Chat", "ClaudeCode", "LazyProviders")
