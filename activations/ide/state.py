"""The state of the editor, shared by all its clients: documents, diffs and diagnostics."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from activations.ide.changes import Change, subject_of
from activations.ide.diff import Diff
from activations.ide.document import Document
from activations.ide.events import (
    DiffClosed,
    DocumentClosed,
    DocumentInfo,
    FileDiagnostics,
    SnapshotEnd,
)
from activations.ide.workspace import TextFile, Workspace
from plexus import Failed, InvalidParams, NotFound
from plexus.errors import Busy, PlexusError
from plexus.latest_changes import LatestChanges

__all__ = ("DISK_CHECK_S", "MAX_DOCUMENTS", "EditorState", "check_version", "now_ms")

#: Open documents: each holds its text in memory.
MAX_DOCUMENTS: Final = 100
#: Diffs that wait for an answer, and answered ones that stay readable.
MAX_DIFFS: Final = 100
MAX_ANSWERED: Final = 50
#: Characters of both texts of all waiting diffs, and of the answered ones.
WAITING_CHARS: Final = 32 * 1024 * 1024
ANSWERED_CHARS: Final = 16 * 1024 * 1024
#: Seconds between the checks of open files while a client watches.
DISK_CHECK_S: Final = 1.0


class EditorState:
    """Open documents, waiting diffs and diagnostics of one workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.changes = LatestChanges[Change](subject_of)
        self.documents: dict[str, Document] = {}
        #: The path of the active document; None if none is open.
        self.active: str | None = None
        #: The path of the document with the last selection that was not empty.
        self.latest: str | None = None
        self.diffs: dict[str, Diff] = {}
        self._answered: OrderedDict[str, Diff] = OrderedDict()
        self.diagnostics: dict[str, FileDiagnostics] = {}

    # --- documents ----------------------------------------------------------------------------

    async def open(
        self, path: str, *, reload: bool = False, activate: bool = True, keep: bool = True
    ) -> Document:
        """Open a document, or return it if it is open. Raises what reading raises, and Busy.

        `keep`: it stays open until a client closes it. Otherwise it may be closed for another one.
        """
        name = await self.resolve(path)
        document = self.documents.get(name)
        if document is None or reload:
            file = await asyncio.to_thread(self.workspace.read, name)
            document = self.documents.get(name)  # it may have been opened meanwhile
            if document is None:
                self._make_room()
                document = self.documents[name] = Document(name, file)
            elif reload:
                document.load(file)
        document.is_kept = document.is_kept or keep
        if activate:
            self.activate(document)
        else:
            self.changed(document)
        return document

    def _make_room(self) -> None:
        """Close the oldest document that need not stay open, if there are too many. Raises Busy.

        Claude Code opens each file that it is about to change, and closes none.
        """
        if len(self.documents) < MAX_DOCUMENTS:
            return
        for document in self.documents.values():
            if not (document.is_kept or document.is_dirty or document.path == self.active):
                self.close(document, discard=False)
                return
        raise Busy(
            f"{MAX_DOCUMENTS} documents are open. Close one first.", data={"limit": MAX_DOCUMENTS}
        )

    async def resolve(self, path: str) -> str:
        """Return a path relative to the workspace. Raises InvalidParams."""
        return await asyncio.to_thread(self.workspace.relative, path)

    async def find(self, path: str) -> Document:
        """Return an open document. Raises NotFound."""
        document = self.documents.get(path) or self.documents.get(await self.resolve(path))
        if document is None:
            raise NotFound(f"{path[:200]!r} is not open. Open it with ide.open_document.")
        return document

    def activate(self, document: Document) -> None:
        """Make a document the active one."""
        before = self.documents.get(self.active or "")
        self.active, document.is_kept = document.path, True
        if before is not None and before is not document:
            self.changed(before)
        self.changed(document)

    def info(self, document: Document) -> DocumentInfo:
        """Return the event with the state of a document."""
        return document.info(active=document.path == self.active)

    def changed(self, document: Document) -> None:
        """Notify the watchers of the state of a document."""
        self.changes.notify(self.info(document))

    async def save(self, document: Document, *, force: bool = False) -> None:
        """Write the text of a document. Raises Failed with the code `conflict`, and others."""
        text, expected = document.text, document.saved_digest
        try:
            digest = await asyncio.to_thread(
                self.workspace.write, document.path, text, expected, force=force
            )
        except PlexusError as error:
            if error.code == "conflict" and isinstance(error.data, dict):
                deleted = error.data.get("reason") == "disk_deleted"
                document.disk = "deleted" if deleted else "changed"
                self.changed(document)
            raise
        document.saved(digest)
        self.changed(document)

    def close(self, document: Document, *, discard: bool) -> None:
        """Close a document. Raises Failed with the code `unsaved`."""
        if document.is_dirty and not discard:
            raise Failed(
                f"{document.path} has unsaved changes. Save it, or close it with discard.",
                code="unsaved",
                data={"path": document.path},
            )
        if self.documents.pop(document.path, None) is None:
            return
        self.diagnostics.pop(document.path, None)
        self.changes.notify(DocumentClosed(document.path))
        if self.latest == document.path:
            self.latest = None
        if self.active == document.path:
            self.active = None
            if self.documents:
                self.activate(next(reversed(self.documents.values())))

    async def check_disk(self) -> list[Document]:
        """Compare open documents with their files; return those that were read again.

        A document without a draft is read again. One with a draft keeps it, and is marked.
        """
        reloaded = []
        for document in list(self.documents.values()):
            file, state = await asyncio.to_thread(self._read_disk, document)
            if self.documents.get(document.path) is not document:
                continue
            if file is not None and file.digest == document.saved_digest:
                state = "same"
            elif file is not None and not document.is_dirty:
                document.load(file)
                reloaded.append(document)
                self.changed(document)
                continue
            if state != document.disk:
                document.disk = (
                    "same" if state == "same" else ("deleted" if state == "deleted" else "changed")
                )
                self.changed(document)
        return reloaded

    def _read_disk(self, document: Document) -> tuple[TextFile | None, str]:
        try:
            return self.workspace.read(document.path), "changed"
        except NotFound:
            return None, "deleted"
        except PlexusError:
            return None, "changed"

    # --- diffs --------------------------------------------------------------------------------

    def add_diff(self, diff: Diff) -> None:
        """Register a diff that waits for an answer. Raises Busy."""
        waiting = sum(each.size for each in self.diffs.values())
        if len(self.diffs) >= MAX_DIFFS or waiting + diff.size > WAITING_CHARS:
            raise Busy(
                f"{len(self.diffs)} changes wait for an answer. Answer one first.",
                data={"limit": MAX_DIFFS},
            )
        self.diffs[diff.id] = diff

    def find_diff(self, diff_id: str, principal: str, *, answered: bool = False) -> Diff:
        """Return a diff of a principal. Raises NotFound."""
        found = self.diffs.get(diff_id)
        if found is None and answered:
            found = self._answered.get(diff_id)
        if found is None or found.principal != principal:
            raise NotFound(
                f"No change {diff_id[:100]!r} waits for an answer. It may have been answered "
                "already; list them with ide.diffs."
            )
        return found

    def waiting(self, principal: str) -> list[Diff]:
        """Return the diffs of a principal that wait, oldest first."""
        return [each for each in self.diffs.values() if each.principal == principal]

    def close_diff(self, diff: Diff, closed: DiffClosed) -> None:
        """Move a diff to the answered ones, and notify its principal."""
        if self.diffs.pop(diff.id, None) is None:
            return
        diff.closed = closed
        self._answered[diff.id] = diff
        size = sum(each.size for each in self._answered.values())
        while len(self._answered) > MAX_ANSWERED or (size > ANSWERED_CHARS and self._answered):
            size -= self._answered.popitem(last=False)[1].size
        self.changes.notify(closed, diff.principal)

    # --- diagnostics --------------------------------------------------------------------------

    def set_diagnostics(self, found: FileDiagnostics) -> None:
        """Store what is known about a file, if it is open, and notify the watchers."""
        if found.path in self.documents:
            self.diagnostics[found.path] = found
            self.changes.notify(found)

    def snapshot(self, principal: str) -> Iterator[Change]:
        """Yield the current state."""
        for document in list(self.documents.values()):
            yield self.info(document)
        for diff in self.waiting(principal):
            yield diff.info()
        yield from list(self.diagnostics.values())
        yield SnapshotEnd()


def now_ms() -> int:
    """Return the time in milliseconds since the epoch."""
    return int(time.time() * 1000)


def check_version(document: Document, version: int | None) -> None:
    """Raise Failed with the code `conflict` if the text was changed since this version."""
    if version is None or version == document.version:
        return
    if version < 0 or version > document.version:
        raise InvalidParams.at("version", f"the current version is {document.version}")
    raise Failed(
        f"{document.path} was changed by another window: its version is {document.version}, not "
        f"{version}. Read it again.",
        code="conflict",
        data={"path": document.path, "version": document.version},
    )
