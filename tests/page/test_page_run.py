"""The page's view of one run: output, events, search, questions, and no lost or repeated lines."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from network import Server
from page_browser import SHOWCASE, Site, opened, shoot, violations
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.timeout(180)

PHONE_WIDTH = 390
#: Starts a run like the form, and shows it.
BEGIN = """async ([method, params]) => {
  const { startRun } = await import("/page/tools/start_run.js");
  const run = await startRun(method, params);
  location.hash = `#/runs/${run}`;
  return run;
}"""
#: The text of each row in view.
IN_VIEW = """(list) => {
  const box = list.getBoundingClientRect();
  return [...list.querySelectorAll(".log-row")].filter((row) => {
    const { top, bottom } = row.getBoundingClientRect();
    return bottom > box.top + 1 && top < box.bottom - 1;
  }).map((row) => row.innerText.trim().split(/\\s+/));
}"""
#: Renders a component of the page with these properties.
RENDER = """async ([path, name, props]) => {
  const { html, render } = await import("/page/core/html.js");
  const component = (await import(path))[name];
  const place = document.createElement("div");
  place.id = "rendered";
  place.className = "card";
  document.getElementById("view").replaceChildren(place);
  render(html`<${component} ...${props} />`, place);
}"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with opened() as site:
        yield site


@pytest.fixture
def page(site: Site) -> Iterator[Page]:
    with site.page() as page:
        yield page


def begin(page: Page, method: str, /, **params: Any) -> int:
    """Start a run like the form, show it, and return its number."""
    run = int(page.evaluate(BEGIN, [method, params]))
    page.locator(f".run-view .facts code[title='{run}']").wait_for()
    return run


def execute(page: Page, command: str, **params: Any) -> int:
    """Run a command, show its run, and wait until it has ended."""
    run = begin(page, "bash.execute", command=command, **params)
    expect(outcome(page)).not_to_contain_text(re.compile("Running|Asking"), timeout=60_000)
    return run


def outcome(page: Page) -> Locator:
    return page.locator(".run-head .outcome")


def output(page: Page) -> Locator:
    return page.get_by_role("region", name="Output", exact=True)


def in_view(page: Page) -> list[list[str]]:
    """Return the words of each row in view."""
    rows: list[list[str]] = output(page).evaluate(IN_VIEW)
    return rows


def downloaded(page: Page) -> str:
    """Return the whole output of the run, as it is downloaded."""
    with page.expect_download() as download:
        page.get_by_role("button", name=re.compile("^Download")).click()
    return Path(download.value.path()).read_text()


# --- header -----------------------------------------------------------------------------------


def test_a_failed_command_is_failed_in_the_header_and_in_the_title(page: Page) -> None:
    execute(page, "echo one; sleep 0.3; exit 3")
    expect(outcome(page)).to_have_text("✕ Failed (exit 3)")
    expect(page.get_by_role("heading", level=1)).to_have_text("echo one; sleep 0.3; exit 3")
    expect(page.locator(".run-title small")).to_have_text("bash.execute")
    expect(page).to_have_title(re.compile(r"✕ Failed \(exit 3\): echo one"))
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    page.locator(".run-title a").click()
    expect(page).to_have_title("Runs · Substrate")


def test_a_long_command_is_shown_whole_on_request_and_other_arguments_beside_it(
    page: Page,
) -> None:
    command = f"echo {'wide ' * 80}\n\necho last"
    execute(page, command, stdin="a text", timeout_s=30)
    heading = page.get_by_role("heading", level=1)
    expect(page.locator(".names small")).to_have_text("bash.execute · stdin=a text · timeout_s=30")
    expect(heading).not_to_contain_text("echo last")
    page.get_by_role("button", name="Show all").click()
    expect(heading).to_have_text(command, use_inner_text=True)
    page.get_by_role("button", name="Show less").click()
    expect(heading).not_to_contain_text("echo last")
    execute(page, "echo short")
    expect(page.get_by_role("button", name="Show all")).to_be_hidden()


def test_the_title_of_the_tab_changes_when_the_run_ends(site: Site, page: Page) -> None:
    run = begin(page, "showcase.steady", count=10_000)
    expect(page).to_have_title(re.compile("● "))
    site.call("plexus.cancel", run=run)
    expect(page).to_have_title(re.compile("■ "))


