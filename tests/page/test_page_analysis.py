"""The Analysis view: files as they are measured, the map, the graph, the churn, the report."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_browser import Site, opened, shoot, violations
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.timeout(180)

FILES = {
    "app/__init__.py": "",
    "app/main.py": "from app import rates, store\n\n\ndef main():\n    store.save(rates.load())\n",
    "app/rates.py": "from app import store\n\n\ndef load():\n    return store.load()\n",
    "app/store.py": "def f(a):\n"
    + "    if a:\n        a = 1\n" * 20
    + "    # FIXME: split this\n    return a\n\n\ndef load():\n    return 1\n\n\n"
    + "def save(value):\n    print(value)\n",
    "web/menu.ts": "export function menu(a: number) {\n  if (a) { return 1 }\n  return 2\n}\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with a history: most commits change the complex file."""
    folder = tmp_path_factory.mktemp("project")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    commit(folder)
    for number in range(3):
        with (folder / "app" / "store.py").open("a") as file:
            file.write(f"CHANGE_{number} = {number}\n")
        commit(folder)
    return folder


def commit(folder: Path) -> None:
    identity = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    for command in (("init", "-q"), ("add", "-A"), (*identity, "commit", "-qm", "change")):
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        subprocess.run(("git", *command), cwd=folder, env=environment, check=True, timeout=30)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    cache = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    with opened(variables=cache) as site:
        yield site


def analyze(site: Site, page: Page, folder: Path) -> None:
    site.open(page, "analysis")
    page.get_by_label("Folder").fill(str(folder))
    page.get_by_role("button", name="Analyze").click()
    expect(page.get_by_text("5 of 5 files measured")).to_be_visible()
    expect(page.locator("main").get_by_role("status")).to_contain_text("Done")


def names(page: Page) -> list[str]:
    return page.locator("tbody th").all_text_contents()


def part(page: Page, title: str) -> None:
    page.get_by_role("button", name=title, exact=True).click()


def test_files_are_sorted_by_any_column_and_missing_figures_come_last(
    site: Site, folder: Path
) -> None:
    with site.page() as page:
        analyze(site, page, folder)
        assert names(page)[0] == "app/store.py"
        assert names(page)[-1] == "app/__init__.py"  # it has no function
        page.get_by_role("button", name="Cyclomatic").click()
        expect(page.get_by_role("columnheader", name="Cyclomatic")).to_have_attribute(
            "aria-sort", "ascending"
        )
        assert names(page)[-2:] == ["app/store.py", "app/__init__.py"]
        page.get_by_role("button", name="File", exact=True).click()
        assert names(page) == sorted(FILES)
        row = page.get_by_role("row", name=re.compile(r"app.store\.py"))
        expect(row.get_by_role("cell")).to_have_text(
            # Findings: both figures of one function, the comment, and four names without a use.
            ["python", re.compile(r"\d+"), "3", "21", "20", re.compile(r"[\d.]+"), "4", "1", "7"]
        )
        page.get_by_role("searchbox", name="Search files").fill("menu")
        expect(page.locator("tbody th")).to_have_text(["web/menu.ts"])
        page.reload()  # the address has the run, the order and the search
        expect(page.locator("tbody th")).to_have_text(["web/menu.ts"])


def test_the_map_the_graph_the_churn_and_the_report_show_the_figures(
    site: Site, folder: Path
) -> None:
    with site.page() as page:
        analyze(site, page, folder)
        expect(page.locator(".analysis-scores dd b")).to_have_count(4)
        part(page, "Map")
        hot = page.get_by_role("img", name=re.compile(r"^app.store\.py: .* hotspot score 1$"))
        expect(hot).to_be_visible()
        shoot(page, "analysis-map")
        page.get_by_role("button", name=re.compile("^Open web: ")).click()
        expect(page.get_by_role("img", name=re.compile(r"^web.menu\.ts: "))).to_be_visible()
        expect(hot).to_have_count(0)
        part(page, "Graph")
        node = page.get_by_role("button", name="app/store.py")
        node.focus()
        page.keyboard.press("Enter")
        expect(node).to_have_attribute("aria-pressed", "true")
        page.get_by_text("Edges as a table").click()
        edges = page.get_by_role("region", name="Edges").locator("tbody tr")
        expect(edges).to_have_count(2)
        expect(edges.first).to_contain_text("app/store.py")
        shoot(page, "analysis-graph")
        part(page, "Churn")
        expect(
            page.get_by_role("img", name=re.compile("^4 commits by 1 author in"))
        ).to_be_visible()
        part(page, "Report")
        measured = page.get_by_role("region", name="Measurements")
        for name in ("lizard", "complexipy", "tree-sitter", "vulture", "grimp", "git"):
            expect(
                measured.get_by_role("cell", name=re.compile(f"^{name} \\d")).first
            ).to_be_visible()


def test_what_was_not_measured_is_named_and_an_error_is_shown(site: Site, tmp_path: Path) -> None:
    (tmp_path / "a.go").write_text("package a\nfunc f() int { return 1 }\n")
    with site.page() as page:
        site.open(page, "analysis")
        page.get_by_label("Folder").fill(str(tmp_path))
        page.get_by_role("button", name="Analyze").click()
        expect(page.get_by_text("1 of 1 files measured")).to_be_visible()
        part(page, "Churn")
        expect(
            page.get_by_text("Not measured: the folder is not in a git repository.")
        ).to_be_visible()
        site.open(page, "analysis")
        expect(
            page.get_by_role("region", name="Earlier analyses").get_by_role("link")
        ).not_to_have_count(0)
        page.get_by_label("Folder").fill("/no/such/folder")
        page.get_by_role("button", name="Analyze").click()
        expect(page.get_by_text("'/no/such/folder' does not exist").first).to_be_visible()


@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, False), (False, True)])
def test_every_part_is_accessible_and_fits(
    site: Site, folder: Path, dark: bool, phone: bool
) -> None:
    with site.page(dark=dark, phone=phone) as page:
        analyze(site, page, folder)
        for title in ("Files", "Map", "Graph", "Churn", "Report"):
            part(page, title)
            kind = f"{'phone' if phone else 'desktop'}-{'dark' if dark else 'light'}"
            shoot(page, f"analysis-{title.lower()}-{kind}")
            assert page.evaluate("() => document.scrollingElement.scrollWidth - innerWidth") <= 0
            assert violations(page) == []
