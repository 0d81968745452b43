"""The real Claude Code CLI, whose changes are answered in the page, in Chromium."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from claude_screen import ClaudeScreen, open_terminal
from conformance.node import NotInstalled, claude_code
from model_api import model_api
from page_browser import shoot
from page_editor import Desk, editing
from playwright.sync_api import Page, expect

#: npm may have to fetch the CLI first.
pytestmark = pytest.mark.timeout(400)

LINES = [f"line {number}\n" for number in range(20)]


@pytest.fixture(scope="module", autouse=True)
def _cli() -> None:
    try:
        claude_code()
    except NotInstalled as error:
        pytest.skip(str(error))


def show_next(desk: Desk, screen: ClaudeScreen, page: Page) -> None:
    """Show the change that the CLI waits for."""
    screen.wait_until(lambda: bool(desk.diffs()), "change that waits")
    # While a change waits, the title of every tab of the page says it.
    expect(page).to_have_title(re.compile(r"^\(1\) "))
    desk.open(page, "diff", desk.diffs()[0]["diff"])
    expect(page.locator(".diff-host .cm-merge-b")).to_be_visible()


def test_changes_of_the_cli_are_accepted_edited_and_rejected_in_the_page(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "claude").mkdir()
    (tmp_path / "home" / ".claude").symlink_to(tmp_path / "claude")
    with editing(tmp_path, "--ide") as desk, desk.site.page() as page:
        path = desk.write("notes.txt", "".join(LINES))

        def edit(old: str, new: str) -> tuple[str, dict[str, str]]:
            return "Edit", {"file_path": str(path), "old_string": old, "new_string": new}

        calls = [edit("line 0", "zero"), edit("line 5", "five"), edit("line 9", "nine")]
        with (
            model_api("Read", {"file_path": str(path)}, *calls) as model,
            open_terminal(tmp_path, model.url, ["--ide"]) as screen,
        ):

            def contains(*lines: str) -> None:
                screen.wait_until(lambda: path.read_text() == "".join(lines), "written file")

            def is_connected() -> bool:
                found = desk.site.call("ide.status")["connections"]
                return bool(found) and found[0]["pid"] is not None

            screen.wait_until(is_connected, "connection to the editor")
            screen.wait_until(lambda: screen.shows("for shortcuts"), "prompt")
            screen.press_until("begin", lambda: screen.shows("begin"), "typed text")
            screen.press("\r")

            show_next(desk, screen, page)
            shoot(page, "diff-of-claude-code")
            assert path.read_text() == "".join(LINES)
            page.keyboard.press("a")
            contains("zero\n", *LINES[1:])

            show_next(desk, screen, page)
            page.keyboard.press("e")
            expect(page.locator(".cm-merge-b .cm-content")).to_be_focused()
            page.keyboard.press("End")
            page.keyboard.type(" and a half")
            page.keyboard.press("Escape")
            page.get_by_role("button", name="Accept edited").click()
            contains("zero\n", *LINES[1:5], "five and a half\n", *LINES[6:])

            show_next(desk, screen, page)
            page.keyboard.press("r")
            page.keyboard.type("nine is fine")
            page.keyboard.press("Control+Enter")
            expect(page.locator(".ended")).to_contain_text("Rejected")
            screen.wait_until(lambda: screen.shows("rejected update"), "rejection")
            contains("zero\n", *LINES[1:5], "five and a half\n", *LINES[6:])
            assert "modified your proposed changes" in str(model.results[2])
            expect(page).not_to_have_title(re.compile(r"^\(1\) "))
