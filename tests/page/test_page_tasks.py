"""The task board: columns, live changes, dragging, keys, filters, the panel, a narrow screen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import network
import pytest
from page_browser import Site, opened, shoot, violations
from playwright.sync_api import Locator, Page, expect
from stdio_process import Server, serving

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with opened() as site:
        yield site


@pytest.fixture
def page(site: Site) -> Iterator[Page]:
    with site.page() as page:
        yield page


@pytest.fixture(autouse=True)
def _empty(site: Site) -> None:
    """Delete the tasks of the test before."""
    names = [task["id"] for task in site.call("tasks.list_tasks", status="all", limit=500)["tasks"]]
    if names:
        site.call("tasks.delete", task_ids=names)


def add(site: Site, description: str, **more: Any) -> str:
    return str(site.call("tasks.create_task", description=description, **more)["id"])


def column(page: Page, title: str) -> Locator:
    return page.get_by_role("region", name=re.compile(f"^{title}"))


def card(page: Page, text: str) -> Locator:
    return page.locator(".task-card", has_text=text)


def fill(site: Site) -> dict[str, str]:
    """Create a board with something in every column."""
    names = {
        "parser": add(site, "Fix the parser of dates", type="bug", priority=0, labels=["core"])
    }
    names["docs"] = add(
        site,
        "Document the new options\n\nWith an example for each of them.",
        labels=["docs"],
        acceptance=["Every option is listed", "The examples are tested"],
    )
    names["release"] = add(site, "Release 1.4", type="epic", blocked_by=[names["parser"]])
    names["cache"] = add(site, "Try a cache for lookups", priority=4)
    names["login"] = add(site, "Speed up the login", type="feature", priority=1)
    site.call("tasks.update_task", task_id=names["login"], status="in_progress")
    site.call(
        "tasks.close_task", task_id=names["cache"], reason="Not worth it", outcome="cancelled"
    )
    site.call("tasks.link_tasks", task_id=names["parser"], kind="run", target="run://4711")
    site.call("tasks.update_task", task_id=names["docs"], note="The options are in settings.py.")
    return names


@contextmanager
def claimed_in_window(site: Site, name: str) -> Iterator[None]:
    """Claim a task by an agent in another process, which is killed at the end of the block."""
    with serving("--mcp", XDG_DATA_HOME=site.data) as window:
        claim(window, name)
        yield


def claim(window: Server, name: str) -> None:
    call = {"name": "update_task", "arguments": {"task_id": name, "status": "in_progress"}}
    hello = {"protocolVersion": "2025-03-26", "capabilities": {}}
    window.request("initialize", {**hello, "clientInfo": {"name": "agent", "version": "1"}})
    window.read()
    window.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    number = window.request("tools/call", call)
    answer = window.read_until(lambda message: message.get("id") == number)[-1]
    assert answer["result"]["isError"] is False, answer


def test_tasks_are_in_the_column_of_their_state(site: Site, page: Page) -> None:
    fill(site)
    page.get_by_role("link", name="Tasks", exact=True).click()
    expect(column(page, "Ready")).to_contain_text("Fix the parser of dates")
    expect(column(page, "Ready")).to_contain_text("Document the new options")
    expect(column(page, "Blocked")).to_contain_text("Release 1.4")
    expect(column(page, "Blocked")).to_contain_text("waits for 1")
    expect(column(page, "In progress")).to_contain_text("Speed up the login")
    expect(column(page, "Closed")).to_contain_text("cancelled")
    # The most urgent is first.
    expect(column(page, "Ready").locator(".task-card").first).to_contain_text("P0")
    assert violations(page) == []
    shoot(page, "tasks-light")


@pytest.mark.parametrize("kind", ["dark", "phone"])
def test_the_board_and_a_task_in_the_dark_and_on_a_phone(site: Site, kind: str) -> None:
    names = fill(site)
    with site.page(dark=kind == "dark", phone=kind == "phone") as page:
        site.open(page, "tasks")
        expect(card(page, "Fix the parser")).to_be_visible()
        if kind == "phone":
            expect(card(page, "Speed up the login")).to_be_hidden()
            shoot(page, "tasks-phone")
            page.get_by_role("button", name="In progress").click()
            expect(card(page, "Speed up the login")).to_be_visible()
        site.open(page, "tasks", names["docs"])
        expect(page.get_by_text("The options are in settings.py.")).to_be_visible()
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= page.viewport_size["width"]  # type: ignore[index]  # it has a size
        assert violations(page) == []
        shoot(page, f"tasks-{kind}-task")


def test_changes_of_other_windows_appear_and_a_dead_agent_loses_its_task(
    site: Site, page: Page
) -> None:
    site.open(page, "tasks")
    expect(page.get_by_text("No task is ready.")).to_be_visible()
    name = add(site, "Made elsewhere")
    expect(column(page, "Ready")).to_contain_text("Made elsewhere")
    with claimed_in_window(site, name):
        expect(column(page, "In progress")).to_contain_text("agent/1 #")
    expect(column(page, "Ready")).to_contain_text("Made elsewhere")
    site.call("tasks.delete", task_ids=[name])
    expect(card(page, "Made elsewhere")).to_have_count(0)


def test_a_card_is_dragged_to_another_column(site: Site, page: Page) -> None:
    name = add(site, "Drag me")
    site.open(page, "tasks")
    card(page, "Drag me").drag_to(column(page, "In progress"))
    expect(column(page, "In progress")).to_contain_text("Drag me")
    assert site.call("tasks.get", task_id=name)["holder"].startswith("Browser")
    card(page, "Drag me").drag_to(column(page, "Closed"))
    expect(column(page, "Closed")).to_contain_text("Drag me")
    card(page, "Drag me").drag_to(column(page, "Ready"))
    expect(column(page, "Ready")).to_contain_text("Drag me")
    card(page, "Drag me").drag_to(column(page, "Blocked"))  # links decide that
    expect(column(page, "Ready")).to_contain_text("Drag me")
    changes = site.call("tasks.history", task_id=name)["changes"]
    assert [each["change"] for each in changes] == ["created", "claimed", "closed", "reopened"]


def test_a_card_is_moved_with_the_keyboard(site: Site, page: Page) -> None:
    add(site, "Move me")
    site.open(page, "tasks")
    link = card(page, "Move me").get_by_role("link")
    for key, title in (
        ("Alt+ArrowRight", "In progress"),
        ("Alt+ArrowRight", "Closed"),
        ("Alt+ArrowRight", "Closed"),
        ("Alt+ArrowLeft", "In progress"),
        ("Alt+ArrowLeft", "Ready"),
    ):
        link.focus()
        page.keyboard.press(key)
        expect(column(page, title)).to_contain_text("Move me")


def test_a_task_of_an_agent_is_taken_only_after_a_question(site: Site, page: Page) -> None:
    name = add(site, "An agent has me")
    with claimed_in_window(site, name):
        site.open(page, "tasks", name)
        page.get_by_role("button", name="Done").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("agent/1 #")
        dialog.get_by_role("button", name="Leave it").click()
        expect(column(page, "In progress")).to_contain_text("An agent has me")
        page.get_by_role("button", name="Done").click()
        dialog.get_by_role("button", name="Take it").click()
        expect(column(page, "Closed")).to_contain_text("An agent has me")


def test_a_task_is_added_filtered_and_changed_in_the_page(site: Site, page: Page) -> None:
    fill(site)
    site.open(page, "tasks")
    page.get_by_label("New task").fill("Typed <b>here</b>")
    page.get_by_label("Type", exact=True).select_option("bug")
    page.get_by_role("button", name="Add task").click()
    expect(column(page, "Ready")).to_contain_text("Typed <b>here</b>")
    page.get_by_label("All labels").select_option("docs")
    expect(page.locator(".task-card")).to_have_count(1)
    page.get_by_label("All labels").select_option("")
    page.get_by_label("Search tasks").fill("typed")
    expect(page.locator(".task-card")).to_have_count(1)
    assert "q=typed" in page.url
    card(page, "Typed").get_by_role("link").click()
    page.get_by_label("Priority of the task").select_option("0")
    page.get_by_label("New note").fill("First line\nSecond line")
    page.get_by_role("button", name="Add note").click()
    expect(page.get_by_text("First line")).to_be_visible()
    page.get_by_text("History").click()
    expect(page.locator(".history li")).to_have_count(3)
    page.get_by_role("button", name="Cancel task").click()
    expect(page.get_by_role("button", name="Reopen")).to_be_visible()


def test_criteria_are_checked_and_a_run_is_linked(site: Site, page: Page) -> None:
    names = fill(site)
    site.open(page, "tasks", names["docs"])
    page.get_by_label("The examples are tested").check()
    expect(page.get_by_label("The examples are tested")).to_be_checked()
    page.get_by_text("History").click()
    expect(page.locator(".history")).to_contain_text("updated")
    found = site.call("tasks.get", task_id=names["docs"])
    assert [each["met"] for each in found["acceptance"]] == [False, True]
    site.open(page, "tasks", names["parser"])
    expect(page.get_by_role("link", name=re.compile("Run "))).to_have_attribute(
        "href", "#/runs/4711"
    )
    site.open(page, "tasks", "task_xyz")
    expect(page.get_by_text("task not found")).to_be_visible()


def test_the_board_is_offered_only_with_the_activation(site: Site) -> None:
    with (
        network.serving("--without", "tasks", auth="token") as server,
        site.with_server(server).page() as page,
    ):
        expect(page.get_by_role("link", name="Status", exact=True)).to_be_visible()
        expect(page.get_by_role("link", name="Tasks", exact=True)).to_have_count(0)
