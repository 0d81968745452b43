"""Methods for editor clients such as Claude Code: what they may ask of an editor.

The program offers them as tools with the names that these clients expect
(`substrate.server.ide.tools`). They never write a file, except `save_file` and `reformat_file`,
which a client asks for explicitly.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final
from urllib.parse import unquote

from annotated_types import Ge, Le, Len
from typing_extensions import TypedDict

from activations.ide.document import Document
from activations.ide.events import DocumentInfo, Reveal
from activations.ide.methods.base import EditorActivation, selection_fields
from activations.ide.positions import Position, Range, find_text, range_of
from activations.ide.state import MAX_DOCUMENTS, check_version
from plexus import Content, Context, Image, InvalidParams, NotFound, method
from plexus.context import value_of
from plexus.errors import PlexusError
from plexus.events import ErrorEvent, Terminal

__all__ = ("EditorMethods", "LineCharacter")

#: Seconds that a client waits for checks in progress. Claude Code asks before each of its edits.
DIAGNOSTICS_S: Final = 5.0
#: The session of Python code of editor clients.
SESSION: Final = "ide"
#: URIs in results contain the path as it is: Claude Code compares them so.
FILE: Final = "file://"
NO_EDITOR: Final = "No active editor found"
Number = Annotated[int, Ge(0), Le(2**31)]


class LineCharacter(TypedDict):
    """A position: line and UTF-16 character, both from 0."""

    line: int
    character: int


class EditorMethods(EditorActivation):
    """What a connected program does with the editor."""

    @method(title="Show a file", destructive=False, open_world=False)
    async def open_file(
        self,
        path: str,
        preview: bool = False,
        start_text: str | None = None,
        end_text: str | None = None,
        select_to_end_of_line: bool = False,
        make_frontmost: bool = True,
        start_line: Number | None = None,
        end_line: Number | None = None,
    ) -> dict[str, Any]:
        """Open a file in the editor and select a part of it. Returns path, language and lines.

        Args:
            path: File in the workspace.
            preview: Whether it is shown only for a moment.
            start_text: Where the selection starts.
            end_text: Where it ends. Default: the end of start_text.
            select_to_end_of_line: Whether the selection continues to the end of its line.
            make_frontmost: Whether it replaces the active document.
            start_line: First selected line, from 1.
            end_line: Last selected line.
        """
        document = await self.state.open(path, activate=make_frontmost, keep=make_frontmost)
        document.formatter = self.formatters.name_for(document.path)
        if document.path not in self.state.diagnostics:
            self.checks.request(document.path)
        part = _part(document, start_text, end_text, start_line, end_line)
        if part is not None and select_to_end_of_line:
            line_end = range_of(document.text, (part.end.line, 2**31), (part.end.line, 2**31))
            part = Range(part.start, line_end.end)
        if part is not None:
            document.selection = part
            self.state.changed(document)
        if make_frontmost:
            shown = None if part is None else part.as_json()
            self.state.changes.notify(Reveal(document.path, shown, preview))
            self.schedule_selection()
        info = self.state.info(document)
        return {
            "success": True,
            "filePath": self.workspace.absolute(document.path),
            "languageId": info.language,
            "lineCount": info.lines,
            "frontmost": make_frontmost,
        }

    @method(title="Show several files", destructive=False, open_world=False)
    async def open_files(self, paths: Annotated[list[str], Len(1, MAX_DOCUMENTS)]) -> list[str]:
        """Open files in the editor. Returns their paths.

        Args:
            paths: Files in the workspace.
        """
        found = [await self.state.open(each, activate=False) for each in paths]
        self.state.activate(found[-1])
        return [self.workspace.absolute(each.path) for each in found]

    @method(title="Read the selection", read_only=True, open_world=False)
    async def get_selection(self) -> dict[str, Any]:
        """Return the selected text in the active document, and its range."""
        return self._selection_in(self.state.active)

    @method(title="Read the last selection", read_only=True, open_world=False)
    async def get_latest_selection(self) -> dict[str, Any]:
        """Return the last text that was selected, even if its document is not active any more."""
        return self._selection_in(self.state.latest or self.state.active)

    def _selection_in(self, path: str | None) -> dict[str, Any]:
        document = self.state.documents.get(path or "")
        if document is None:
            return {"success": False, "message": NO_EDITOR}
        part = document.selection or Range(Position(0, 0), Position(0, 0))
        path = self.workspace.absolute(document.path)
        return {"success": True} | selection_fields(path, document, part)

    @method(title="Set the selection", destructive=False, open_world=False)
    async def set_selection(
        self, start: LineCharacter, end: LineCharacter, path: str | None = None
    ) -> DocumentInfo:
        """Select a range of a document.

        Args:
            start: Start of the range.
            end: Its end, which is not included.
            path: The document. Default: the active one.
        """
        document = await self._document(path)
        return self.set_range(
            document, (start["line"], start["character"]), (end["line"], end["character"])
        )

    @method(title="Read the cursor position", read_only=True, open_world=False)
    async def get_cursor(self, path: str | None = None) -> dict[str, Any]:
        """Return the position of the cursor in a document.

        Args:
            path: The document. Default: the active one.
        """
        document = await self._document(path)
        line, character = document.cursor
        absolute = self.workspace.absolute(document.path)
        return {"file_path": absolute, "line": line, "character": character}

    @method(title="Move the cursor", destructive=False, open_world=False)
    async def set_cursor(
        self, line: Number, character: Number = 0, path: str | None = None
    ) -> dict[str, Any]:
        """Move the cursor in a document.

        Args:
            line: Line, from 0.
            character: UTF-16 character in the line, from 0.
            path: The document. Default: the active one.
        """
        document = await self._document(path)
        self.set_range(document, (line, character), (line, character))
        return await self.get_cursor(document.path)

    @method(title="List open documents", read_only=True, open_world=False)
    async def open_editors(self) -> list[dict[str, Any]]:
        """List the documents that are open in the editor."""
        return [
            {
                "file_path": self.workspace.absolute(each.path),
                "uri": (self.workspace.folder / each.path).as_uri(),
                "active": each.path == self.state.active,
                "name": each.path.rpartition("/")[2],
                "language": each.language,
                "dirty": each.is_dirty,
            }
            for each in self.state.documents.values()
        ]

    @method(title="List workspace folders", read_only=True, open_world=False)
    async def workspace_folders(self) -> dict[str, Any]:
        """Return the folder of the workspace."""
        folder = self.workspace.folder
        entry = {"name": self.workspace.name, "uri": folder.as_uri(), "path": str(folder)}
        return {"success": True, "folders": [entry], "rootPath": str(folder)}

    @method(title="Read a file", read_only=True, open_world=False)
    async def read_file(self, path: str) -> str:
        """Return the text of a file of the workspace as it is on the disk.

        Args:
            path: File in the workspace.
        """
        name = await self.state.resolve(path)
        return (await asyncio.to_thread(self.workspace.read, name)).text

    # --- diagnostics --------------------------------------------------------------------------

    @method(title="List diagnostics", deadline_s=60.0, read_only=True, open_world=False)
    async def diagnostics(self, path: str | None = None) -> list[dict[str, Any]]:
        """Return what checkers such as ruff, mypy, tsc and eslint report.

        Args:
            path: File, or its `file://` URI. Default: all open documents.
        """
        names = list(self.state.documents) if path is None else [await self._path_of(path)]
        checked = await asyncio.gather(*(self.checks.run(each, DIAGNOSTICS_S) for each in names))
        found = []
        for name, new in zip(names, checked, strict=True):
            result = new or self.state.diagnostics.get(name)
            note = None if result is None else result.note
            if new is None:
                note = "The check takes longer; its result is not known yet."
            absolute = self.workspace.absolute(name)
            found.append(
                {
                    "path": name,
                    "file_path": absolute,
                    "uri": path if path is not None and _is_uri(path) else f"{FILE}{absolute}",
                    "diagnostics": [] if result is None else result.diagnostics,
                    "more": 0 if result is None else result.more,
                    "note": note,
                }
            )
        return found

    async def _path_of(self, path: str) -> str:
        """Resolve a path or a `file://` URI of this machine. Raises InvalidParams."""
        if not _is_uri(path):
            return await self.state.resolve(path)
        text = path.removeprefix(FILE).removeprefix("localhost")
        if not path.startswith(FILE) or not text.startswith("/"):
            raise InvalidParams.at("path", "must be a path or a file:// URI of this machine")
        # Claude Code puts the path into the URI as it is; others encode it, as the standard says.
        with contextlib.suppress(InvalidParams):
            name = await self.state.resolve(text)
            if await asyncio.to_thread(self.workspace.exists, name):
                return name
        return await self.state.resolve(unquote(text))

    # --- saving -------------------------------------------------------------------------------

    @method(title="Check for unsaved changes", read_only=True, open_world=False)
    async def document_dirty(self, path: str) -> dict[str, Any]:
        """Return whether a document has unsaved changes.

        Args:
            path: The document.
        """
        try:
            document = await self.state.find(path)
        except (NotFound, InvalidParams):
            return {"success": False, "message": f"Document not open: {path[:500]}"}
        absolute = self.workspace.absolute(document.path)
        return {
            "success": True,
            "filePath": absolute,
            "isDirty": document.is_dirty,
            "isUntitled": False,
        }

    @method(title="Save an open file", destructive=True, open_world=False)
    async def save_file(self, path: str) -> dict[str, Any]:
        """Save an open document. Returns whether it was saved, and why not.

        Args:
            path: The document.
        """
        try:
            document = await self.state.find(path)
        except (NotFound, InvalidParams):
            return {"success": False, "message": f"Document not open: {path[:500]}"}
        absolute = self.workspace.absolute(document.path)
        try:
            await self.state.save(document)
        except PlexusError as error:
            return {
                "success": False,
                "filePath": absolute,
                "saved": False,
                "message": error.message,
            }
        self.checks.request(document.path)
        saved = {"success": True, "filePath": absolute, "saved": True}
        return saved | {"message": "Document saved successfully"}

    @method(title="Format a file", destructive=True, open_world=False)
    async def reformat_file(self, path: str) -> dict[str, Any]:
        """Format a file with the formatter of its type, and save it.

        A file with unsaved changes or that another program has changed is left as it is.

        Args:
            path: File in the workspace.
        """
        name = await self.state.resolve(path)
        document = self.state.documents.get(name)
        if document is not None and document.is_dirty:
            raise InvalidParams(f"{name} has unsaved changes in the editor. Save it first.")
        file = await asyncio.to_thread(self.workspace.read, name)
        text = await self.formatters.format(name, file.text)
        if document is not None:
            check_version(document, document.version)
        if text != file.text:
            await asyncio.to_thread(self.workspace.write, name, text, file.digest)
            if document is not None and not document.is_dirty:
                await self.state.open(name, reload=True, activate=False)
            self.checks.request(name)
        absolute = self.workspace.absolute(name)
        return {"success": True, "filePath": absolute, "changed": text != file.text}

    # --- code ---------------------------------------------------------------------------------

    @method(
        title="Execute code",
        deadline_s=None,
        restart="never",
        scope="python",
        destructive=True,
        open_world=True,
    )
    async def execute_code(
        self, code: Annotated[str, Len(1)], *, ctx: Context
    ) -> AsyncIterator[Content | Image]:
        """Execute Python code in a session that keeps its variables. Returns output and pictures.

        Args:
            code: Python code.
        """
        call = ctx.call("python.evaluate", expression=code, session=SESSION)
        async for event in call:
            if isinstance(event, Image):
                yield event
            elif isinstance(event, ErrorEvent):
                value_of(event)
            elif not isinstance(event, Terminal) and (text := event.as_text()):
                yield Content(text)

    async def _document(self, path: str | None) -> Document:
        """Return an open document, by default the active one. Raises NotFound."""
        if path is not None:
            return await self.state.open(path, activate=False)
        document = self.state.documents.get(self.state.active or "")
        if document is None:
            raise NotFound(f"{NO_EDITOR}. Open a file first.")
        return document


def _part(
    document: Document,
    start_text: str | None,
    end_text: str | None,
    start_line: int | None,
    end_line: int | None,
) -> Range | None:
    """Return the range that a client asks to select; None if there is none."""
    text = document.text
    if start_line is not None:
        first = max(start_line - 1, 0)
        last = max((start_line if end_line is None else end_line) - 1, first)
        return range_of(text, (first, 0), (last, 2**31))
    start = None if start_text is None else find_text(text, start_text)
    if start is None or start_text is None:
        return None
    end = None
    if end_text is not None:
        end = find_text(text, end_text, text.find(start_text) + len(start_text))
    return Range(start.start, start.end if end is None else end.end)


def _is_uri(path: str) -> bool:
    return "://" in path
