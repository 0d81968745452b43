"""The tools of the editor: exact names, arguments and answers, over a real connection."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from editor_client import EditorClient, connected, editor_server
from network import Server

from substrate.server.ide.tools import EDITOR_TOOLS

pytestmark = pytest.mark.timeout(120)

TEXT = "import os\nx = 1\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tools")
    place = folder / "work" / ".venv" / "bin"
    place.mkdir(parents=True)
    (place / "ruff").symlink_to(Path(sys.executable).parent / "ruff")
    (folder / "work" / "ruff.toml").write_text('lint.select = ["F"]\n')
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    # Not its findings: starting it takes longer than the tools.
    settings = {"SUBSTRATE_IDE_CHECKERS": "ruff", "VIRTUAL_ENV": sys.prefix}  # with matplotlib
    with editor_server(folder, settings=settings) as running:
        yield running


@pytest.fixture
def work(folder: Path) -> Path:
    (folder / "work" / "a.py").write_text(TEXT)
    (folder / "work" / "b.txt").write_text("b\n")
    return folder / "work"


@pytest.fixture
def peer(folder: Path, server: Server) -> Iterator[EditorClient]:
    assert server.process.poll() is None
    with connected(folder) as peer:
        yield peer


def test_the_list_has_every_tool_with_a_closed_set_of_known_arguments(peer: EditorClient) -> None:
    tools = {each["name"]: each for each in peer.request("tools/list")["result"]["tools"]}
    assert sorted(tools) == sorted(each.name for each in EDITOR_TOOLS)
    for tool in tools.values():
        schema = tool["inputSchema"]
        assert schema["type"] == "object"
        assert set(schema["required"]) <= set(schema["properties"])
        assert tool["description"].endswith(".")
    diff = tools["openDiff"]["inputSchema"]
    assert diff["required"] == ["old_file_path", "new_file_contents"]


def test_a_file_is_opened_selected_and_listed(peer: EditorClient, work: Path) -> None:
    path = str(work / "a.py")
    opened = {"preview": False, "selectToEndOfLine": False, "startText": "import", "endText": "x"}
    assert peer.tool("openFile", filePath=path, **opened) == [f"Opened file: {path}"]
    selected = {
        "success": True,
        "text": "import os\nx",
        "filePath": path,
        "fileUrl": f"file://{path}",
        "selection": {
            "start": {"line": 0, "character": 0},
            "end": {"line": 1, "character": 1},
            "isEmpty": False,
        },
    }
    assert peer.json("getCurrentSelection") == selected
    assert peer.json("getLatestSelection") == selected
    assert peer.json("get_selection") == selected
    # As Claude Code opens a file before it changes it.
    quiet = {"startText": "", "endText": "", "makeFrontmost": False, "preview": False}
    described = peer.json("openFile", filePath=str(work / "b.txt"), **quiet)
    assert described == {
        "success": True,
        "filePath": str(work / "b.txt"),
        "languageId": "plaintext",
        "lineCount": 2,
    }
    first, second = peer.json("getOpenEditors")["tabs"]
    assert first == {
        "uri": f"file://{path}",
        "isActive": True,
        "label": "a.py",
        "languageId": "python",
        "isDirty": False,
    }
    assert (second["label"], second["isActive"]) == ("b.txt", False)
    assert peer.json("list_opened_files") == {"files": [path, str(work / "b.txt")]}
    assert peer.tool("get_all_opened_file_paths") == [f"{path}\n{work / 'b.txt'}"]
    assert peer.json("open_files", file_paths=["b.txt"]) == [str(work / "b.txt")]
    assert peer.tool("open_file", path="a.py") == [f"Opened file: {path}"]


def test_the_workspace_is_the_folder_of_the_server(peer: EditorClient, work: Path) -> None:
    assert peer.json("getWorkspaceFolders") == {
        "success": True,
        "folders": [{"name": "work", "uri": f"file://{work}", "path": str(work)}],
        "rootPath": str(work),
    }
    assert peer.tool("read_file", path="a.py") == [TEXT]
    assert "outside the workspace" in peer.failure("read_file", path="../secret")
    assert "No file" in peer.failure("read_file", path="missing")


def test_the_cursor_is_read_and_moved(peer: EditorClient, work: Path) -> None:
    path = str(work / "a.py")
    peer.tool("open_file", path=path)
    assert peer.json("set_cursor_position", line=1, column=2) == {
        "file_path": path,
        "line": 1,
        "character": 2,
    }
    assert peer.json("get_cursor_position", file_path=path)["character"] == 2
    position = {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 6}}
    assert peer.json("set_selection", **position)["path"] == "a.py"
    assert peer.json("getCurrentSelection")["text"] == "import"


def test_diagnostics_have_the_form_of_each_family(peer: EditorClient, work: Path) -> None:
    uri = f"file://{work / 'a.py'}"
    [file] = peer.json("getDiagnostics", uri=uri)
    assert file["uri"] == uri
    [found] = file["diagnostics"]
    assert found == {
        "message": found["message"],
        "severity": "Warning",
        "range": {"start": {"line": 0, "character": 7}, "end": {"line": 0, "character": 9}},
        "source": "ruff",
        "code": "F401",
    }
    assert peer.json("get_diagnostics", path="a.py") == {
        "diagnostics": [
            {
                "file_path": str(work / "a.py"),
                "line": 1,
                "column": 8,
                "severity": "WARNING",
                "message": found["message"],
            }
        ]
    }
    # Nothing checks it, which is reported and not an empty list.
    [file] = peer.json("getDiagnostics", uri=f"file://{work / 'b.txt'}")
    [note] = file["diagnostics"]
    assert (note["severity"], note["source"]) == ("Hint", "substrate")
    assert note["message"] == "There is no checker for plaintext files."
    peer.tool("open_file", path="a.py")
    assert uri in {each["uri"] for each in peer.json("getDiagnostics")}


def test_a_document_is_saved_and_formatted(peer: EditorClient, work: Path, server: Server) -> None:
    path = str(work / "a.py")
    missing = {"success": False, "message": f"Document not open: {work / 'c.py'}"}
    assert peer.json("checkDocumentDirty", filePath=str(work / "c.py")) == missing
    assert peer.json("saveDocument", filePath=str(work / "c.py")) == missing
    peer.tool("open_file", path=path)
    state = {"success": True, "filePath": path, "isUntitled": False}
    assert peer.json("checkDocumentDirty", filePath=path) == state | {"isDirty": False}
    with server.call("ide.read_document", {"path": "a.py"}) as response:
        read: dict[str, Any] = json.loads(response.read())["result"]["terminal"]["result"]
    edited = {"path": "a.py", "text": "y=2\n", "version": read["document"]["version"]}
    with server.call("ide.edit_document", edited) as response:
        response.read()
    assert peer.json("checkDocumentDirty", filePath=path) == state | {"isDirty": True}
    assert "unsaved changes" in peer.failure("reformat_file", path=path)
    saved = {"success": True, "filePath": path, "saved": True}
    message = {"message": "Document saved successfully"}
    assert peer.json("saveDocument", filePath=path) == saved | message
    assert (work / "a.py").read_text() == "y=2\n"
    formatted = {"success": True, "filePath": path, "changed": True}
    assert peer.json("reformat_file", file_path=path) == formatted
    assert (work / "a.py").read_text() == "y = 2\n"


def test_code_is_executed_in_a_session_that_keeps_its_variables(peer: EditorClient) -> None:
    assert peer.tool("executeCode", code="value = 41\nprint('printed')") == ["printed\n"]
    assert peer.tool("executeCode", code="value + 1") == ["42"]
    assert "ZeroDivisionError" in peer.failure("executeCode", code="1 / 0")
    assert peer.tool("executeCode", code="value") == ["41"]


def test_executed_code_returns_its_figures_as_pictures_after_its_text(peer: EditorClient) -> None:
    start = "import matplotlib.pyplot as plt\nheights = [1, 3, 2]\nprint('before')\n"
    first = blocks(peer, start + "plt.plot(heights)\nplt.show()\nprint('after')\n")
    # The session has kept the module and the values.
    second = blocks(peer, "plt.bar(range(3), heights)\nplt.show()\nprint(sum(heights))")
    pictures = []
    for found, text in ((first, "before\nafter\n"), (second, "6\n")):
        assert [(each["type"], each.get("text")) for each in found] == [
            ("text", text),
            ("image", None),
        ]
        picture = found[1]
        pictures.append(picture["data"])
        assert picture["mimeType"] == "image/png"
        data = base64.b64decode(picture["data"], validate=True)
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert data.endswith(b"IEND\xaeB`\x82"), "the whole picture"
    assert pictures[0] != pictures[1]


def blocks(peer: EditorClient, code: str) -> list[dict[str, Any]]:
    result = peer.answer(peer.start_tool("executeCode", code=code))["result"]
    assert result["isError"] is False, result
    found: list[dict[str, Any]] = result["content"]
    return found


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("openFile", {}),
        ("openFile", {"filePath": 7}),
        ("openFile", {"filePath": "a.py", "preview": "yes"}),
        ("set_selection", {"start": {"line": -1, "character": 0}, "end": {}}),
        ("executeCode", {"code": ""}),
        ("open_files", {"file_paths": []}),
        ("getDiagnostics", {"uri": "http://example.org/a"}),
    ],
)
def test_wrong_arguments_are_an_error_that_names_them(
    peer: EditorClient, name: str, arguments: dict[str, Any]
) -> None:
    answer = peer.answer(peer.start_tool(name, **arguments))
    text = json.dumps(answer)
    assert answer.get("result", {"isError": True})["isError"] is True
    assert any(part in text for part in ("path", "filePath", "start", "code", "uri")), text


def test_arguments_that_are_null_or_of_another_editor_are_ignored(
    peer: EditorClient, work: Path
) -> None:
    given = {"startText": None, "tabSize": 4, "workspace": None}
    assert peer.tool("openFile", filePath=str(work / "a.py"), **given)[0].startswith("Opened file")
