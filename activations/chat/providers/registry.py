"""Which providers there are, and finding one by the name of a model: "provider:model".

A provider is imported when it is first used, and there is one of each. Nothing heavy is imported
to say what there is.
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
from plexus.errors import Failed, InvalidParams, PlexusError

__all__ = ("Providers",)

#: Why Claude Code is not ready where commands are confined, and what to do about it.
UNCONFINED = (
    "bash_sandbox confines commands, and the tools of Claude Code run outside the sandbox; set"
    " chat_claude_unconfined to true to allow that"
)


class Providers:
    """Every provider, by its name."""

    def __init__(
        self,
        endpoints: Sequence[str] = (),
        claude_command: str = "claude",
        silent_s: float = 120.0,
        environment: Mapping[str, str] | None = None,
        *,
        refuse_claude: bool = False,
    ) -> None:
        """Say what there is; raises InvalidParams for an endpoint that cannot be one.

        endpoints: servers that speak as OpenAI's does, each "name=url".
        claude_command: the program that Claude Code is started with.
        silent_s: after so many seconds without a word, a provider is given up on.
        environment: where keys and addresses are looked up, if not in that of this process.
        refuse_claude: whether Claude Code is refused, because commands are confined and its own
            tools would not be.
        """
        self._refuse_claude = refuse_claude
        self._environment = os.environ if environment is None else environment
        self._claude_command = claude_command
        self._silent_s = silent_s
        self._keys = Keys(self._environment)
        self._endpoints: dict[str, Endpoint] = {}
        names = {"echo", *BUILT_IN, "claude-code"}
        for given in endpoints:
            endpoint = parse_endpoint(given)
            if endpoint.name in names:
                raise InvalidParams(
                    f"there is a provider {endpoint.name!r} already; give the endpoint"
                    " another name",
                    code="bad_endpoint",
                )
            names.add(endpoint.name)
            self._endpoints[endpoint.name] = endpoint
        self._makers: dict[str, Callable[[], Provider]] = {
            "echo": EchoProvider,
            **{name: partial(self._pydantic_ai, name) for name in (*BUILT_IN, *self._endpoints)},
            "claude-code": self._claude_code,
        }
        self._opened: dict[str, Provider] = {}

    def find(self, name: str) -> tuple[Provider, str]:
        """The provider of "provider:model", and the model; raises `unknown_model`."""
        provider, separator, model = name.partition(":")
        if not separator or not model or provider not in self._makers:
            raise Failed(
                f"{name!r} names no model; a model is named 'provider:model', as in 'echo:echo' or"
                f" 'anthropic:{BUILT_IN['anthropic'][0].example}'. Providers:"
                f" {', '.join(self._makers)}",
                code="unknown_model",
                data={"model": name, "providers": list(self._makers)},
            )
        if provider == "claude-code" and self._refuse_claude:
            raise Failed(f"Claude Code is refused: {UNCONFINED}", code="sandboxed")
        if provider not in self._opened:
            self._opened[provider] = self._makers[provider]()
        return self._opened[provider], model

    def list_providers(self) -> list[ModelData]:
        """What there is to say of each provider; nothing is imported or asked."""
        return [
            ModelData("echo", "echo:echo", True),
            *(self._data(name) for name in (*BUILT_IN, *self._endpoints)),
            self._claude_code_data(),
        ]

    async def close(self) -> None:
        """Give back what the providers hold."""
        opened, self._opened = self._opened, {}
        for provider in opened.values():
            await provider.close()

    def _endpoint(self, name: str) -> Endpoint:
        return self._endpoints.get(name) or built_in_endpoint(name, self._environment)

    def _pydantic_ai(self, name: str) -> Provider:
        return PydanticAiProvider(self._endpoint(name), self._keys, self._silent_s)

    def _claude_code(self) -> Provider:
        return ClaudeCodeProvider(self._claude_command, self._silent_s, self._environment)

    def _data(self, name: str) -> ModelData:
        try:
            endpoint = self._endpoint(name)
            endpoint.check_installed()
        except PlexusError as error:  # it is not installed, or its address is none
            example = self._endpoints[name] if name in self._endpoints else BUILT_IN[name][0]
            return ModelData(name, f"{name}:{example.example}", False, error.message)
        example_model = f"{name}:{endpoint.example}"
        if endpoint.needs_key and not self._keys.is_there(endpoint):
            variable = endpoint.variables[0]
            return ModelData(
                name, example_model, False, f"set {variable}, or keep that in the keyring"
            )
        return ModelData(name, example_model, True)

    def _claude_code_data(self) -> ModelData:
        if self._refuse_claude:
            return ModelData("claude-code", "claude-code:sonnet", False, UNCONFINED)
        path = self._environment.get("PATH")
        if shutil.which(self._claude_command, path=path) is None:
            hint = f"install Claude Code: there is no program {self._claude_command!r}"
            return ModelData("claude-code", "claude-code:sonnet", False, hint)
        return ModelData("claude-code", "claude-code:sonnet", True)
