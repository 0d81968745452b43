"""Lists over all activations: what is always there, and what each says is there now.

A list has one order, that of the addresses or names in it, over all activations, so that a page
begins where the one before it ended, whatever came and went meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from typing import Literal, TypeAlias, TypeVar

from plexus.activation import Activation, Listed, ListedPrompt
from plexus.defects import report
from plexus.principal import Principal

__all__ = ("ListName", "lists", "page_of")

#: What an activation may list, which is also what the method that does is called.
ListName: TypeAlias = Literal["resources", "prompts"]
E = TypeVar("E", Listed, ListedPrompt)


def lists(activation: Activation, what: ListName) -> bool:
    """Whether an activation has some that come and go."""
    return getattr(type(activation), what) is not getattr(Activation, what)


async def page_of(
    what: ListName,
    activations: Iterable[Activation],
    fixed: dict[str, E],
    principal: Principal,
    after: str | None,
    limit: int,
) -> list[E]:
    """The first so many after this key; `fixed` are those that are always there."""
    found: dict[str, E] = {}
    for activation in activations:
        if not lists(activation, what):
            continue
        try:
            listed: list[E] = await getattr(activation, what)(principal, after, limit)
        # Somebody else's code may raise anything, and what the others list is still there.
        except Exception as error:  # noqa: BLE001
            report(f"listing the {what} of {activation.namespace}", error)
        else:
            found |= {entry[0]: entry for entry in listed}
    found |= fixed
    beyond = [key for key in found if after is None or key > after]
    return [found[key] for key in nsmallest(limit, beyond)]
