"""Changes that programs propose: reviewed, answered, commented, and closed everywhere."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from editor_client import connected, locks, respond, wait_for
from network import Server
from page_browser import shoot, violations
from page_editor import Desk, editing
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.timeout(180)

NAME = "src/checkout/refund.py"
FILLER = "".join(f"# line {number}\n" for number in range(1, 26))
OLD = f"""from decimal import Decimal
{FILLER}def refund(order: Order) -> Refund:
    total = round(order.total * RATE, 2)
    return Refund(order.id, total)

def void(order: Order) -> None:
    return None

{FILLER}LAST = 1
"""
FIRST = (
    "    total = round(order.total * RATE, 2)\n    return Refund(order.id, total)\n",
    """    total = (order.total * RATE).quantize(CENT)
    existing = refunds.find(order.id)
    if existing is not None:
        return existing
""",
)
NEW = OLD.replace(*FIRST).replace("LAST = 1", "LAST = 2")
#: Only the first change.
PART = OLD.replace(*FIRST)
#: Inserts a text at the beginning of an editor.
PASTE = """async ([selector, insert]) => {
  const { EditorView } = await import("codemirror");
  const view = EditorView.findFromDOM(document.querySelector(selector));
  view.dispatch({ changes: { from: 0, insert }, userEvent: "input.paste" });
}"""
CONNECTION = "async () => (await import('/page/core/connection.js')).state.value"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with editing(tmp_path_factory.mktemp("diffs"), "--ide") as desk:
        yield desk


@pytest.fixture
def page(desk: Desk) -> Iterator[Page]:
    with desk.site.page() as page:
        yield page


def show(desk: Desk, page: Page, diff: str) -> None:
    desk.open(page, "diff", diff)
    expect(page.locator(".diff-host .cm-merge-b")).to_be_visible()


def position(page: Page) -> Locator:
    return page.locator(".diff-bar .dim")


def ended(page: Page) -> Locator:
    return page.locator(".ended")


def record(desk: Desk, diff: str) -> dict[str, Any]:
    """Return the item of the run that records the answer."""
    items = desk.site.call("plexus.items", run=int(diff))["items"]
    [found] = [each["event"] for each in items if each["event"]["type"] == "answered"]
    event: dict[str, Any] = found
    return event


def test_a_change_is_reviewed_and_accepted_by_keyboard(desk: Desk, page: Page) -> None:
    desk.write(NAME, OLD)
    with desk.program() as peer:
        request, diff = desk.propose(peer, NAME, NEW)
        expect(page).to_have_title(re.compile(r"^\(1\) Review refund\.py · "))
        show(desk, page, diff)
        expect(page.get_by_text("Claude Code waits")).to_be_visible()
        expect(position(page)).to_contain_text("+5 \N{MINUS SIGN}3 · change 1 of 2")
        # Word by word, and without the lines that are equal.
        expect(page.locator(".cm-merge-a .cm-changedText").first).to_have_text("round")
        expect(page.locator(".cm-merge-b .cm-changedText").last).to_have_text("2")
        expect(page.get_by_text(re.compile(r"\d+ unchanged lines")).first).to_be_visible()
        expect(page.get_by_text("# line 3", exact=True)).to_have_count(0)
        assert violations(page) == []
        shoot(page, "diff-light")
        page.keyboard.press("l")
        expect(page.get_by_text("# line 3", exact=True).first).to_be_visible()
        page.keyboard.press("l")
        page.keyboard.press("j")
        expect(position(page)).to_contain_text("change 2 of 2")
        expect(page.get_by_text("LAST = 2")).to_be_in_viewport()
        page.keyboard.press("k")
        expect(position(page)).to_contain_text("change 1 of 2")
        page.keyboard.press("u")
        expect(page.locator(".diff-host .cm-deletedChunk").first).to_be_visible()
        expect(page.locator(".cm-deletedText").first).to_have_text("round")
        expect(page.locator(".cm-merge-a")).to_have_count(0)
        assert violations(page) == []
        shoot(page, "diff-unified")
        page.keyboard.press("u")
        expect(page.locator(".cm-merge-a")).to_be_visible()
        # "g" and a letter lead to another view and answer nothing.
        page.keyboard.press("g")
        page.keyboard.press("r")
        expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
        page.go_back()
        expect(page.locator(".cm-merge-a")).to_be_visible()
        page.keyboard.press("a")
        expect(ended(page)).to_contain_text("Accepted")
        expect(ended(page)).to_contain_text("by Browser")
        assert peer.texts(request) == ["FILE_SAVED", NEW]
        assert (desk.work / NAME).read_text() == OLD, "the program writes the file"
        expect(page).to_have_title(re.compile(r"^refund\.py · "))
    event = record(desk, diff)
    assert (event["outcome"], event["by"], event["answer"]["decision"]) == (
        "answered",
        "Browser",
        "accept",
    )


def test_chosen_changes_are_accepted_and_the_others_stay_as_they_are(
    desk: Desk, page: Page
) -> None:
    desk.write(NAME, OLD)
    with desk.program() as peer:
        request, diff = desk.propose(peer, NAME, NEW)
        show(desk, page, diff)
        box = page.get_by_role("checkbox", name="accept this change")
        expect(box).to_be_checked()
        page.locator(".cm-chooseGutter span").nth(1).click()
        expect(position(page)).to_contain_text("change 2 of 2")
        expect(box).not_to_be_checked()
        expect(page.locator(".cm-notChosen")).to_have_text("LAST = 2")
        page.keyboard.press("k")
        page.keyboard.press("x")
        expect(page.get_by_role("button", name="Accept chosen (0 of 2)")).to_be_disabled()
        page.keyboard.press("a")
        page.get_by_role("dialog", name="Reject this change").press("Escape")
        box.check()
        # Another view and another layout forget nothing.
        desk.site.open(page, "runs")
        desk.open(page, "diff", diff)
        page.keyboard.press("u")
        expect(page.get_by_role("button", name="Accept chosen (1 of 2)")).to_be_enabled()
        assert violations(page) == []
        shoot(page, "diff-chosen")
        page.keyboard.press("a")
        expect(ended(page)).to_contain_text("Accepted with changes")
        assert peer.texts(request) == ["FILE_SAVED", PART]
    assert record(desk, diff)["answer"] == {"decision": "accept", "hunks": [0]}


#: Reviews of two texts: the number of changes, the text without any of them, and that with the odd
#: ones only, side by side and in one column.
CHOOSE = """async (pairs) => {
  const { Review } = await import("/page/diffs/review.js");
  const { lineEndOf } = await import("/page/editor/setup.js");
  const host = document.body.appendChild(document.createElement("div"));
  return pairs.map(([old, text]) => {
    const eol = lineEndOf(old, text);
    const change = { old, text, language: "", eol, hunks: [], titles: ["a", "b"] };
    return [true, false].map((isSplit) => {
      const review = new Review(change, undefined, () => {});
      review.mount(host, { isSplit, isCollapsed: false, wrap: false });
      const count = review.chunks.value.length;
      const whole = review.result;
      for (let index = 0; index < count; index += 2) review.toggle(index);
      const odd = review.result;
      for (let index = 1; index < count; index += 2) review.toggle(index);
      const none = review.result;
      review.unmount();
      return { count, whole, odd, none };
    });
  });
}"""


def test_any_choice_of_changes_gives_exactly_its_text(page: Page) -> None:
    chance = random.Random(7)
    pairs = [("", "a\n"), ("a\n", ""), ("a", "a\n"), ("a\nb", "a"), ("", ""), ("\r\n", "\n")]
    for _ in range(40):
        end = chance.choice(["\n", "\n", "\r\n"])
        old = [chance.choice(["", "a", "b", "c\r", "\u202e", "same"]) for _ in range(30)]
        new = [each for each in old if chance.random() > 0.15]
        for _ in range(chance.randrange(5)):
            new.insert(chance.randrange(len(new) + 1), chance.choice(["new", "", "a"]))
        last = (chance.choice(["", end]), chance.choice(["", end]))
        pairs.append((end.join(old) + last[0], end.join(new) + last[1]))
    for (before, after), found in zip(pairs, page.evaluate(CHOOSE, pairs), strict=True):
        split, unified = found
        assert split == unified
        assert (split["whole"], split["none"]) == (after, before)
        assert split["count"] == 0 or before != after
        assert split["count"] < 2 or split["odd"] not in (before, after)


def test_a_change_is_edited_before_it_is_accepted(desk: Desk, page: Page) -> None:
    desk.write(NAME, OLD.replace("\n", "\r\n"))
    with desk.program() as peer:
        request, diff = desk.propose(peer, NAME, NEW.replace("\n", "\r\n"))
        show(desk, page, diff)
        page.keyboard.press("j")
        page.keyboard.press("e")
        expect(page.locator(".cm-merge-b .cm-content")).to_be_focused()
        page.keyboard.press("End")
        page.keyboard.type("0  # ja")  # keys of the view are text here
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Accept edited")).to_be_visible()
        page.keyboard.press("k")
        page.keyboard.press("x")
        page.keyboard.press("a")
        expect(ended(page)).to_contain_text("Accepted with changes")
        text = OLD.replace("LAST = 1", "LAST = 20  # ja").replace("\n", "\r\n")
        assert peer.texts(request) == ["FILE_SAVED", text]


def test_an_edit_that_is_too_large_to_send_is_refused_with_its_size_and_is_not_lost(
    desk: Desk, page: Page
) -> None:
    edited = ".cm-merge-b .cm-editor, .cm-editor.cm-merge-b"
    added = ("# " + "z" * 30_000 + "\n") * 40
    desk.write(NAME, OLD)
    with desk.program() as peer:
        request, diff = desk.propose(peer, NAME, NEW)
        show(desk, page, diff)
        page.keyboard.press("e")
        expect(page.locator(".cm-merge-b .cm-content")).to_be_focused()
        page.evaluate(PASTE, [edited, added])
        page.keyboard.press("Escape")
        accept = page.get_by_role("button", name="Accept edited")
        accept.click()
        refused = page.get_by_role("alert").filter(has_text="too large to send")
        expect(refused).to_contain_text(re.compile(r"1,2\d\d,\d{3} bytes.*at most 1,048,576 "))
        expect(refused).to_contain_text("limits.message_bytes")
        assert desk.text(page, edited) == added + NEW
        # The connection was not closed, and the edit is there after a visit to another view.
        assert page.evaluate(CONNECTION) == "open"
        assert [each["diff"] for each in desk.diffs()] == [diff]
        page.evaluate("() => { location.hash = '#/runs'; }")
        expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
        show(desk, page, diff)
        assert desk.text(page, edited) == added + NEW
        page.get_by_role("button", name="Undo all edits").click()
        page.keyboard.press("a")
        expect(ended(page)).to_contain_text("Accepted")
        assert peer.texts(request) == ["FILE_SAVED", NEW]


def test_a_change_is_rejected_with_a_reason_and_comments_that_stay(desk: Desk, page: Page) -> None:
    desk.write(NAME, OLD)
    with desk.program() as peer:
        request, diff = desk.propose(peer, NAME, NEW)
        show(desk, page, diff)
        page.keyboard.press("j")
        page.keyboard.press("c")
        page.keyboard.type("Why <b>2</b>?")
        page.keyboard.press("Enter")
        comments = page.get_by_role("region", name="Comments")
        expect(comments).to_contain_text("Why <b>2</b>?")
        expect(page.locator(".cm-merge-b .cm-commented")).to_have_text("LAST = 2")
        page.locator(".cm-merge-a .cm-lineNumbers .cm-gutterElement").last.click()
        field = page.get_by_role("textbox", name=re.compile("Comment on old line"))
        field.fill("Not this one")
        field.press("Enter")
        expect(comments).to_contain_text("Not this one")
        with desk.site.page() as other:
            show(desk, other, diff)
            expect(other.get_by_role("region", name="Comments")).to_contain_text("Not this one")
            other.locator("li.comment", has_text="Not this one").get_by_role("button").last.click()
        expect(comments).not_to_contain_text("Not this one")
        page.locator("body").focus()
        page.keyboard.press("r")
        dialog = page.get_by_role("dialog", name="Reject this change")
        expect(dialog).to_contain_text("one comment")
        assert violations(page) == []
        shoot(page, "diff-reject")
        page.keyboard.type("Round instead: ja?")
        page.keyboard.press("Control+Enter")
        expect(ended(page)).to_contain_text("Rejected")
        line = NEW.splitlines().index("LAST = 2") + 1
        reason = f"Round instead: ja?\nLine {line}: Why <b>2</b>?"
        assert peer.texts(request) == ["DIFF_REJECTED", reason]
        # They are there for the next change of the file, in another browser.
        _, again = desk.propose(peer, NAME, NEW)
        with desk.site.page() as other:
            show(desk, other, again)
            other.get_by_text("Comments on earlier changes of this file (1)").click()
            expect(other.locator(".earlier")).to_contain_text("Why <b>2</b>? rejected")
        peer.tool("close_tab", tab_name=f"✻ {NAME}")


def test_a_question_leads_to_its_change_and_can_be_answered_at_once(desk: Desk, page: Page) -> None:
    desk.write(NAME, OLD)
    page.evaluate(
        """() => {
          window.shown = [];
          window.Notification = class {
            static permission = "granted";
            static requestPermission = async () => "granted";
            constructor(title) { window.shown.push(this); this.title = title; }
            close() { this.closed = true; }
          };
          Object.defineProperty(document, "hidden", { get: () => window.away || false });
        }"""
    )
    with desk.program() as peer:
        desk.site.open(page, "questions")
        page.get_by_role("button", name="Notify me about questions").click()
        page.evaluate("() => { window.away = true; }")
        request, diff = desk.propose(peer, NAME, NEW)
        card = page.locator(".question", has_text="refund.py")
        expect(card).to_contain_text(f"Change {NAME} (+5 -3)?")
        expect(card.locator(".added").first).to_contain_text("quantize(CENT)")
        assert violations(page) == []
        shoot(page, "diff-question")
        page.wait_for_function("() => window.shown.length === 1")
        assert page.evaluate("() => window.shown[0].title") == f"Change {NAME} (+5 -3)?"
        page.evaluate("() => { window.away = false; window.shown[0].onclick(); }")
        expect(page.locator(".diff-host .cm-merge-b")).to_be_visible()
        page.go_back()
        card.get_by_role("link", name="Review the change").click()
        expect(page).to_have_url(re.compile(f"#/files/diff/{diff}$"))
        page.go_back()
        card.get_by_label("Reason for rejecting").fill("No.")
        card.get_by_role("button", name="Reject").click()
        assert peer.texts(request) == ["DIFF_REJECTED", "No."]
        expect(page.locator(".answered")).to_contain_text("reject: No.")


def test_an_answer_elsewhere_closes_the_change_and_says_who_answered(
    desk: Desk, page: Page
) -> None:
    desk.write(NAME, OLD)
    with desk.program() as peer:
        request, diff = desk.propose(peer, NAME, NEW)
        show(desk, page, diff)
        page.keyboard.press("x")
        respond(desk.site.server, desk.diffs()[0]["approval_id"], "--yes")
        expect(ended(page)).to_contain_text("Accepted")
        expect(ended(page)).to_contain_text("by CLI")
        expect(page.get_by_role("button", name="Accept all")).to_have_count(0)
        assert peer.texts(request) == ["FILE_SAVED", NEW]
        request, diff = desk.propose(peer, NAME, NEW)
        show(desk, page, diff)
        page.keyboard.press("r")
        peer.tool("close_tab", tab_name=f"✻ {NAME}")
        expect(ended(page)).to_contain_text("No longer needed by Claude Code")
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert peer.texts(request) == ["DIFF_REJECTED"]
        # It is closed while the page has no connection.
        request, diff = desk.propose(peer, NAME, NEW)
        show(desk, page, diff)
        desk.site.proxy.cut()
        desk.site.call("ide.answer_diff", diff=diff, accept=False, reason="Not now")
        expect(ended(page)).to_contain_text("Rejected")
        expect(ended(page)).to_contain_text("Not now")
        assert peer.texts(request) == ["DIFF_REJECTED", "Not now"]
        # The program is gone, and so is its question.
        _, diff = desk.propose(peer, NAME, NEW)
        show(desk, page, diff)
    expect(ended(page)).to_be_visible()
    desk.open(page, "diff", "4711")
    expect(page.get_by_text("This change is not here any more")).to_be_visible()


def test_of_two_browsers_that_answer_at_once_exactly_one_wins(desk: Desk, page: Page) -> None:
    desk.write(NAME, OLD)
    with desk.site.page() as other, desk.program() as peer:
        request, diff = desk.propose(peer, NAME, NEW)
        for each in (page, other):
            show(desk, each, diff)
            # Both answers are sent before either page hears of the other.
            each.evaluate(
                """() => {
                  const send = WebSocket.prototype.send;
                  window.held = [];
                  WebSocket.prototype.send = function (text) {
                    const go = () => send.call(this, text);
                    if (text.includes("ide.answer_diff")) window.held.push(go);
                    else go();
                  };
                }"""
            )
        page.keyboard.press("a")
        other.keyboard.press("r")
        other.keyboard.press("Control+Enter")
        for each in (page, other):
            each.wait_for_function("() => window.held.length === 1")
        for each in (page, other):
            each.evaluate("() => window.held[0]()")
        for each in (page, other):
            expect(ended(each)).to_contain_text("by Browser")
        assert ended(page).inner_text() == ended(other).inner_text()
        expect(other.locator(".toast")).to_contain_text("already answered")
        assert peer.texts(request) == ["FILE_SAVED", NEW]
    assert record(desk, diff)["answer"]["decision"] == "accept"


def test_a_change_in_another_process_is_answered_in_the_same_page(
    desk: Desk, page: Page, tmp_path: Path
) -> None:
    desk.write(NAME, OLD)
    settings = {"CLAUDE_CONFIG_DIR": str(tmp_path / "claude"), "XDG_DATA_HOME": desk.site.data}
    other = Server("--ide", settings=settings, cwd=desk.work, auth="token")
    try:
        wait_for(lambda: locks(tmp_path), "lock file")
        with connected(tmp_path) as peer:
            path = str(desk.work / NAME)
            request = peer.start_tool("openDiff", old_file_path=path, new_file_contents=NEW)
            desk.site.open(page, "questions")
            page.get_by_role("link", name="Review the change").click()
            pane = page.locator(".diff-elsewhere")
            expect(pane).to_contain_text("waits in another process")
            expect(pane.locator(".added").first).to_contain_text("quantize(CENT)")
            pane.get_by_role("button", name="Accept").click()
            assert peer.texts(request) == ["FILE_SAVED", NEW]
    finally:
        other.stop()


def test_ten_thousand_lines_and_a_line_of_a_megabyte_are_reviewed(desk: Desk, page: Page) -> None:
    lines = [f"value_{number} = {number}" for number in range(10_000)]
    old = "\n".join(lines) + "\n"
    lines[0], lines[5000], lines[-1] = "changed_first = 1", "changed_middle = 2", "changed_last = 3"
    new = "\n".join(lines) + "\n"
    desk.write("long.py", old)
    wide = "x" * 500_000 + "OLD" + "y" * 500_000
    desk.write("wide.txt", wide)
    with desk.program() as peer:
        request, diff = desk.propose(peer, "long.py", new)
        show(desk, page, diff)
        expect(position(page)).to_contain_text("+3 \N{MINUS SIGN}3 · change 1 of 3")
        assert page.evaluate("() => document.querySelectorAll('*').length") < 3000
        page.keyboard.press("x")
        page.keyboard.press("j")
        page.keyboard.press("j")
        expect(page.get_by_text("changed_last = 3")).to_be_in_viewport()
        page.keyboard.press("a")
        expect(ended(page)).to_contain_text("Accepted with changes")
        final = new.replace("changed_first = 1", "value_0 = 0")
        assert peer.texts(request) == ["FILE_SAVED", final]
        request, diff = desk.propose(peer, "wide.txt", wide.replace("OLD", "NEW"))
        show(desk, page, diff)
        expect(position(page)).to_contain_text("change 1 of 1")
        page.keyboard.press("u")
        expect(page.locator(".cm-deletedChunk")).to_have_count(1)
        page.keyboard.press("a")
        expect(ended(page)).to_contain_text("Accepted")
        assert peer.texts(request) == ["FILE_SAVED", wide.replace("OLD", "NEW")]


def test_invisible_characters_are_shown_on_both_sides_and_in_names(desk: Desk, page: Page) -> None:
    name = "<b>x\u202e.py"
    desk.write(name, "old = '\u202e\u2066'\nsame = 1\n")
    with desk.program() as peer:
        request, diff = desk.propose(peer, name, "new = '\u200b\u00ad'\nsame = 1\n<script>\n")
        show(desk, page, diff)
        expect(page.get_by_role("heading", level=1)).to_have_text("<b>x\\u202e.py")
        assert page.title().startswith("(1) Review <b>x\\u202e.py · <b>x\\u202e.py")
        symbols = page.locator(".cm-specialChar")
        expect(page.locator(".cm-merge-a .cm-specialChar")).to_have_text(["\\u202e", "\\u2066"])
        expect(page.locator(".cm-merge-b .cm-specialChar")).to_have_text(["\\u200b", "\\xad"])
        page.keyboard.press("u")
        expect(page.locator(".cm-deletedChunk .cm-specialChar")).to_have_text(
            ["\\u202e", "\\u2066"]
        )
        expect(symbols).to_have_count(4)
        shoot(page, "diff-invisible")
        page.keyboard.press("a")
        assert peer.texts(request)[1] == "new = '\u200b\u00ad'\nsame = 1\n<script>\n"


@pytest.mark.parametrize(("dark", "phone"), [(True, False), (False, True), (True, True)])
def test_a_new_file_is_reviewed_in_the_dark_and_on_a_phone(
    desk: Desk, dark: bool, phone: bool
) -> None:
    desk.write(NAME, OLD)
    with desk.program() as peer, desk.site.page(dark=dark, phone=phone) as page:
        request, diff = desk.propose(peer, NAME, NEW)
        created, _ = desk.propose(peer, "src/money.py", "CENT = Decimal('0.01')\n")
        show(desk, page, diff)
        expect(page.locator(".cm-merge-a")).to_have_count(0 if phone else 1)
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        page.get_by_role("button", name="Comment").click()
        page.keyboard.type("Should the lookup happen before the rate is applied?")
        page.keyboard.press("Enter")
        expect(page.locator("li.comment")).to_contain_text("Should the lookup")
        assert violations(page) == []
        shoot(page, f"diff-{'dark' if dark else 'light'}{'-phone' if phone else ''}")
        page.get_by_role("button", name="Accept all").click()
        ended(page).get_by_role("link", name="Next: money.py").click()
        expect(page.get_by_role("heading", name="src/money.py")).to_be_visible()
        expect(position(page)).to_contain_text("+1 \N{MINUS SIGN}0")
        page.get_by_role("button", name="Accept all").click()
        expect(ended(page)).to_contain_text("Accepted")
        assert peer.texts(request) == ["FILE_SAVED", NEW]
        assert peer.texts(created) == ["FILE_SAVED", "CENT = Decimal('0.01')\n"]
