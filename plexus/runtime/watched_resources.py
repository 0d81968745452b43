"""The resources whose changes clients wait for.

An activation that learns of changes from elsewhere observes only what is in here, and notifies the
hub of the changes like every other activation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

from plexus.errors import Internal
from plexus.principal import Principal

__all__ = ("WatchedResources",)

#: A URI and who waits for it: the same name may have other scopes through another credential.
Key: TypeAlias = tuple[str, str, frozenset[str] | None]


class WatchedResources:
    """URIs and the principals that wait for their changes, counted. Views add and remove them."""

    def __init__(self) -> None:
        self._watched: dict[Key, tuple[Principal, int]] = {}
        self._listeners: list[Callable[[str], None]] = []

    def __iter__(self) -> Iterator[tuple[str, Principal]]:
        for (uri, _, _), (principal, _) in self._watched.items():
            yield uri, principal

    def on_change(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call a function with each URI that has its first or its last watcher of a principal.

        Returns a function that ends this.
        """
        self._listeners.append(listener)
        return partial(self._listeners.remove, listener)

    def add(self, uri: str, principal: Principal) -> None:
        """Count a client of this principal that waits for changes of a resource."""
        key = uri, principal.name, principal.scopes
        known, count = self._watched.get(key, (principal, 0))
        self._watched[key] = known, count + 1
        if not count:
            self._changed(uri)

    def remove(self, uri: str, principal: Principal) -> None:
        """Remove what `add` has counted."""
        key = uri, principal.name, principal.scopes
        known, count = self._watched[key]
        if count > 1:
            self._watched[key] = known, count - 1
        else:
            del self._watched[key]
            self._changed(uri)

    def _changed(self, uri: str) -> None:
        for listener in self._listeners.copy():
            try:
                listener(uri)
            # The client is counted in any case, so that it can leave again.
            except Exception as error:  # noqa: BLE001
                Internal.report("following a resource", error)
