"""The Files view: the tree, editing and saving, conflicts with other writers, and the programs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from editor_client import wait_for
from network import serving
from page_browser import shoot, violations
from page_editor import Desk, editing
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.timeout(180)

HOSTILE = "<img src=x onerror=alert(1)>.txt"
SPOOFED = "invoice\u202efdp.exe"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with editing(tmp_path_factory.mktemp("files"), "--ide") as desk:
        yield desk


@pytest.fixture
def page(desk: Desk) -> Iterator[Page]:
    with desk.site.page() as page:
        desk.site.open(page, "files")
        page.get_by_role("switch").wait_for()
        yield page


def entry(page: Page, name: str) -> Locator:
    return page.get_by_role("treeitem", name=name, exact=True)


def editor(page: Page) -> Locator:
    return page.locator(".editor-host .cm-content")


def saved(page: Page) -> Locator:
    return page.locator(".pane-bar .outcome")


def show(desk: Desk, page: Page, name: str) -> None:
    desk.open(page, "file", name)
    expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()
    expect(editor(page)).to_be_visible()


def type_at_end(page: Page, text: str) -> None:
    editor(page).focus()
    page.keyboard.press("Control+End")
    page.keyboard.type(text)


def test_the_tree_is_used_by_keyboard_and_hides_what_git_ignores(desk: Desk) -> None:
    desk.write(".gitignore", "*.log\nbuild/\n!keep.log\n")
    desk.write("noise.log", "x")
    desk.write("keep.log", "x")
    desk.write("build/out.bin", "x")
    desk.write("src/.gitignore", "generated.py\n")
    desk.write("src/generated.py", "x = 1\n")
    desk.write("src/app.py", "def run() -> None:\n    return None  # nothing\n")
    with desk.site.page() as page:
        desk.site.open(page, "files")
        expect(entry(page, "keep.log")).to_be_visible()
        for name in ("noise.log", "build", ".git"):
            expect(entry(page, name)).to_have_count(0)
        page.get_by_role("treeitem").first.focus()
        page.keyboard.press("Home")
        while "src" not in page.evaluate("document.activeElement.innerText"):
            page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        expect(entry(page, "app.py")).to_be_visible()
        expect(entry(page, "generated.py")).to_have_count(0)
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        page.wait_for_function("() => document.activeElement.innerText.includes('app.py')")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="src/app.py")).to_be_visible()
        # Words have the colours of their kinds.
        colour = "(element) => getComputedStyle(element).color"
        keyword = editor(page).get_by_text("def", exact=True).evaluate(colour)
        comment = editor(page).get_by_text("# nothing").evaluate(colour)
        assert len({keyword, comment, editor(page).evaluate(colour)}) == 3
        entry(page, "app.py").focus()
        page.keyboard.press("ArrowLeft")
        page.wait_for_function("() => document.activeElement.innerText.includes('src')")
        page.keyboard.press("ArrowLeft")
        expect(entry(page, "app.py")).to_have_count(0)
        page.get_by_label("Show ignored files").check()
        expect(entry(page, "noise.log")).to_be_visible()
        page.keyboard.press("/")
        page.get_by_role("searchbox", name="Find files by name").fill("sapp")
        page.get_by_role("link", name="src/app.py").first.click()
        expect(page).to_have_title(re.compile(r"^app\.py · Substrate"))


def test_names_are_text_and_show_invisible_characters(desk: Desk, page: Page) -> None:
    desk.write(HOSTILE, "<script>alert(2)</script>\n")
    desk.write(SPOOFED, "a\u202eb\u200bc\u2066d\x07e\n\u05d0\u05d1\u05d2\n")
    page.get_by_role("button", name="Read the folders again").click()
    expect(entry(page, HOSTILE)).to_be_visible()
    expect(entry(page, "invoice\\u202efdp.exe")).to_be_visible()
    entry(page, HOSTILE).click()
    expect(editor(page)).to_contain_text("<script>alert(2)</script>")
    entry(page, "invoice\\u202efdp.exe").click()
    expect(page.get_by_role("heading", name="invoice\\u202efdp.exe")).to_be_visible()
    expect(page.locator(".cm-specialChar")).to_have_text(["\\u202e", "\\u200b", "\\u2066", "\\x07"])
    expect(editor(page)).to_contain_text("\u05d0\u05d1\u05d2")
    shoot(page, "files-invisible")


def test_a_file_is_edited_and_saved_as_it_was_written(desk: Desk, page: Page) -> None:
    path = desk.write("dos.txt", "one\r\ntwo\r\n")
    path.chmod(0o640)
    desk.write("mixed.txt", "one\r\ntwo\nthree\rfour")
    show(desk, page, "dos.txt")
    expect(saved(page)).to_have_text("Saved")
    type_at_end(page, "three\n")
    expect(saved(page)).to_have_text("Unsaved")
    expect(page.get_by_role("link", name="dos.txt ● unsaved")).to_be_visible()
    assert desk.read("dos.txt") == "one\r\ntwo\r\n"
    with desk.program() as peer:
        state = peer.json("checkDocumentDirty", filePath=str(path))
        assert (state["success"], state["isDirty"]) == (True, True)
    page.keyboard.press("Control+s")
    expect(saved(page)).to_have_text("Saved")
    assert desk.read("dos.txt") == "one\r\ntwo\r\nthree\r\n"
    assert path.stat().st_mode & 0o777 == 0o640
    show(desk, page, "mixed.txt")
    type_at_end(page, "!")
    page.get_by_role("button", name="Save").click()
    expect(saved(page)).to_have_text("Saved")
    assert desk.read("mixed.txt") == "one\r\ntwo\nthree\rfour!"


def test_a_file_that_changes_on_the_disk_is_read_again_unless_it_is_edited(
    desk: Desk, page: Page
) -> None:
    desk.write("disk.txt", "one\n")
    show(desk, page, "disk.txt")
    desk.write("disk.txt", "two\n")
    expect(editor(page)).to_contain_text("two")
    # The server has the edit, so it does not read the file again.
    unsaved = page.get_by_role("link", name="disk.txt ● unsaved")
    type_at_end(page, "mine")
    expect(unsaved).to_be_visible()
    desk.write("disk.txt", "three\n")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("Another program has changed this file")
    page.keyboard.press("Control+s")
    expect(alert).to_be_visible()
    assert desk.read("disk.txt") == "three\n"
    alert.get_by_role("button", name="Compare").click()
    expect(alert.locator(".cm-merge-a")).to_contain_text("three")
    expect(alert.locator(".cm-merge-b")).to_contain_text("mine")
    shoot(page, "files-conflict")
    assert violations(page) == []
    alert.get_by_role("button", name="Overwrite the file").click()
    expect(alert).to_have_count(0)
    wait_for(lambda: desk.read("disk.txt") == "two\nmine", "the text in the file")
    expect(unsaved).to_have_count(0)
    type_at_end(page, "!")
    expect(unsaved).to_be_visible()
    desk.write("disk.txt", "four\n")
    alert.get_by_role("button", name="Read the file again").click()
    expect(editor(page)).to_contain_text("four")
    expect(saved(page)).to_have_text("Saved")
    (desk.work / "disk.txt").unlink()
    expect(alert).to_contain_text("deleted on the disk")
    alert.get_by_role("button", name="Save it again").click()
    expect(alert).to_have_count(0)
    assert desk.read("disk.txt") == "four\n"


def test_two_windows_edit_one_document_and_a_conflict_loses_nothing(desk: Desk, page: Page) -> None:
    desk.write("shared.txt", "one\n")
    show(desk, page, "shared.txt")
    with desk.site.page() as other:
        show(desk, other, "shared.txt")
        type_at_end(page, "two")
        expect(editor(other)).to_contain_text("two")
        version = desk.site.call("ide.read_document", path="shared.txt")["document"]["version"]
        desk.site.call("ide.edit_document", path="shared.txt", text="theirs\n", version=version)
        for each in (page, other):
            expect(editor(each)).to_contain_text("theirs")
        # The other window edits the first version, as if it had missed the ones after it.
        other.evaluate(
            """() => {
              window.send = WebSocket.prototype.send;
              WebSocket.prototype.send = function (text) {
                window.send.call(this, text.replace(/"version":\\d+/, '"version":1'));
              };
            }"""
        )
        type_at_end(other, "mine")
        alert = other.get_by_role("alert")
        expect(alert).to_contain_text("Another window has changed")
        other.evaluate("() => { WebSocket.prototype.send = window.send; }")
        expect(editor(page)).not_to_contain_text("mine")
        alert.get_by_role("button", name="Keep mine").click()
        expect(alert).to_have_count(0)
        expect(editor(page)).to_contain_text("mine")


def test_what_is_typed_is_sent_after_a_lost_connection_and_after_others_close_the_document(
    desk: Desk, page: Page
) -> None:
    def expect_text(text: str) -> None:
        for _ in range(600):
            if desk.site.call("ide.read_document", path="kept.txt")["text"] == text:
                return
            page.wait_for_timeout(50)
        raise AssertionError("the text was not sent")

    desk.write("kept.txt", "one\n")
    show(desk, page, "kept.txt")
    desk.site.proxy.cut()
    type_at_end(page, "two")
    expect_text("one\ntwo")
    desk.site.call("ide.close_document", path="kept.txt", discard=True)
    expect(page.get_by_role("button", name="Close kept.txt")).to_have_count(0)
    type_at_end(page, "three")
    expect(page.get_by_role("button", name="Close kept.txt")).to_be_visible()
    expect_text("one\ntwothree")
    # Its reply is lost: the same edit is no conflict with itself.
    version = desk.site.call("ide.read_document", path="kept.txt")["document"]["version"]
    page.evaluate(
        """() => {
          const send = WebSocket.prototype.send;
          WebSocket.prototype.send = function (text) {
            if (text.includes("ide.edit_document") && !window.repeated) {
              window.repeated = true;
              send.call(this, text);
              this.close();
            } else send.call(this, text);
          };
        }"""
    )
    type_at_end(page, "!")
    expect_text("one\ntwothree!")
    found = desk.site.call("ide.read_document", path="kept.txt")["document"]
    assert found["version"] == version + 1
    page.keyboard.press("Control+s")
    expect(saved(page)).to_have_text("Saved")
    assert desk.read("kept.txt") == "one\ntwothree!"


def test_programs_get_the_selection_and_mentions_and_show_files(desk: Desk, page: Page) -> None:
    path = desk.write("talk.py", "first = 1\nsecond = 2\nthird = 3\n")
    desk.write("shown.py", "".join(f"line_{number} = {number}\n" for number in range(300)))
    show(desk, page, "talk.py")
    expect(page.get_by_text("No program is connected")).to_be_visible()
    page.get_by_role("button", name="Mention this").click()
    expect(page.locator(".toast")).to_contain_text("No program is connected")
    with desk.program() as peer:
        desk.site.open(page, "files")
        expect(page.get_by_role("list", name="Connected programs")).to_contain_text("Claude Code")
        show(desk, page, "talk.py")
        expect(page.get_by_text("One program sees the selection")).to_be_visible()
        editor(page).focus()
        page.keyboard.press("Control+Home")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Shift+End")
        selected = wait_for(
            lambda: (found := peer.notification("selection_changed"))["text"] and found,
            "selected text",
        )
        assert selected["text"] == "second = 2"
        assert selected["filePath"] == str(path)
        assert selected["selection"]["start"] == {"line": 1, "character": 0}
        expect(page.get_by_text("Lines 2 to 2 selected (1)")).to_be_visible()
        page.keyboard.press("Alt+k")
        mentioned = peer.notification("at_mentioned")
        assert mentioned["filePath"] == str(path)
        assert (mentioned["lineStart"], mentioned["lineEnd"]) == (1, 1)
        expect(page.locator(".toast").last).to_contain_text("Mentioned to one program.")
        peer.tool("openFile", filePath=str(desk.work / "shown.py"), startText="line_250")
        expect(page.get_by_role("heading", name="shown.py")).to_be_visible()
        expect(editor(page).get_by_text("line_250 = 250")).to_be_in_viewport()
        latest = peer.json("getCurrentSelection")
        assert latest["filePath"] == str(desk.work / "shown.py")


def test_the_switch_lets_programs_connect_and_ends_their_connections(
    desk: Desk, page: Page
) -> None:
    locks = desk.folder / "claude" / "ide"
    switch = page.get_by_role("switch", name="Let programs connect to this editor")
    expect(switch).to_be_checked()
    with desk.program():
        expect(page.get_by_role("list", name="Connected programs")).to_be_visible()
        switch.focus()
        page.keyboard.press("Enter")
        expect(switch).not_to_be_checked()
        expect(switch).to_have_attribute("aria-busy", "false")
        expect(switch).to_be_focused()
        expect(page.get_by_role("list", name="Connected programs")).to_have_count(0)
    assert list(locks.glob("*.lock")) == []
    page.keyboard.press("Enter")
    expect(switch).to_be_checked()
    [lock] = locks.glob("*.lock")
    assert json.loads(lock.read_text())["ideName"] == "Substrate"


def test_what_cannot_be_opened_says_why(desk: Desk, page: Page) -> None:
    desk.write("data.bin", bytes(range(256)))
    desk.write("large.txt", "x" * 600_000)
    (desk.work / "outside.txt").symlink_to("/etc/hostname")
    heading = page.locator(".notice h2")
    for name, title, reason in (
        ("data.bin", "This file is not text", "not a text file in UTF-8"),
        ("large.txt", "This file is too large for the editor", "524,288 bytes"),
        ("outside.txt", "This cannot be opened", "outside the workspace"),
        ("../../etc/passwd", "This cannot be opened", "outside the workspace"),
        ("missing.txt", "There is no such file", "missing.txt"),
    ):
        desk.open(page, "file", name)
        expect(heading).to_have_text(title)
        expect(page.locator(".notice")).to_contain_text(reason)
    desk.write("missing.txt", "now it is here\n")
    page.get_by_role("button", name="Try again").click()
    expect(editor(page)).to_contain_text("now it is here")


def test_a_tab_with_unsaved_changes_asks_before_it_is_closed(desk: Desk, page: Page) -> None:
    desk.write("tab.txt", "one\n")
    show(desk, page, "tab.txt")
    type_at_end(page, "two")
    expect(page.get_by_role("link", name="tab.txt ● unsaved")).to_be_visible()
    page.get_by_role("button", name="Close tab.txt").click()
    dialog = page.get_by_role("dialog", name="tab.txt has unsaved changes")
    dialog.get_by_role("button", name="Keep it open").click()
    expect(editor(page)).to_contain_text("two")
    # What was typed is shared, so it survives a reload of the page.
    page.reload()
    expect(editor(page)).to_contain_text("two")
    expect(saved(page)).to_have_text("Unsaved")
    page.get_by_role("button", name="Close tab.txt").click()
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_role("button", name="Close tab.txt")).to_have_count(0)
    assert desk.read("tab.txt") == "one\ntwo"


def test_problems_are_marked_refresh_on_save_and_lead_to_their_lines(
    desk: Desk, page: Page
) -> None:
    desk.write("wrong.py", "value = 1\nprint(valu)\n")
    show(desk, page, "wrong.py")
    expect(page.locator(".cm-problem").first).to_be_visible()
    summary = page.locator(".problems summary")
    summary.click()
    page.get_by_role("button", name=re.compile(r"line 2.*valu")).click()
    expect(page.get_by_text(re.compile(r"^Lines? 2"))).to_be_visible()
    expect(editor(page)).to_be_focused()
    shoot(page, "files-problems")
    assert violations(page) == []
    page.keyboard.press("ArrowRight")
    page.keyboard.type("e")
    page.keyboard.press("Control+s")
    expect(page.get_by_text("No problems were found.")).to_be_visible()
    expect(page.locator(".cm-problem")).to_have_count(0)


@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, False), (False, True)])
def test_the_view_is_accessible_in_every_form(desk: Desk, dark: bool, phone: bool) -> None:
    desk.write(
        "pkg/shop.py",
        '"""A shop."""\n\nfrom decimal import Decimal\n\nRATE = Decimal("0.19")\n\n\n'
        "def total(prices: list[int], *, rate: float = 1.5) -> int:\n"
        "    # Sum them all.\n    return round(sum(prices) * rate) if prices else 0\n",
    )
    kind = "phone" if phone else "dark" if dark else "light"
    with desk.site.page(dark=dark, phone=phone) as page:
        page.get_by_role("link", name="Files", exact=True).click()
        entry(page, "pkg").click()
        expect(entry(page, "shop.py")).to_be_visible()
        assert violations(page) == []
        if phone:
            shoot(page, "files-phone-tree")
        entry(page, "shop.py").click()
        expect(editor(page)).to_contain_text("Sum them all.")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert violations(page) == []
        shoot(page, f"files-{kind}")
        if phone:
            expect(page.get_by_role("tree")).to_be_hidden()
            page.get_by_role("link", name="← Files").click()
            expect(page.get_by_role("tree")).to_be_visible()


def test_the_view_is_offered_only_with_the_activation(desk: Desk) -> None:
    with (
        serving("--without", "ide", auth="token") as server,
        desk.site.with_server(server).page() as page,
    ):
        expect(page.get_by_role("link", name="Status", exact=True)).to_be_visible()
        expect(page.get_by_role("link", name="Files", exact=True)).to_have_count(0)
