"""The page's view of a run: events, questions, and no lost or repeated items."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from page_browser import Site, opened, shoot, violations
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.timeout(120)

#: The numbers of all items of the shown run, and of those that are elements of the page.
KEPT = """async (run) => {
  const { openRun } = await import("/page/runs.js");
  const log = openRun(run);
  return {
    seqs: log.items.map((item) => item.seq),
    output: log.items.map((item) => item.event.data || "").join(""),
    repeated: log.repeated, resumed: log.resumed, dropped: log.dropped,
    elements: document.querySelectorAll(".v-row").length,
  };
}"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with opened() as site:
        yield site


@pytest.fixture
def page(site: Site) -> Iterator[Page]:
    with site.page() as page:
        yield page


def begin(page: Page, method: str, **params: Any) -> int:
    """Start a run like the form, show it, and return its id."""
    run = page.evaluate(
        """async ([method, params]) => {
          const { beginRun } = await import("/page/runs.js");
          const log = await beginRun(method, params);
          location.hash = `#/run/${log.run}`;
          return log.run;
        }""",
        [method, params],
    )
    page.locator("section.run").wait_for()
    return int(run)


def test_a_terminal_has_its_colours_and_its_lines(site: Site, page: Page) -> None:
    site.open(page, "explore", "bash.execute")
    command = (
        r"printf '\033[31mred\033[0m \033[1;32mgreen'; printf '\033[0m\n10%%\r20%%\n'; echo e >&2"
    )
    page.locator("form.call textarea").first.fill(command + r"; sleep 0.2; echo '<b>x</b>'; exit 3")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page).to_have_url(re.compile(r"#/run/\d+$"))
    expect(page.locator(".t-f1")).to_have_text("red")
    expect(page.locator(".t-f2.t-bold")).to_have_text("green")
    expect(page.locator(".terminal")).to_contain_text("20%")
    expect(page.locator(".terminal")).not_to_contain_text("10%")
    expect(page.locator(".t-error")).to_have_text("e")
    expect(page.locator(".terminal")).to_contain_text("<b>x</b>")
    expect(page.locator(".end.failed")).to_contain_text("Exit code 3")
    assert violations(page) == []
    shoot(page, "run-terminal")


def test_other_events_are_shown_by_kind_and_never_as_markup(page: Page) -> None:
    begin(page, "showcase.mixed")
    expect(page.locator(".end")).to_contain_text("6")
    page.locator("label:has-text('follow the end')").click()
    page.get_by_role("region", name="What the run says").evaluate(
        "(list) => { list.scrollTop = 0; }"
    )
    text = page.locator(".markdown").first
    expect(text.locator("strong").first).to_have_text("bold")
    expect(text.locator("ul ul li")).to_have_text("inside")
    expect(text.locator("td").first).to_have_text("1")
    expect(text).to_contain_text("<b>no markup</b>")
    expect(text).to_contain_text("<img src=x")
    assert text.locator("img, b").count() == 0
    assert text.locator("a").count() == 1
    expect(text.locator("a")).to_have_attribute("rel", "noopener noreferrer")
    expect(page.locator("progress")).to_have_attribute("value", "100")
    assert page.locator("img.picture").evaluate("(image) => image.naturalWidth") == 8
    expect(page.locator(".log-warning")).to_contain_text("it is getting late")
    page.locator(".b-data summary").filter(has_text="walls").click()
    shoot(page, "run-mixed")
    assert "broken into" not in page.title()


def test_every_item_has_its_number_and_its_time(page: Page) -> None:
    begin(page, "showcase.mixed")
    page.locator(".end").wait_for()
    page.get_by_role("button", name="Items").click()
    rows = page.locator(".event")
    expect(rows.last).to_contain_text("complete")
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3}", rows.last.locator("time").inner_text())
    assert violations(page) == []
    shoot(page, "run-items")


def test_a_run_can_be_stopped(page: Page) -> None:
    begin(page, "showcase.steady", count=10_000)
    expect(page.locator(".terminal").first).to_contain_text("<3>")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".end.stopped")).to_contain_text("stopped in the browser")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(page.locator(".run .state")).to_have_text("cancelled")


def test_every_kind_of_question_can_be_answered(page: Page) -> None:
    begin(page, "showcase.ask")
    question = page.locator(".question")
    expect(question).to_contain_text("Shall we go?")
    expect(page.locator("#badge")).to_have_text("1 question")
    assert violations(page) == []
    shoot(page, "run-question")
    question.get_by_role("button", name="Yes").click()
    expect(question).to_contain_text("What is your name?")
    question.get_by_role("textbox").fill("Ada")
    question.get_by_role("textbox").press("Enter")
    expect(question).to_contain_text("Where to?")
    question.get_by_label("hills").check()
    question.get_by_role("button", name="Answer").click()
    expect(question).to_contain_text("What do you take?")
    question.get_by_label("tent").check()
    question.get_by_label("map").check()
    question.get_by_role("button", name="Answer").click()
    expect(question).to_contain_text("Which trip?")
    question.get_by_role("button", name="Answer").click()
    expect(question.locator(".fault:visible")).to_have_text("is required")
    question.locator("textarea").first.fill("Lisbon")
    question.locator("input[inputmode]").fill("3")
    shoot(page, "run-form")
    question.get_by_role("button", name="Answer").click()
    texts = page.locator(".b-text")
    expect(page.locator(".b-complete")).to_be_visible()
    for text in (
        "confirm=True",
        "prompt=Ada",
        "select=hills",
        "many=tent,map",
        "form=Lisbon/3/True",
    ):
        expect(texts.filter(has_text=text)).to_be_visible()
    expect(page.locator("#badge")).to_be_hidden()


