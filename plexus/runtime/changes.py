"""What a hub notifies its listeners of: changed lists and resources, and notices for users."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal, NamedTuple

from plexus.activation import Role
from plexus.registry.activation_tree import Node, walk

__all__ = ("LISTS", "Change", "Notice", "lists_of")


@dataclasses.dataclass(frozen=True, slots=True)
class Notice:
    """Something that users of this hub should know, such as files that were not loaded.

    `message` and `next` are shown to models: they hold no text of strangers.
    """

    #: A word for programs.
    code: str
    message: str
    #: What to do about it.
    next: str
    #: Names or reasons, for people.
    details: list[str]


class Change(NamedTuple):
    """Something is no longer as it was: one of the lists, or the resource at `uri`."""

    kind: Literal["methods", "prompts", "resources", "resource"]
    uri: str | None = None
    #: Who alone can see the change, by name; None for everybody.
    principal: str | None = None


#: Which list a method stands in.
LISTS: dict[Role, Change] = {
    "method": Change("methods"),
    "prompt": Change("prompts"),
    "resource": Change("resources"),
}


def lists_of(node: Node) -> Iterator[Change]:
    """The lists that an activation with its children stands in."""
    for inner in walk(node):
        yield from (LISTS[spec.role] for spec in inner.methods)
        if "resources" in inner.hooks:
            yield LISTS["resource"]
        if "prompts" in inner.hooks:
            yield LISTS["prompt"]
