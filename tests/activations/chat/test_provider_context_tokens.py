"""Context windows of models: from the model list of pydantic-ai, or from a short table."""

from __future__ import annotations

import importlib
import sys

import pytest

from activations.chat.providers.endpoints import BUILT_IN, FAMILIES, MODEL_LIST, context_tokens

SIZES = [
    ("anthropic", "claude-sonnet-5-5", 1_000_000),
    ("anthropic", "claude-sonnet-4-5-20250929", 200_000),
    ("anthropic", "claude-3-5-haiku-latest", 200_000),
    ("openai", "gpt-4o-mini", 128_000),
    ("openai", "gpt-4.1", 1_000_000),
    ("openai", "gpt-5", 400_000),
    ("openai", "o3", 200_000),
    ("google", "gemini-2.5-pro", 1_000_000),
    ("google", "gemini-3.8-flash", 1_000_000),
    ("openai", "unheard-of", None),
    ("ollama", "gpt-5", None),
    ("", "", None),
]


@pytest.mark.parametrize(("provider", "model", "size"), SIZES)
@pytest.mark.parametrize("listed", [False, True])
def test_the_context_window_of_a_model_is_known(
    monkeypatch: pytest.MonkeyPatch, provider: str, model: str, size: int | None, listed: bool
) -> None:
    if listed:
        importlib.import_module(MODEL_LIST)
    else:
        monkeypatch.delitem(sys.modules, MODEL_LIST, raising=False)
    assert context_tokens(provider, model) == size


def test_the_model_list_takes_precedence_over_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module(MODEL_LIST)
    monkeypatch.setitem(FAMILIES, "openai", (("gpt-4o", 1),))
    assert context_tokens("openai", "gpt-4o") == 128_000


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_example_models_exist(name: str) -> None:
    snapshot = importlib.import_module(MODEL_LIST).get_snapshot()
    example = BUILT_IN[name][0].example
    _, found = snapshot.find_provider_model(
        example, provider=None, provider_id=name, provider_api_url=None
    )
    assert found.id == example
