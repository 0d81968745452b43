"""Endpoints: the static configuration of model servers.

An endpoint has a URL, an API dialect, the variables of its key and the package of its client. This
module also has the context windows of known models. It imports no large packages.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import re
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from plexus.errors import Failed, InvalidParams

__all__ = (
    "BUILT_IN",
    "INSTALL",
    "Dialect",
    "Endpoint",
    "built_in_endpoint",
    "context_tokens",
    "is_installed",
    "parse_endpoint",
)

#: The dialect of an API. `compatible` is OpenAI's Chat Completions as other servers offer it.
Dialect: TypeAlias = Literal["anthropic", "openai", "google", "compatible"]

INSTALL = "pip install 'plexus-substrate[chat]'"
#: The package that every endpoint needs in addition to its own.
ADAPTER = "pydantic_ai"

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
#: Valid model names. With some servers the name becomes part of a URL.
MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")


class Endpoint(NamedTuple):
    """A model server."""

    name: str
    dialect: Dialect
    url: str
    #: The package of its client.
    package: str
    #: The variables that can contain its key; errors name the first.
    variables: tuple[str, ...]
    needs_key: bool
    #: An example of a model name.
    example: str

    @property
    def is_local(self) -> bool:
        """Whether it runs on this machine."""
        host = urlsplit(self.url).hostname or ""
        if host == "localhost" or host.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    def check_model(self, model: str) -> None:
        """Raise `unknown_model` if a model name is invalid."""
        if not MODEL.fullmatch(model) or ".." in model:
            raise Failed(
                f"{model!r} is not a valid model name; an example for {self.name} is"
                f" '{self.name}:{self.example}'",
                code="unknown_model",
                data={"model": model},
            )

    def check_installed(self) -> None:
        """Raise `not_installed` if a package is missing."""
        for package in (ADAPTER, self.package):
            if not is_installed(package):
                raise Failed(
                    f"{self.name} needs the package {package}, which is not installed; run:"
                    f" {INSTALL}",
                    code="not_installed",
                    data={"package": package},
                )


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


#: The built-in endpoints, each with the variable that overrides its URL.
BUILT_IN: dict[str, tuple[Endpoint, str]] = {
    endpoint.name: (endpoint, variable)
    for endpoint, variable in (
        (
            Endpoint(
                name="anthropic",
                dialect="anthropic",
                url="https://api.anthropic.com",
                package="anthropic",
                variables=("ANTHROPIC_API_KEY",),
                needs_key=True,
                example="claude-sonnet-5-5",
            ),
            "ANTHROPIC_BASE_URL",
        ),
        (
            Endpoint(
                name="openai",
                dialect="openai",
                url="https://api.openai.com/v1",
                package="openai",
                variables=("OPENAI_API_KEY",),
                needs_key=True,
                example="gpt-6-sol",
            ),
            "OPENAI_BASE_URL",
        ),
        (
            Endpoint(
                name="google",
                dialect="google",
                url="https://generativelanguage.googleapis.com",
                package="google.genai",
                variables=("GOOGLE_API_KEY", "GEMINI_API_KEY"),
                needs_key=True,
                example="gemini-3.8-flash",
            ),
            "GOOGLE_GEMINI_BASE_URL",
        ),
    )
}


def built_in_endpoint(name: str, environment: Mapping[str, str]) -> Endpoint:
    """Return a built-in endpoint, with the URL from the environment if it is set there."""
    endpoint, variable = BUILT_IN[name]
    url = environment.get(variable, "").strip()
    return endpoint._replace(url=_validate_url(url, variable)) if url else endpoint


def parse_endpoint(text: str) -> Endpoint:
    """Return an OpenAI-compatible endpoint from "name=url". Raises InvalidParams."""
    name, separator, url = text.partition("=")
    if not separator or not NAME.fullmatch(name):
        raise InvalidParams(
            f"invalid endpoint {text!r}; use name=url, such as 'ollama=http://127.0.0.1:11434/v1'",
            code="bad_endpoint",
        )
    return Endpoint(
        name=name,
        dialect="compatible",
        url=_validate_url(url, f"endpoint {name}"),
        package="openai",
        variables=(f"{name.upper().replace('-', '_')}_API_KEY",),
        needs_key=False,
        example="llama3",
    )


def _validate_url(url: str, source: str) -> str:
    """Return a valid HTTP URL. Raises InvalidParams, without the URL: it may contain a secret."""
    try:
        parts = urlsplit(url.strip())
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise InvalidParams(
            f"{source}: the URL must start with http:// or https:// and contain a host",
            code="bad_endpoint",
        )
    if parts.username is not None or parts.password is not None or parts.query:
        raise InvalidParams(
            f"{source}: the URL must not contain a user, password or query; keep keys in variables",
            code="bad_endpoint",
        )
    return url.strip().rstrip("/")


# --- context windows -----------------------------------------------------------------------------

#: The model list that pydantic-ai includes; it is more recent than `FAMILIES` and needs no network.
#: Its import takes 0.2 seconds, so it is used only after pydantic-ai is loaded. Before that, and
#: for models that it lacks, `FAMILIES` is used.
MODEL_LIST = "genai_prices.data_snapshot"

#: Context windows by model prefix. The first match counts, so longer prefixes come first.
FAMILIES: dict[str, tuple[tuple[str, int], ...]] = {
    "anthropic": (
        ("claude-opus-4-5", 200_000),
        ("claude-opus-4-1", 200_000),
        ("claude-opus-4-0", 200_000),
        ("claude-opus-4-2", 200_000),  # names with a date, such as -20250514
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
    """Return the context window of a model in tokens; None if it is unknown."""
    if provider not in FAMILIES:
        return None
    module = sys.modules.get(MODEL_LIST)
    listed = None if module is None else _listed_window(module, provider, model)
    if listed is not None:
        return listed
    name = model.removeprefix("models/")
    return next((size for prefix, size in FAMILIES[provider] if name.startswith(prefix)), None)


def _listed_window(module: ModuleType, provider: str, model: str) -> int | None:
    snapshot: Any = getattr(module, "get_snapshot", None)
    if snapshot is None:  # another thread is importing it
        return None
    try:
        _, found = snapshot().find_provider_model(
            model, provider=None, provider_id=provider, provider_api_url=None
        )
    except LookupError:
        return None
    window = found.context_window
    return window if isinstance(window, int) else None