def test_a_run_can_be_stopped(page: Page) -> None:
    begin(page, "showcase.steady", count=10_000)
    expect(output(page)).to_contain_text(re.compile(r"<\d+>"))
    page.get_by_role("button", name="Stop").click()
    expect(outcome(page)).to_have_text("■ Stopped")
    expect(output(page)).to_contain_text("Stopped: stopped in the browser")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()


def test_a_run_can_be_started_again_or_edited_first(page: Page) -> None:
    first = execute(page, "echo again")
    page.get_by_role("button", name="Re-run").click()
    expect(page).not_to_have_url(re.compile(str(first)))
    expect(page.get_by_role("heading", level=1)).to_have_text("echo again")
    expect(output(page)).to_contain_text("again")
    page.get_by_role("button", name="Edit…").click()
    expect(page).to_have_url(re.compile("#/tools/bash.execute"))
    expect(page.locator("main textarea").first).to_have_value("echo again")


def test_a_run_whose_secrets_are_not_recorded_opens_its_form(page: Page) -> None:
    begin(page, "showcase.settings", user="ada", password="open sesame")
    expect(outcome(page)).to_have_text("✓ Done")
    page.get_by_role("tab", name="Arguments").click()
    expect(page.get_by_role("tabpanel")).to_contain_text("ada")
    expect(page.get_by_role("tabpanel")).not_to_contain_text("sesame")
    page.get_by_role("button", name="Re-run").click()
    expect(page).to_have_url(re.compile("#/tools/showcase.settings"))


def test_a_run_can_be_pinned_and_shared(site: Site, page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    run = execute(page, "echo keep me")
    expect(page.locator(".facts")).to_contain_text("Kept until")
    page.get_by_role("button", name="Pin", exact=True).click()
    expect(page.get_by_role("button", name="Unpin")).to_have_attribute("aria-pressed", "true")
    assert site.call("plexus.inspect", run=run)["pinned"] is True
    page.get_by_role("button", name="Unpin").click()
    expect(page.get_by_role("button", name="Pin", exact=True)).to_be_visible()
    page.get_by_role("button", name="Share").click()
    expect(page.get_by_text("Copied the link to this run").first).to_be_visible()
    assert page.evaluate("() => navigator.clipboard.readText()") == f"{site.origin}/#/runs/{run}"


def test_the_page_says_what_to_do_about_a_run_that_is_not_known(site: Site, page: Page) -> None:
    site.open(page, "runs", "12345")
    expect(page.get_by_role("heading", name="is not available")).to_be_visible()
    expect(page.locator(".notice")).to_contain_text("12345")
    page.get_by_role("link", name="Show all runs").click()
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()


# --- output -----------------------------------------------------------------------------------


def test_a_terminal_has_its_colours_and_its_lines(page: Page) -> None:
    command = (
        r"printf '\033[31mred\033[0m \033[1;32mgreen'; printf '\033[0m\n10%%\r20%%\n';"
        " sleep 0.2; echo problem >&2; sleep 0.2; echo '<b>x</b>'; exit 3"
    )
    execute(page, command)
    expect(output(page).locator(".t-f1")).to_have_text("red")
    expect(output(page).locator(".t-f2.t-bold")).to_have_text("green")
    lines = [["1", "red", "green"], ["2", "20%"], ["3", "problem"], ["4", "<b>x</b>"]]
    assert in_view(page)[:4] == lines
    expect(output(page).locator("[data-stderr]")).to_contain_text("problem")
    expect(output(page).locator("[data-error]")).to_contain_text("Exit code 3")
    title = output(page).locator(".line").first.get_attribute("title") or ""
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3}", title)
    assert violations(page) == []
    shoot(page, "run-terminal")


