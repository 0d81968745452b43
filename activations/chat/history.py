"""Reading of conversations: history, branches, search, export, and sessions as prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from activations.arbor.model import PAGE_ITEMS, Head, Node, NodeStub
from activations.arbor.render import preview
from activations.chat.events import (
    BranchData,
    Branches,
    HistoryPage,
    HitData,
    Hits,
    MessageData,
    Place,
)
from activations.chat.lease import SPACE, is_leased
from activations.chat.message import (
    Message,
    markdown_heading,
    message_data,
    message_from_node,
    messages_from_nodes,
    recover_draft,
    to_markdown,
)
from activations.chat.sessions import Session, Sessions, session_data
from plexus import Audio, Content, Context, Image, InvalidParams, NotFound, Resource
from plexus import Message as PromptMessage
from plexus.rpc import wire

__all__ = ("Branch", "History", "find_branches")

#: Maximum characters of a page of history, which is a single result.
PAGE_CHARACTERS = 1_000_000
#: Maximum characters of an excerpt.
EXCERPT_CHARACTERS = 120
#: Characters per chunk of an export.
CHUNK_CHARACTERS = 60_000


class History:
    """Reader of the messages of sessions."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._store = sessions.store

    async def history(self, ctx: Context, name: str, before: str | None, limit: int) -> HistoryPage:
        """Return the latest messages, or those before a given message."""
        head = (await self._sessions.find(ctx, name)).head
        principal, (tree, node) = ctx.principal.name, head.position
        count = min(limit + 1, PAGE_ITEMS)
        nodes = await self._store.path_tail(principal, tree, before or node, count)
        shown, next_node = _page(nodes, limit)
        messages = [
            message_data(message, each.created_ms)
            for each in shown
            if (message := message_from_node(each)) is not None
        ]
        if before is None and is_leased(head):
            messages += await self._streaming_messages(principal, head)
        return HistoryPage(head.name, Place(tree, node), messages, next_node)

    async def branches(self, ctx: Context, name: str, after: str | None, limit: int) -> Branches:
        """Return the branches of the tree of a session, newest first."""
        head = (await self._sessions.find(ctx, name)).head
        principal, (tree, node) = ctx.principal.name, head.position
        stubs: list[NodeStub] = []
        while page := await self._store.structure(
            principal, tree, stubs[-1].n if stubs else None, PAGE_ITEMS
        ):
            stubs += page
        found = find_branches(stubs, node)
        if after is not None:
            indexes = [index for index, branch in enumerate(found) if branch.node == after]
            found = found[indexes[0] + 1 :] if indexes else []
        heads = await self._heads_of(principal, tree)
        listed = []
        for branch in found[:limit]:
            end = await self._store.get_node(principal, tree, branch.node)
            message = message_from_node(end)
            listed.append(
                BranchData(
                    branch.node,
                    "" if message is None else message.kind,
                    preview(end.content or "", EXCERPT_CHARACTERS),
                    branch.length,
                    end.created_ms,
                    branch.leaves_at is None,
                    [each.name for each in heads if each.position.node == branch.node],
                    branch.leaves_at,
                )
            )
        next_node = found[limit - 1].node if len(found) > limit else None
        return Branches(head.name, tree, listed, next_node)

    async def search(
        self, ctx: Context, text: str, name: str | None, before: int | None, limit: int
    ) -> Hits:
        """Return the messages that contain all of these words, newest first."""
        principal = ctx.principal.name
        tree = None
        if name is not None:
            tree = (await self._sessions.find(ctx, name)).head.position.tree
        names: dict[str, list[str]] = {}
        found: list[HitData] = []
        while hits := await self._store.search(principal, text, tree, before, limit):
            for node, excerpt in hits:
                before = node.n
                message = message_from_node(node)
                if node.tree not in names:
                    heads = await self._heads_of(principal, node.tree)
                    names[node.tree] = [head.name for head in heads]
                # Trees that are not conversations can contain the words too.
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
        """Return a whole conversation as chunks of one text."""
        found = await self._sessions.find(ctx, name)
        nodes = await self._path(ctx, found)
        if form == "json":
            return _chunks(_as_json(wire.encode(session_data(found)).decode(), nodes))
        heading = markdown_heading(found.head.name, found.model, found.config.system_prompt)
        return _chunks([heading, *(to_markdown(message) for message in messages_from_nodes(nodes))])

    async def prompt(self, ctx: Context, name: str) -> Iterator[PromptMessage]:
        """Return the messages of a conversation for a prompt."""
        nodes = await self._path(ctx, await self._sessions.find(ctx, name))
        shown = (_prompt_message(message) for message in messages_from_nodes(nodes))
        return (message for message in shown if message is not None)

    async def message_to_answer(self, ctx: Context, name: str, node: str | None) -> str:
        """Return the node of the user message that a node belongs to; of the newest without one.

        Raises NotFound if the session has no user message.
        """
        tree, current = (await self._sessions.find(ctx, name)).head.position
        path = await self._store.path(ctx.principal.name, tree, node or current)
        kinds = [
            (each.id, found.kind) for each in path if (found := message_from_node(each)) is not None
        ]
        user_node = next((id_ for id_, kind in reversed(kinds) if kind == "user"), None)
        if user_node is None:
            raise NotFound(
                f"session {name!r} has no user message; send one with chat.send",
                code="nothing_said",
            )
        return user_node

    async def message_to_edit(self, ctx: Context, name: str, node_id: str) -> tuple[Message, str]:
        """Return a message and its parent node. Raises InvalidParams if it cannot be edited."""
        tree = (await self._sessions.find(ctx, name)).head.position.tree
        node = await self._store.get_node(ctx.principal.name, tree, node_id)
        message = message_from_node(node)
        if message is None or message.kind not in ("user", "assistant") or node.parent is None:
            raise InvalidParams.at("node_id", "must be a user message or an answer of the model")
        return message, node.parent

    async def _path(self, ctx: Context, session: Session) -> list[Node]:
        tree, node = session.head.position
        return await self._store.path(ctx.principal.name, tree, node)

    async def _heads_of(self, principal: str, tree: str) -> list[Head]:
        """Return the sessions in a tree."""
        return await self._store.list_heads(principal, SPACE, None, PAGE_ITEMS, tree)

    async def _streaming_messages(self, principal: str, head: Head) -> list[MessageData]:
        draft = recover_draft(await self._store.pieces(principal, head.id))
        return [message_data(m._replace(meta={**m.meta, "status": "streaming"})) for m in draft]