def test_a_reload_resumes_without_losing_or_repeating_an_item(page: Page) -> None:
    run = begin(page, "showcase.steady", count=80, pause_s=0.05)
    expect(page.locator(".terminal").first).to_contain_text("<10>")
    page.reload()
    expect(page.locator(".b-complete")).to_be_visible()
    kept = page.evaluate(KEPT, run)
    assert kept["seqs"] == list(range(1, 82))
    assert kept["output"] == "".join(f"<{number}>\n" for number in range(1, 81))


def test_a_run_continues_while_another_view_is_shown(site: Site, page: Page) -> None:
    run = begin(page, "showcase.steady", count=60, pause_s=0.02)
    site.open(page, "health")
    page.get_by_text("Healthy").wait_for()
    site.open(page, "run")
    page.locator("section.run, #view .plain").first.wait_for()
    page.get_by_role("link", name="showcase.steady").first.click()
    expect(page.locator(".b-complete")).to_be_visible()
    assert page.evaluate(KEPT, run)["seqs"] == list(range(1, 62))


def test_a_dropped_connection_resumes_after_the_last_item(site: Site, page: Page) -> None:
    run = begin(page, "showcase.steady", count=150, pause_s=0.03)
    expect(page.locator(".terminal").first).to_contain_text("<20>")
    for _ in range(2):
        # Every connection of the browser is cut; the run continues meanwhile.
        site.proxy.down = True
        assert site.proxy.cut() > 0
        expect(page.locator(".run .state")).to_contain_text("connection lost")
        time.sleep(0.5)
        site.proxy.down = False
        expect(page.locator(".run .state")).to_have_text("running")
    expect(page.locator(".b-complete")).to_be_visible()
    kept = page.evaluate(KEPT, run)
    assert kept["seqs"] == list(range(1, 152))
    assert kept["output"] == "".join(f"<{number}>\n" for number in range(1, 151))
    assert kept["resumed"] >= 2
    expect(page.locator(".run .facts")).to_contain_text("taken up again")


def test_duplicate_items_are_dropped_and_missing_items_are_requested(page: Page) -> None:
    done = page.evaluate(
        """async () => {
          const { Follower } = await import("/page/rpc.js");
          const seen = [];
          const follower = new Follower({ onItem: (seq) => seen.push(seq) });
          const result = { type: "content", text: "x" };
          const item = (seq) => ({ method: "a.b", params: { seq, result } });
          const taken = [1, 2, 2, 1, 3, 5, 4].map((seq) => follower._take(item(seq)));
          return { seen, taken, repeated: follower.repeated };
        }"""
    )
    assert done["seen"] == [1, 2, 3, 4]
    assert done["taken"] == [True, True, True, True, True, False, True]
    assert done["repeated"] == 2


def test_many_items_are_a_window_over_the_log(page: Page) -> None:
    run = begin(page, "showcase.many", count=30_000)
    expect(page.locator(".b-complete")).to_be_visible(timeout=60_000)
    kept = page.evaluate(KEPT, run)
    assert kept["seqs"][-1] == 30_001
    assert kept["seqs"] == list(range(kept["seqs"][0], 30_002))
    assert len(kept["seqs"]) <= 20_000
    assert kept["dropped"] == 30_001 - len(kept["seqs"])
    assert kept["elements"] < 80
    expect(page.locator(".run .facts")).to_contain_text("no longer shown")
    expect(page.locator(".terminal").last).to_contain_text("line 30000")


def test_a_run_over_the_limit_is_refused_and_calls_still_work(site: Site, page: Page) -> None:
    runs = [begin(page, "showcase.steady", count=10_000) for _ in range(3)]
    site.open(page, "explore", "showcase.steady")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".trouble")).to_contain_text("3 runs are being read in this page")
    site.open(page, "health")
    expect(page.get_by_text("Healthy")).to_be_visible()
    site.open(page, "arbor")
    expect(page.get_by_text("There are no trees yet")).to_be_visible()
    for run in runs:
        site.call("plexus.cancel", run=run)
    site.open(page, "explore", "demo.echo")
    page.locator("form.call textarea").first.fill("x")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".b-complete")).to_be_visible()


def test_the_page_reports_that_a_run_does_not_exist(site: Site, page: Page) -> None:
    site.open(page, "run", "12345")
    expect(page.locator(".trouble")).to_contain_text("Unknown run 12345.")
    expect(page.locator(".run .state")).to_have_text("not found")


@pytest.mark.parametrize(("dark", "phone"), [(True, False), (False, True)])
def test_a_run_is_accessible(site: Site, dark: bool, phone: bool) -> None:
    with site.page(dark=dark, phone=phone) as page:
        begin(page, "showcase.mixed")
        page.locator(".end").wait_for()
        assert violations(page) == []
        shoot(page, f"run{'-dark' if dark else ''}{'-phone' if phone else ''}")
