"""The registry of model providers, which finds a provider by a model name "provider:model".

A provider is created at its first use, once. Listing the providers imports no large packages.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from activations.chat.events import ModelData
from activations.chat.providers.claude_code.provider import ClaudeCodeProvider
from activations.chat.providers.echo import EchoProvider
from activations.chat.providers.endpoints import (
    BUILT_IN,
    Endpoint,
    built_in_endpoint,
    parse_endpoint,
)
from activations.chat.providers.keys import Keys
from activations.chat.providers.provider import Provider
from activations.chat.providers.pydantic_ai.provider import PydanticAiProvider
from plexus.caller_environment import caller_variables
from plexus.errors import Failed, InvalidParams, PlexusError

__all__ = ("Providers",)

#: Why Claude Code cannot be used while commands are sandboxed, and what to do.
UNCONFINED = (
    "bash_sandbox is on, and the tools of Claude Code run outside the sandbox; to allow that, set"
    " chat_claude_unconfined to true"
)


class Providers:
    """All providers, by name."""

    def __init__(
        self,
        endpoints: Sequence[str] = (),
        claude_command: str = "claude",
        silent_s: float = 120.0,
        environment: Mapping[str, str] | None = None,
        *,
        refuse_claude: bool = False,
    ) -> None:
        """Configure the providers. Raises InvalidParams for an invalid endpoint.

        endpoints: OpenAI-compatible servers, each "name=url".
        claude_command: the program of Claude Code.
        silent_s: timeout in seconds without data from a provider.
        environment: source of keys and URLs; defaults to the environment of this process, and for
            Claude Code to that of the caller.
        refuse_claude: whether to refuse Claude Code, whose tools would run outside the sandbox.
        """
        self._refuse_claude = refuse_claude
        self._given_environment = environment
        self._environment = os.environ if environment is None else environment
        self._claude_command = claude_command
        self._silent_s = silent_s
        self._keys = Keys(self._environment)
        self._endpoints: dict[str, Endpoint] = {}
        names = {"echo", *BUILT_IN, "claude-code"}
        for text in endpoints:
            endpoint = parse_endpoint(text)
            if endpoint.name in names:
                raise InvalidParams(
                    f"a provider {endpoint.name!r} already exists; choose another name for the"
                    " endpoint",
                    code="bad_endpoint",
                )
            names.add(endpoint.name)
            self._endpoints[endpoint.name] = endpoint
        self._factories: dict[str, Callable[[], Provider]] = {
            "echo": EchoProvider,
            **{name: partial(self._pydantic_ai, name) for name in (*BUILT_IN, *self._endpoints)},
            "claude-code": self._claude_code,
        }
        self._opened: dict[str, Provider] = {}

    def find(self, name: str) -> tuple[Provider, str]:
        """Return the provider and the model of "provider:model". Raises `unknown_model`."""
        provider, separator, model = name.partition(":")
        if not separator or not model or provider not in self._factories:
            raise Failed(
                f"unknown model {name!r}; use 'provider:model', such as 'echo:echo' or"
                f" 'anthropic:{BUILT_IN['anthropic'][0].example}'. Providers:"
                f" {', '.join(self._factories)}",
                code="unknown_model",
                data={"model": name, "providers": list(self._factories)},
            )
        if provider == "claude-code" and self._refuse_claude:
            raise Failed(f"Claude Code cannot be used: {UNCONFINED}", code="sandboxed")
        if provider not in self._opened:
            self._opened[provider] = self._factories[provider]()
        return self._opened[provider], model

    def list_providers(self) -> list[ModelData]:
        """Return the state of each provider. Imports no packages and sends no requests."""
        return [
            ModelData("echo", "echo:echo", True),
            *(self._provider_data(name) for name in (*BUILT_IN, *self._endpoints)),
            self._claude_code_data(),
        ]

    async def close(self) -> None:
        """Close all providers."""
        opened, self._opened = self._opened, {}
        for provider in opened.values():
            await provider.close()

    def _endpoint(self, name: str) -> Endpoint:
        return self._endpoints.get(name) or built_in_endpoint(name, self._environment)

    def _pydantic_ai(self, name: str) -> Provider:
        return PydanticAiProvider(self._endpoint(name), self._keys, self._silent_s)

    def _claude_code(self) -> Provider:
        return ClaudeCodeProvider(self._claude_command, self._silent_s, self._given_environment)

    def _provider_data(self, name: str) -> ModelData:
        try:
            endpoint = self._endpoint(name)
            endpoint.check_installed()
        except PlexusError as error:  # not installed, or an invalid URL
            example = self._endpoints[name] if name in self._endpoints else BUILT_IN[name][0]
            return ModelData(name, f"{name}:{example.example}", False, error.message)
        example_model = f"{name}:{endpoint.example}"
        if endpoint.needs_key and not self._keys.in_environment(endpoint):
            variable = endpoint.variables[0]
            return ModelData(
                name, example_model, False, f"set {variable}, or store it in the keyring"
            )
        return ModelData(name, example_model, True)

    def _claude_code_data(self) -> ModelData:
        if self._refuse_claude:
            return ModelData("claude-code", "claude-code:sonnet", False, UNCONFINED)
        given = self._given_environment
        path = (caller_variables() if given is None else given).get("PATH")
        if shutil.which(self._claude_command, path=path) is None:
            hint = f"install Claude Code: program {self._claude_command!r} not found"
            return ModelData("claude-code", "claude-code:sonnet", False, hint)
        return ModelData("claude-code", "claude-code:sonnet", True)
