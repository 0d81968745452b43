"""What is known of a server of models before anything is asked of it: its address, the form of
its API, the variables of its key, and the packages that speak to it. Nothing here is heavy."""

from __future__ import annotations

import importlib.util
import ipaddress
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from plexus.errors import Failed, InvalidParams

__all__ = ("BUILT_IN", "INSTALL", "Dialect", "Server", "built_in", "endpoint", "is_installed")

#: The form of an API. `compatible` is OpenAI's Chat Completions as others speak it.
Dialect: TypeAlias = Literal["anthropic", "openai", "google", "compatible"]

INSTALL = "pip install 'plexus-substrate[chat]'"
#: What every one of these needs, beside the package of its own.
ADAPTER = "pydantic_ai"

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
#: What can be a model's name. It becomes part of an address at some servers.
MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")


class Server(NamedTuple):
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
BUILT_IN: dict[str, tuple[Server, str]] = {
    server.name: (server, variable)
    for server, variable in (
        (
            Server(
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
            Server(
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
            Server(
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


def built_in(name: str, environment: Mapping[str, str]) -> Server:
    """A server that everybody knows, at the address that the environment may give it."""
    server, variable = BUILT_IN[name]
    url = environment.get(variable, "").strip()
    return server._replace(url=_checked_url(url, variable)) if url else server


def endpoint(given: str) -> Server:
    """A server from "name=url", of any kind that speaks as OpenAI's does."""
    name, separator, url = given.partition("=")
    if not separator or not NAME.fullmatch(name):
        raise InvalidParams(
            f"{given!r} is no endpoint; one looks like 'ollama=http://127.0.0.1:11434/v1'",
            code="bad_endpoint",
        )
    return Server(
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
