"""What chat stands on, opened when it is first needed: the store, the providers, the desk.

A server that nobody chats with imports nothing of all this.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from activations.chat.setup import DEFAULT_MODEL
from plexus import Activation

if TYPE_CHECKING:  # imported when first used
    from activations.arbor.store import Store
    from activations.chat.desk import Desk
    from activations.chat.providers.provider import Provider

__all__ = ("LazyProviders", "ProviderSource", "StoreSource", "WithDesk")

DESK = "activations.chat.desk"
REGISTRY = "activations.chat.providers.registry"


class StoreSource(Protocol):
    """Where the store comes from; it is opened when it is first asked for."""

    async def store(self) -> Store:
        """The store."""

    def is_empty(self) -> bool:
        """Whether it is known, without opening anything, that there is nothing in it."""


class ProviderSource(Protocol):
    """Where providers come from."""

    def find(self, name: str) -> tuple[Provider, str]:
        """The provider of `provider:model`, and the model; raises if there is none."""

    def described(self) -> Sequence[tuple[str, str, bool, str]]:
        """Each provider's name, an example of a model, whether it is ready, and advice if not."""

    async def close(self) -> None:
        """Let go of all of them."""


class LazyProviders:
    """The providers there are, once somebody asks for one."""

    def __init__(
        self,
        endpoints: Sequence[str],
        claude_command: str,
        silent_s: float,
        *,
        refuse_claude: bool = False,
    ) -> None:
        """Take the arguments of `Providers`."""
        self._made_of = (endpoints, claude_command, silent_s)
        self._refuse_claude = refuse_claude
        self._opened: ProviderSource | None = None

    def _open(self) -> ProviderSource:
        if self._opened is None:
            make: Callable[..., ProviderSource] = importlib.import_module(REGISTRY).Providers
            self._opened = make(*self._made_of, refuse_claude=self._refuse_claude)
        return self._opened

    def find(self, name: str) -> tuple[Provider, str]:
        """As the providers themselves."""
        return self._open().find(name)

    def described(self) -> Sequence[tuple[str, str, bool, str]]:
        """As the providers themselves."""
        return self._open().described()

    async def close(self) -> None:
        """Close what was opened."""
        if self._opened is not None:
            await self._opened.close()


class WithDesk(Activation):
    """What every part of chat stands on: the desk where the work is done."""

    def __init__(
        self, source: StoreSource, providers: ProviderSource, default_model: str = DEFAULT_MODEL
    ) -> None:
        """Say where sessions are kept and who answers; nothing is opened or imported yet."""
        self._source = source
        self._providers = providers
        self._default_model = default_model or DEFAULT_MODEL

    async def desk(self) -> Desk:
        """The desk; the store is opened if it is not."""
        make: Callable[[Store, ProviderSource, str], Desk]
        make = importlib.import_module(DESK).Desk
        return make(await self._source.store(), self._providers, self._default_model)

    def is_empty(self) -> bool:
        """Whether it is known, without opening anything, that there are no sessions."""
        return self._source.is_empty()

    async def close(self) -> None:
        """Let go of the providers."""
        await self._providers.close()