def test_other_events_are_shown_by_kind_and_never_as_markup(page: Page) -> None:
    begin(page, "showcase.mixed")
    expect(outcome(page)).to_have_text("✓ Done")
    page.locator(".log").focus()
    page.keyboard.press("Home")
    text = page.locator(".log .markdown").first
    expect(text.locator("strong").first).to_have_text("bold")
    expect(text.locator("ul ul li")).to_have_text("inside")
    expect(text.locator("td").first).to_have_text("1")
    expect(text).to_contain_text("<b>no markup</b>")
    expect(text).to_contain_text("<img src=x")
    assert text.locator("img, b").count() == 0
    assert text.locator("a").count() == 1
    expect(text.locator("a")).to_have_attribute("rel", "noopener noreferrer")
    expect(output(page).locator("progress")).to_have_attribute("value", "100")
    picture = output(page).locator(".picture img")
    assert picture.evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 8
    expect(output(page).locator(".e-log[data-level=warning]")).to_contain_text("it is getting late")
    expect(output(page).locator(".e-data")).to_contain_text("kitchen")
    expect(output(page).locator(".e-end")).to_contain_text("total: 6")
    shoot(page, "run-mixed")
    assert "broken into" not in page.title()
    assert violations(page) == []


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"type": "restarted", "epoch": 2}, "Restarted · epoch 2"),
        ({"type": "gap", "from": 3, "to": 9}, "Items 3 to 9 are no longer available"),
        (
            {"type": "error", "code": "deadline", "message": "too late", "data": {"a": 1}},
            "too late",
        ),
        ({"type": "tool_use", "tool_name": "find", "input": {"word": "x"}}, "find"),
        ({"type": "tool_result", "output": "nothing", "is_error": True}, "tool failed"),
        ({"type": "resource", "uri": "javascript:alert(1)", "content": "inside"}, "inside"),
        ({"type": "complete", "result": [{"a": 1, "b": "x"}, {"a": 2}]}, "ab\n1\tx"),
        ({"type": "cancelled", "reason": "enough"}, "Stopped: enough"),
        ({"type": "truncated", "limit_bytes": 9}, "cut at 9 bytes"),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_an_event_is_shown_by_its_kind(page: Page, event: dict[str, Any], text: str) -> None:
    page.evaluate(RENDER, ["/page/run/event_view.js", "EventView", {"event": event}])
    expect(page.locator("#rendered")).to_contain_text(text.split("\n")[-1].split("\t")[0])
    if "\t" in text:
        assert page.locator("#rendered td").all_inner_texts() == ["1", "x", "2", ""]
    assert page.locator("#rendered a[href^=javascript]").count() == 0
    assert violations(page) == []


def test_control_characters_and_invalid_bytes_are_visible(page: Page) -> None:
    execute(page, r"printf 'nul \0 bell \a byte \377 turned \xe2\x80\xae end\n'")
    expect(output(page)).to_contain_text(r"nul \x00 bell \x07 byte \xff turned \u202e end")
    assert output(page).locator(".control").count() == 3


def test_addresses_of_the_web_are_links_and_others_are_text(page: Page) -> None:
    link = r"\033]8;;%s\033\\%s\033]8;;\033\\ "
    named = link % ("https://example.org/osc", "here")
    script = link % ("javascript:alert(1)", "press")
    execute(
        page,
        rf"printf 'see (https://example.org/a?b=1#c), then {named} not there\n';"
        rf" printf '{script}javascript:alert(2) https://e.org/\xe2\x80\xaemoc\n';"
        r" printf '\033[31mhttps://example.org/\033[1mred\033[0m\n'",
    )
    links = output(page).locator(".text a")
    expect(output(page)).to_contain_text("press javascript:alert(2)")
    found = links.evaluate_all("(all) => all.map((each) => [each.textContent, each.href])")
    whole = "https://example.org/red"  # one address in two colours
    assert found == [
        ["https://example.org/a?b=1#c", "https://example.org/a?b=1#c"],
        ["here", "https://example.org/osc"],
        ["https://e.org/", "https://e.org/"],  # it ends at the character that turns the text
        ["https://example.org/", whole],
        ["red", whole],
    ]
    rels = set(links.evaluate_all("(all) => all.map((each) => each.target + ' ' + each.rel)"))
    assert rels == {"_blank noopener noreferrer"}
    # A match inside of an address leaves it a link.
    page.get_by_role("searchbox", name="Search the output").fill("b=1")
    expect(links.locator("mark")).to_have_text("b=1")
    assert "javascript" not in str(links.evaluate_all("(all) => all.map((each) => each.href)"))


def test_a_line_of_a_megabyte_is_shown_in_parts(page: Page) -> None:
    execute(page, "head -c 1000000 /dev/zero | tr '\\0' x; echo; echo after")
    expect(output(page)).to_contain_text("after")
    long = output(page).locator(".line").first
    assert len(long.inner_text()) < 25_000
    more = long.get_by_role("button", name="Show more")
    expect(more).to_be_in_viewport()  # not at the end of the line, far to the right
    more.click()
    page.wait_for_function("() => document.querySelector('.line').innerText.length > 100000")
    assert downloaded(page).startswith("x" * 1_000_000 + "\nafter\n")


