"""Cutting lists of nodes into events and answers that fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from activations.arbor.events import NodeData, NodePage, node_data
from activations.arbor.model import PAGE_BYTES, PAGE_ITEMS, Node
from plexus import InvalidParams
from plexus.rpc import wire

__all__ = ("BATCH_NODES", "batches", "check_limit", "may_go_on", "page_of")

#: A batch ends after so many nodes, or so many characters: six bytes for each still make an event.
BATCH_NODES = 256
BATCH_SIZE = 64_000
#: A page ends after so many characters: it is one answer, which may be larger.
PAGE_SIZE = 1_000_000


def check_limit(limit: int) -> int:
    """How many are asked for; raises InvalidParams if that is none or more than a page holds."""
    if not 1 <= limit <= PAGE_ITEMS:
        fault = f"must be from 1 to {PAGE_ITEMS}"
        raise InvalidParams(f"limit: {fault}", data={"errors": [{"at": "limit", "fault": fault}]})
    return limit


def batches(nodes: Iterable[Node]) -> Iterator[list[NodeData]]:
    """The nodes, some at a time."""
    batch: list[NodeData] = []
    size = 0
    for each in nodes:
        node = node_data(each)
        weight = _weight(node)
        if batch and (len(batch) == BATCH_NODES or size + weight > BATCH_SIZE):
            yield batch
            batch, size = [], 0
        batch.append(node)
        size += weight
    if batch:
        yield batch


def page_of(tree: str, nodes: Sequence[Node], limit: int) -> NodePage:
    """As many of the nodes as fit, and where to go on; one more than the limit may be there."""
    page: list[NodeData] = []
    size = 0
    for each in nodes[:limit]:
        node = node_data(each)
        size += _weight(node)
        if page and size > PAGE_SIZE:
            break
        page.append(node)
    more = len(page) < len(nodes) or may_go_on(nodes, PAGE_ITEMS)
    return NodePage(tree, page, nodes[len(page) - 1].n if more else None)


def may_go_on(nodes: Sequence[Node], limit: int) -> bool:
    """Whether more may come after a page of the store: it was full, or has ended early because
    it was large."""
    if len(nodes) < limit:
        return sum(len(node.content or "") for node in nodes) > PAGE_BYTES // 2
    return True


def _weight(node: NodeData) -> int:
    weight = 0 if node.content is None else len(node.content)
    if node.metadata is not None:
        weight += len(wire.encode(node.metadata))
    if node.handle is not None:
        weight += 2 * len(node.handle.text)
    return weight
