"""What a hub notifies its listeners about: changed lists and resources; and notices for users."""

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

    `message` and `next` are shown to models, so they must not contain untrusted text.
    """

    #: Code for programs.
    code: str
    message: str
    #: What to do about it.
    next: str
    #: Names or reasons, for people.
    details: list[str]


class Change(NamedTuple):
    """A change of one of the lists, or of the resource at `uri`."""

    kind: Literal["methods", "prompts", "resources", "resource"]
    uri: str | None = None
    #: Name of the only principal that can see the change; None for all.
    principal: str | None = None


#: The list that contains a method, by its role.
LISTS: dict[Role, Change] = {
    "method": Change("methods"),
    "prompt": Change("prompts"),
    "resource": Change("resources"),
}


def lists_of(node: Node) -> Iterator[Change]:
    """Yield the lists that contain entries of an activation or its children."""
    for inner in walk(node):
        yield from (LISTS[spec.role] for spec in inner.methods)
        if "resources" in inner.hooks:
            yield LISTS["resource"]
        if "prompts" in inner.hooks:
            yield LISTS["prompt"]
