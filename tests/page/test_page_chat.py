"""The page's view of conversations, with the built-in model."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from page_browser import Site, opened, shoot, violations
from playwright.sync_api import FilePayload, Page, expect

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with opened() as site:
        yield site


@pytest.fixture
def page(site: Site) -> Iterator[Page]:
    with site.page() as page:
        yield page


def send_message(page: Page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    page.get_by_label("Your message").press("Enter")


def settled(page: Page, answers: int = 1) -> None:
    """Wait until the turn has ended and this many answers are shown."""
    expect(page.locator(".messages .m-assistant")).to_have_count(answers)
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    expect(page.locator(".turn")).to_be_hidden()


def test_a_conversation_is_begun_and_answered(site: Site, page: Page) -> None:
    site.open(page, "chat")
    page.get_by_text("New conversation").click()
    page.get_by_label("Name").fill("tea & <b>cake</b>")
    page.get_by_label("Model").fill("echo:echo")
    page.get_by_role("button", name="Create").click()
    expect(page.locator(".chat h2")).to_have_text("tea & <b>cake</b>")
    send_message(page, "Hello **you**")
    expect(page.locator(".m-assistant").last).to_contain_text("Hello")
    settled(page)
    expect(page.locator(".m-user .said")).to_have_text("Hello **you**")
    expect(page.locator(".m-assistant strong").first).to_have_text("you")
    shoot(page, "chat")
    page.reload()
    expect(page.locator(".m-user .said")).to_have_text("Hello **you**")


def test_an_answer_streams_can_be_stopped_and_is_kept(site: Site, page: Page) -> None:
    site.call("chat.create", name="slow", model="echo:slow")
    site.open(page, "chat", "slow")
    page.locator(".composer").wait_for()
    send_message(page, " ".join(f"word{number}" for number in range(200)))
    expect(page.locator(".turn .b-text")).to_contain_text("word3 ")
    shoot(page, "chat-streaming")
    page.get_by_role("button", name="Stop").click()
    settled(page)
    expect(page.locator(".m-assistant")).to_contain_text("word3 ")
    expect(page.locator(".m-assistant")).to_contain_text("cancelled")


def test_a_reload_during_an_answer_resumes_it(site: Site, page: Page) -> None:
    site.call("chat.create", name="reloaded", model="echo:slow")
    site.open(page, "chat", "reloaded")
    page.locator(".composer").wait_for()
    words = " ".join(f"w{number}" for number in range(60))
    send_message(page, words)
    expect(page.locator(".turn .b-text")).to_contain_text("w5 ")
    page.reload()
    expect(page.locator(".turn .b-text")).to_contain_text("w20 ")
    settled(page)
    expect(page.locator(".m-assistant")).to_contain_text(words)
    expect(page.locator(".m-assistant")).to_have_count(1)


def test_branches_are_created_shown_and_switched(site: Site, page: Page) -> None:
    site.call("chat.create", name="branching")
    site.open(page, "chat", "branching")
    page.locator(".composer").wait_for()
    send_message(page, "first question")
    settled(page)
    send_message(page, "second question")
    settled(page, 2)
    page.locator(".m-assistant").last.get_by_role("button", name="Answer again").click()
    expect(page.locator(".branches summary")).to_have_text("2 branches")
    settled(page, 2)
    page.locator(".m-user").last.get_by_role("button", name="Edit").click()
    page.get_by_label("Say this instead").fill("another question")
    page.get_by_role("button", name="Send instead").click()
    expect(page.locator(".branches summary")).to_have_text("3 branches")
    settled(page, 2)
    expect(page.locator(".m-user .said")).to_have_text(["first question", "another question"])
    expect(page.locator(".fork summary").first).to_contain_text("2 other branches leave here")
    shoot(page, "chat-branches")
    page.locator(".branches summary").click()
    assert violations(page) == []
    other = page.locator(".branches .branch").filter(has_text="second question").first
    other.click()
    expect(page.locator(".m-user .said")).to_have_text(["first question", "second question"])


def test_files_can_be_attached(site: Site, page: Page) -> None:
    site.call("chat.create", name="files")
    site.open(page, "chat", "files")
    png = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
    files: list[FilePayload] = [
        {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"milk, eggs"},
        {"name": "dot.png", "mimeType": "image/png", "buffer": png},
    ]
    page.get_by_label("Attach files").set_input_files(files)
    expect(page.locator(".files li")).to_have_count(2)
    send_message(page, "see these")
    settled(page)
    expect(page.locator(".m-attachment")).to_have_count(2)
    page.locator(".m-attachment summary", has_text="notes.txt").click()
    expect(page.locator(".m-attachment pre")).to_have_text("milk, eggs")
    assert violations(page) == []


def test_a_tool_is_approved_inside_the_conversation(site: Site, page: Page) -> None:
    site.call("chat.create", name="tools", tools=["demo.echo"], approve="all")
    site.open(page, "chat", "tools")
    page.locator(".composer").wait_for()
    send_message(page, '/tool demo.echo {"text": "from the tool"}')
    question = page.locator(".question")
    expect(question).to_be_visible()
    assert violations(page) == []
    shoot(page, "chat-approval")
    question.get_by_role("button", name="Yes").click()
    settled(page)
    page.locator(".m-tool_result summary").click()
    expect(page.locator(".m-tool_result")).to_contain_text("from the tool")
    expect(page.locator(".m-tool_use")).to_contain_text("demo.echo")


def test_errors_are_shown_in_the_chat(site: Site, page: Page) -> None:
    site.call("chat.create", name="taken")
    site.open(page, "chat")
    page.get_by_text("New conversation").click()
    page.get_by_role("button", name="Create").click()
    expect(page.locator(".side .trouble")).to_contain_text("needs a name")
    page.get_by_label("Name").fill("taken")
    page.get_by_role("button", name="Create").click()
    expect(page.locator(".side .trouble")).to_contain_text("session 'taken' already exists")
    site.open(page, "chat", "missing")
    expect(page.locator(".main .trouble")).to_contain_text("missing")


def test_a_turn_of_another_program_is_shown(site: Site, page: Page) -> None:
    site.call("chat.create", name="shared")
    site.call("chat.send", session="shared", message="sent by another program")
    site.open(page, "chat", "shared")
    expect(page.locator(".m-user .said")).to_have_text("sent by another program")
    expect(page.locator(".chooser a[aria-current]")).to_contain_text("shared")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").click()
    expect(page).to_have_url(re.compile("#/chat$"))
    expect(page.locator(".chooser a", has_text="shared")).to_have_count(0)


@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, False), (False, True)])
def test_chat_is_accessible(site: Site, dark: bool, phone: bool) -> None:
    name = f"seen{dark:d}{phone:d}"
    site.call("chat.create", name=name)
    site.call("chat.send", session=name, message="/think What is `this`?")
    with site.page(dark=dark, phone=phone) as page:
        site.open(page, "chat", name)
        page.locator(".m-assistant").first.wait_for()
        page.get_by_text("New conversation").click()
        page.get_by_text("Not ready").wait_for()
        assert violations(page) == []
        page.get_by_text("New conversation").click()
        shoot(page, f"chat{'-dark' if dark else ''}{'-phone' if phone else ''}")
