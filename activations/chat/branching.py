"""The branches of a tree, as somebody sees them who stands at one of its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from activations.arbor.model import NodeStub

__all__ = ("Branch", "branches_of")


class Branch(NamedTuple):
    """A branch: its end, how many nodes it has beside the way to where one stands, and the node
    where it leaves that way; None if one stands at its end."""

    node: str
    length: int
    leaves_at: str | None


def branches_of(stubs: Sequence[NodeStub], here: str) -> list[Branch]:
    """All branches of a tree, the newest first. The root alone is none."""
    parents = {stub.id: stub.parent for stub in stubs}
    way = set()
    node: str | None = here
    while node is not None:
        way.add(node)
        node = parents.get(node)
    inner = set(parents.values())
    ends = [stub for stub in stubs if stub.id not in inner and stub.parent is not None]
    ends.sort(key=lambda stub: stub.n, reverse=True)
    return [_branch(end.id, parents, way, here) for end in ends]


def _branch(end: str, parents: dict[str, str | None], way: set[str], here: str) -> Branch:
    length = 0
    node = end
    while node not in way:
        length += 1
        above = parents[node]
        if above is None:
            break
        node = above
    return Branch(end, length, None if end == here else node)
