"""Endpoints: what is known of a server of models before anything is sent to it.

Its address, the form of its API, the variables of its key, the packages that speak to it, and how
many tokens its models take. Nothing here is heavy.
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

#: The form of an API. `compatible` is OpenAI's Chat Completions as others speak it.
Dialect: TypeAlias = Literal["anthropic", "openai", "google", "compatible"]

INSTALL = "pip install 'plexus-substrate[chat]'"
#: What every one of these needs, beside the package of its own.
ADAPTER = "pydantic_ai"

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
#: What can be a model's name. It becomes part of an address at some servers.
MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")


class Endpoint(NamedTuple):
    """A server of models."""

    name: str
    dialect: Dialect
    url: str
    #: The package that speaks to it.
    package: str
    #: The variables that may hold its key; the first is the one that people are told of.
    variables: tuple[str, ...]
    needs_key: bool
    #: A model that it has, for people to see what a name looks like.
    example: str

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        host = urlsplit(self.url).hostname or ""
        if host == "localhost" or host.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    def check_model(self, model: str) -> None:
        """Raise `unknown_model` for what cannot be a model's name."""
        if not MODEL.fullmatch(model) or ".." in model:
            raise Failed(
                f"{model!r} cannot be the name of a model; one of {self.name}'s is named as in"
                f" '{self.name}:{self.example}'",
                code="unknown_model",
                data={"model": model},
            )

    def check_installed(self) -> None:
        """Raise `not_installed` if a package is missing."""
        for package in (ADAPTER, self.package):
            if not is_installed(package):
                raise Failed(
                    f"{self.name} needs the package {package}, which is not installed: {INSTALL}",
                    code="not_installed",
                    data={"package": package},
                )


def is_installed(package: str) -> bool:
    """Whether a package can be imported, found out without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package that it is in is missing
        return False


#: Each with the variable of its address, for a server that stands in for it.
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
    """A server that everybody knows, at the address that the environment may give it."""
    endpoint, variable = BUILT_IN[name]
    url = environment.get(variable, "").strip()
    return endpoint._replace(url=_checked_url(url, variable)) if url else endpoint


def parse_endpoint(given: str) -> Endpoint:
    """A server from "name=url", of any kind that speaks as OpenAI's does."""
    name, separator, url = given.partition("=")
    if not separator or not NAME.fullmatch(name):
        raise InvalidParams(
            f"{given!r} is no endpoint; one looks like 'ollama=http://127.0.0.1:11434/v1'",
            code="bad_endpoint",
        )
    return Endpoint(
        name=name,
        dialect="compatible",
        url=_checked_url(url, f"endpoint {name}"),
        package="openai",
        variables=(f"{name.upper().replace('-', '_')}_API_KEY",),
        needs_key=False,
        example="llama3",
    )


def _checked_url(url: str, where: str) -> str:
    """The address, if it is one of HTTP; a secret does not belong into it, and is not repeated."""
    try:
        parts = urlsplit(url.strip())
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if not whole:
        raise InvalidParams(
            f"{where}: this is no address that begins with http:// or https:// and names a host",
            code="bad_endpoint",
        )
    if parts.username is not None or parts.password is not None or parts.query:
        raise InvalidParams(
            f"{where}: an address holds no user, password or query; a key belongs into a variable",
            code="bad_endpoint",
        )
    return url.strip().rstrip("/")


# --- context windows -----------------------------------------------------------------------------

#: The list of models that pydantic-ai brings, newer than any of ours, works without a network.
#: Importing it takes a fifth of a second, so it is used once pydantic-ai is loaded; until then,
#: and for what it does not hold, a short table of families is used.
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
