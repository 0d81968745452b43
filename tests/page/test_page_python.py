"""The Python view: evaluations of people and agents in shared sessions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from page_browser import Site, opened, shoot, violations
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with opened() as site:
        yield site


@pytest.fixture
def page(site: Site) -> Iterator[Page]:
    with site.page() as page:
        yield page


def evaluate(page: Page, code: str) -> None:
    field = page.get_by_role("textbox", name="Python code")
    field.fill(code)
    field.press("Control+Enter")
    expect(field).to_have_value("")


def test_code_is_evaluated_by_keyboard_and_its_output_is_shown(site: Site, page: Page) -> None:
    site.open(page, "python/keyboard")
    expect(page.get_by_text("No evaluations yet")).to_be_visible()
    evaluate(page, "rows = [1, 2, 3]\nprint('\\x1b[31mred\\x1b[0m')\nsum(rows)")
    cell = page.get_by_role("article", name="Evaluation 1", exact=True)
    expect(cell).to_contain_text("red")
    expect(cell.get_by_role("region", name="Value")).to_have_text("6")
    expect(cell).to_have_attribute("data-state", "succeeded")
    variables = page.get_by_role("region", name="Variables", exact=True).first
    expect(variables.get_by_role("cell", name="rows", exact=True)).to_be_visible()
    evaluate(page, "1 / 0")
    failed = page.get_by_role("article", name="Evaluation 2", exact=True)
    expect(failed).to_contain_text("ZeroDivisionError: division by zero")
    expect(failed).to_have_attribute("data-state", "failed")


def test_what_an_agent_evaluates_appears_live_and_shares_the_variables(
    site: Site, page: Page
) -> None:
    site.open(page, "python/shared")
    site.call("python.evaluate", expression="secret_number = 42", session="shared")
    expect(page.get_by_role("article", name="Evaluation 1", exact=True)).to_contain_text(
        "secret_number = 42"
    )
    evaluate(page, "secret_number + 1")
    expect(page.get_by_role("region", name="Value")).to_have_text("43")


def test_an_endless_evaluation_is_interrupted_and_keeps_its_output(site: Site, page: Page) -> None:
    site.open(page, "python/endless")
    evaluate(page, "print('begun', flush=True)\nwhile True: pass")
    cell = page.get_by_role("article", name="Evaluation 1", exact=True)
    expect(cell).to_contain_text("begun")
    page.get_by_role("button", name="Interrupt").click()
    expect(cell).to_have_attribute("data-state", "interrupted")
    expect(cell).to_contain_text("begun")
    expect(page.get_by_role("button", name="Interrupt")).to_be_disabled()


def test_pictures_and_html_are_shown_without_letting_code_into_the_page(site: Site) -> None:
    with site.page(lenient=True) as page:  # the browser reports the script that it refuses
        site.open(page, "python/rich")
        show_rich_values(page)


def show_rich_values(page: Page) -> None:
    evaluate(
        page,
        "class H:\n    def _repr_html_(self):\n"
        "        return '<h1>Heading</h1><script>parent.stolen = 1</script>'\n"
        "class S:\n    def _repr_svg_(self):\n"
        '        return \'<svg xmlns="http://www.w3.org/2000/svg"><circle r="9"/></svg>\'\n'
        "display(H(), S())",
    )
    cell = page.get_by_role("article", name="Evaluation 1", exact=True)
    expect(cell.locator("iframe").content_frame.get_by_role("heading")).to_have_text("Heading")
    expect(cell.locator("img.e-svg")).to_be_visible()
    assert page.evaluate("window.stolen") is None


def test_a_draft_survives_a_reload(site: Site, page: Page) -> None:
    site.open(page, "python/draft")
    page.get_by_role("textbox", name="Python code").fill("unfinished = ")
    page.reload()
    expect(page.get_by_role("textbox", name="Python code")).to_have_value("unfinished = ")


@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, False), (False, True)])
def test_the_view_is_accessible(site: Site, dark: bool, phone: bool) -> None:
    for code in ("words = ['a', 'b']\nfor word in words: print(word)", "len(words)"):
        site.call("python.evaluate", expression=code, session="shown")
    with site.page(dark=dark, phone=phone) as page:
        site.open(page, "python/shown")
        evaluate(page, "1 / 0")
        expect(page.get_by_text("ZeroDivisionError: division by zero").first).to_be_visible()
        shoot(page, f"python-{'phone' if phone else 'desktop'}-{'dark' if dark else 'light'}")
        assert violations(page) == []
