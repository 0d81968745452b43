"""Trees as lines of JSON: out of the store, and into it again.

The first line is about the tree, the last says how many nodes there were, and between them is a
line for each node, the root first. Nodes refer to each other by the ids they had; on the way in
they get new ones. What is kept is everything that can be seen of a tree but ids and times:
structure, order, versions, contents, handles and metadata.

An import is made where nobody sees it, and shown when it is whole; see `queries.trees.adopt`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

from activations.arbor.events import Imported
from activations.arbor.importer import FORMAT, Import, read_lines
from activations.arbor.methods.base import WRITE, StoreActivation
from activations.arbor.model import PAGE_ITEMS, Node, Tree
from plexus import (
    Content,
    Context,
    Denied,
    InvalidParams,
    PlexusError,
    Progress,
    method,
)
from plexus.rpc import wire

__all__ = ("TransferMethods",)

#: How many characters an event holds at most. A longer line goes on in the next event: each of
#: them may take seven bytes on its way.
PIECE = 100_000
#: An export or an import of a very large tree, read by somebody slow.
TRANSFER_S = 6 * 3600.0
#: The scope of whoever may read files of the server: whoever may run commands there can anyway.
FILES = "bash"


class TransferMethods(StoreActivation):
    """Trees that come and go."""

    @method(title="Export a tree", deadline_s=TRANSFER_S, read_only=True, open_world=False)
    async def tree_export(self, tree_id: str, *, ctx: Context) -> AsyncIterator[Content | Progress]:
        """Give a tree as lines of JSON, which `tree_import` makes a tree of again.

        Args:
            tree_id: The tree.
        """
        store = await self.store()
        principal = ctx.principal.name
        tree = await store.get_tree(principal, tree_id)
        yield Content(_line(_header(tree)))
        after, count = None, 0
        while nodes := await store.walk(principal, tree_id, after, PAGE_ITEMS):
            after = nodes[-1].n
            text = ""
            for node in nodes:
                line = _line(_exported(node))
                if text and len(text) + len(line) > PIECE:
                    yield Content(text)
                    text = ""
                text += line
                while len(text) > PIECE:
                    yield Content(text[:PIECE])
                    text = text[PIECE:]
            if text:
                yield Content(text)
            count += len(nodes)
            yield Progress(count, message="nodes")
        yield Content(_line({"end": count}))

    @method(
        title="Import a tree",
        deadline_s=TRANSFER_S,
        destructive=False,
        open_world=False,
        scope=WRITE,
    )
    async def tree_import(
        self,
        lines: list[str] | str | None = None,
        path: str | None = None,
        owner_id: str | None = None,
        *,
        ctx: Context,
    ) -> AsyncIterator[Progress | Imported]:
        """Make a tree out of what `tree_export` gave: all of it, or nothing.

        Args:
            lines: What was exported: one text, or a list of texts of one or more lines each.
            path: A file with it, where the server runs; give either this or lines.
            owner_id: Who holds the new tree; you, if left out.
        """
        if (lines is None) is (path is None):
            raise InvalidParams("give either lines or path")
        if path is not None and not ctx.principal.may(FILES):
            raise Denied(
                f"reading a file of the server needs the scope {FILES!r}; give lines",
                data={"scope": FILES},
            )
        principal = ctx.principal.name
        owner = principal if owner_id is None else owner_id
        work = Import(await self.store(), owner)
        try:
            async with aclosing(read_lines(lines, path)) as source:
                async for number, line in source:
                    if await work.add(number, line):
                        yield Progress(work.count, message="nodes")
            tree = await work.finish(principal)
        finally:
            with suppress(PlexusError):  # then the purge takes it away
                await work.discard()
        yield Imported(tree.id, tree.root, work.count)


def _line(value: dict[str, Any]) -> str:
    return wire.encode(value).decode() + "\n"


def _header(tree: Tree) -> dict[str, Any]:
    header: dict[str, Any] = {"arbor": FORMAT, "created_ms": tree.created_ms}
    return header if tree.metadata is None else header | {"metadata": tree.metadata}


def _exported(node: Node) -> dict[str, Any]:
    fields = {
        "id": node.id,
        "parent": node.parent,
        "position": node.position,
        "content": node.content,
        "handle": None if node.handle is None else str(node.handle),
        "metadata": node.metadata,
        "replaces": node.replaces,
        "created_ms": node.created_ms,
    }
    return {name: value for name, value in fields.items() if value is not None}
