"""Reading sessions: history, branches, search, export, and sessions as prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from activations.arbor.model import PAGE_ITEMS, Head, Node, NodeStub
from activations.arbor.text_width import preview
from activations.chat.branching import branches_of
from activations.chat.conversation import Message
from activations.chat.draft import recovered
from activations.chat.events import (
    BranchData,
    Branches,
    HistoryPage,
    HitData,
    Hits,
    MessageData,
    Place,
)
from activations.chat.holding import SPACE, is_held
from activations.chat.keeping import Keeping, check_limit
from activations.chat.markdown import heading_of, markdown_of
from activations.chat.sessions import Session, find_session, session_data
from activations.chat.stored import message_data, message_of, messages_of
from plexus import Audio, Content, Context, Image, Principal, Resource
from plexus import Message as PromptMessage
from plexus.rpc import wire

__all__ = ("Reading",)

#: A page of history ends after so many characters: it is one answer.
PAGE_SIZE = 1_000_000
#: How much of a message is shown where only its beginning is.
EXCERPT = 120
#: About how large the pieces of an export are.
EXPORTED = 60_000


class Reading(Keeping):
    """What was said."""

    async def history(self, ctx: Context, name: str, before: str | None, limit: int) -> HistoryPage:
        """The latest messages, or those before a given one."""
        check_limit(limit)
        head = (await find_session(self.store, ctx, name)).head
        principal, (tree, node) = ctx.principal.name, head.position
        most = min(limit + 1, PAGE_ITEMS)
        nodes = await self.store.up(principal, tree, before or node, most)
        shown, more = _fitting(nodes, limit)
        messages = [
            message_data(message, each.created_ms)
            for each in shown
            if (message := message_of(each)) is not None
        ]
        if before is None and is_held(head):
            messages += await self._being_written(principal, head)
        return HistoryPage(head.name, Place(tree, node), messages, more)

    async def branches(self, ctx: Context, name: str, after: str | None, limit: int) -> Branches:
        """The ends of all branches, the newest first."""
        check_limit(limit)
        head = (await find_session(self.store, ctx, name)).head
        principal, (tree, node) = ctx.principal.name, head.position
        stubs: list[NodeStub] = []
        while page := await self.store.structure(
            principal, tree, stubs[-1].n if stubs else None, PAGE_ITEMS
        ):
            stubs += page
        found = branches_of(stubs, node)
        if after is not None:
            places = [index for index, branch in enumerate(found) if branch.node == after]
            found = found[places[0] + 1 :] if places else []
        heads = await self._heads_of(principal, tree)
        listed = []
        for branch in found[:limit]:
            end = await self.store.get_node(principal, tree, branch.node)
            message = message_of(end)
            listed.append(
                BranchData(
                    branch.node,
                    "" if message is None else message.kind,
                    preview(end.content or "", EXCERPT),
                    branch.length,
                    end.created_ms,
                    branch.leaves_at is None,
                    [each.name for each in heads if each.position.node == branch.node],
                    branch.leaves_at,
                )
            )
        more = found[limit - 1].node if len(found) > limit else None
        return Branches(head.name, tree, listed, more)

    async def search(
        self, ctx: Context, text: str, name: str | None, before: int | None, limit: int
    ) -> Hits:
        """The messages that hold all of these words, the newest first."""
        check_limit(limit)
        principal = ctx.principal.name
        tree = None
        if name is not None:
            tree = (await find_session(self.store, ctx, name)).head.position.tree
        names: dict[str, list[str]] = {}
        found: list[HitData] = []
        while hits := await self.store.search(principal, text, tree, before, limit):
            for node, excerpt in hits:
                before = node.n
                message = message_of(node)
                if node.tree not in names:
                    heads = await self._heads_of(principal, node.tree)
                    names[node.tree] = [head.name for head in heads]
                # Trees that are no conversation may hold the words as well.
                if message is None or not names[node.tree]:
                    continue
                sessions = names[node.tree]
                found.append(
                    HitData(node.tree, node.id, message.kind, excerpt, node.created_ms, sessions)
                )
                if len(found) == limit:
                    return Hits(found, before)
        return Hits(found)

    async def export(
        self, ctx: Context, name: str, form: Literal["markdown", "json"]
    ) -> Iterator[str]:
        """A whole conversation as one text, in pieces."""
        found = await find_session(self.store, ctx, name)
        nodes = await self._path(ctx, found)
        if form == "json":
            return _joined(_as_json(wire.encode(session_data(found)).decode(), nodes))
        setup = found.setup
        heading = heading_of(found.head.name, setup.model, setup.system_prompt)
        return _joined([heading, *(markdown_of(message) for message in messages_of(nodes))])

    async def prompt(self, ctx: Context, name: str) -> Iterator[PromptMessage]:
        """What was said, for a model that goes on from there."""
        nodes = await self._path(ctx, await find_session(self.store, ctx, name))
        shown = (_in_prompt(message) for message in messages_of(nodes))
        return (message for message in shown if message is not None)

    async def names(self, principal: Principal, after: str | None, limit: int) -> list[str]:
        """The names of some sessions."""
        most = min(limit, PAGE_ITEMS)
        heads = await self.store.list_heads(principal.name, SPACE, after, most)
        return [head.name for head in heads]

    async def _path(self, ctx: Context, session: Session) -> list[Node]:
        tree, node = session.head.position
        return await self.store.path(ctx.principal.name, tree, node)

    async def _heads_of(self, principal: str, tree: str) -> list[Head]:
        """The sessions in a tree."""
        return await self.store.list_heads(principal, SPACE, None, PAGE_ITEMS, tree)

    async def _being_written(self, principal: str, head: Head) -> list[MessageData]:
        draft = recovered(await self.store.pieces(principal, head.id))
        return [message_data(m._replace(meta={**m.meta, "status": "streaming"})) for m in draft]


def _fitting(nodes: Sequence[Node], limit: int) -> tuple[Sequence[Node], str | None]:
    """As many of the latest nodes as fit on a page, and the node that the page before ends with."""
    count = size = 0
    for node in reversed(nodes[-limit:]):
        size += len(node.content or "")
        if count and size > PAGE_SIZE:
            break
        count += 1
    rest = nodes[:-count]
    if not rest:
        return nodes, nodes[0].parent
    # The root is no message: there is nothing before the first one.
    return nodes[-count:], None if rest[-1].parent is None else rest[-1].id


def _as_json(described: str, nodes: Sequence[Node]) -> list[str]:
    """The pieces of one JSON object."""
    pieces = [f'{{"session":{described},"messages":[']
    before = ""
    for node in nodes:
        message = message_of(node)
        if message is None:
            continue
        told = {"node_id": node.id, "created_ms": node.created_ms, "kind": message.kind}
        text = wire.encode({**told, "text": message.text, **message.meta}).decode()
        pieces.append(before + text)
        before = ","
    return [*pieces, "]}\n"]


def _joined(pieces: Sequence[str]) -> Iterator[str]:
    """The same text in pieces that are neither many nor large."""
    text = "".join(pieces)
    return (text[start : start + EXPORTED] for start in range(0, len(text), EXPORTED))


def _in_prompt(message: Message) -> PromptMessage | None:
    """A message as part of a prompt; what models do among themselves is left out."""
    kind, text, meta, node = message
    if kind in ("user", "summary"):
        return PromptMessage("user", Content(text))
    if kind == "assistant":
        return PromptMessage("assistant", Content(text)) if text else None
    if kind != "attachment":
        return None
    mime_type, name = str(meta.get("mime_type")), str(meta.get("name"))
    if meta.get("encoding") == "base64":
        if mime_type.startswith("image/"):
            return PromptMessage("user", Image(text, mime_type))
        if mime_type.startswith("audio/"):
            return PromptMessage("user", Audio(text, mime_type))
        return PromptMessage("user", Resource(f"arbor:{node}", name, mime_type, blob=text))
    return PromptMessage("user", Resource(f"arbor:{node}", name, mime_type, text))
