"""Reading sessions: history, branches, search, export, and sessions as prompts."""

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
    message_of,
    messages_of,
    recover_draft,
    to_markdown,
)
from activations.chat.sessions import Session, Sessions, check_limit, session_data
from plexus import Audio, Content, Context, Image, InvalidParams, NotFound, Resource
from plexus import Message as PromptMessage
from plexus.rpc import wire

__all__ = ("Branch", "History", "branches_of")

#: A page of history ends after so many characters: it is one answer.
PAGE_SIZE = 1_000_000
#: How much of a message is shown where only its beginning is.
EXCERPT = 120
#: About how large the pieces of an export are.
EXPORTED = 60_000


class History:
    """Reads the messages of sessions."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._store = sessions.store

    async def history(self, ctx: Context, name: str, before: str | None, limit: int) -> HistoryPage:
        """The latest messages, or those before a given one."""
        check_limit(limit)
        head = (await self._sessions.find(ctx, name)).head
        principal, (tree, node) = ctx.principal.name, head.position
        most = min(limit + 1, PAGE_ITEMS)
        nodes = await self._store.path_tail(principal, tree, before or node, most)
        shown, more = _fitting(nodes, limit)
        messages = [
            message_data(message, each.created_ms)
            for each in shown
            if (message := message_of(each)) is not None
        ]
        if before is None and is_leased(head):
            messages += await self._being_written(principal, head)
        return HistoryPage(head.name, Place(tree, node), messages, more)

    async def branches(self, ctx: Context, name: str, after: str | None, limit: int) -> Branches:
        """The ends of all branches, the newest first."""
        check_limit(limit)
        head = (await self._sessions.find(ctx, name)).head
        principal, (tree, node) = ctx.principal.name, head.position
        stubs: list[NodeStub] = []
        while page := await self._store.structure(
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
            end = await self._store.get_node(principal, tree, branch.node)
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
            tree = (await self._sessions.find(ctx, name)).head.position.tree
        names: dict[str, list[str]] = {}
        found: list[HitData] = []
        while hits := await self._store.search(principal, text, tree, before, limit):
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
        found = await self._sessions.find(ctx, name)
        nodes = await self._path(ctx, found)
        if form == "json":
            return _joined(_as_json(wire.encode(session_data(found)).decode(), nodes))
        heading = markdown_heading(found.head.name, found.model, found.config.system_prompt)
        return _joined([heading, *(to_markdown(message) for message in messages_of(nodes))])

    async def prompt(self, ctx: Context, name: str) -> Iterator[PromptMessage]:
        """What was said, for a model that goes on from there."""
        nodes = await self._path(ctx, await self._sessions.find(ctx, name))
        shown = (_in_prompt(message) for message in messages_of(nodes))
        return (message for message in shown if message is not None)

    async def message_to_answer(self, ctx: Context, name: str, node: str | None) -> str:
        """Return the node of the user's message that this node, or the newest, belongs to.

        Raises NotFound if nothing was said yet.
        """
        tree, here = (await self._sessions.find(ctx, name)).head.position
        path = await self._store.path(ctx.principal.name, tree, node or here)
        kinds = [(each.id, found.kind) for each in path if (found := message_of(each)) is not None]
        said = next((id_ for id_, kind in reversed(kinds) if kind == "user"), None)
        if said is None:
            raise NotFound(f"nothing was said yet in session {name!r}", code="nothing_said")
        return said

    async def message_to_edit(self, ctx: Context, name: str, node_id: str) -> tuple[Message, str]:
        """Return a message and the node that it follows; raises InvalidParams for other nodes."""
        tree = (await self._sessions.find(ctx, name)).head.position.tree
        node = await self._store.get_node(ctx.principal.name, tree, node_id)
        message = message_of(node)
        if message is None or message.kind not in ("user", "assistant") or node.parent is None:
            raise InvalidParams.at("node_id", "only what you or the model said can be edited")
        return message, node.parent

    async def _path(self, ctx: Context, session: Session) -> list[Node]:
        tree, node = session.head.position
        return await self._store.path(ctx.principal.name, tree, node)

    async def _heads_of(self, principal: str, tree: str) -> list[Head]:
        """The sessions in a tree."""
        return await self._store.list_heads(principal, SPACE, None, PAGE_ITEMS, tree)

    async def _being_written(self, principal: str, head: Head) -> list[MessageData]:
        draft = recover_draft(await self._store.pieces(principal, head.id))
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


# --- branches ------------------------------------------------------------------------------------


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
