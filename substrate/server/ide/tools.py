"""The tools of an editor: names, arguments and forms of results that editor clients expect.

Two families of clients are served. Claude Code and the editors that it knows use `openDiff`,
`getDiagnostics` and the like; others use names such as `open_file` and `get_cursor_position`. Every
tool is one row, and its work is done by a method of `ide`.
"""

from __future__ import annotations

from typing import Any, Final

from mcp_view.editor import EditorTool
from plexus.rpc import wire

__all__ = ("EDITOR_TOOLS",)

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
NUMBER: Final[Schema] = {"type": "integer", "minimum": 0}
POSITION: Final[Schema] = {
    "type": "object",
    "properties": {"line": NUMBER, "character": NUMBER},
    "required": ["line", "character"],
}
#: The range of a note about a file that could not be checked.
START: Final = {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 0}}
#: The severities in the form of the second family.
UPPER: Final = {"Error": "ERROR", "Warning": "WARNING", "Info": "INFO", "Hint": "WEAK_WARNING"}


def _schema(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


def _json(value: Any) -> list[str]:
    return [wire.encode(value).decode()]


def _review(review: Any) -> list[str]:
    """The final text of an accepted change, which the client writes; or a rejection."""
    if review.outcome in ("accepted", "edited"):
        return ["FILE_SAVED", review.text]
    # Clients read the first block only, so a reason may follow.
    return ["DIFF_REJECTED", *([review.reason] if review.reason else ())]


def _opened(result: dict[str, Any]) -> list[str]:
    return [f"Opened file: {result['filePath']}"]


def _tabs(documents: list[dict[str, Any]]) -> list[str]:
    return _json({"tabs": [_tab(each) for each in documents]})


def _tab(document: dict[str, Any]) -> dict[str, Any]:
    return {
        "uri": document["uri"],
        "isActive": document["active"],
        "label": document["name"],
        "languageId": document["language"],
        "isDirty": document["dirty"],
    }


def _diagnostics(files: list[dict[str, Any]]) -> list[str]:
    """One JSON array of files. Those that were not checked contain a note, not nothing."""
    return _json(
        [
            {"uri": each["uri"], "diagnostics": [*map(_found, each["diagnostics"]), *_note(each)]}
            for each in files
        ]
    )


def _found(each: dict[str, Any]) -> dict[str, Any]:
    names = ("message", "severity", "range", "source", "code")
    return {name: each[name] for name in names if each[name] is not None}


def _note(file: dict[str, Any]) -> list[dict[str, Any]]:
    notes = [] if file["note"] is None else [file["note"]]
    if file["more"]:
        notes.append(f"{file['more']} more diagnostics are not listed.")
    return [
        {"message": note, "severity": "Hint", "range": START, "source": "substrate"}
        for note in notes
    ]


def _plain_diagnostics(files: list[dict[str, Any]]) -> list[str]:
    """The same for the second family: one list of all findings, with lines from 1."""
    found = [
        {
            "file_path": file["file_path"],
            "line": each["range"]["start"]["line"] + 1,
            "column": each["range"]["start"]["character"] + 1,
            "severity": UPPER[each["severity"]],
            "message": each["message"],
        }
        for file in files
        for each in [*file["diagnostics"], *_note(file)]
    ]
    return _json({"diagnostics": found})


def _paths(documents: list[dict[str, Any]]) -> list[str]:
    return _json({"files": [each["file_path"] for each in documents]})


def _selected(result: Any) -> list[str]:
    return _json({"path": result.path, "selection": result.selection})


SAME: Final = {"path": "path"}
DIFF_ARGUMENTS: Final = {
    each: each for each in ("old_file_path", "new_file_path", "new_file_contents", "tab_name")
}

EDITOR_TOOLS: Final = (
    EditorTool(
        "openDiff",
        "ide.open_diff",
        "Open a diff for a person to review, and wait for the answer.",
        _schema(
            ("old_file_path", "new_file_contents"),
            old_file_path=TEXT | {"description": "File in the workspace."},
            new_file_path=TEXT | {"description": "Where the content will be written."},
            new_file_contents=TEXT | {"description": "The proposed content."},
            tab_name=TEXT | {"description": "Title of the diff."},
        ),
        DIFF_ARGUMENTS,
        _review,
    ),
    EditorTool(
        "close_tab",
        "ide.close_tab",
        "Close a diff by its title.",
        _schema(("tab_name",), tab_name=TEXT),
        {"tab_name": "tab_name"},
        lambda _: ["TAB_CLOSED"],
    ),
    EditorTool(
        "closeAllDiffTabs",
        "ide.close_all_diff_tabs",
        "Close all diffs that this client has opened.",
        _schema(),
        {},
        lambda count: [f"CLOSED_{count}_DIFF_TABS"],
    ),
    EditorTool(
        "openFile",
        "ide.open_file",
        "Open a file in the editor, and select a part of it.",
        _schema(
            ("filePath",),
            filePath=TEXT | {"description": "Path of the file."},
            preview=FLAG | {"default": False},
            startText=TEXT | {"description": "Where the selection starts."},
            endText=TEXT | {"description": "Where the selection ends."},
            selectToEndOfLine=FLAG | {"default": False},
            makeFrontmost=FLAG | {"default": True},
            startLine=NUMBER | {"description": "First selected line, from 1."},
            endLine=NUMBER | {"description": "Last selected line."},
        ),
        {
            "filePath": "path",
            "preview": "preview",
            "startText": "start_text",
            "endText": "end_text",
            "selectToEndOfLine": "select_to_end_of_line",
            "makeFrontmost": "make_frontmost",
            "startLine": "start_line",
            "endLine": "end_line",
        },
        lambda result: _opened(result) if result["frontmost"] else _json(_without(result)),
    ),
    EditorTool(
        "getCurrentSelection",
        "ide.get_selection",
        "Return the selection in the active editor.",
        _schema(),
        {},
        _json,
    ),
    EditorTool(
        "getLatestSelection",
        "ide.get_latest_selection",
        "Return the last selection, even if its editor is not active.",
        _schema(),
        {},
        _json,
    ),
    EditorTool(
        "getOpenEditors",
        "ide.open_editors",
        "List the open editors.",
        _schema(),
        {},
        _tabs,
    ),
    EditorTool(
        "getWorkspaceFolders",
        "ide.workspace_folders",
        "Return the folders of the workspace.",
        _schema(),
        {},
        _json,
    ),
    EditorTool(
        "getDiagnostics",
        "ide.diagnostics",
        "Return what the checkers of the project report for a file, or for all open files.",
        _schema(uri=TEXT | {"description": "file:// URI. Default: all open files."}),
        {"uri": "path"},
        _diagnostics,
    ),
    EditorTool(
        "checkDocumentDirty",
        "ide.document_dirty",
        "Return whether a document has unsaved changes.",
        _schema(("filePath",), filePath=TEXT),
        {"filePath": "path"},
        _json,
    ),
    EditorTool(
        "saveDocument",
        "ide.save_file",
        "Save an open document.",
        _schema(("filePath",), filePath=TEXT),
        {"filePath": "path"},
        _json,
    ),
    EditorTool(
        "executeCode",
        "ide.execute_code",
        "Execute Python code in a session that keeps its variables.",
        _schema(("code",), code=TEXT | {"description": "Python code."}),
        {"code": "code"},
    ),
    EditorTool(
        "open_file",
        "ide.open_file",
        "Open a file in the editor.",
        _schema(("path",), path=TEXT),
        {"path": "path", "file_path": "path"},
        _opened,
    ),
    EditorTool(
        "open_files",
        "ide.open_files",
        "Open files in the editor.",
        _schema(("file_paths",), file_paths={"type": "array", "items": TEXT}),
        {"file_paths": "paths"},
        _json,
    ),
    EditorTool(
        "list_opened_files",
        "ide.open_editors",
        "List the files that are open in the editor.",
        _schema(),
        {},
        _paths,
    ),
    EditorTool(
        "get_all_opened_file_paths",
        "ide.open_editors",
        "List the files that are open in the editor.",
        _schema(),
        {},
        lambda documents: ["\n".join(each["file_path"] for each in documents)],
    ),
    EditorTool(
        "reformat_file",
        "ide.reformat_file",
        "Format a file with the formatter of its type, and save it.",
        _schema(("path",), path=TEXT),
        {"path": "path", "file_path": "path"},
        _json,
    ),
    EditorTool(
        "get_cursor_position",
        "ide.get_cursor",
        "Return the position of the cursor, by default in the active editor.",
        _schema(path=TEXT),
        {"path": "path", "file_path": "path"},
        _json,
    ),
    EditorTool(
        "set_cursor_position",
        "ide.set_cursor",
        "Move the cursor; lines and characters count from 0.",
        _schema(("line",), line=NUMBER, character=NUMBER, path=TEXT),
        {"line": "line", "character": "character", "column": "character"}
        | {"path": "path", "file_path": "path"},
        _json,
    ),
    EditorTool(
        "get_selection",
        "ide.get_selection",
        "Return the selection in the active editor.",
        _schema(),
        {},
        _json,
    ),
    EditorTool(
        "set_selection",
        "ide.set_selection",
        "Select a range; lines and characters count from 0, and the end is not included.",
        _schema(("start", "end"), start=POSITION, end=POSITION, path=TEXT),
        {"start": "start", "end": "end", "path": "path", "file_path": "path"},
        _selected,
    ),
    EditorTool(
        "get_diagnostics",
        "ide.diagnostics",
        "Return what the checkers of the project report for a file, or for all open files.",
        _schema(path=TEXT),
        {"path": "path", "file_path": "path", "uri": "path"},
        _plain_diagnostics,
    ),
    EditorTool(
        "read_file",
        "ide.read_file",
        "Return the text of a file of the workspace.",
        _schema(("path",), path=TEXT),
        {"path": "path", "file_path": "path"},
        lambda text: [text],
    ),
)


def _without(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "frontmost"}
