"""Export and import of trees as JSON Lines.

The first line describes the tree, the last contains the number of nodes, and between them is one
line per node, the root first. Nodes refer to each other by their old ids; an import assigns new
ones. Everything visible of a tree is preserved except ids and times: structure, order, versions,
contents, handles and metadata.

An import is staged where no caller sees it, and published when it is complete; see
`queries.trees.adopt`.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import IO, Any

from activations.arbor.events import Imported
from activations.arbor.methods.base import WRITE, StoreActivation
from activations.arbor.model import CONTENT_BYTES, PAGE_ITEMS, Handle, NewNode, Node, Tree
from activations.arbor.queries.rows import STORED_LIMITS
from activations.arbor.store import Store
from plexus import Content, Context, Denied, Failed, InvalidParams, PlexusError, Progress, method
from plexus.errors import TooBig
from plexus.rpc import wire

__all__ = ("TransferMethods", "TreeImporter", "read_lines")

#: Maximum number of characters in an event; a longer line continues in the next event. A character
#: can take up to seven bytes on the wire.
EVENT_CHARACTERS = 100_000
#: Deadline of an export or import, for a very large tree and a slow reader.
TRANSFER_S = 6 * 3600.0
#: The scope required to read files of the server: it allows running commands there anyway.
FILES_SCOPE = "bash"

#: The version of the format.
FORMAT = 1

#: Maximum size of a line: the longest content with every character escaped, and the other fields.
LINE_BYTES = 8 * CONTENT_BYTES
#: Maximum number of nodes in an import: their ids are kept in memory until its end.
MAX_NODES = 2_000_000
#: Maximum number of characters of nodes that wait for a parent on a later line.
MAX_WAITING_CHARACTERS = 64 * 1024 * 1024
#: Maximum number of nodes and characters per transaction. Other writers can run in between.
CHUNK_NODES = 1000
CHUNK_CHARACTERS = 4 * 1024 * 1024
#: Size of a read from a file.
READ_BYTES = 1024 * 1024
#: Number of lines after which blank lines yield to the event loop.
BLANK_LINES = 10_000

#: The fields of a node line and their types.
NODE_FIELDS: dict[str, type] = {
    "id": str,
    "parent": str,
    "position": int,
    "content": str,
    "handle": str,
    "metadata": dict,
    "replaces": str,
    "created_ms": int,
}


class TransferMethods(StoreActivation):
    """The methods that export and import trees."""

    @method(title="Export a tree", deadline_s=TRANSFER_S, read_only=True, open_world=False)
    async def tree_export(self, tree_id: str, *, ctx: Context) -> AsyncIterator[Content | Progress]:
        """Stream a tree as JSON Lines, for backup or transfer. Restore it with `tree_import`.

        Args:
            tree_id: Id of the tree.
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
                if text and len(text) + len(line) > EVENT_CHARACTERS:
                    yield Content(text)
                    text = ""
                text += line
                while len(text) > EVENT_CHARACTERS:
                    yield Content(text[:EVENT_CHARACTERS])
                    text = text[EVENT_CHARACTERS:]
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
        """Create a tree from the output of `tree_export`, atomically. Returns the new tree's id.

        Args:
            lines: The exported text, or a list of its parts.
            path: File on the server, instead of lines. Needs the scope `bash`.
            owner_id: Owner of the new tree. Default: you.
        """
        if (lines is None) is (path is None):
            raise InvalidParams("Pass either lines or path.")
        if path is not None and not ctx.principal.may(FILES_SCOPE):
            raise Denied(
                f"Reading a server file needs the scope {FILES_SCOPE!r}. Pass lines instead.",
                data={"scope": FILES_SCOPE},
            )
        principal = ctx.principal.name
        owner = principal if owner_id is None else owner_id
        work = TreeImporter(await self.store(), owner)
        try:
            async with aclosing(read_lines(lines, path)) as source:
                async for number, line in source:
                    if await work.add(number, line):
                        yield Progress(work.count, message="nodes")
            tree = await work.finish(principal)
        finally:
            with suppress(PlexusError):  # the purge removes it later
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


# --- an import ------------------------------------------------------------------------------------


