"""Lists over all activations: what is always there, and what each says is there now.

A list has one order, that of the addresses or names in it, over all activations, so that a page
begins where the one before it ended, whatever came and went meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nsmallest
from typing import Any, Literal, TypeAlias, TypeVar

from plexus.activation import Activation, PromptInfo, ResourceInfo
from plexus.defects import report
from plexus.errors import NotFound
from plexus.principal import Principal
from plexus.registry.signature import MethodSpec

__all__ = ("ListName", "Shows", "page_of", "shown")

#: What an activation may list, which is also what the method that does is called.
ListName: TypeAlias = Literal["resources", "prompts"]
#: Whether the entry of this key is for whoever asks.
Shows: TypeAlias = Callable[[str], bool]
E = TypeVar("E", ResourceInfo, PromptInfo)


def shown(
    specs: Iterable[MethodSpec],
    find: Callable[[str], tuple[MethodSpec, dict[str, Any]]],
    principal: Principal,
) -> Shows | None:
    """What a principal is shown of what these methods give and `find` finds; None for all."""
    if all(principal.may(spec.scope) for spec in specs):
        return None

    def shows(key: str) -> bool:
        try:
            return principal.may(find(key)[0].scope)
        except NotFound:  # an activation lists what no method gives
            return False

    return shows


async def page_of(
    what: ListName,
    activations: Iterable[Activation],
    fixed: dict[str, E],
    principal: Principal,
    after: str | None,
    limit: int,
    shows: Shows | None,
) -> list[E]:
    """Return the first `limit` entries after this key. `activations` are those that have such a
    list of their own; `fixed` are the entries that are always there. Without `shows` everything
    is shown."""
    found: dict[str, E] = {}
    for activation in activations:
        try:
            listed: list[E] = await _listed(what, activation, principal, after, limit, shows)
        # Somebody else's code may raise anything, and what the others list is still there.
        except Exception as error:  # noqa: BLE001
            report(f"listing the {what} of {activation.namespace}", error)
        else:
            found |= {entry[0]: entry for entry in listed}
    found |= fixed
    beyond = [key for key in found if after is None or key > after]
    return [found[key] for key in nsmallest(limit, beyond)]


async def _listed(
    what: ListName,
    activation: Activation,
    principal: Principal,
    after: str | None,
    limit: int,
    shows: Shows | None,
) -> list[E]:
    """The first so many of one activation that are shown."""
    found: list[E] = []
    while True:
        page: list[E] = await getattr(activation, what)(principal, after, limit)
        if shows is None:
            return page
        found += [entry for entry in page if shows(entry[0])]
        # Whoever leaves out what is asked for, and says the same again, is not asked again.
        ended = not page or len(page) < limit or (after is not None and page[-1][0] <= after)
        if ended or len(found) >= limit:
            return found
        after = page[-1][0]
