"""The Chat view: sessions, conversations with the built-in model, drafts and attachments."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from page_browser import Site, opened, shoot, violations
from playwright.sync_api import FilePayload, Locator, Page, WebSocketRoute, expect

pytestmark = pytest.mark.timeout(180)

#: A model whose provider has no key, and one whose provider cannot be reached.
NO_KEY = "anthropic:claude-sonnet-4-5"
UNREACHABLE = "openai:gpt-4o"
CODE = 'Run this:\n\n```python\nprint("hello")\n```\n\nDone.'


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ANTHROPIC_API_KEY", "GOOGLE_API_KEY"):
            patch.delenv(name, raising=False)
        patch.setenv("OPENAI_API_KEY", "none")
        patch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
        with opened() as site:
            yield site


@pytest.fixture
def page(site: Site) -> Iterator[Page]:
    with site.page() as page:
        yield page


def composer(page: Page) -> Locator:
    return page.get_by_label("Your message", exact=True)


def answers(page: Page) -> Locator:
    return page.get_by_role("article", name="Answer", exact=True)


def typed(page: Page) -> Locator:
    """Return the messages of the user."""
    return page.locator(".row-user .bubble")


def open_session(site: Site, page: Page, name: str, **settings: object) -> None:
    site.call("chat.create", name=name, **settings)
    site.open(page, "chat", quote(name, safe=""))
    expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()


def send(page: Page, text: str) -> None:
    composer(page).fill(text)
    composer(page).press("Enter")


def settled(page: Page, count: int = 1) -> None:
    """Wait until the turn has ended and this many answers are shown."""
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    expect(answers(page)).to_have_count(count)


def words(count: int) -> str:
    return " ".join(f"w{number}" for number in range(count))


def png(width: int = 24, height: int = 16) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = b"".join(b"\0" + bytes([40, 120, 200]) * width for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def overflow(page: Page) -> int:
    """Return by how many pixels the page is wider than its window."""
    return int(page.evaluate("() => document.documentElement.scrollWidth - innerWidth"))


# --- nothing typed is lost ------------------------------------------------------------------------


def test_a_message_is_kept_when_no_key_is_set(site: Site, page: Page) -> None:
    open_session(site, page, "no key", model=NO_KEY)
    send(page, "do not lose me")
    alert = page.locator(".composer [role=alert]")
    expect(alert).to_contain_text("ANTHROPIC_API_KEY")
    expect(composer(page)).to_have_value("do not lose me")
    shoot(page, "chat-no-key")
    page.reload()
    expect(composer(page)).to_have_value("do not lose me")
    send(page, "do not lose me")
    alert.get_by_role("button", name="Choose another model").click()
    page.get_by_role("radio", name="echo:echo").check()
    expect(page.locator(".model-button")).to_contain_text("echo:echo")
    page.get_by_role("button", name="Send", exact=True).click()
    settled(page)
    expect(composer(page)).to_have_value("")
    expect(typed(page)).to_have_text("do not lose me")


def test_a_draft_with_its_attachments_survives_a_reload(site: Site, page: Page) -> None:
    open_session(site, page, "draft")
    composer(page).fill("half a sen")
    page.get_by_label("Attach files").set_input_files(
        FilePayload(name="notes.txt", mimeType="text/plain", buffer=b"milk")
    )
    expect(page.locator(".attachment")).to_contain_text("notes.txt")
    page.reload()
    expect(composer(page)).to_have_value("half a sen")
    expect(page.locator(".attachment")).to_contain_text("notes.txt")
    site.open(page, "runs")
    site.open(page, "chat", "draft")
    expect(composer(page)).to_have_value("half a sen")
    composer(page).press("Enter")
    settled(page)
    page.reload()
    expect(typed(page)).to_have_text("half a sen")
    expect(composer(page)).to_have_value("")
    expect(page.locator(".attachment")).to_have_count(0)


def test_a_message_that_was_sent_without_a_connection_is_kept(site: Site, page: Page) -> None:
    open_session(site, page, "lost")
    expect(page.get_by_text("No messages yet")).to_be_visible()
    try:
        site.proxy.down = True
        site.proxy.cut()
        expect(page.get_by_text("Server not reachable")).to_be_visible()
        send(page, "into the dark")
        expect(page.locator(".composer [role=alert]")).to_contain_text("connection")
        expect(composer(page)).to_have_value("into the dark")
    finally:
        site.proxy.down = False
    expect(page.get_by_text("Connected", exact=True)).to_be_visible()
    expect(composer(page)).to_have_value("into the dark")
    composer(page).press("Enter")
    settled(page)
    expect(typed(page)).to_have_text("into the dark")


def test_a_message_whose_confirmation_was_lost_is_not_sent_twice(site: Site) -> None:
    lossy = {"drops": False}

    def pass_on(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()

        def on_client(message: str | bytes) -> None:
            server.send(message)
            if "chat.send" in str(message) and lossy["drops"]:
                lossy["drops"] = False
                # The server has the message; its confirmation does not arrive.
                server.on_message(lambda _: None)
                socket.close()

        socket.on_message(on_client)

    with site.page(enter=False) as page:
        page.route_web_socket(re.compile("/rpc"), pass_on)
        page.goto(site.link)
        page.get_by_text("Connected", exact=True).wait_for()
        open_session(site, page, "once")
        expect(page.get_by_text("No messages yet")).to_be_visible()
        lossy["drops"] = True
        send(page, "only once")
        expect(page.locator(".composer [role=alert]")).to_contain_text("connection")
        expect(composer(page)).to_have_value("only once")
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        expect(answers(page)).to_have_count(1)
        page.reload()
        expect(composer(page)).to_have_value("only once")
        composer(page).press("Enter")
        expect(composer(page)).to_have_value("")
        settled(page)
        expect(typed(page)).to_have_text(["only once"])
    messages = site.call("chat.history", session="once")["messages"]
    assert [message["kind"] for message in messages] == ["user", "assistant"]


def test_two_tabs_do_not_overwrite_each_others_drafts(site: Site, page: Page) -> None:
    open_session(site, page, "tabs")
    other = page.context.new_page()
    other.goto(page.url)
    expect(composer(other)).to_be_visible()
    composer(page).fill("draft of the first tab")
    composer(other).fill("draft of the second tab")
    expect(page.locator(".other-draft")).to_contain_text("draft of the second tab")
    page.reload()
    expect(composer(page)).to_have_value("draft of the first tab")
    other.close()
    page.get_by_role("button", name="Use it").click()
    expect(composer(page)).to_have_value("draft of the second tab")
    expect(page.locator(".other-draft")).to_contain_text("draft of the first tab")
    page.get_by_role("button", name="Delete it").click()
    expect(page.locator(".other-draft")).to_have_count(0)
    page.reload()
    expect(composer(page)).to_have_value("draft of the second tab")


def test_a_draft_outlives_its_tab(site: Site, page: Page) -> None:
    open_session(site, page, "closed tab")
    composer(page).fill("typed in a tab that closes")
    other = page.context.new_page()
    page.close()
    other.goto(f"{site.origin}/#/chat/closed%20tab")
    expect(composer(other)).to_have_value("typed in a tab that closes")


def test_an_edit_in_progress_survives_a_reload(site: Site, page: Page) -> None:
    open_session(site, page, "edit draft")
    send(page, "first version")
    settled(page)
    page.locator(".row-user").get_by_role("button", name="Edit").click()
    page.get_by_label("Edit your message").fill("second version")
    page.reload()
    expect(page.get_by_label("Edit your message")).to_have_value("second version")
    page.get_by_role("button", name="Cancel").click()
    expect(typed(page)).to_have_text("first version")


# --- turns ----------------------------------------------------------------------------------------


def test_a_message_is_answered_and_shown_as_markdown(site: Site, page: Page) -> None:
    open_session(site, page, "tea & <b>cake</b>")
    expect(page).to_have_title(re.compile(r"^tea & <b>cake</b> · Chat"))
    send(page, "Hello **you**")
    settled(page)
    expect(typed(page)).to_have_text("Hello **you**")
    expect(answers(page).locator("strong").first).to_have_text("you")
    expect(page.locator(".session-link[aria-current]")).to_contain_text("tea & <b>cake</b>")


def test_an_answer_streams_can_be_stopped_and_is_kept(site: Site, page: Page) -> None:
    open_session(site, page, "stopped", model="echo:slow")
    send(page, words(400))
    expect(answers(page)).to_contain_text("w3 ")
    expect(composer(page)).to_have_value("")
    shoot(page, "chat-streaming")
    page.get_by_role("button", name="Stop", exact=True).click()
    settled(page)
    expect(answers(page)).to_contain_text("w3 ")
    expect(answers(page)).to_contain_text("Stopped")
    expect(answers(page).get_by_role("button", name="Retry")).to_be_visible()


def test_a_message_typed_during_an_answer_is_kept(site: Site, page: Page) -> None:
    open_session(site, page, "impatient", model="echo:slow")
    send(page, words(400))
    expect(answers(page)).to_contain_text("w2 ")
    send(page, "the next question")
    expect(page.locator(".composer [role=alert]")).to_contain_text("in progress")
    expect(composer(page)).to_have_value("the next question")
    page.get_by_role("button", name="Stop", exact=True).click()
    settled(page)
    expect(composer(page)).to_have_value("the next question")


def test_a_reload_during_an_answer_shows_it_and_it_continues(site: Site, page: Page) -> None:
    open_session(site, page, "reloaded", model="echo:slow")
    send(page, words(80))
    expect(answers(page)).to_contain_text("w5 ")
    page.reload()
    expect(answers(page)).to_contain_text("w20 ")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    settled(page)
    expect(answers(page)).to_contain_text(words(80))


def test_an_answer_continues_when_its_tab_closes_and_streams_in_another(
    site: Site, page: Page
) -> None:
    open_session(site, page, "second tab", model="echo:slow")
    other = page.context.new_page()
    other.goto(page.url)
    expect(composer(other)).to_be_visible()
    send(page, words(120))
    expect(answers(other)).to_contain_text("w5 ")
    expect(other.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    page.close()
    settled(other)
    expect(answers(other)).to_contain_text(words(120))


def test_a_turn_of_another_program_appears(site: Site, page: Page) -> None:
    open_session(site, page, "shared")
    expect(page.get_by_text("No messages yet")).to_be_visible()
    site.call("chat.send", session="shared", message="sent by another program")
    expect(typed(page)).to_have_text("sent by another program")
    expect(answers(page)).to_contain_text("sent by another program")


def test_an_answer_in_progress_continues_after_a_lost_connection(site: Site, page: Page) -> None:
    open_session(site, page, "cut", model="echo:slow")
    send(page, words(80))
    expect(answers(page)).to_contain_text("w5 ")
    site.proxy.cut()
    settled(page)
    expect(answers(page)).to_contain_text(words(80))


def test_an_error_of_a_turn_is_shown_at_its_message_with_retry(site: Site, page: Page) -> None:
    open_session(site, page, "unreachable", model=UNREACHABLE)
    send(page, "is anybody there?")
    failure = page.locator(".failure")
    expect(failure).to_contain_text("No answer")
    expect(typed(page)).to_have_text("is anybody there?")
    expect(composer(page)).to_have_value("")
    shoot(page, "chat-failure")
    page.reload()
    expect(failure).to_contain_text("no answer")
    site.call("chat.configure", session="unreachable", model="echo:echo")
    failure.get_by_role("button", name="Retry").click()
    settled(page)
    expect(failure).to_have_count(0)
    expect(answers(page)).to_contain_text("is anybody there?")


def test_thoughts_are_folded(site: Site, page: Page) -> None:
    open_session(site, page, "thoughts")
    send(page, "/think about tea")
    settled(page)
    fold = page.locator(".thinking")
    expect(fold).not_to_have_attribute("open", "")
    fold.locator("summary").click()
    expect(fold).to_contain_text("about tea")


def test_code_and_messages_are_copied(site: Site, page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=site.origin)
    open_session(site, page, "code")
    send(page, CODE)
    settled(page)
    answers(page).get_by_role("button", name="Copy the code").click()
    read = "() => navigator.clipboard.readText()"
    assert page.evaluate(read).strip() == 'print("hello")'
    page.locator(".row-user footer").get_by_role("button", name="Copy").click()
    expect(page.locator(".toast")).to_have_count(2)
    assert page.evaluate(read) == CODE


# --- branches -------------------------------------------------------------------------------------


def test_branches_are_created_by_edits_and_switched(site: Site, page: Page) -> None:
    open_session(site, page, "branching")
    send(page, "first question")
    settled(page)
    send(page, "second question")
    settled(page, 2)
    page.locator(".row-user").last.get_by_role("button", name="Edit").click()
    page.get_by_label("Edit your message").fill("another question")
    page.get_by_role("button", name="Send in a new branch").click()
    expect(typed(page)).to_have_text(["first question", "another question"])
    settled(page, 2)
    switcher = page.locator(".row-user").last.get_by_role("group", name="Branch")
    expect(switcher).to_contain_text("2/2")
    shoot(page, "chat-branches")
    assert violations(page) == []
    switcher.get_by_role("button", name="Previous branch").click()
    expect(typed(page)).to_have_text(["first question", "second question"])
    expect(switcher).to_contain_text("1/2")
    page.reload()
    expect(typed(page)).to_have_text(["first question", "second question"])


def test_an_answer_is_regenerated_beside_the_old_one(site: Site, page: Page) -> None:
    open_session(site, page, "again")
    send(page, "say it")
    settled(page)
    for count in (2, 3):
        answers(page).get_by_role("button", name="Regenerate").click()
        expect(answers(page).get_by_role("group", name="Branch")).to_contain_text(
            f"{count}/{count}"
        )
        settled(page)
    expect(typed(page)).to_have_count(1)
    assert len(site.call("chat.branches", session="again")["branches"]) == 3


def test_an_answer_is_edited_without_a_new_turn(site: Site, page: Page) -> None:
    open_session(site, page, "rewritten")
    send(page, "say it")
    settled(page)
    answers(page).get_by_role("button", name="Edit").click()
    page.get_by_label("Edit the answer").fill("what it should have said")
    page.get_by_role("button", name="Save in a new branch").click()
    expect(answers(page)).to_contain_text("what it should have said")
    expect(answers(page).get_by_role("group", name="Branch")).to_contain_text("2/2")


def test_a_session_is_forked_at_a_message(site: Site, page: Page) -> None:
    open_session(site, page, "original")
    send(page, "shared question")
    settled(page)
    send(page, "not shared")
    settled(page, 2)
    answers(page).first.get_by_role("button", name="Fork").click()
    page.get_by_label("Name", exact=True).fill("the fork")
    page.get_by_role("button", name="Create fork").click()
    expect(page.get_by_role("heading", name="the fork", exact=True)).to_be_visible()
    expect(typed(page)).to_have_text(["shared question"])


# --- attachments ----------------------------------------------------------------------------------


def test_files_are_attached_by_the_file_chooser(site: Site, page: Page) -> None:
    open_session(site, page, "files")
    files: list[FilePayload] = [
        {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"milk, eggs"},
        {"name": "dot.png", "mimeType": "image/png", "buffer": png()},
        {"name": "mistake.txt", "mimeType": "text/plain", "buffer": b"wrong file"},
    ]
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Attach").click()
    chooser.value.set_files(files)
    expect(page.locator(".attachment")).to_have_count(3)
    page.get_by_role("button", name="Remove mistake.txt").click()
    expect(page.locator(".attachment")).to_have_count(2)
    composer(page).fill("see these")
    shoot(page, "chat-attachments")
    assert violations(page) == []
    composer(page).press("Enter")
    settled(page)
    expect(answers(page)).to_contain_text("Attached: notes.txt, dot.png")
    expect(page.get_by_role("img", name="dot.png")).to_be_visible()
    page.locator(".stored-file summary").click()
    expect(page.locator(".stored-file pre")).to_have_text("milk, eggs")


@pytest.mark.parametrize(
    ("gesture", "place"),
    [("paste", "textarea"), ("drop", "textarea"), ("drop", ".message-list")],
)
def test_files_are_attached_by_paste_and_drop(
    site: Site, page: Page, gesture: str, place: str
) -> None:
    open_session(site, page, f"{gesture} into {place}")
    # The second file arrives while the first one is read.
    script = """([element, gesture]) => ["clip.txt", "more.txt"].forEach((name) => {
        const data = new DataTransfer();
        data.items.add(new File(["from the clipboard"], name, {type: "text/plain"}));
        const init = {bubbles: true, cancelable: true};
        element.dispatchEvent(gesture === "paste"
            ? new ClipboardEvent("paste", {...init, clipboardData: data})
            : new DragEvent("drop", {...init, dataTransfer: data}));
    })"""
    page.evaluate(script, [page.locator(f".conversation {place}").element_handle(), gesture])
    expect(page.locator(".attachment")).to_contain_text(["clip.txt", "more.txt"])
    send(page, "look")
    settled(page)
    expect(answers(page)).to_contain_text("Attached: clip.txt, more.txt")


def test_a_folder_that_is_dropped_is_refused_with_a_reason(site: Site, page: Page) -> None:
    open_session(site, page, "a folder")
    # A browser hands over a folder as a file that cannot be read.
    page.evaluate(
        """() => {
          const { arrayBuffer } = File.prototype;
          Blob.prototype.arrayBuffer = function read() {
            return this.name === "folder" ? Promise.reject(new Error()) : arrayBuffer.call(this);
          };
          const data = new DataTransfer();
          for (const name of ["folder", "note.txt"]) data.items.add(new File(["x"], name));
          document.querySelector(".conversation").dispatchEvent(
            new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: data }));
        }"""
    )
    expect(page.locator(".attachment")).to_contain_text(["note.txt"])
    expect(page.locator(".composer [role=alert]")).to_contain_text("folder was not attached")


def test_a_file_that_is_too_large_is_refused_before_sending(site: Site, page: Page) -> None:
    open_session(site, page, "large")
    page.get_by_label("Attach files").set_input_files(
        FilePayload(name="film.bin", mimeType="video/mp4", buffer=b"\xff" * 1_200_000)
    )
    alert = page.locator(".composer [role=alert]")
    expect(alert).to_contain_text("film.bin was not attached: it has 1.2 MB")
    expect(page.locator(".attachment")).to_have_count(0)
    send(page, "x" * 1_100_000)
    expect(alert).to_contain_text("The message has 1.1 MB")
    assert len(composer(page).input_value()) == 1_100_000


# --- tools ----------------------------------------------------------------------------------------


def test_a_tool_is_approved_inside_the_conversation(site: Site, page: Page) -> None:
    open_session(site, page, "tools", tools=["demo.echo"], approve="all")
    send(page, '/tool demo.echo {"text": "from the tool"}')
    question = page.locator(".question")
    expect(question).to_contain_text("Allow demo.echo")
    expect(page.locator(".tool-call")).to_contain_text("demo.echo")
    shoot(page, "chat-approval")
    assert violations(page) == []
    question.get_by_role("button", name=re.compile("^(Yes|Allow|Approve)")).first.click()
    settled(page)
    expect(question).to_have_count(0)
    call = page.locator(".tool-call")
    expect(call.locator("> summary .outcome")).to_contain_text("Done")
    call.locator("> summary").click()
    expect(call.locator(".json")).to_contain_text("from the tool")
    call.get_by_text("Result that the model received").click()
    expect(call.locator(".tool-output")).to_contain_text("from the tool")
    expect(call.locator(".run-tail .run-link")).to_be_visible()
    shoot(page, "chat-tool")
    assert violations(page) == []


def test_a_tool_call_stays_unfolded_when_its_answer_is_stored(site: Site, page: Page) -> None:
    open_session(site, page, "unfolded", tools=["showcase.steady"], approve="none")
    send(page, '/tool showcase.steady {"count": 40}')
    call = page.locator(".tool-call")
    call.locator("> summary").click()
    expect(call.locator(".run-tail")).to_contain_text("<")
    settled(page)
    expect(call.locator("> summary .outcome")).to_contain_text("Done")
    expect(call.locator(".run-tail")).to_be_visible()


def test_a_destructive_tool_is_not_the_suggested_answer(site: Site, page: Page) -> None:
    open_session(site, page, "destructive", tools=["bash.execute"])
    send(page, '/tool bash.execute {"command": "true"}')
    allow = page.locator(".question").get_by_role("button", name="Yes", exact=True)
    expect(allow).to_have_class(re.compile("danger"))
    page.locator(".question").get_by_role("button", name="No", exact=True).click()
    settled(page)
    expect(answers(page)).to_contain_text("did not approve bash.execute")


# --- sessions -------------------------------------------------------------------------------------


def test_a_session_is_created_with_a_model(site: Site, page: Page) -> None:
    site.open(page, "chat")
    page.get_by_role("link", name="New session").click()
    missing = page.get_by_role("radio", name=re.compile("^anthropic:"))
    expect(missing).to_be_disabled()
    expect(page.locator(".new-session")).to_contain_text("keyring set substrate ANTHROPIC_API_KEY")
    shoot(page, "chat-new-session")
    assert violations(page) == []
    page.get_by_label("Name", exact=True).fill("by hand")
    page.get_by_role("radio", name="Another model").check()
    page.get_by_label("Name of the model").fill("echo:slow")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name="by hand", exact=True)).to_be_visible()
    expect(page.locator(".model-button")).to_contain_text("echo:slow")
    page.get_by_role("link", name="New session").click()
    page.get_by_label("Name", exact=True).fill("by hand")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.locator(".new-session [role=alert]")).to_contain_text("already exists")


def test_a_session_is_renamed_with_its_draft_and_deleted(site: Site, page: Page) -> None:
    open_session(site, page, "old name")
    composer(page).fill("unsent")
    page.get_by_role("button", name="Actions for old name").click()
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("New name").fill("new name")
    page.get_by_role("button", name="Rename").click()
    expect(page.get_by_role("heading", name="new name", exact=True)).to_be_visible()
    expect(composer(page)).to_have_value("unsent")
    page.get_by_role("button", name="Actions for new name").click()
    page.get_by_role("button", name="Delete…").click()
    confirmation = page.get_by_role("group", name="Delete new name")
    confirmation.get_by_role("button", name="Keep").click()
    expect(confirmation).to_have_count(0)
    page.get_by_role("button", name="Actions for new name").click()
    page.get_by_role("button", name="Delete…").click()
    confirmation.get_by_role("button", name="Delete", exact=True).click()
    expect(page).to_have_url(re.compile("#/chat$"))
    expect(page.locator(".session-link", has_text="new name")).to_have_count(0)


def test_sessions_and_messages_are_found(site: Site, page: Page) -> None:
    site.call("chat.create", name="needle in a name")
    site.call("chat.create", name="plain")
    site.call("chat.send", session="plain", message="a haystack with a pin inside")
    site.open(page, "chat")
    search = page.get_by_label("Search sessions and messages")
    search.fill("needle")
    expect(page.locator(".session-name")).to_have_text(["needle in a name"])
    search.fill("haystack")
    page.locator(".session-link", has_text="a haystack").first.click()
    expect(page.get_by_role("heading", name="plain", exact=True)).to_be_visible()


def test_a_conversation_is_exported(site: Site, page: Page, tmp_path: Path) -> None:
    open_session(site, page, "exported")
    send(page, "save me")
    settled(page)
    page.get_by_role("button", name="Actions for exported").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export", exact=True).click()
    saved = tmp_path / "exported.md"
    download.value.save_as(saved)
    assert download.value.suggested_filename == "exported.md"
    assert "save me" in saved.read_text()


def test_settings_are_changed_and_removed(site: Site, page: Page) -> None:
    open_session(site, page, "settings", system_prompt="be brief")
    page.get_by_role("button", name="Settings", exact=True).click()
    form = page.get_by_role("form", name="Session settings")
    expect(form.get_by_label("system_prompt")).to_have_value("be brief")
    form.get_by_label("system_prompt").fill("")
    form.get_by_label("temperature").fill("0.5")
    shoot(page, "chat-settings")
    assert violations(page) == []
    form.get_by_role("button", name="Save").click()
    expect(form).to_have_count(0)
    session = site.call("chat.get", session="settings")
    assert session["temperature"] == 0.5
    assert "system_prompt" not in session
    page.get_by_role("button", name="Settings", exact=True).click()
    form.get_by_label("temperature").fill("9")
    form.get_by_role("button", name="Save").click()
    expect(form).to_contain_text("must be from 0 to 2")


def test_empty_and_missing_sessions_say_the_next_step(site: Site, page: Page) -> None:
    site.open(page, "chat", "missing")
    expect(page.get_by_text("This session could not be opened")).to_be_visible()
    page.get_by_role("link", name="Show all sessions").click()
    expect(page.get_by_text("No session is open")).to_be_visible()
    open_session(site, page, "empty")
    expect(page.get_by_text("Write a message below.")).to_be_visible()


# --- long conversations ---------------------------------------------------------------------------


def fill_session(site: Site, name: str, messages: int) -> None:
    """Create a session with this many messages."""
    tree = site.call("chat.create", name=name)["position"]["tree_id"]
    node: str | None = None
    for start in range(0, messages, 500):
        nodes: list[dict[str, object]] = []
        for number in range(start, min(messages, start + 500)):
            kind = "assistant" if number % 2 else "user"
            text = f"message {number}\n\n" + "Some **text** in a paragraph. " * (number % 7)
            item: dict[str, object] = {"content": text, "metadata": {"kind": kind}}
            if nodes:
                item["parent"] = len(nodes) - 1
            nodes.append(item)
        place = {} if node is None else {"parent": node}
        node = site.call("arbor.node_append", tree_id=tree, nodes=nodes, **place)["node_ids"][-1]
    site.call("chat.set_head", session=name, node_id=node)


def test_a_long_conversation_loads_from_its_end_in_pages_without_jumping(
    site: Site, page: Page
) -> None:
    fill_session(site, "long", 2000)
    site.open(page, "chat", "long")
    expect(page.get_by_text("message 1999", exact=True)).to_be_in_viewport()
    assert page.locator(".chat-row").count() < 100
    moves = page.evaluate("""async () => {
        const list = document.querySelector(".message-list");
        const frame = () => new Promise(requestAnimationFrame);
        const visible = () => [...list.querySelectorAll("[data-key]")].find(
            (row) => row.getBoundingClientRect().top > list.getBoundingClientRect().top + 100);
        let worst = 0;
        for (let step = 0; step < 120; step += 1) {
            list.scrollTop -= 250;
            await frame();
            const row = visible();
            if (!row) continue;
            const [key, top] = [row.dataset.key, row.getBoundingClientRect().top];
            for (let wait = 0; wait < 3; wait += 1) await frame();
            const now = list.querySelector(`[data-key="${key}"]`);
            worst = Math.max(worst, now ? Math.abs(now.getBoundingClientRect().top - top) : 999);
        }
        return worst;
    }""")
    assert moves < 3
    assert page.locator(".chat-row").count() < 200
    end = page.get_by_role("button", name="Jump to latest")
    expect(end).to_be_visible()
    end.click()
    expect(page.get_by_text("message 1999", exact=True)).to_be_in_viewport()
    expect(end).to_have_count(0)


def test_scrolling_up_stops_following_the_answer(site: Site, page: Page) -> None:
    fill_session(site, "scrolled", 30)
    site.call("chat.configure", session="scrolled", model="echo:slow")
    site.open(page, "chat", "scrolled")
    expect(page.get_by_text("message 29", exact=True)).to_be_in_viewport()
    send(page, "\n\n".join(f"line {number}" for number in range(100)))
    expect(answers(page).last).to_contain_text("line 10")
    expect(page.locator(".row-status").last).to_be_in_viewport()
    page.locator(".message-list").hover()
    page.mouse.wheel(0, -1500)
    expect(page.get_by_role("button", name="Jump to latest")).to_be_visible()
    before = page.locator(".message-list").evaluate("(list) => list.scrollTop")
    expect(answers(page).last).to_contain_text("line 30")
    assert page.locator(".message-list").evaluate("(list) => list.scrollTop") == before
    page.get_by_role("button", name="Jump to latest").click()
    expect(page.locator(".row-status").last).to_be_in_viewport()
    page.get_by_role("button", name="Stop", exact=True).click()


# --- keyboard, phone, accessibility ---------------------------------------------------------------


def test_shift_enter_adds_a_line_and_ctrl_enter_sends(site: Site, page: Page) -> None:
    open_session(site, page, "keys")
    composer(page).press_sequentially("one")
    small = composer(page).bounding_box()
    composer(page).press("Shift+Enter")
    composer(page).press_sequentially("two")
    expect(composer(page)).to_have_value("one\ntwo")
    large = composer(page).bounding_box()
    assert small
    assert large
    assert large["height"] > small["height"]
    composer(page).press("Control+Enter")
    settled(page)
    expect(typed(page)).to_have_text("one\ntwo")


def test_a_phone_shows_list_and_conversation_on_separate_screens(site: Site) -> None:
    site.call("chat.create", name="a session with a rather long name for a phone")
    with site.page(phone=True) as page:
        site.open(page, "chat")
        expect(page.get_by_role("heading", name="Chat")).to_be_visible()
        expect(page.get_by_role("region", name="Conversation", exact=True)).to_be_hidden()
        assert overflow(page) <= 0
        shoot(page, "chat-list-phone")
        page.get_by_text("a session with a rather long name").click()
        expect(composer(page)).to_be_visible()
        expect(page.get_by_role("heading", name="Chat")).to_be_hidden()
        composer(page).fill(CODE + "\n\n" + "unbroken" * 40)
        composer(page).press("Enter")
        expect(composer(page)).to_have_value(re.compile("\n$"))
        page.get_by_role("button", name="Send", exact=True).click()
        settled(page)
        assert overflow(page) <= 0
        shoot(page, "chat-conversation-phone")
        page.get_by_role("button", name=re.compile("^Model")).click()
        expect(page.get_by_role("radio", name="echo:echo")).to_be_visible()
        assert overflow(page) <= 0
        page.get_by_role("link", name="Sessions").click()
        expect(page.get_by_role("heading", name="Chat")).to_be_visible()


@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, False), (False, True)])
def test_chat_is_accessible(site: Site, dark: bool, phone: bool) -> None:
    name = f"seen{dark:d}{phone:d}"
    site.call("chat.create", name=name)
    site.call("chat.send", session=name, message="/think What is `this`?")
    site.call("chat.send", session=name, message=CODE)
    site.call("chat.regenerate", session=name)
    with site.page(dark=dark, phone=phone) as page:
        site.open(page, "chat", name)
        expect(answers(page)).to_have_count(2)
        expect(answers(page).last.get_by_role("group", name="Branch")).to_be_visible()
        assert violations(page) == []
        shoot(page, f"chat{'-dark' if dark else ''}{'-phone' if phone else ''}")
        site.open(page, "chat")
        page.get_by_role("link", name="New session").click()
        expect(page.get_by_role("radio", name="echo:echo")).to_be_visible()
        assert violations(page) == []
