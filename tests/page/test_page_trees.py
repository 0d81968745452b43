"""The Trees view: indentation, large trees, live changes, search and editing."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from page_browser import Site, opened, shoot, violations
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.timeout(180)

MANY = 100_000
BRANCHES = 10
#: As many nodes as one `node_append` should add.
APPENDED = 5000
#: The depth down to which each level is indented by a full step.
FULL_LEVELS = 12


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with opened() as site:
        yield site


@pytest.fixture
def page(site: Site) -> Iterator[Page]:
    with site.page() as page:
        yield page


def make_tree(site: Site, title: str | None, nodes: list[dict[str, Any]]) -> tuple[str, list[str]]:
    metadata = {} if title is None else {"metadata": {"title": title}}
    tree = site.call("arbor.tree_create", **metadata)["tree_id"]
    return tree, site.call("arbor.node_append", tree_id=tree, nodes=nodes)["node_ids"]


def small_tree(site: Site, title: str = "Tea") -> tuple[str, list[str]]:
    nodes: list[dict[str, Any]] = [
        {"content": "What shall we drink?\nTea or coffee"},
        {"content": "Green", "parent": 0},
        {
            "content": "# Black\n\nA **strong** tea",
            "parent": 0,
            "metadata": {"media_type": "text/markdown", "kind": "note"},
        },
        {"content": "With milk", "parent": 2},
        {"handle": "files@1::read:tea.txt", "parent": 2},
    ]
    return make_tree(site, title, nodes)


def chain(length: int) -> list[dict[str, Any]]:
    """Return nodes that are each the only child of the one before."""
    return [
        {"content": f"level {n}", **({"parent": n - 2} if n > 1 else {})}
        for n in range(1, length + 1)
    ]


def row(page: Page, text: str) -> Locator:
    return page.get_by_role("treeitem", name=re.compile(re.escape(text)))


def tree_of(page: Page) -> Locator:
    return page.get_by_role("tree", name="Nodes of the tree")


def left_of(page: Page, text: str) -> float:
    """Return where the text of a row begins."""
    box = page.locator(".tree-row .text").get_by_text(text, exact=True).bounding_box()
    assert box is not None
    return box["x"]


def test_every_level_is_indented_also_below_an_only_child(site: Site, page: Page) -> None:
    tree, _ = make_tree(site, "Chain", chain(8))
    site.open(page, "trees", tree)
    expect(row(page, "level 8")).to_be_visible()
    lefts = [left_of(page, name) for name in ("Chain", *(f"level {n}" for n in range(1, 9)))]
    steps = {round(right - left) for left, right in pairwise(lefts)}
    assert len(steps) == 1, lefts
    assert steps.pop() >= 10
    for depth in range(1, 9):
        expect(row(page, f"level {depth}")).to_have_attribute("aria-level", str(depth + 1))


def test_a_very_deep_level_shows_its_depth_as_a_number(site: Site, page: Page) -> None:
    tree, nodes = make_tree(site, None, chain(3000))
    site.open(page, "trees", tree, nodes[-1])
    deepest = row(page, "level 3000")
    expect(deepest).to_contain_text("depth 3,000")
    expect(deepest).to_have_attribute("aria-level", "3001")
    expect(page.get_by_role("navigation", name="Path")).to_contain_text("depth 3,000")
    page.keyboard.press("Escape")
    tree_of(page).focus()
    page.keyboard.press("Home")
    lefts = [left_of(page, f"level {n}") for n in range(FULL_LEVELS - 1, FULL_LEVELS + 8)]
    assert lefts == sorted(set(lefts)), "a deeper level is never further to the left"
    expect(row(page, f"depth {FULL_LEVELS + 1}")).to_be_visible()
    shoot(page, "trees-deep")


def test_a_tree_is_listed_drawn_and_a_node_shown(site: Site, page: Page) -> None:
    tree, nodes = small_tree(site, "A tea to find")
    untitled, _ = make_tree(site, None, [{"content": "The first text\nof a tree"}])
    site.open(page, "trees")
    expect(page.locator(f"a[data-tree='{untitled}']")).to_contain_text("The first text")
    page.get_by_role("searchbox").fill("tea to")
    expect(page.locator("a[data-tree]")).to_have_count(1)
    shoot(page, "trees-list")
    page.locator(f"a[data-tree='{tree}']").click()
    expect(page).to_have_url(re.compile(f"#/trees/{tree}$"))
    expect(page).to_have_title("A tea to find · Substrate")
    for text, level in (("What shall we drink?", 2), ("Green", 3), ("With milk", 4)):
        expect(row(page, text)).to_have_attribute("aria-level", str(level))
    expect(row(page, "With milk")).to_have_attribute("aria-setsize", "2")
    row(page, "Black").click()
    expect(page).to_have_url(re.compile(f"#/trees/{tree}/{nodes[2]}$"))
    node = page.get_by_role("article", name="Selected node")
    expect(node.locator("strong")).to_have_text("strong")
    node.get_by_role("button", name="Text", exact=True).click()
    expect(node.locator("pre")).to_contain_text("A **strong** tea")
    expect(node).to_contain_text(nodes[2])
    expect(node).to_contain_text("media_type")
    shoot(page, "trees")
    row(page, "files@1").click()
    expect(node).to_contain_text("files@1::read:tea.txt")
    page.reload()
    expect(row(page, "files@1")).to_have_attribute("aria-selected", "true")


def test_the_keyboard_moves_expands_and_collapses(site: Site, page: Page) -> None:
    tree, nodes = small_tree(site)
    site.open(page, "trees", tree)
    row(page, "Green").wait_for()
    tree_of(page).focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    expect(row(page, "What shall")).to_have_attribute("aria-selected", "true")
    expect(tree_of(page)).to_have_attribute("aria-activedescendant", f"node-{nodes[0]}")
    expect(page.get_by_role("article", name="Selected node")).to_contain_text("Tea or coffee")
    page.keyboard.press("ArrowLeft")
    expect(row(page, "What shall")).to_have_attribute("aria-expanded", "false")
    expect(row(page, "Green")).to_have_count(0)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(row(page, "Green")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("End")
    expect(row(page, "files@1")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowLeft")
    expect(row(page, "Black")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(nodes[2]))


def test_another_tab_sees_changes_immediately(site: Site, page: Page) -> None:
    tree, nodes = small_tree(site)
    site.open(page, "trees", tree)
    row(page, "With milk").wait_for()
    with site.page() as other:
        site.open(other, "trees", tree, nodes[1])
        other.get_by_role("button", name="Add child").click()
        other.get_by_label("Text of the new child").fill("Sencha")
        other.get_by_label("Text of the new child").press("Control+Enter")
        expect(other.get_by_role("article", name="Selected node")).to_contain_text("Sencha")
    fresh = row(page, "Sencha")
    expect(fresh).to_have_attribute("aria-level", "4")
    site.call("arbor.node_move", tree_id=tree, node_id=nodes[3], parent=nodes[1])
    expect(row(page, "Green")).to_contain_text("2")
    expect(page.get_by_role("treeitem").nth(4)).to_contain_text("With milk")
    site.call("arbor.node_edit", tree_id=tree, node_id=nodes[2], content="Assam")
    expect(row(page, "Assam")).to_be_visible()
    expect(row(page, "Black")).to_contain_text("old version")
    site.call("arbor.node_delete", tree_id=tree, node_id=nodes[1])
    expect(fresh).to_have_count(0)
    expect(row(page, "With milk")).to_have_count(0)
    site.call("arbor.tree_update_metadata", tree_id=tree, metadata={"title": "Drinks"})
    expect(page.get_by_role("heading", name="Drinks")).to_be_visible()


def test_a_hundred_thousand_nodes_are_scrolled_to_the_end(site: Site, page: Page) -> None:
    tree, top = make_tree(site, "Large", [{"content": f"branch {n}"} for n in range(BRANCHES)])
    for parent in top:
        for start in range(0, MANY // BRANCHES, APPENDED):
            leaves = [{"content": f"leaf {start + n}"} for n in range(APPENDED)]
            site.call("arbor.node_append", tree_id=tree, parent=parent, nodes=leaves)
    begun = time.monotonic()
    site.open(page, "trees", tree)
    expect(page.get_by_text(f"{MANY + BRANCHES + 1:,} nodes")).to_be_visible()
    took = time.monotonic() - begun
    page.get_by_role("button", name="Expand all").click()
    tree_of(page).focus()
    page.keyboard.press("End")
    last = row(page, f"leaf {MANY // BRANCHES - 1}")
    expect(last).to_have_attribute("aria-selected", "true")
    expect(last).to_have_attribute("aria-posinset", str(MANY // BRANCHES))
    expect(page.get_by_role("article", name="Selected node")).to_contain_text("leaf 9999")
    page.keyboard.press("PageUp")
    page.keyboard.press("PageUp")
    expect(page.locator("[role=treeitem][aria-selected=true] .text")).to_have_text(
        re.compile(r"leaf 99\d\d")
    )
    assert page.get_by_role("treeitem").count() < 80
    print(f"trees, {MANY} nodes: structure shown after {took:.1f} s")  # noqa: T201
    shoot(page, "trees-large")


def test_search_finds_texts_and_leads_to_the_node(site: Site, page: Page) -> None:
    tree, nodes = small_tree(site, "Searched")
    site.call(
        "arbor.node_create_text", tree_id=tree, parent=nodes[3], content="a drop of quandongjuice"
    )
    site.open(page, "trees")
    page.get_by_role("searchbox").fill("quandongjuice")
    page.keyboard.press("Enter")
    hits = page.get_by_role("region", name="Search results")
    expect(hits.locator("mark")).to_have_text("quandongjuice")
    expect(hits).to_contain_text("Searched")
    hits.get_by_role("link").click()
    found = row(page, "quandongjuice")
    expect(found).to_have_attribute("aria-selected", "true")
    page.get_by_role("searchbox").fill("nothinglikethis")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Search for other or fewer words")).to_be_visible()
    page.get_by_role("button", name="Back to the tree").click()
    expect(found).to_be_visible()


def test_an_edit_makes_a_version_and_a_deletion_asks_first(site: Site, page: Page) -> None:
    tree, nodes = small_tree(site)
    site.open(page, "trees", tree, nodes[2])
    node = page.get_by_role("article", name="Selected node")
    node.get_by_role("button", name="Edit").click()
    expect(node).to_contain_text("The 2 nodes below stay with the old one")
    node.get_by_label("Text", exact=True).fill("# Assam")
    node.get_by_role("button", name="Save new version").click()
    expect(node.get_by_role("link", name="Show the previous version")).to_be_visible()
    expect(node.get_by_role("heading", name="Assam")).to_be_visible()  # the metadata was kept
    expect(row(page, "Black")).to_contain_text("old version")
    node.get_by_role("link", name="Show the previous version").click()
    expect(node.get_by_role("link", name="Show the next version")).to_be_visible()
    expect(node.get_by_role("button", name="Edit")).to_have_count(0)
    node.get_by_role("button", name="Delete").click()
    expect(node).to_contain_text("and the 2 nodes below it")
    node.get_by_role("button", name="Keep").click()
    expect(row(page, "With milk")).to_be_visible()
    node.get_by_role("button", name="Delete").click()
    node.get_by_role("button", name="Delete node").click()
    expect(row(page, "With milk")).to_have_count(0)
    expect(row(page, "What shall")).to_have_attribute("aria-selected", "true")


def test_a_tree_is_created_renamed_exported_deleted_and_restored(
    site: Site, page: Page, tmp_path: Path
) -> None:
    site.open(page, "trees")
    page.get_by_label("Title of the new tree").fill("Plans")
    page.get_by_role("button", name="Create tree").click()
    expect(page.get_by_role("heading", name="Plans")).to_be_visible()
    page.get_by_role("button", name="Select the root").click()
    page.get_by_role("button", name="Add child").click()
    page.get_by_label("Text of the new child").fill("Buy a kettle")
    page.locator("article").get_by_role("button", name="Add child").last.click()
    expect(row(page, "Buy a kettle")).to_be_visible()
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("Title of the tree").fill("Kitchen")
    page.get_by_role("button", name="Save title").click()
    expect(page.get_by_role("heading", name="Kitchen")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    assert download.value.suggested_filename == "Kitchen.jsonl"
    download.value.save_as(tmp_path / "tree.jsonl")
    lines = (tmp_path / "tree.jsonl").read_text().splitlines()
    assert [json.loads(line).get("content") for line in lines][2] == "Buy a kettle"
    page.locator("header").get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete tree").click()
    expect(page.get_by_text("Scheduled for deletion", exact=True)).to_be_visible()
    page.get_by_role("button", name="Restore").click()
    expect(page.get_by_text("Scheduled for deletion", exact=True)).to_have_count(0)


def test_an_unknown_tree_leads_back_to_the_list(site: Site, page: Page) -> None:
    site.open(page, "trees", "00000000-0000-4000-8000-000000000000")
    expect(page.get_by_role("heading", name="This tree cannot be shown")).to_be_visible()
    page.get_by_role("link", name="Show all trees").click()
    expect(page.get_by_role("heading", name="Trees")).to_be_visible()


def test_a_phone_shows_the_tree_first_and_a_node_on_its_own_screen(site: Site) -> None:
    tree, _ = small_tree(site)
    with site.page(phone=True) as page:
        site.open(page, "trees", tree)
        row(page, "With milk").tap()
        node = page.get_by_role("article", name="Selected node")
        expect(node).to_contain_text("With milk")
        expect(tree_of(page)).to_be_hidden()
        shoot(page, "trees-phone-node")
        page.get_by_role("link", name="← Tree").tap()
        expect(tree_of(page)).to_be_visible()
        expect(node).to_be_hidden()
        deep, nodes = make_tree(
            site, "A long title of a tree that is longer than the screen", chain(40)
        )
        site.open(page, "trees", deep, nodes[-1])
        expect(node).to_contain_text("level 40")
        site.open(page, "trees", deep)
        expect(row(page, "depth 40")).to_be_in_viewport()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        shoot(page, "trees-phone-deep")


@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, False), (False, True)])
def test_trees_are_accessible(site: Site, dark: bool, phone: bool) -> None:
    tree, nodes = small_tree(site)
    site.call("arbor.node_edit", tree_id=tree, node_id=nodes[1], content="Sencha")
    with site.page(dark=dark, phone=phone) as page:
        name = f"{'-dark' if dark else ''}{'-phone' if phone else ''}"
        site.open(page, "trees")
        page.locator("a[data-tree]").first.wait_for()
        assert violations(page) == []
        shoot(page, f"trees-list{name}")
        site.open(page, "trees", tree)
        row(page, "With milk").wait_for()
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        site.open(page, "trees", tree, nodes[2])
        page.get_by_role("article", name="Selected node").wait_for()
        page.get_by_role("button", name="Delete", exact=True).last.click()
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        shoot(page, f"trees{name}")
