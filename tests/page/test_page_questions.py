"""The inbox of questions: every kind of question, answers here and elsewhere, notifications."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from network import bearer
from page_browser import Site, opened, shoot, violations
from playwright.sync_api import Locator, Page, expect
from stdio_process import serving as on_stdio
from test_page_runs import overflow, running

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with opened() as site:
        yield site


@pytest.fixture
def page(site: Site) -> Iterator[Page]:
    with site.page() as page:
        site.open(page, "questions")
        page.get_by_role("heading", name="Questions", exact=True).wait_for()
        yield page


def card(page: Page, text: str = "") -> Locator:
    return page.locator(".question").filter(has_text=text)


def answered(page: Page, text: str) -> Locator:
    """Return the last closed question with this text. The server lists those of other tests too."""
    return page.locator(".answered li").filter(has_text=text).first


@contextmanager
def asking(site: Site, method: str = "demo.delete", **params: object) -> Iterator[int]:
    """Start a run that asks, and stop it at the end."""
    with running(site, method, **params) as (run, _):
        yield run


# --- answers --------------------------------------------------------------------------------------


def test_every_kind_of_question_is_answered(site: Site, page: Page) -> None:
    with running(site, "showcase.ask") as (run, stream):
        expect(card(page, "Shall we go?")).to_contain_text("showcase.ask")
        expect(card(page)).to_contain_text(re.compile(r"asked by \w+"))
        expect(card(page)).to_contain_text(re.compile(r"\d:\d\d left"))
        expect(card(page).get_by_role("link", name=f"run {run:x}"[:4])).to_be_visible()
        card(page).get_by_role("button", name="Yes").click()
        card(page, "What is your name?").get_by_role("textbox").fill("Ada")
        page.keyboard.press("Enter")
        card(page, "Where to?").get_by_label("hills").check()
        card(page).get_by_role("button", name="Answer").click()
        question = card(page, "What do you take?")
        question.get_by_label("tent").check()
        question.get_by_label("map").check()
        shoot(page, "questions-many")
        question.get_by_role("button", name="Answer").click()
        form = card(page, "Which trip?")
        form.get_by_label("City").fill("Oslo")
        form.get_by_text("More options").click()
        form.get_by_label("Nights").fill("3")
        assert violations(page) == []
        shoot(page, "questions-form")
        form.get_by_role("button", name="Answer").click()
        output = stream.read()
    for part in (b"confirm=True", b"prompt=Ada", b"select=hills", b"many=tent,map"):
        assert part in output
    assert b"form=Oslo/3/True" in output
    expect(page.get_by_text("No open questions")).to_be_visible()
    expect(answered(page, "What is your name?")).to_contain_text(
        "Answered “Ada” by you, in this browser"
    )
    expect(answered(page, "Where to?")).to_contain_text("hills")
    shoot(page, "questions-answered")
    page.reload()
    expect(answered(page, "Where to?")).to_contain_text("hills")


def test_what_was_answered_is_kept_for_other_tabs_and_forgotten_at_logout(
    site: Site, page: Page
) -> None:
    with asking(site), site.page() as other:
        site.open(other, "questions")
        card(page, "Delete 3 files?").get_by_role("button", name="Yes").click()
        expect(answered(page, "Delete 3 files?")).to_contain_text("by you, in this browser")
    with page.context.expect_page() as opened_tab:
        page.evaluate("() => window.open('/#/questions')")
    tab = opened_tab.value
    expect(answered(tab, "Delete 3 files?")).to_contain_text("by you, in this browser")
    tab.get_by_role("button", name="Log out").click()
    expect(tab.get_by_role("heading", name="Not connected")).to_be_visible()
    # The page is loaded again meanwhile.
    tab.wait_for_function("() => !JSON.stringify({...localStorage}).includes('Delete')")


def test_what_was_answered_while_no_page_was_open_is_listed(site: Site) -> None:
    with asking(site, "showcase.confirm", message="Shall we paint it?") as run:
        params = {"run": run, "request": "1", "answer": True}
        headers = bearer(site.server.token) | {"Substrate-Client": "Phone/1.0"}
        with site.server.call("plexus.respond", params, **headers) as response:
            assert response.status == 200
    with site.page() as page:
        site.open(page, "questions")
        entry = answered(page, "Shall we paint it?")
        expect(entry).to_contain_text("Answered “yes” by Phone,")
        expect(entry.get_by_role("link")).to_have_attribute("href", f"#/runs/{run}")


def test_a_question_can_be_declined(site: Site, page: Page) -> None:
    with running(site, "showcase.ask") as (run, stream):
        card(page, "Shall we go?").get_by_role("button", name="No").click()
        card(page, "What is your name?").get_by_role("button", name="Decline").click()
        assert b'"code":"declined"' in stream.read()
    expect(answered(page, "What is your name?")).to_contain_text("Declined by you, in this browser")
    # The question is named once, and the outcome too.
    assert "declined: What is your name? declined" not in page.locator("body").inner_text()
    # So they are in the run: in its output, and in the list.
    site.open(page, "runs", str(run))
    expect(page.locator(".e-failed")).to_have_text("✕ declined: What is your name?")
    site.open(page, "runs")
    row = page.locator(f'.run-row[data-run="{run}"]')
    expect(row).to_contain_text("What is your name?")
    assert row.inner_text().lower().count("declined") == 1, row.inner_text()


def test_an_answer_that_is_refused_leaves_what_was_typed(site: Site, page: Page) -> None:
    with asking(site, "showcase.ask"):
        card(page, "Shall we go?").get_by_role("button", name="Yes").click()
        field = card(page, "What is your name?").get_by_role("textbox")
        field.fill("Grace")
        page.evaluate(
            """async () => {
              const send = WebSocket.prototype.send;
              WebSocket.prototype.send = function (text) {
                send.call(this, text.replace("plexus.respond", "plexus.no_such_method"));
              };
            }"""
        )
        card(page).get_by_role("button", name="Answer").click()
        expect(card(page).get_by_role("alert")).to_contain_text("no_such_method")
        expect(field).to_have_value("Grace")
        shoot(page, "questions-error")


def test_what_was_typed_survives_other_questions_views_and_a_lost_connection(
    site: Site, page: Page
) -> None:
    with asking(site, "showcase.ask"):
        card(page, "Shall we go?").get_by_role("button", name="Yes").click()
        field = card(page, "What is your name?").get_by_role("textbox")
        field.fill("Grace")
        with asking(site):
            expect(card(page)).to_have_count(2)
            expect(field).to_have_value("Grace")
            expect(field).to_be_focused()
        expect(card(page)).to_have_count(1)
        site.proxy.cut()
        expect(page.locator(".banner")).to_be_visible()
        expect(page.locator(".banner")).to_be_hidden()
        expect(field).to_have_value("Grace")
        site.open(page, "runs")
        expect(card(page).get_by_role("textbox")).to_have_value("Grace")


# --- dangerous choices ----------------------------------------------------------------------------


def test_no_yes_is_highlighted_even_if_it_looks_harmless(site: Site, page: Page) -> None:
    with asking(site, "showcase.ask"):
        question = card(page, "Shall we go?")
        expect(question.get_by_role("button")).to_have_text(["Yes", "No"])
        expect(question.locator("button.primary")).to_have_count(0)


def test_a_destructive_choice_is_outlined_and_never_the_default(site: Site, page: Page) -> None:
    with asking(site):
        question = card(page, "Delete 3 files?")
        buttons = question.get_by_role("button")
        expect(buttons.nth(0)).to_have_text("No")
        expect(buttons.nth(1)).to_have_text("Yes, delete")
        expect(buttons.nth(1)).to_have_class("danger")
        expect(question.locator("button.primary")).to_have_count(0)
        assert page.evaluate("() => document.activeElement.closest('.question')") is None
        shoot(page, "questions-destructive")


def test_a_permission_shows_the_tool_and_its_input(site: Site, page: Page) -> None:
    tool = {"tool_name": "Bash", "input": {"command": "rm -rf build"}}
    with running(site, "approvals.permit", **tool) as (_, stream):
        question = card(page, "Allow Bash?")
        expect(question).to_contain_text("rm -rf build")
        expect(question.get_by_role("button", name="Allow")).to_have_class("danger")
        assert violations(page) == []
        shoot(page, "questions-permit")
        question.get_by_label("Reason for denying").fill("not today")
        question.get_by_role("button", name="Deny").click()
        assert b"not today" in stream.read()
    with running(site, "approvals.permit", tool_name="Read", input={"path": "a"}) as (_, stream):
        card(page, "Allow Read?").get_by_role("button", name="Allow").click()
        assert b"allow" in stream.read()


# --- elsewhere ------------------------------------------------------------------------------------


def test_an_answer_elsewhere_closes_the_card_in_every_tab(site: Site, page: Page) -> None:
    other = page.context.new_page()
    other.goto(f"{site.origin}/#/questions")
    with asking(site) as run:
        for tab in (page, other):
            expect(card(tab, "Delete 3 files?")).to_be_visible()
        card(other).get_by_role("button", name="No").click()
        expect(card(page)).to_have_count(0)
        by = re.compile("by (you, in this browser|Browser)")
        expect(answered(page, "Delete 3 files?").first).to_contain_text(by)
        expect(answered(other, "Delete 3 files?").first).to_contain_text(by)
        site.call("plexus.inspect", run=run)
    other.close()


def test_a_person_who_types_is_notified_that_the_question_was_answered_elsewhere(
    site: Site, page: Page
) -> None:
    with asking(site, "showcase.ask") as run:
        card(page, "Shall we go?").get_by_role("button", name="Yes").click()
        card(page, "What is your name?").get_by_role("textbox").fill("Gr")
        headers = bearer(site.server.token) | {"Substrate-Client": "codex-mcp-client/1.0"}
        request = card(page).get_attribute("data-request")
        params = {"run": run, "request": request, "answer": "Lin"}
        with site.server.call("plexus.respond", params, **headers) as response:
            response.read()
        expect(page.locator(".toast")).to_contain_text("No longer open: “What is your name?”")
        expect(answered(page, "What is your name?").first).to_contain_text(
            "Answered “Lin” by Codex"
        )


def test_questions_of_another_process_are_answered_in_the_page(site: Site, page: Page) -> None:
    with on_stdio(XDG_DATA_HOME=site.data) as process:
        permit = process.start("approvals.permit", {"tool_name": "Write", "input": {"a": 1}})
        card(page, "Allow Write?").get_by_role("button", name="Allow").click()
        assert '"allow"' in process.terminal(permit)["result"]
        expect(card(page)).to_have_count(0)
        deletion = process.start("demo.delete")
        expect(card(page, "Delete 3 files?")).to_contain_text(f"pid {process.process.pid}")
        card(page).get_by_role("button", name="Yes").click()
        card(page, "Where?").get_by_label("there").check()
        card(page).get_by_role("button", name="Answer").click()
        process.read_until(lambda message: "deleted there" in str(message))
        assert process.terminal(deletion)["type"] == "complete"
        expect(card(page)).to_have_count(0)


# --- notifications --------------------------------------------------------------------------------


def test_a_hidden_tab_shows_a_notification_that_opens_the_run(site: Site, page: Page) -> None:
    page.evaluate(
        """() => {
          window.shown = [];
          window.Notification = class {
            static permission = "default";
            static requestPermission = async () => (Notification.permission = "granted");
            constructor(title, options) {
              Object.assign(this, { title, ...options });
              window.shown.push(this);
            }
            close() { this.isClosed = true; }
          };
        }"""
    )
    page.get_by_role("button", name="Notify me about questions").click()
    expect(page.get_by_role("button", name="Notifications are on")).to_be_visible()
    with asking(site):
        card(page, "Delete 3 files?").wait_for()
        assert page.evaluate("() => window.shown.length") == 0  # the tab is visible
    expect(card(page)).to_have_count(0)
    page.evaluate("() => Object.defineProperty(document, 'hidden', { value: true })")
    with asking(site) as run:
        page.wait_for_function("() => window.shown.length === 1")
        assert page.evaluate("() => window.shown[0].title") == "Delete 3 files?"
        page.evaluate("() => window.shown[0].onclick()")
        expect(page).to_have_url(re.compile(f"#/runs/{run}$"))
    page.wait_for_function("() => window.shown[0].isClosed")


def test_the_browser_itself_shows_and_closes_the_notification_of_a_question(
    site: Site, page: Page
) -> None:
    """With the `Notification` of Chromium, and a person who has allowed it."""
    page.context.grant_permissions(["notifications"], origin=site.origin)
    page.evaluate(
        """() => {
          window.happened = [];
          window.Notification = class extends window.Notification {
            constructor(title, options) {
              super(title, options);
              const note = (name) => window.happened.push([name, this.title, this.body]);
              for (const name of ["show", "error", "close"]) {
                this.addEventListener(name, () => note(name));
              }
            }
          };
        }"""
    )
    page.get_by_role("button", name="Notify me about questions").click()
    expect(page.get_by_role("button", name="Notifications are on")).to_be_visible()
    page.evaluate("() => Object.defineProperty(document, 'hidden', { value: true })")
    with asking(site):
        page.wait_for_function("() => window.happened.length > 0")
        shown = ["Delete 3 files?", "demo.delete"]
        assert page.evaluate("() => window.happened") == [["show", *shown]]
    page.wait_for_function("() => window.happened.length > 1")
    assert page.evaluate("() => window.happened[1]") == ["close", *shown]


# --- the screen -----------------------------------------------------------------------------------


def test_more_than_three_questions_are_linked_from_the_list(site: Site, page: Page) -> None:
    with asking(site), asking(site), asking(site), asking(site), asking(site):
        expect(page.get_by_role("status").filter(has_text="open")).to_have_text("5 open")
        expect(page).to_have_title(re.compile(r"^\(5\) Questions"))
        site.open(page, "runs")
        expect(card(page)).to_have_count(3)
        page.get_by_role("link", name="2 more questions").click()
        expect(card(page)).to_have_count(5)


@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, False), (False, True)])
def test_the_inbox_is_accessible_and_fits_the_screen(site: Site, dark: bool, phone: bool) -> None:
    long = {"command": "echo " + "word" * 100}
    with (
        asking(site),
        asking(site, "showcase.ask"),
        asking(site, "approvals.permit", tool_name="Bash", input=long),
        site.page(dark=dark, phone=phone) as page,
    ):
        site.open(page, "questions")
        expect(card(page)).to_have_count(3)
        card(page, "Shall we go?").get_by_role("button", name="Yes").click()
        expect(answered(page, "Shall we go?")).to_be_visible()
        expect(card(page)).to_have_count(3)
        assert overflow(page) <= 0
        assert violations(page) == []
        shoot(page, f"questions{'-dark' if dark else ''}{'-phone' if phone else ''}")
