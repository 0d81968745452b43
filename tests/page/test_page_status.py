"""The Status view: facts, counts, activations and limits of the server, and its load over time."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from network import serving
from page_browser import Site, opened, shoot, violations
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.timeout(180)

MESSAGE = "the key file of the broken plugin is missing"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    plugin = tmp_path_factory.mktemp("plugins") / "broken.py"
    plugin.write_text(f"raise RuntimeError({MESSAGE!r})\n")
    with opened("--activation", str(plugin)) as site:
        yield site


@pytest.fixture
def page(site: Site) -> Iterator[Page]:
    with site.page() as page:
        yield page


def card(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True).first


def count_of(page: Page, name: str) -> int:
    """Return a number of the card of runs."""
    link = page.get_by_role("link", name=re.compile(rf"^{name}: \d"))
    return int((link.text_content() or "").replace(",", ""))


def test_the_server_is_described(site: Site, page: Page) -> None:
    site.open(page, "status")
    expect(page).to_have_title("Status · Substrate")
    facts = page.locator("dl.facts")
    report = site.call("health.check")
    for text in (
        report["versions"]["substrate"],
        report["versions"]["python"],
        f"pid {report['server']['pid']}",
        report["server"]["project"],
        f"http://127.0.0.1:{site.server.port}",
        "runs.db",
        "Arguments and output",
        "7 days",
    ):
        expect(facts).to_contain_text(text)
    expect(facts).not_to_contain_text("Mounts")
    expect(page.locator("header").get_by_role("status")).to_contain_text("Healthy")
    uptime = page.locator("header span[title$=' s']")
    before = uptime.get_attribute("title")
    expect(uptime).not_to_have_attribute("title", before or "")  # live


def test_a_skipped_plugin_is_a_red_row_with_its_message(site: Site, page: Page) -> None:
    site.open(page, "status")
    row = page.get_by_role("row", name=re.compile("broken.py"))
    expect(row).to_contain_text("Skipped")
    expect(row).to_contain_text(MESSAGE)
    expect(row).to_contain_text("substrate check")
    expect(row).to_have_css("background-color", "rgb(253, 236, 235)")
    expect(page.locator("header")).to_contain_text("1 plugin skipped")
    bash = page.get_by_role("row", name=re.compile(r"^bash"))
    expect(bash).to_contain_text("Healthy")
    row.scroll_into_view_if_needed()
    shoot(page, "status-skipped")


def test_runs_are_counted_as_in_the_runs_view(site: Site, page: Page) -> None:
    for command in ("true", "exit 3", "exit 4"):
        site.call("bash.execute", command=command)
    with site.page() as other:
        other.evaluate(
            """async () => {
              const { subscribe } = await import("/page/core/connection.js");
              const ignore = { onItem: () => {}, onError: () => {} };
              subscribe("bash.execute", { command: "sleep 600" }, ignore);
            }"""
        )
        site.open(page, "runs")
        heading = page.locator("main .bar").first
        expect(heading).to_contain_text("1 running")
        expect(heading).to_contain_text("4 today")
        expect(page.get_by_role("button", name="Failed 2")).to_be_visible()
        site.open(page, "status")
        expect(page.get_by_role("link", name="Today: 4")).to_be_visible()
        assert count_of(page, "Running") == 1
        assert count_of(page, "Needs answer") == 0
        assert count_of(page, "Failed, last 24 h") == 2
        page.get_by_role("link", name="Failed, last 24 h: 2").click()
        expect(page).to_have_url(re.compile(r"#/runs\?state=failed$"))


def test_charts_have_axes_units_values_and_a_table(site: Site, page: Page) -> None:
    site.open(page, "status")
    charts = page.locator("figure.chart")
    expect(charts).to_have_count(4)
    for index, unit in ((0, "%"), (1, "MB"), (3, "/s")):
        chart = charts.nth(index)
        # The server measures every ten seconds.
        expect(chart.locator("figcaption b")).to_contain_text(unit, timeout=30_000)
        expect(chart.locator(".chart-axis text").first).to_contain_text(re.compile(r"^0 "))
        expect(
            chart.locator(".chart-axis text").filter(has_text=re.compile(r"^\d\d:\d\d$")).first
        ).to_be_visible()
        expect(chart).to_contain_text(re.compile(r"min .* · max "))
    memory = charts.nth(1)
    picture = memory.get_by_role("img")
    expect(picture).to_have_attribute(
        "aria-label", re.compile(r"^Memory: now .* MB, minimum .* MB, maximum .* MB")
    )
    expect(memory.locator("path.chart-line")).to_have_attribute(
        "d", re.compile(r"M.*L"), timeout=30_000
    )
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 60)
    expect(memory.locator("figcaption small")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
    shoot(page, "status-hover")
    memory.get_by_text("Values").click()
    expect(memory.get_by_role("row").nth(1)).to_contain_text("MB")
    page.get_by_role("button", name="24 h").click()
    expect(page.get_by_role("button", name="24 h")).to_have_attribute("aria-pressed", "true")
    page.reload()
    expect(page.get_by_role("button", name="24 h")).to_have_attribute("aria-pressed", "true")


def test_limits_are_folded_and_searched(site: Site, page: Page) -> None:
    site.open(page, "status")
    search = page.get_by_role("searchbox", name="Search limits")
    expect(search).to_be_hidden()
    page.get_by_role("heading", name="Limits").click()
    search.fill("event bytes")
    rows = page.locator("details.limits tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("event_bytes")
    expect(rows).to_contain_text("1.0 MB")
    search.fill("nothing like this")
    expect(page.get_by_text("No limit has this name")).to_be_visible()


def test_without_a_history_the_charts_start_with_live_values(site: Site) -> None:
    with (
        serving("--without", "health.history", auth="token") as server,
        site.with_server(server).page() as page,
    ):
        site.open(page, "status")
        expect(page.get_by_text("This server keeps no history")).to_be_visible()
        chart = page.locator("figure.chart").nth(2)
        expect(chart.locator("figcaption b")).to_have_text("0")
        # One value is visible too.
        expect(chart.locator("path")).to_have_attribute("d", re.compile(r"^M[\d.]+ [\d.]+(h4|L)"))
        expect(page.locator("figure.chart").nth(0)).to_contain_text("does not report it")


@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, False), (False, True)])
def test_the_status_is_accessible(site: Site, dark: bool, phone: bool) -> None:
    with site.page(dark=dark, phone=phone) as page:
        site.open(page, "status")
        expect(page.locator("figure.chart b").first).to_be_visible(timeout=30_000)
        page.get_by_role("heading", name="Limits").click()
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator("main").evaluate("(main) => main.scrollWidth <= main.clientWidth")
        page.locator("main").evaluate("(main) => { main.scrollTop = 0; }")
        shoot(page, f"status{'-dark' if dark else ''}{'-phone' if phone else ''}")