def test_wrapped_lines_fit_and_the_choice_is_kept(page: Page) -> None:
    execute(page, "seq -s ' ' 1 400; echo end")
    expect(output(page)).to_contain_text("end")
    wide = "(list) => list.scrollWidth > list.clientWidth + 1"
    assert output(page).evaluate(wide)
    page.get_by_role("button", name="Wrap").click()
    expect(page.get_by_role("button", name="Wrap")).to_have_attribute("aria-pressed", "true")
    assert not output(page).evaluate(wide)
    page.reload()
    expect(page.get_by_role("button", name="Wrap")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Wrap").click()
    assert output(page).evaluate(wide)


def test_the_output_can_be_copied_and_downloaded(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    execute(page, r"printf '\033[31mred\033[0m\n'; seq 3")
    page.get_by_role("button", name="Copy", exact=True).first.click()
    expect(page.get_by_text("Copied 5 lines").first).to_be_visible()
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert re.fullmatch(r"red\n1\n2\n3\nExit code 0 after \d+ ms\n", copied)
    assert downloaded(page) == copied
    execute(page, "seq 1000000")
    page.get_by_role("button", name="Copy", exact=True).first.click()
    expect(page.get_by_text("Download the output for all of them").first).to_be_visible()


def test_the_whole_output_is_searched(page: Page) -> None:
    execute(page, "seq 100000; echo Needle; echo 'a needle and a needle'")
    field = page.get_by_role("searchbox", name="Search the output")
    field.fill("needle")
    matches = page.locator(".matches")
    expect(matches).to_have_text("1/3")
    expect(output(page).locator("mark[data-current]")).to_have_text("Needle")
    field.press("Enter")
    expect(matches).to_have_text("2/3")
    field.press("Shift+Enter")
    field.press("Shift+Enter")
    expect(matches).to_have_text("3/3")
    expect(output(page).locator("mark")).to_have_count(3)
    page.keyboard.press("F3")
    expect(matches).to_have_text("1/3")
    # The match is far from the rows in memory.
    field.fill("5555")
    expect(matches).to_have_text("1/19")
    expect(output(page).locator("mark[data-current]")).to_be_visible()
    page.get_by_role("button", name="Next match").click()
    expect(matches).to_have_text("2/19")
    field.fill("nothing like it")
    expect(matches).to_have_text("0/0")
    field.fill("")
    expect(matches).to_be_hidden()


def test_a_search_continues_while_the_run_continues(page: Page) -> None:
    begin(page, "showcase.steady", count=60, pause_s=0.05)
    page.get_by_role("searchbox", name="Search the output").fill("0>")
    expect(page.locator(".matches")).to_have_text("1/6")


def test_the_next_error_is_found(page: Page) -> None:
    execute(page, "seq 3000; echo 'an ERROR here'; seq 3000; echo oops >&2; sleep 0.2; seq 3000")
    page.locator(".log").focus()
    page.keyboard.press("Home")
    button = page.get_by_role("button", name="Next error")
    button.click()
    expect(output(page).locator("[data-selected]")).to_contain_text("an ERROR here")
    expect(page).to_have_url(re.compile(r"\?line=3001$"))
    button.click()
    expect(output(page).locator("[data-selected]")).to_contain_text("oops")
    button.click()
    expect(output(page).locator("[data-selected]")).to_contain_text("an ERROR here")


def test_a_link_leads_to_a_line(page: Page) -> None:
    run = execute(page, "seq 50000")
    page.evaluate("(hash) => { location.hash = hash; }", f"#/runs/{run}?line=30000")
    expect(output(page).locator("[data-selected]")).to_have_text("3000030000")
    page.reload()
    expect(output(page).locator("[data-selected]")).to_have_text("3000030000")
    output(page).get_by_role("link", name="Line 30005").click()
    expect(page).to_have_url(re.compile(r"\?line=30005$"))
    expect(output(page).locator("[data-selected]")).to_have_text("3000530005")


def test_following_stops_when_a_person_scrolls_up_and_resumes(page: Page) -> None:
    begin(page, "showcase.steady", count=3000, pause_s=0.01)
    following = page.get_by_role("button", name="Following")
    expect(output(page)).to_contain_text(re.compile(r"<\d{3,}>"))
    expect(following).to_have_attribute("aria-pressed", "true")
    output(page).hover()
    page.mouse.wheel(0, -300)
    expect(page.get_by_role("button", name="Follow", exact=True)).to_be_visible()
    page.wait_for_function(
        "() => document.querySelector('.log-sizer').offsetHeight / 19 > 200", timeout=30_000
    )
    # The end moves on, and the rows in view stay.
    before = in_view(page)
    expect(page.locator(".log-sizer")).not_to_have_css(
        "height", output(page).locator(".log-sizer").evaluate("(each) => `${each.offsetHeight}px`")
    )
    assert in_view(page) == before
    page.keyboard.press("f")
    expect(following).to_be_visible()
    page.wait_for_function(
        "(last) => document.querySelector('.log-row:last-child').dataset.row > last",
        arg=int(before[-1][0]) + 20,
    )
    following.click()
    expect(page.get_by_role("button", name="Follow", exact=True)).to_be_visible()
    page.locator(".log").focus()
    page.keyboard.press("End")
    expect(following).to_be_visible()


# --- long runs --------------------------------------------------------------------------------


def test_two_million_lines_are_scrolled_by_keys_and_by_the_scroll_bar(page: Page) -> None:
    """They are 38 million pixels high; a browser draws nothing after 33 million."""
    lines = 2_000_000
    # In parts, because the run store drops what is written too fast on a busy machine.
    command = f"for n in $(seq 1 100000 {lines}); do seq $n $((n + 99999)); sleep 0.02; done"
    execute(page, command, max_output_bytes=100_000_000)
    expect(page.locator("progress.loading")).to_be_hidden(timeout=60_000)
    log = page.locator(".log")
    log.focus()
    page.keyboard.press("End")
    expect(log).to_contain_text("Exit code 0")
    assert in_view(page)[-2] == [str(lines), str(lines)]
    page.keyboard.press("PageUp")
    page.keyboard.press("ArrowUp")
    expect(log).not_to_contain_text("Exit code 0")
    page.keyboard.press("Home")
    expect(log.locator(".log-row").first).to_have_text("11")
    first = in_view(page)
    assert first[0] == ["1", "1"]
    page.keyboard.press("PageDown")
    next_page = log.get_by_text(str(2 * len(first) - 4), exact=True)
    expect(next_page.first).to_be_in_viewport()
    expect(log.get_by_text("1", exact=True).first).not_to_be_in_viewport()
    for fraction in (0.5, 0.1, 0.95):
        log.evaluate("(list, at) => { list.scrollTop = list.scrollHeight * at; }", fraction)
        # No row is blank: a row that is not in memory has its number already.
        page.wait_for_function(
            "(near) => Math.abs(document.querySelector('.log-row').dataset.row - near) < 2000",
            arg=fraction * lines,
        )
        expect(log.get_by_text("…", exact=True)).to_have_count(0)
        rows = in_view(page)
        assert len(rows) > 20
        assert all(number == text for number, text in rows)
        assert abs(int(rows[0][0]) - fraction * lines) < 2000
    assert page.locator(".log-row").count() < 100


def test_rows_that_are_read_again_are_the_same(page: Page) -> None:
    # The colour is set once, far from the rows that are read again.
    execute(page, r"printf '\033[32m'; seq 150000", max_output_bytes=100_000_000)
    expect(page.locator("progress.loading")).to_be_hidden(timeout=60_000)
    log = page.locator(".log")
    log.focus()
    page.keyboard.press("End")
    expect(log).to_contain_text("Exit code 0")
    log.evaluate("(list) => { list.scrollTop = list.scrollHeight / 2; }")
    page.wait_for_function(
        "() => Math.abs(document.querySelector('.log-row').dataset.row - 75000) < 1000"
    )
    expect(log.get_by_text("…", exact=True)).to_have_count(0)
    assert all(number == text for number, text in in_view(page))
    assert log.locator(".t-f2").count() == log.locator(".log-row").count()


def test_many_events_are_listed_with_number_time_and_content(page: Page) -> None:
    run = begin(page, "showcase.many", count=5000, kind="data")
    expect(outcome(page)).to_have_text("✓ Done", timeout=60_000)
    page.get_by_role("tab", name="Events").click()
    expect(page).to_have_url(re.compile(rf"#/runs/{run}\?tab=events$"))
    rows = page.locator(".event")
    expect(rows.first).to_contain_text('{"celsius":1')
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3}", rows.first.locator("time").inner_text())
    page.locator(".log").focus()
    page.keyboard.press("End")
    expect(rows.last).to_contain_text("complete")
    expect(rows.last).to_contain_text("5001")
    rows.last.get_by_role("button").first.click()
    expect(rows.last.locator(".json")).to_contain_text("total: 5000")
    expect(page).to_have_url(re.compile("line=5001"))
    page.reload()
    expect(page.locator(".event[data-selected]")).to_contain_text("complete")
    assert violations(page) == []
    shoot(page, "run-events")


# --- questions and other runs -----------------------------------------------------------------


def test_questions_are_answered_in_the_run_and_stay_readable(page: Page) -> None:
    begin(page, "showcase.ask")
    card = page.locator(".run-questions .question")
    expect(card).to_contain_text("Shall we go?")
    expect(outcome(page)).to_have_text("? Asking")
    assert violations(page) == []
    shoot(page, "run-question")
    card.get_by_role("button", name="Yes").click()
    expect(card).to_contain_text("What is your name?")
    closed = page.locator(".asked-card").filter(has_text="Shall we go?")
    expect(closed).to_contain_text(re.compile("Answered “yes” by Browser, \\d\\d:"))
    expect(page.locator(".timeline")).to_contain_text("ask: Shall we go?")
    expect(output(page)).to_contain_text("confirm=True")
    page.get_by_role("button", name="Stop").click()
    expect(card).to_be_hidden()


def test_the_runs_that_a_run_has_called_are_a_tree(page: Page) -> None:
    begin(page, "plexus.call", method="bash.execute", params={"command": "echo child"})
    expect(outcome(page)).to_have_text("✓ Done")
    page.get_by_role("tab", name="Children 1").click()
    child = page.get_by_role("tabpanel").get_by_role("link", name="echo child")
    expect(page.locator(".child")).to_contain_text("Done")
    expect(page.locator(".timeline")).to_contain_text("echo child")
    assert violations(page) == []
    child.click()
    expect(output(page)).to_contain_text("child")
    expect(page.locator(".facts")).to_contain_text("Called by")


def test_the_clients_that_watch_a_run_are_named(site: Site, page: Page) -> None:
    run = begin(page, "showcase.steady", count=10_000)
    facts = page.locator(".run-side .facts")
    expect(facts).to_contain_text("WatchersBrowser")
    with site.page() as other:
        site.open(other, "runs", str(run))
        expect(other.locator(".run-side .facts")).to_contain_text("WatchersBrowser (2)")
    expect(facts).not_to_contain_text("Browser (2)")
    site.call("plexus.cancel", run=run)
    expect(facts).not_to_contain_text("Watchers")


def test_two_runs_are_read_at_the_same_time(page: Page) -> None:
    first = begin(page, "showcase.steady", count=100, pause_s=0.02)
    with page.context.new_page() as tab:
        tab.goto(page.url)
        expect(tab.locator(".log")).to_contain_text(re.compile(r"<\d+>"))
        second = begin(page, "showcase.steady", count=50, pause_s=0.02)
        assert second != first
        expect(outcome(page)).to_have_text("✓ Done")
        expect(outcome(tab)).to_have_text("✓ Done")
        assert downloaded(tab).startswith("".join(f"<{number}>\n" for number in range(1, 101)))
    assert downloaded(page).startswith("".join(f"<{number}>\n" for number in range(1, 51)))


def test_the_last_lines_of_a_run_are_shown_beside_other_things(site: Site, page: Page) -> None:
    run = begin(page, "bash.execute", command="seq 30; sleep 1; echo last; exit 4")
    page.evaluate(RENDER, ["/page/views/run.js", "RunOutput", {"run": run, "compact": True}])
    box = page.locator("#rendered")
    expect(box).to_contain_text("last")
    expect(box.locator(".outcome")).to_have_text("✕ Failed (exit 4)")
    assert len(box.locator(".line").all()) == 12
    expect(box.get_by_role("link").first).to_have_attribute("href", f"#/runs/{run}")
    assert site.call("plexus.inspect", run=run)["exit_code"] == 4


# --- lost connections -------------------------------------------------------------------------

STEADY = "".join(f"<{number}>\n" for number in range(1, 151))


def test_a_reload_continues_without_losing_or_repeating_a_line(page: Page) -> None:
    begin(page, "showcase.steady", count=150, pause_s=0.02)
    expect(output(page)).to_contain_text(re.compile(r"<\d{2,}>"))
    page.reload()
    expect(outcome(page)).to_have_text("✓ Done")
    assert downloaded(page).startswith(STEADY)


def test_a_dropped_connection_continues_after_the_last_item(site: Site, page: Page) -> None:
    begin(page, "showcase.steady", count=150, pause_s=0.04)
    expect(output(page)).to_contain_text(re.compile(r"<\d{2,}>"))
    for _ in range(2):
        # Every connection of the browser is cut; the run continues meanwhile.
        site.proxy.down = True
        assert site.proxy.cut() > 0
        expect(page.get_by_role("alert")).to_contain_text("not reachable")
        expect(output(page)).to_contain_text(">")
        expect(outcome(page)).to_contain_text("Running")
        site.proxy.down = False
        page.get_by_role("button", name="Retry now").click()
        expect(page.get_by_role("alert")).to_be_hidden()
    expect(outcome(page)).to_have_text("✓ Done")
    rows = int(page.locator(".log-row").last.get_attribute("data-row") or 0) + 1
    assert rows == 151
    assert downloaded(page).startswith(STEADY)


def test_a_killed_server_leaves_the_output_and_its_successor_continues(site: Site) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = {"XDG_DATA_HOME": folder}
        options = ("--activation", str(SHOWCASE))
        server = Server(*options, settings=settings, auth="token")
        again: Server | None = None
        try:
            with site.with_server(server).page() as page:
                begin(page, "showcase.steady", count=10_000, pause_s=0.02)
                expect(output(page)).to_contain_text(re.compile(r"<\d{2,}>"))
                page.get_by_role("button", name="Following").click()
                server.stop(kill=True)
                expect(page.get_by_role("alert")).to_contain_text("not reachable")
                before = in_view(page)
                assert len(before) > 10
                port = ("--port", str(server.port))
                again = Server(*options, *port, settings=settings, auth="token")
                expect(outcome(page)).to_have_text("⚠ Owner lost", timeout=60_000)
                # The banner is gone, so more rows are in view.
                assert in_view(page)[: len(before)] == before
                page.get_by_role("button", name="To the end").click()
                expect(output(page).locator("[data-error]")).to_contain_text("owner_lost")
                assert page.locator(".log-row").count() > 10
        finally:
            for each in (server, again):
                if each is not None:
                    each.stop()


# --- accessibility ----------------------------------------------------------------------------


@pytest.mark.parametrize(("dark", "phone"), [(True, False), (False, True), (True, True)])
def test_a_run_is_accessible(site: Site, dark: bool, phone: bool) -> None:
    with site.page(dark=dark, phone=phone) as page:
        begin(page, "showcase.mixed")
        expect(outcome(page)).to_have_text("✓ Done")
        expect(page.locator(".markdown").first).to_be_visible()
        assert violations(page) == []
        command = r"printf '\033[34mblue\033[0m\n'; ls /missing; seq 40; exit 1"
        execute(page, command)
        expect(output(page)).to_contain_text("40")
        assert violations(page) == []
        shoot(page, f"run{'-dark' if dark else ''}{'-phone' if phone else ''}")
        if phone:
            begin(page, "bash.execute", command="sleep 60")
            none = page.get_by_text("No output yet.").bounding_box()
            tools = page.get_by_role("toolbar", name="Output").bounding_box()
            assert none is not None
            assert tools is not None
            assert none["y"] >= tools["y"] + tools["height"]  # they do not overlap
            page.get_by_role("button", name="Stop").click()
            expect(outcome(page)).to_have_text("■ Stopped")
            page.go_back()
            expect(output(page)).to_contain_text("40")
            assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE_WIDTH
            side = page.locator(".run-side").bounding_box()
            main = page.locator(".run-main").bounding_box()
            assert side is not None
            assert main is not None
            assert side["y"] >= main["y"] + main["height"]
        for tab in ("Events", "Arguments", "Children"):
            page.get_by_role("tab", name=tab).click()
            expect(page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
            assert violations(page) == []
