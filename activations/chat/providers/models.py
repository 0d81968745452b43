"""How many tokens a model takes.

The adapter's package brings a list of models that is newer than any of ours; it works without a
network. Importing it takes a fifth of a second, so that it is used once the adapter is loaded;
until then, and for what it does not say, a short table of families has to do.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

__all__ = ("context_tokens",)

LISTED = "genai_prices.data_snapshot"

#: The first prefix that fits counts, so that longer ones come first.
FAMILIES: dict[str, tuple[tuple[str, int], ...]] = {
    "anthropic": (
        ("claude-opus-4-5", 200_000),
        ("claude-opus-4-1", 200_000),
        ("claude-opus-4-0", 200_000),
        ("claude-opus-4-2", 200_000),  # by its date
        ("claude-sonnet-4-5", 200_000),
        ("claude-sonnet-4-0", 200_000),
        ("claude-sonnet-4-2", 200_000),
        ("claude-haiku-4", 200_000),
        ("claude-3", 200_000),
        ("claude-2", 200_000),
        ("claude-", 1_000_000),
    ),
    "openai": (
        ("gpt-3.5", 16_385),
        ("gpt-4.1", 1_000_000),
        ("gpt-4o", 128_000),
        ("gpt-4-turbo", 128_000),
        ("gpt-4", 8_192),
        ("gpt-5.3-codex", 400_000),
        ("gpt-5.3", 128_000),
        ("gpt-5.4-mini", 400_000),
        ("gpt-5.4-nano", 400_000),
        ("gpt-5.4", 1_050_000),
        ("gpt-5.5", 1_000_000),
        ("gpt-5.6", 1_050_000),
        ("gpt-5", 400_000),
        ("gpt-6", 1_050_000),
        ("o1-mini", 128_000),
        ("o1-preview", 128_000),
        ("o1", 200_000),
        ("o3", 200_000),
        ("o4", 200_000),
    ),
    "google": (
        ("gemini-1.0", 32_768),
        ("gemini-pro", 32_768),
        ("gemini-", 1_000_000),
    ),
}


def context_tokens(provider: str, model: str) -> int | None:
    """How many tokens a model of one of the known providers takes; None if nobody knows."""
    if provider not in FAMILIES:
        return None
    module = sys.modules.get(LISTED)
    listed = None if module is None else _listed(module, provider, model)
    if listed is not None:
        return listed
    name = model.removeprefix("models/")
    return next((size for prefix, size in FAMILIES[provider] if name.startswith(prefix)), None)


def _listed(module: ModuleType, provider: str, model: str) -> int | None:
    snapshot: Any = getattr(module, "get_snapshot", None)
    if snapshot is None:  # it is being imported in another thread just now
        return None
    try:
        _, found = snapshot().find_provider_model(
            model, provider=None, provider_id=provider, provider_api_url=None
        )
    except LookupError:
        return None
    window = found.context_window
    return window if isinstance(window, int) else None
