"""The views of the page: which are offered, how they are addressed, and that they fit."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest
from documents import ROOT
from network import serving
from page_browser import Site, opened, shoot, violations
from playwright.sync_api import expect

from substrate.server.page.static_files import ASSETS

pytestmark = pytest.mark.timeout(120)

LISTS = ("tools", "runs", "questions", "tasks")
VIEWS = (*LISTS, "chat", "trees", "files", "python", "analysis", "status")
#: Names of views that further activations may add, with their titles.
MORE = ("Templates", "Mounts")

#: Shows the line of a view.
DOCUMENT = ROOT / "docs" / "page.md"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with opened() as site:
        yield site


def test_every_view_has_a_module_a_key_of_its_own_and_a_known_activation() -> None:
    text = (ASSETS / "core" / "views.js").read_text()
    lines = re.findall(r'\{ name: "(\w+)", title: "\w+", key: "(\w)".*import\("\.\./(.+?)"\)', text)
    assert tuple(name for name, _, _ in lines) == VIEWS
    [example] = re.findall(r"^```js\n *(.*?)\n```$", DOCUMENT.read_text(), re.M)
    assert example in text
    keys = [key for _, key, _ in lines]
    assert len(set(keys)) == len(keys)
    for name, _, path in lines:
        assert path == f"views/{name}.js"
        assert re.search(r"^export function View\(", (ASSETS / path).read_text(), re.M), path


def test_a_view_is_offered_only_where_its_activation_is(site: Site) -> None:
    with (
        serving("--without", "chat,arbor", auth="token") as server,
        site.with_server(server).page() as page,
    ):
        links = page.get_by_role("navigation", name="Views").locator("li a")
        titles = ["Tools", "Runs", "Questions", "Tasks", "Files", "Python", "Analysis", "Status"]
        expect(links).to_have_text(titles)
        page.keyboard.press("g")
        page.keyboard.press("c")
        expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
        site.open(page, "trees")
        expect(page.get_by_role("heading", name="Trees is switched off")).to_be_visible()
        page.keyboard.press("Control+k")
        expect(page.get_by_role("option", name=re.compile("^View Chat"))).to_have_count(0)


def test_an_address_without_a_view_leads_back_to_the_runs(site: Site) -> None:
    with site.page() as page:
        site.open(page, "nonsense", "5")
        expect(page.get_by_role("heading", name="This page has no such view")).to_be_visible()
        expect(page).to_have_title("Not found · Substrate")
        shoot(page, "unknown-view")
        page.get_by_role("link", name="show all runs").click()
        expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
        page.go_back()
        expect(page.get_by_role("heading", name="This page has no such view")).to_be_visible()


def test_the_project_is_named_below_the_navigation(site: Site) -> None:
    with site.page() as page:
        folder = site.call("health.check")["server"]["project"]
        place = page.locator("nav footer .where .cut")
        expect(place).to_have_attribute("title", folder)
        expect(place).to_have_text("/".join(folder.split("/")[-2:]).lstrip("/"))


@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, False), (False, True)])
def test_every_view_fits_the_screen_and_is_accessible(site: Site, dark: bool, phone: bool) -> None:
    with site.page(dark=dark, phone=phone) as page:
        # More views than today: the navigation must have room for them.
        page.evaluate(
            """async (titles) => {
              const { VIEWS } = await import("/page/core/views.js");
              const { schema, loadSchema } = await import("/page/core/schema.js");
              const like = (title) => ({ ...VIEWS[0], name: title.toLowerCase(), title, key: "" });
              VIEWS.push(...titles.map(like));
              schema.value = { ...(await loadSchema()) };
            }""",
            list(MORE),
        )
        links = page.get_by_role("navigation", name="Views").locator("li a")
        expect(links).to_have_count(len(VIEWS) + len(MORE))
        for name in VIEWS:
            site.open(page, name)
            expect(page.get_by_role("heading", level=1).first).to_be_visible()
            shoot(page, f"view-{name}{'-dark' if dark else ''}{'-phone' if phone else ''}")
            assert page.evaluate("() => document.scrollingElement.scrollWidth - innerWidth") <= 0
            assert violations(page) == []
        boxes = [box for link in links.all() if (box := link.bounding_box())]
        for one, two in itertools.pairwise(boxes):  # they are beside or below each other
            assert one["x"] + one["width"] <= two["x"] or one["y"] + one["height"] <= two["y"]
        links.last.click()
        expect(page).to_have_url(re.compile("#/mounts$"))
