"""Methods for people: folders, documents, the selection, and what clients are connected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from annotated_types import Ge, Le, Len

from activations.ide.document import Document
from activations.ide.events import (
    DiffClosed,
    DiffInfo,
    DocumentClosed,
    DocumentInfo,
    FileDiagnostics,
    IdeStatus,
    Mentioned,
    Reveal,
    SnapshotEnd,
)
from activations.ide.methods.base import EditorActivation
from activations.ide.state import check_version
from activations.ide.workspace import DOCUMENT_BYTES, FolderList, check_size
from plexus import InvalidParams, Principal, method
from plexus.errors import Unsupported

__all__ = ("DocumentMethods",)

Line = Annotated[int, Ge(0), Le(2**31)]


class DocumentMethods(EditorActivation):
    """What a person does with files."""

    @method(title="Show the state of the IDE", read_only=True, open_world=False, name="status")
    async def show_status(self) -> IdeStatus:
        """Report whether programs can connect to the editor, and which ones are connected."""
        return self.status()

    @method(title="Switch the IDE on or off", destructive=False, open_world=False)
    async def switch(self, on: bool) -> IdeStatus:
        """Accept connections of editor clients such as Claude Code, or end them.

        While it is on, a lock file lets programs of the same user find the server.

        Args:
            on: true to listen and write the lock file, false to disconnect all clients.
        """
        endpoint = self.endpoint
        if endpoint is None:
            raise Unsupported(
                "There is no server that editor clients could connect to. Start one with "
                "`substrate --ide`."
            )
        if on:
            await endpoint.start()
        else:
            await endpoint.stop()
        return self.status()

    @method(title="Watch the IDE", deadline_s=None, read_only=True, open_world=False)
    async def watch(
        self, *, principal: Principal
    ) -> AsyncIterator[
        IdeStatus
        | DocumentInfo
        | DocumentClosed
        | DiffInfo
        | DiffClosed
        | FileDiagnostics
        | Mentioned
        | Reveal
        | SnapshotEnd
    ]:
        """Stream the state of the editor, then every change of it."""
        with self.state.changes.subscribe(principal.name) as subscription:
            self.add_watcher()
            try:
                yield self.status()
                for event in self.state.snapshot(principal.name):
                    yield event
                while True:
                    for change in await subscription.take():
                        yield change
            finally:
                self.remove_watcher()

    # --- folders ------------------------------------------------------------------------------

    @method(title="List a folder", read_only=True, open_world=False)
    async def list_folder(self, path: str = "", ignored: bool = False) -> FolderList:
        """List a folder of the workspace, folders first.

        Args:
            path: Folder, relative to the workspace. Default: the workspace.
            ignored: Whether to include what `.gitignore` excludes.
        """
        found = await self.state.resolve(path)
        return await asyncio.to_thread(self.workspace.list_folder, found, ignored=ignored)

    @method(title="Find files by name", read_only=True, open_world=False)
    async def find_files(
        self, query: Annotated[str, Len(1, 200)], limit: Annotated[int, Ge(1), Le(500)] = 50
    ) -> dict[str, Any]:
        """Find files whose paths contain the letters of a query in order, best first.

        Args:
            query: Letters of the path, such as "evact" for "evaluate/activation.py".
            limit: Maximum number of files.
        """
        paths, more = await asyncio.to_thread(self.workspace.find_files, query, limit)
        return {"paths": paths, "more": more}

    # --- documents ----------------------------------------------------------------------------

    @method(title="Open a document", destructive=False, open_world=False)
    async def open_document(
        self, path: str, reload: bool = False, activate: bool = True
    ) -> dict[str, Any]:
        """Open a text file of the workspace in the editor, and return its text.

        Args:
            path: File, relative to the workspace.
            reload: Whether to drop unsaved changes and read the file again.
            activate: Whether to show it in place of the active document.
        """
        document = await self.state.open(path, reload=reload, activate=activate)
        document.formatter = self.formatters.name_for(document.path)
        if document.path not in self.state.diagnostics:
            self.checks.request(document.path)
        return self._with_text(document)

    @method(title="Read a document", read_only=True, open_world=False)
    async def read_document(self, path: str) -> dict[str, Any]:
        """Return the text of an open document, with its unsaved changes."""
        return self._with_text(await self.state.find(path))

    @method(title="Edit a document", destructive=False, open_world=False)
    async def edit_document(self, path: str, text: str, version: int) -> DocumentInfo:
        """Replace the text of an open document. The file is not written before it is saved.

        Args:
            path: The document.
            text: The whole new text.
            version: Version of the text that was edited. An older one is a conflict.
        """
        check_size(text, DOCUMENT_BYTES, "The text")
        document = await self.state.find(path)
        check_version(document, version)
        document.edit(text)
        self.state.changed(document)
        return self.state.info(document)

    @method(title="Save a document", destructive=True, open_world=False)
    async def save_document(
        self, path: str, version: int | None = None, force: bool = False
    ) -> DocumentInfo:
        """Write the text of an open document to its file, and check it.

        Args:
            path: The document.
            version: Version of the text that is to be saved. Default: the current one.
            force: Whether to overwrite what another program has written meanwhile.
        """
        document = await self.state.find(path)
        check_version(document, version)
        await self.state.save(document, force=force)
        self.checks.request(document.path)
        return self.state.info(document)

    @method(title="Revert a document", destructive=True, open_world=False)
    async def revert_document(self, path: str) -> dict[str, Any]:
        """Drop the unsaved changes of a document and read its file again."""
        document = await self.state.find(path)
        document = await self.state.open(document.path, reload=True, activate=False)
        return self._with_text(document)

    @method(title="Close a document", destructive=True, open_world=False)
    async def close_document(self, path: str, discard: bool = False) -> bool:
        """Close a document. Returns whether it was open.

        Args:
            path: The document.
            discard: Whether to drop unsaved changes.
        """
        name = await self.state.resolve(path)
        document = self.state.documents.get(name)
        if document is None:
            return False
        self.state.close(document, discard=discard)
        return True

    @method(title="Show a document", destructive=False, open_world=False)
    async def activate_document(self, path: str) -> DocumentInfo:
        """Make an open document the active one."""
        document = await self.state.find(path)
        self.state.activate(document)
        self.schedule_selection()
        return self.state.info(document)

    @method(title="Format a document", destructive=False, open_world=False)
    async def format_document(self, path: str) -> dict[str, Any]:
        """Format the text of an open document. The file is not written before it is saved."""
        document = await self.state.find(path)
        version = document.version
        text = await self.formatters.format(document.path, document.text)
        check_version(document, version)
        changed = text != document.text
        if changed:
            check_size(text, DOCUMENT_BYTES, "The formatted text")
            document.edit(text)
            self.state.changed(document)
        return self._with_text(document) | {"changed": changed}

    @method(title="Check a document", read_only=True, open_world=False)
    async def check(self, path: str | None = None) -> bool:
        """Run the checkers of a document again. Returns whether there are any.

        The results arrive in `ide.watch`.

        Args:
            path: The document. Default: all open ones.
        """
        paths = list(self.state.documents)
        if path is not None:
            paths = [(await self.state.find(path)).path]
        requested = [self.checks.request(each) for each in paths]
        return any(requested)

    def _with_text(self, document: Document) -> dict[str, Any]:
        return {"document": self.state.info(document), "text": document.text}

    # --- the selection ------------------------------------------------------------------------

    @method(title="Select text", destructive=False, open_world=False)
    async def select(
        self,
        path: str,
        start_line: Line,
        start_character: Line,
        end_line: Line,
        end_character: Line,
    ) -> DocumentInfo:
        """Select a range of an open document, which connected programs are notified of.

        Lines and UTF-16 characters count from 0; an empty range is a cursor.
        """
        document = await self.state.find(path)
        return self.set_range(document, (start_line, start_character), (end_line, end_character))

    @method(title="Mention a file", destructive=False, open_world=False)
    async def mention(
        self, path: str, line_start: Line | None = None, line_end: Line | None = None
    ) -> int:
        """Mention a file or lines of it to the connected programs. Returns how many there are.

        Args:
            path: File, relative to the workspace.
            line_start: First line, from 0. Default: the whole file.
            line_end: Last line. Default: the first one.
        """
        name = await self.state.resolve(path)
        if not name or not await asyncio.to_thread(self.workspace.exists, name):
            raise InvalidParams.at("path", "is no file of the workspace")
        if line_start is None and line_end is not None:
            raise InvalidParams.at("line_end", "needs line_start")
        last = line_start if line_end is None else line_end
        if line_start is not None and last is not None and last < line_start:
            raise InvalidParams.at("line_end", "is before line_start")
        params: dict[str, Any] = {"filePath": self.workspace.absolute(name)}
        if line_start is not None:  # Claude Code ignores a mention with lines that are null
            params |= {"lineStart": line_start, "lineEnd": last}
        sent = sum([each.notify("at_mentioned", params) for each in self.clients])
        self.state.changes.notify(Mentioned(name, line_start, last, sent))
        return sent
