"""Models over HTTP through pydantic-ai: Anthropic, OpenAI, Google, OpenAI-compatible servers."""
