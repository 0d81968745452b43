"""The page's view of all methods."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from page_browser import Site, opened, shoot, violations
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with opened() as site:
        yield site


@pytest.fixture
def page(site: Site) -> Iterator[Page]:
    with site.page() as page:
        yield page


def field(name: str) -> str:
    """Return the selector of a field by its label."""
    return f".field:has(> label:text-is('{name}')) > :is(textarea, input, select)"


def test_methods_are_a_tree_by_namespace_with_keyboard_navigation(page: Page) -> None:
    tree = page.get_by_role("tree", name="Methods by namespace")
    expect(tree.get_by_role("treeitem").filter(has_text="showcase")).to_have_attribute(
        "aria-expanded", "false"
    )
    tree.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    # The last method of the last namespace is shown.
    expect(page).to_have_url(re.compile(r"#/explore/showcase\.steady$"))
    expect(page.locator("article h1")).to_have_text("showcase.steady")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(tree.get_by_role("treeitem").filter(has_text="showcase")).to_have_attribute(
        "aria-expanded", "false"
    )


def test_a_slash_searches_names_and_texts(page: Page) -> None:
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("shell command")
    expect(page.get_by_role("treeitem").filter(has_text="execute")).to_be_visible()
    expect(page.get_by_text("1 methods found")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator("article h1")).to_have_text("bash.execute")


def test_a_form_has_every_kind_of_field_and_sends_what_is_in_it(site: Site, page: Page) -> None:
    site.open(page, "explore", "showcase.shape")
    page.locator(field("label")).fill("a box")
    page.locator(field("size")).select_option(label="large")
    page.locator(field("amount")).fill("7")
    page.locator(field("wet")).check()
    part = page.locator("fieldset:has(> legend:text-is('part'))")
    part.locator("textarea").first.fill("lid")
    part.locator("input[inputmode]").fill("2.5")
    parts = page.locator("fieldset:has(> legend:text-is('parts'))")
    for name in ("left", "right"):
        parts.get_by_role("button", name="Add an entry").click()
        parts.locator("li").last.locator("textarea").first.fill(name)
    words = page.locator("fieldset:has(> legend:text-is('words'))")
    words.get_by_role("button", name="Add an entry").click()
    words.locator("textarea").fill("hello")
    either = page.locator("fieldset:has(> legend:text-is('either'))")
    either.locator("select").select_option(label="text")
    either.locator("textarea").fill("42")
    page.locator(field("extra")).fill('{"deep": [1, {"x": null}]}')
    shoot(page, "explore-form")
    page.keyboard.press("Control+Enter")
    page.locator(".block .end").wait_for()
    page.get_by_role("button", name="Items").click()
    page.get_by_role("button", name=re.compile("Item 1,")).click()
    shown = page.get_by_role("region", name="The chosen item").inner_text()
    for text in ('"a box"', '"large"', "7", '"42"'):
        assert text in shown
    runs = site.call("plexus.runs", limit=5)
    [run] = [each for each in runs if each["method"] == "showcase.shape"]
    with site.server.request(
        "GET",
        f"/runs/{run['run']}/events",
        headers={"Authorization": f"Bearer {site.server.token}"},
    ) as response:
        text = response.read().decode()
    [line] = [line for line in text.splitlines() if line.startswith("data: ")]
    assert json.loads(line[6:])["params"]["result"]["result"] == {
        "label": "a box",
        "size": "large",
        "amount": 7,
        "wet": True,
        "part": {"name": "lid", "weight": 2.5, "fragile": False},
        "parts": [
            {"name": "left", "weight": 1.0, "fragile": False},
            {"name": "right", "weight": 1.0, "fragile": False},
        ],
        "words": ["hello"],
        "either": "42",
        "extra": {"deep": [1, {"x": None}]},
    }


def test_an_invalid_value_is_reported_at_its_field_before_anything_is_sent(
    site: Site, page: Page
) -> None:
    sent: list[str] = []
    site.open(page, "explore", "showcase.shape")
    start = page.get_by_role("button", name="Run", exact=True)
    start.wait_for()
    page.on("request", lambda request: sent.append(request.post_data or ""))
    start.click()
    fault = page.locator(".field:has(> label:text-is('label')) .fault")
    expect(fault).to_have_text("is required")
    expect(page.locator(field("label"))).to_be_focused()
    page.locator(field("label")).fill("x")
    page.locator(field("amount")).fill("11")
    start.click()
    expect(page.locator(".field:has(> label:text-is('amount')) .fault")).to_have_text(
        "must be at most 10"
    )
    page.locator(field("amount")).fill("many")
    start.click()
    expect(page.locator(".field:has(> label:text-is('amount')) .fault")).to_have_text(
        "must be a number"
    )
    page.locator(field("amount")).fill("")
    page.locator(field("extra")).fill("{")
    start.click()
    expect(page.locator(".field:has(> label:text-is('extra')) .fault")).to_contain_text("no JSON")
    assert not [body for body in sent if "showcase.shape" in body]


def test_an_error_of_the_server_is_reported_at_its_field(site: Site, page: Page) -> None:
    site.open(page, "explore", "showcase.shape")
    page.locator(field("label")).fill("x")
    page.locator(field("amount")).fill("3")
    # The form accepts the value, because its schema was changed.
    page.route(
        "**/rpc",
        lambda route: route.continue_(
            post_data=(route.request.post_data or "").replace('"amount":3', '"amount":300')
        ),
    )
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".field:has(> label:text-is('amount')) .fault")).to_contain_text("10")
    page.unroute("**/rpc")


def test_a_call_can_be_copied_for_other_programs(site: Site, page: Page) -> None:
    site.open(page, "explore", "bash.execute")
    page.locator(field("command")).fill("echo it's")
    page.get_by_text("Copy as…").click()
    text = page.locator(".copy-text")
    expect(text).to_contain_text(f"curl -N {site.origin}/rpc")
    expect(text).to_contain_text("it'\\''s")
    for way, expected in (
        ("CLI", "substrate call bash.execute --command 'echo it'\\''s'"),
        ("Python", 'plexus.bash.execute(command="echo it\'s")'),
        ("MCP", '"name": "bash.execute"'),
    ):
        page.get_by_role("button", name=way, exact=True).click()
        expect(text).to_contain_text(expected)
    assert site.server.token not in text.inner_text()


def test_a_reload_returns_to_the_same_method(site: Site, page: Page) -> None:
    site.open(page, "explore", "arbor.node_append")
    expect(page.locator("article h1")).to_have_text("arbor.node_append")
    page.reload()
    expect(page.locator("article h1")).to_have_text("arbor.node_append")


@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, False), (False, True)])
def test_explore_is_accessible(site: Site, dark: bool, phone: bool) -> None:
    with site.page(dark=dark, phone=phone) as page:
        page.locator(".namespaces").wait_for()
        assert violations(page) == []
        site.open(page, "explore", "showcase.shape")
        page.locator("article.method").wait_for()
        page.get_by_text("Copy as…").click()
        page.get_by_text("Schema", exact=True).click()
        either = page.locator("fieldset:has(> legend:text-is('either'))")
        either.locator("select").select_option(label="text")
        page.get_by_role("button", name="Add an entry").first.click()
        page.get_by_role("button", name="Run", exact=True).click()
        assert violations(page) == []
        shoot(page, f"explore{'-dark' if dark else ''}{'-phone' if phone else ''}")
