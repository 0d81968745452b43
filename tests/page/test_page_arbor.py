"""The page's view of trees: drawn, expandable, and live."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from page_browser import Site, opened, shoot, violations
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.timeout(180)

#: More nodes than the page reads in one request.
MANY = 100_000


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with opened() as site:
        yield site


@pytest.fixture
def page(site: Site) -> Iterator[Page]:
    with site.page() as page:
        yield page


def small_tree(site: Site) -> tuple[str, list[str]]:
    tree = site.call("arbor.tree_create", metadata={"title": "Tea"})["tree_id"]
    nodes = [
        {"content": "What shall we drink?"},
        {"content": "Green", "parent": 0},
        {"content": "Black", "parent": 0},
        {"content": "With milk", "parent": 2},
        {"handle": "files@1::read:tea.txt", "parent": 2},
    ]
    return tree, site.call("arbor.node_append", tree_id=tree, nodes=nodes)["node_ids"]


def item(text: str) -> str:
    return f".arbor [role=treeitem]:has-text('{text}')"


def test_a_tree_is_listed_drawn_and_a_node_shown(site: Site, page: Page) -> None:
    tree, nodes = small_tree(site)
    site.open(page, "arbor")
    page.locator(f"a[data-tree='{tree}']").click()
    expect(page).to_have_url(re.compile(f"#/arbor/{tree}$"))
    for text, level in (("Tea", 1), ("What shall we drink?", 2), ("Green", 3), ("With milk", 4)):
        expect(page.locator(item(text)).first).to_have_attribute("aria-level", str(level))
    page.locator(item("With milk")).click()
    detail = page.get_by_role("region", name="The chosen node")
    expect(detail).to_contain_text(nodes[3])
    expect(detail).to_contain_text("With milk")
    page.locator(item("files@1")).click()
    expect(detail).to_contain_text("files@1::read:tea.txt")
    shoot(page, "arbor")
    page.reload()
    expect(page.locator(item("With milk"))).to_be_visible()


def test_changes_by_other_clients_are_shown_immediately(site: Site, page: Page) -> None:
    tree, nodes = small_tree(site)
    site.open(page, "arbor", tree)
    page.locator(item("With milk")).wait_for()
    page.wait_for_timeout(500)
    site.call("arbor.node_create_text", tree_id=tree, parent=nodes[1], content="Sencha")
    fresh = page.locator(item("Sencha"))
    expect(fresh.locator(".fresh")).to_be_visible()
    expect(fresh).to_have_attribute("aria-level", "4")
    site.call("arbor.node_move", tree_id=tree, node_id=nodes[3], parent=nodes[1])
    expect(page.locator(".arbor [role=treeitem]").nth(4)).to_contain_text("With milk")
    site.call("arbor.node_edit", tree_id=tree, node_id=nodes[2], content="Assam")
    expect(page.locator(item("Assam"))).to_be_visible()
    site.call("arbor.node_delete", tree_id=tree, node_id=nodes[1])
    expect(page.locator(item("Sencha"))).to_have_count(0)
    expect(page.locator(item("With milk"))).to_have_count(0)
    expect(page.get_by_text(re.compile(r"\d changes since"))).to_be_visible()


def test_a_hundred_thousand_nodes_are_read_as_they_are_opened(site: Site, page: Page) -> None:
    tree = site.call("arbor.tree_create", metadata={"title": "Large"})["tree_id"]
    top = site.call(
        "arbor.node_append", tree_id=tree, nodes=[{"content": f"branch {n}"} for n in range(10)]
    )["node_ids"]
    for parent in top:
        for start in range(0, MANY // 10, 5000):
            nodes = [{"content": f"leaf {start + n}"} for n in range(5000)]
            site.call("arbor.node_append", tree_id=tree, parent=parent, nodes=nodes)
    site.open(page, "arbor", tree)
    page.evaluate(
        """() => {
          window.gaps = [];
          let last = performance.now();
          const look = (now) => {
            window.gaps.push(now - last);
            last = now;
            requestAnimationFrame(look);
          };
          requestAnimationFrame(look);
        }"""
    )
    expect(page.locator(item("branch 9"))).to_be_visible()
    for number in range(10):
        page.locator(item(f"branch {number}")).locator(".twist").click()
        expect(page.locator(item("leaf 0")).first).to_be_visible()
        if number < 9:
            # Scrolling loads the rest; this test opens the next branch instead.
            page.locator(item(f"branch {number}")).locator(".twist").click()
    tree_list = page.get_by_role("tree", name="The tree's nodes")
    for _ in range(25):
        tree_list.evaluate("(list) => { list.scrollTop = list.scrollHeight; }")
        page.wait_for_timeout(150)
    expect(page.locator(item("leaf 9999"))).to_be_visible()
    assert page.locator(".arbor .v-row").count() < 80
    gaps = sorted(page.evaluate("() => window.gaps"))
    print(f"arbor, {MANY} nodes: longest frame {gaps[-1]:.0f} ms of {len(gaps)}")  # noqa: T201
    shoot(page, "arbor-large")


@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, False), (False, True)])
def test_trees_are_accessible(site: Site, dark: bool, phone: bool) -> None:
    tree, _ = small_tree(site)
    with site.page(dark=dark, phone=phone) as page:
        site.open(page, "arbor", tree)
        page.locator(item("With milk")).click()
        assert violations(page) == []
        shoot(page, f"arbor{'-dark' if dark else ''}{'-phone' if phone else ''}")