async def read_lines(
    lines: list[str] | str | None, path: str | None
) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yield the lines that are not blank, with their numbers."""
    number = 0
    if path is None:
        for text in [lines] if isinstance(lines, str) else lines or ():
            for line in text.split("\n"):
                number += 1
                if line.strip():
                    yield number, line.encode()
                elif number % BLANK_LINES == 0:  # nothing else here awaits
                    await asyncio.sleep(0)
        return
    file = await asyncio.to_thread(_open, path)
    try:
        rest = b""
        while data := await asyncio.to_thread(file.read, READ_BYTES):
            *whole, rest = (rest + data).split(b"\n")
            for raw in whole:
                number += 1
                if raw.strip():
                    yield number, raw
            if len(rest) > LINE_BYTES:
                raise TooBig(
                    f"Line {number + 1} is longer than {LINE_BYTES} bytes.",
                    data={"limit": LINE_BYTES, "line": number + 1},
                )
        if rest.strip():
            yield number + 1, rest
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        file.close()


def _open(path: str) -> IO[bytes]:
    try:
        # Nonblocking, because opening a pipe without a writer would block indefinitely.
        file = os.open(Path(path).expanduser(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise Failed(f"{path} is not a regular file.", code="unreadable")
    return os.fdopen(file, "rb", buffering=0)


def _unreadable(path: str, error: OSError | ValueError) -> Failed:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return Failed(f"Cannot read {path}: {reason}", code="unreadable")


class TreeImporter:
    """An import in progress, staged where no caller sees it."""

    def __init__(self, store: Store, owner: str) -> None:
        self._store = store
        self._owner = owner
        #: The principal of the tree until it is complete. No real principal has this name.
        self._staging = f"\x01importing {os.urandom(16).hex()}"
        self._header: dict[str, Any] | None = None
        self._tree: Tree | None = None
        self._ended = False
        #: The new ids of stored nodes, by old id.
        self._ids: dict[str, str] = {}
        #: The nodes to store next, and their indexes by old id.
        self._chunk: list[NewNode] = []
        self._indexes: dict[str, int] = {}
        self._size = 0
        #: Lines that wait for another node, by the old id of that node.
        self._waiting: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        self._seen: set[str] = set()
        self._waiting_characters = 0
        #: The number of nodes so far.
        self.count = 0

    async def add(self, number: int, line: bytes) -> bool:
        """Process a line. Returns whether nodes were stored. Raises InvalidParams or TooBig."""
        value = _decode(number, line)
        if self._header is None:
            self._header = _check_header(number, value)
            return False
        if self._ended:
            raise _invalid_line(number, "follows the end line")
        if "end" in value:
            if value != {"end": self.count}:
                raise _invalid_line(number, f"has a wrong number of nodes; {self.count} were read")
            self._ended = True
            return False
        node = _check_node(number, value)
        self.count += 1
        if self.count > MAX_NODES:
            raise TooBig(f"The import has more than {MAX_NODES} nodes.", data={"limit": MAX_NODES})
        if node["id"] in self._seen:
            raise _invalid_line(number, f"repeats the id {node['id'][:64]!r}")
        self._seen.add(node["id"])
        if self._tree is None:
            await self._begin(number, node)
            return True
        if "parent" not in node:
            raise _invalid_line(number, "has no parent, but is not the first node")
        self._place(number, node)
        if len(self._chunk) < CHUNK_NODES and self._size < CHUNK_CHARACTERS:
            return False
        await self._flush()
        return True

    async def finish(self, principal: str) -> Tree:
        """Store the remaining nodes and publish the tree. Raises InvalidParams if incomplete."""
        if self._tree is None or not self._ended:
            raise InvalidParams(
                "The import is incomplete: the end line is missing.", code="bad_import"
            )
        if self._waiting:
            missing, [(number, _), *_] = next(iter(self._waiting.items()))
            raise _invalid_line(number, f"refers to the unknown node {missing[:64]!r}")
        await self._flush()
        tree = await self._store.adopt(self._staging, self._tree.id, principal, self._owner)
        self._tree = None
        return tree

    async def discard(self) -> None:
        """Delete the stored nodes, unless the tree was published."""
        if self._tree is not None:
            await self._store.discard(self._staging, self._tree.id)
            self._tree = None

    async def _begin(self, number: int, root: dict[str, Any]) -> None:
        if "parent" in root or "replaces" in root:
            raise _invalid_line(
                number, "is the first node, so it must be the root, without parent and replaces"
            )
        assert self._header is not None, "it is the first line"
        store, staging = self._store, self._staging
        metadata = self._header.get("metadata")
        tree = await store.create_tree(staging, self._owner, metadata, _new_node(number, root))
        self._tree = tree
        await store.release(staging, tree.id, self._owner)
        self._ids[root["id"]] = tree.root

    def _place(self, number: int, node: dict[str, Any]) -> None:
        """Add a node to the chunk, with the nodes that waited for it, or make it wait."""
        ready = [(number, node)]
        while ready:
            number, node = ready.pop()
            references = [node[name] for name in ("parent", "replaces") if name in node]
            missing = next((old for old in references if self._reference(old) is None), None)
            if missing is not None:
                self._waiting.setdefault(missing, []).append((number, node))
                self._waiting_characters += len(node.get("content", ""))
                if self._waiting_characters > MAX_WAITING_CHARACTERS:
                    raise TooBig(
                        f"More than {MAX_WAITING_CHARACTERS} characters wait for parents on later"
                        " lines. Sort the nodes so that parents come first.",
                        data={"limit": MAX_WAITING_CHARACTERS},
                    )
                continue
            item = _new_node(number, node)
            self._chunk.append(
                item._replace(
                    parent=self._reference(node["parent"]),
                    position=node.get("position"),
                    replaces=self._reference(node["replaces"]) if "replaces" in node else None,
                )
            )
            self._indexes[node["id"]] = len(self._chunk) - 1
            self._size += len(item.content or "")
            for waited in reversed(self._waiting.pop(node["id"], [])):
                self._waiting_characters -= len(waited[1].get("content", ""))
                ready.append(waited)

    def _reference(self, old: str) -> int | str | None:
        """Return the reference to an earlier node: its index or new id. None if unknown."""
        index = self._indexes.get(old)
        return self._ids.get(old) if index is None else index

    async def _flush(self) -> None:
        assert self._tree is not None, "the root is stored"
        if self._chunk:
            created = await self._store.append(self._staging, self._tree.id, None, self._chunk)
            self._ids |= {old: created[index].id for old, index in self._indexes.items()}
        self._chunk, self._indexes, self._size = [], {}, 0


def _decode(number: int, line: bytes) -> dict[str, Any]:
    try:
        value = wire.decode_value(line, STORED_LIMITS)
    except ValueError as error:
        raise _invalid_line(number, f"is not valid JSON: {error}") from error
    except PlexusError as error:
        raise _invalid_line(number, f"is invalid: {error.message}") from error
    if not isinstance(value, dict):
        raise _invalid_line(number, "is not a JSON object")
    return value


def _check_header(number: int, value: dict[str, Any]) -> dict[str, Any]:
    if value.get("arbor") != FORMAT:
        raise _invalid_line(number, f'is the first, so it must have "arbor": {FORMAT}')
    if not isinstance(value.get("metadata", {}), dict):
        raise _invalid_line(number, "has metadata that is not an object")
    return value


def _check_node(number: int, value: dict[str, Any]) -> dict[str, Any]:
    for name, field in value.items():
        kind = NODE_FIELDS.get(name)
        if kind is None:
            raise _invalid_line(number, f"has the unknown field {name[:64]!r}")
        if field.__class__ is not kind:
            raise _invalid_line(number, f"has a {name!r} of the wrong type")
    if "id" not in value:
        raise _invalid_line(number, "has no id")
    return value


def _new_node(number: int, node: dict[str, Any]) -> NewNode:
    handle = node.get("handle")
    try:
        read = None if handle is None else Handle.parse(handle)
    except InvalidParams as error:
        raise _invalid_line(number, f"is invalid: {error.message}") from error
    return NewNode(node.get("content"), read, node.get("metadata"))


def _invalid_line(number: int, fault: str) -> InvalidParams:
    return InvalidParams(
        f"Line {number} {fault.rstrip('.')}.", code="bad_import", data={"line": number}
    )
