"""Documents: drafts, saves, conflicts with other programs and other windows, selections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from editor_hub import EVENT_S, Editor, install, open_editor, watching
from hub_calls import OTHER

from activations.ide import Ide
from activations.ide.state import MAX_DOCUMENTS
from activations.ide.workspace import DOCUMENT_BYTES
from plexus import Principal
from plexus.errors import Denied

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub_calls.WAIT_S", EVENT_S)
    monkeypatch.setattr("activations.ide.methods.base.DISK_CHECK_S", 0.05)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


@pytest.fixture
async def editor(tmp_path: Path) -> AsyncIterator[Editor]:
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "b.txt").write_text("two\r\nlines\r\n")
    async with open_editor(tmp_path) as opened:
        yield opened


async def edit(editor: Editor, text: str, version: int = 1) -> dict[str, Any]:
    """Open the document and replace its text."""
    await editor.value("open_document", path="a.txt")
    found: dict[str, Any] = await editor.value(
        "edit_document", path="a.txt", text=text, version=version
    )
    return found


async def test_a_draft_is_written_when_it_is_saved_and_not_before(editor: Editor) -> None:
    edited = await edit(editor, "draft\n")
    assert (edited["dirty"], edited["version"]) == (True, 2)
    assert (editor.folder / "a.txt").read_text() == "one\n"
    saved = await editor.value("save_document", path="a.txt", version=2)
    assert (saved["dirty"], saved["disk"]) == (False, "same")
    assert (editor.folder / "a.txt").read_text() == "draft\n"
    assert (await edit(editor, "one more\n", 2))["dirty"] is True
    assert (await edit(editor, "draft\n", 3))["dirty"] is False  # as it is on the disk


async def test_an_edit_of_an_old_text_is_a_conflict(editor: Editor) -> None:
    await edit(editor, "first window\n")
    error = await editor.error("edit_document", path="a.txt", text="second\n", version=1)
    assert (error.code, error.data) == ("conflict", {"path": "a.txt", "version": 2})
    assert (await editor.error("save_document", path="a.txt", version=1)).code == "conflict"
    ahead = await editor.error("edit_document", path="a.txt", text="x", version=9)
    assert ahead.code == "invalid_params"
    assert (await editor.value("read_document", path="a.txt"))["text"] == "first window\n"


async def test_what_another_program_wrote_is_not_overwritten_unless_it_is_forced(
    editor: Editor,
) -> None:
    await edit(editor, "mine\n")
    (editor.folder / "a.txt").write_text("theirs\n")
    async with watching(editor) as watch:
        await watch.next("document", disk="changed", dirty=True)  # the draft is kept
    error = await editor.error("save_document", path="a.txt")
    assert (error.code, error.data["reason"]) == ("conflict", "disk_changed")
    assert (editor.folder / "a.txt").read_text() == "theirs\n"
    saved = await editor.value("save_file", path="a.txt")
    assert (saved["success"], saved["saved"]) == (False, False)
    await editor.value("save_document", path="a.txt", force=True)
    assert (editor.folder / "a.txt").read_text() == "mine\n"
    (editor.folder / "a.txt").unlink()
    assert (await editor.error("save_document", path="a.txt")).data["reason"] == "disk_deleted"


async def test_a_document_without_a_draft_follows_its_file(editor: Editor) -> None:
    async with watching(editor) as watch:
        await editor.value("open_document", path="a.txt")
        await watch.next("document", version=1)
        (editor.folder / "a.txt").write_text("theirs\n")
        assert (await watch.next("document", version=2)).dirty is False
        (editor.folder / "a.txt").unlink()
        await watch.next("document", disk="deleted")
    assert (await editor.value("read_document", path="a.txt"))["text"] == "theirs\n"


async def test_unsaved_changes_are_dropped_only_on_request(editor: Editor) -> None:
    await edit(editor, "draft\n")
    assert (await editor.error("close_document", path="a.txt")).code == "unsaved"
    reverted = await editor.value("revert_document", path="a.txt")
    assert (reverted["text"], reverted["document"]["dirty"]) == ("one\n", False)
    await edit(editor, "draft\n", 3)
    assert await editor.value("close_document", path="a.txt", discard=True) is True
    assert await editor.value("close_document", path="a.txt") is False
    assert (await editor.error("read_document", path="a.txt")).code == "not_found"


async def test_a_text_that_no_file_can_contain_is_refused(editor: Editor) -> None:
    await editor.value("open_document", path="a.txt")
    for text in ("x" * (DOCUMENT_BYTES + 1), "\ud800"):
        assert (await editor.error("edit_document", path="a.txt", text=text, version=1)).code in (
            "invalid_params",
            "too_big",
        )
    assert (await editor.value("read_document", path="a.txt"))["document"]["version"] == 1


async def test_a_program_may_open_any_number_of_files_and_those_of_people_stay(
    editor: Editor,
) -> None:
    await editor.value("open_document", path="a.txt")
    for number in range(MAX_DOCUMENTS + 10):
        (editor.folder / f"{number}.txt").write_text("x")
        await editor.value("open_file", path=f"{number}.txt", make_frontmost=False)
    names = [each["name"] for each in await editor.value("open_editors")]
    assert len(names) == MAX_DOCUMENTS
    assert names[0] == "a.txt"
    assert names[-1] == f"{MAX_DOCUMENTS + 9}.txt"
    for name in names:
        await editor.value("open_document", path=name)
    (editor.folder / "more.txt").write_text("x")
    error = await editor.error("open_document", path="more.txt")
    assert (error.code, error.data) == ("busy", {"limit": MAX_DOCUMENTS})


async def test_selections_count_utf16_and_stay_inside_the_text(editor: Editor) -> None:
    (editor.folder / "a.txt").write_text("\N{GRINNING FACE}x\nsecond\n")
    await editor.value("open_file", path="a.txt", start_text="x", end_text="sec")
    found = await editor.value("get_selection")
    assert (found["text"], found["selection"]["start"]) == ("x\nsec", {"line": 0, "character": 2})
    await editor.value("open_file", path="a.txt", start_line=2, end_line=2)
    assert (await editor.value("get_selection"))["text"] == "second"
    far = {"line": 2**31, "character": 2**31}
    await editor.value("set_selection", start=far, end={"line": 0, "character": 0})
    assert (await editor.value("get_selection"))["text"] == "\N{GRINNING FACE}x\nsecond\n"
    await editor.value("set_cursor", line=1, character=3)
    assert (await editor.value("get_cursor"))["line"] == 1
    assert (await editor.value("get_selection"))["selection"]["isEmpty"] is True
    wrong = await editor.error("set_selection", start={"line": -1, "character": 0}, end=far)
    assert wrong.code == "invalid_params"


async def test_the_last_selection_outlives_a_change_of_the_active_document(editor: Editor) -> None:
    assert (await editor.value("get_latest_selection"))["success"] is False
    await editor.value("open_document", path="a.txt")
    await editor.value(
        "select", path="a.txt", start_line=0, start_character=0, end_line=0, end_character=3
    )
    await editor.value("open_document", path="b.txt")
    assert (await editor.value("get_selection"))["text"] == ""
    assert (await editor.value("get_latest_selection"))["text"] == "one"
    await editor.value("close_document", path="a.txt")
    assert (await editor.value("get_latest_selection"))["filePath"].endswith("b.txt")


async def test_a_file_is_formatted_by_the_configured_command_and_not_while_it_is_edited(
    tmp_path: Path,
) -> None:
    (tmp_path / "-x.txt").write_text("b\na\n")
    script = tmp_path / "fmt.sh"
    script.write_text('#!/bin/sh\necho "# $1"; sort\n')
    script.chmod(0o755)
    async with open_editor(tmp_path, formatters=(f"txt={script} {{file}}",)) as editor:
        done = await editor.value("reformat_file", path="-x.txt")
        assert done["changed"] is True
        # A name that begins with a dash is no option.
        assert (tmp_path / "-x.txt").read_text() == "# ./-x.txt\na\nb\n"
        opened = await editor.value("open_document", path="-x.txt")
        assert opened["document"]["formatter"] == "fmt.sh"
        await editor.value("edit_document", path="-x.txt", text="c\n", version=1)
        assert "unsaved changes" in (await editor.error("reformat_file", path="-x.txt")).message
        formatted = await editor.value("format_document", path="-x.txt")
        assert (formatted["text"], formatted["document"]["dirty"]) == ("# ./-x.txt\nc\n", True)
        script.write_text("#!/bin/sh\necho wrong >&2; exit 3\n")
        error = await editor.error("format_document", path="-x.txt")
        assert (error.code, error.message) == ("format", "fmt.sh failed: wrong")
    with pytest.raises(ValueError, match="is no formatter"):
        Ide(formatters=("ruff format",))


async def test_python_is_formatted_by_ruff_of_the_project(editor: Editor) -> None:
    (editor.folder / "a.py").write_text("x=1\n")
    assert (await editor.error("reformat_file", path="a.py")).code == "unsupported"
    install(editor.folder, "ruff")
    async with open_editor(editor.folder) as second:
        assert (await second.value("reformat_file", path="a.py"))["changed"] is True
        assert (await second.value("reformat_file", path="a.py"))["changed"] is False
    assert (editor.folder / "a.py").read_text() == "x = 1\n"


async def test_an_old_watcher_that_does_not_read_gets_the_newest_state(editor: Editor) -> None:
    async with watching(editor) as watch:
        await watch.next("snapshot_end")
        await edit(editor, "0\n")
        for version in range(2, 300):
            await editor.value("edit_document", path="a.txt", text=f"{version}\n", version=version)
        assert (await watch.next("document", version=300)).dirty is True


async def test_without_the_scope_nothing_is_read_or_changed(editor: Editor) -> None:
    reader = Principal(OTHER.name, frozenset({"read"}))
    for method in ("status", "read_file", "list_folder", "watch", "diffs", "open_document"):
        error = await editor.error(method, reader)
        assert isinstance(error, Denied)


async def test_its_health_names_what_is_open_and_a_lost_folder(editor: Editor) -> None:
    await editor.value("open_document", path="a.txt")
    await editor.ask("a.txt", "new\n")
    assert await editor.ide.check_health() == "off, 1 open, 1 diffs waiting"