def _page(nodes: Sequence[Node], limit: int) -> tuple[Sequence[Node], str | None]:
    """Return as many of the latest nodes as fit on a page, and the last node of the next page."""
    count = size = 0
    for node in reversed(nodes[-limit:]):
        size += len(node.content or "")
        if count and size > PAGE_CHARACTERS:
            break
        count += 1
    rest = nodes[:-count]
    if not rest:
        return nodes, nodes[0].parent
    # The root is not a message, so the page that starts below it is the last.
    return nodes[-count:], None if rest[-1].parent is None else rest[-1].id


def _as_json(session: str, nodes: Sequence[Node]) -> list[str]:
    """Return the pieces of one JSON object."""
    pieces = [f'{{"session":{session},"messages":[']
    separator = ""
    for node in nodes:
        message = message_from_node(node)
        if message is None:
            continue
        fields = {"node_id": node.id, "created_ms": node.created_ms, "kind": message.kind}
        text = wire.encode({**fields, "text": message.text, **message.meta}).decode()
        pieces.append(separator + text)
        separator = ","
    return [*pieces, "]}\n"]


def _chunks(pieces: Sequence[str]) -> Iterator[str]:
    """Yield the joined text in chunks of a bounded size."""
    text = "".join(pieces)
    return (
        text[start : start + CHUNK_CHARACTERS] for start in range(0, len(text), CHUNK_CHARACTERS)
    )


def _prompt_message(message: Message) -> PromptMessage | None:
    """Return a message as part of a prompt; None for reasoning, tool calls and tool results."""
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


# --- branches ------------------------------------------------------------------------------------


class Branch(NamedTuple):
    """A branch of a conversation.

    `length` counts the nodes outside the path from the root to the current node, and `leaves_at` is
    the node where the branch leaves that path; None if it ends at the current node.
    """

    node: str
    length: int
    leaves_at: str | None


def find_branches(stubs: Sequence[NodeStub], current: str) -> list[Branch]:
    """Return all branches of a tree, newest first. The root alone is not a branch."""
    parents = {stub.id: stub.parent for stub in stubs}
    path = set()
    node: str | None = current
    while node is not None:
        path.add(node)
        node = parents.get(node)
    inner = set(parents.values())
    ends = [stub for stub in stubs if stub.id not in inner and stub.parent is not None]
    ends.sort(key=lambda stub: stub.n, reverse=True)
    return [_branch(end.id, parents, path, current) for end in ends]


def _branch(end: str, parents: dict[str, str | None], path: set[str], current: str) -> Branch:
    length = 0
    node = end
    while node not in path:
        length += 1
        parent = parents[node]
        if parent is None:
            break
        node = parent
    return Branch(end, length, None if end == current else node)
