"""The page's view of all tools, and the forms made from their schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from page_browser import Site, opened, shoot, violations
from playwright.sync_api import Locator, Page, WebSocketRoute, expect

pytestmark = pytest.mark.timeout(120)

RUN_PLACE = re.compile(r"#/runs/(\d+)")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with opened() as site:
        yield site


@pytest.fixture
def page(site: Site) -> Iterator[Page]:
    with site.page() as page:
        yield page


def show(site: Site, page: Page, method: str) -> Locator:
    """Open a tool and return its pane."""
    site.open(page, "tools", method)
    pane = page.locator("article.tool").filter(has=page.get_by_text(method, exact=True))
    pane.wait_for()
    return pane


def started(page: Page) -> int:
    """Wait until the page shows a run, and return its number."""
    page.wait_for_url(RUN_PLACE)
    found = RUN_PLACE.search(page.url)
    assert found is not None
    return int(found[1])


def result(site: Site, run: int) -> Any:
    """Wait for the end of a run and return its result."""
    return site.call("plexus.attach", run=run)


def fault(page: Page, at: str) -> Locator:
    """Return the fault that is shown at a parameter."""
    return page.locator(f"[data-at='{at}'] .error")


@contextmanager
def intercepted(
    site: Site,
    *,
    sent: Callable[[str], str] = str,
    received: Callable[[str, WebSocketRoute], bool] = lambda _text, _socket: True,
) -> Iterator[Page]:
    """Open the page with messages that `sent` changes and `received` may drop."""

    def connect(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()
        socket.on_message(lambda text: server.send(sent(str(text))))
        server.on_message(
            lambda text: socket.send(text) if received(str(text), socket) else None,
        )

    with site.page(enter=False) as page:
        page.route_web_socket(re.compile("/rpc"), connect)
        page.goto(site.link)
        page.get_by_text("Connected", exact=True).wait_for()
        yield page


def test_plugins_come_first_and_the_methods_of_the_server_are_folded_at_the_end(
    site: Site, page: Page
) -> None:
    site.open(page, "tools")
    headings = page.locator(".tool-groups h3 button")
    expect(headings.nth(0)).to_contain_text("demo")
    expect(headings.nth(1)).to_contain_text("showcase")
    expect(headings.nth(2)).to_contain_text("bash")
    expect(headings.last).to_contain_text("System")
    expect(headings.last).to_have_attribute("aria-expanded", "false")
    expect(page.get_by_role("link", name="plexus.history")).to_have_count(0)
    headings.last.click()
    expect(page.get_by_role("link", name="plexus.history")).to_be_visible()
    # Resources and prompts are methods, but no tools.
    expect(page.get_by_role("link", name="arbor.read_tree")).to_have_count(0)
    expect(page.get_by_role("link", name="chat.conversation")).to_have_count(0)
    row = page.get_by_role("link", name="bash.execute")
    expect(row).to_contain_text("Run a shell command")
    expect(row.locator(".tag")).to_have_text(["streams", "destructive"])


def test_tools_are_found_opened_and_run_by_keyboard_alone(site: Site, page: Page) -> None:
    site.open(page, "tools")
    page.locator(".tool-list").wait_for()
    page.keyboard.press("/")
    expect(page.get_by_label("Search tools")).to_be_focused()
    page.keyboard.type("shell command")
    expect(page.get_by_role("status").filter(has_text="1 of")).to_contain_text("tool matches")
    page.keyboard.press("Enter")
    expect(page.locator("article h1")).to_have_text("Run a shell command")
    expect(page).to_have_title("Run a shell command · Tools · Substrate")
    expect(page.get_by_role("textbox", name="command")).to_be_focused()
    page.keyboard.type("echo by keyboard")
    page.keyboard.press("Control+Enter")
    assert site.call("plexus.inspect", run=started(page))["arguments"] == {
        "command": "echo by keyboard"
    }


def test_arrow_keys_move_through_the_list_and_fold_its_groups(site: Site, page: Page) -> None:
    site.open(page, "tools")
    search = page.get_by_label("Search tools")
    search.focus()
    page.keyboard.press("ArrowDown")
    first, second = (page.locator(".tool-row").nth(index) for index in range(2))
    expect(first).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(second).to_be_focused()
    page.keyboard.press("ArrowLeft")
    heading = page.locator(".tool-groups h3 button").first
    expect(heading).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(heading).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("ArrowRight")
    expect(heading).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("ArrowUp")
    expect(search).to_be_focused()
    # The list is one stop of the tabulator.
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("article.tool h1")).to_be_visible()


def test_a_search_without_a_match_offers_to_clear_it(site: Site, page: Page) -> None:
    site.open(page, "tools")
    page.get_by_label("Search tools").fill("no such tool anywhere")
    expect(page.get_by_role("heading", name="No tool matches")).to_be_visible()
    page.get_by_role("button", name="Clear the search").click()
    expect(page.get_by_role("link", name="bash.execute")).to_be_visible()


def test_a_form_has_every_kind_of_field_and_sends_what_is_in_it(site: Site, page: Page) -> None:
    pane = show(site, page, "showcase.shape")
    pane.get_by_role("textbox", name="label").fill("a box")
    pane.get_by_text("More options").click()
    pane.get_by_role("radio", name="large").check()
    pane.get_by_role("textbox", name="amount").fill("7")
    pane.get_by_role("checkbox", name="wet").check()
    pane.get_by_role("button", name="Set part").click()
    page.keyboard.type("lid")
    pane.get_by_role("group", name="part", exact=True).get_by_label("weight").fill("2.5")
    for name in ("right", "left"):
        pane.get_by_role("button", name="Add an entry to parts").click()
        page.keyboard.type(name)
    pane.get_by_role("button", name="Move entry 2 up").click()
    pane.get_by_role("button", name="Add an entry to words").click()
    page.keyboard.type("hello")
    pane.get_by_label("Kind of either").select_option(label="text")
    pane.get_by_label("Value of either").fill("42")
    pane.get_by_role("textbox", name="extra").fill('{"deep": [1, {"x": null}]}')
    shoot(page, "tools-form")
    page.keyboard.press("Control+Enter")
    assert result(site, started(page)) == {
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


def test_secrets_names_dates_null_and_long_texts_have_fields(site: Site, page: Page) -> None:
    pane = show(site, page, "showcase.settings")
    pane.get_by_label("user").fill("ada")
    password = pane.get_by_label("password")
    expect(password).to_have_attribute("type", "password")
    password.fill("correct horse")
    pane.get_by_text("More options").click()
    pane.get_by_label("level").select_option(label="warning")
    pane.get_by_role("button", name="Add an entry to env").click()
    page.keyboard.type("HOME")
    pane.get_by_label("Value 1", exact=True).fill("/root")
    expect(pane.get_by_text("Default: 1 min 30 s.")).to_be_visible()
    pane.get_by_role("checkbox", name="null for timeout_s").check()
    pane.get_by_label("day").fill("2024-02-29")
    pane.get_by_label("note").fill("two\nlines")
    pane.get_by_role("button", name="Run", exact=True).click()
    assert result(site, started(page)) == {
        "user": "ada",
        "password": 13,
        "level": "warning",
        "env": {"HOME": "/root"},
        "timeout_s": None,
        "day": "2024-02-29",
        "note": "two\nlines",
    }


def test_last_values_are_kept_and_secrets_are_not(site: Site, page: Page) -> None:
    pane = show(site, page, "showcase.settings")
    pane.get_by_label("user").fill("grace")
    pane.get_by_label("password").fill("not to be stored")
    pane.get_by_role("button", name="Run", exact=True).click()
    started(page)
    page.reload()
    pane = show(site, page, "showcase.settings")
    expect(pane.get_by_text("The values of your last run.")).to_be_visible()
    expect(pane.get_by_label("user")).to_have_value("grace")
    expect(pane.get_by_label("password")).to_have_value("")
    assert "not to be stored" not in page.evaluate("() => JSON.stringify({...localStorage})")
    pane.get_by_role("button", name="Clear the form").click()
    expect(pane.get_by_label("user")).to_have_value("")
    page.reload()
    expect(show(site, page, "showcase.settings").get_by_label("user")).to_have_value("")


def test_what_is_typed_survives_a_visit_to_another_view(site: Site, page: Page) -> None:
    label = show(site, page, "showcase.shape").get_by_label("label")
    # In one task of the browser, so that nothing is rendered between the two.
    label.evaluate(
        """(field) => {
            field.value = "half";
            field.dispatchEvent(new Event("input", { bubbles: true }));
            location.hash = "#/runs";
        }"""
    )
    page.locator("article.tool").wait_for(state="detached")
    expect(show(site, page, "showcase.shape").get_by_label("label")).to_have_value("half")


def test_an_invalid_value_is_reported_at_its_field_before_anything_is_sent(site: Site) -> None:
    calls: list[str] = []

    def note(text: str) -> str:
        calls.append(json.loads(text)["method"])
        return text

    with intercepted(site, sent=note) as page:
        pane = show(site, page, "showcase.shape")
        start = pane.get_by_role("button", name="Run", exact=True)
        label = pane.get_by_label("label")
        start.click()
        expect(fault(page, "label")).to_have_text("is required")
        expect(label).to_be_focused()
        expect(label).to_have_attribute("aria-invalid", "true")
        described = label.get_attribute("aria-describedby")
        assert described is not None
        expect(page.locator(f"[id='{described.split()[-1]}']")).to_have_text("is required")
        label.fill("x")
        expect(fault(page, "label")).to_have_count(0)
        pane.get_by_text("More options").click()
        amount = pane.get_by_role("textbox", name="amount")
        amount.fill("11")
        pane.get_by_text("More options").click()
        start.click()
        # A field with an error is not left folded.
        expect(fault(page, "amount")).to_have_text("must be at most 10")
        expect(amount).to_be_focused()
        amount.fill("many")
        start.click()
        expect(fault(page, "amount")).to_have_text("must be a number")
        amount.fill("")
        pane.get_by_label("extra").fill("{")
        start.click()
        expect(fault(page, "extra")).to_contain_text("is not valid JSON")
        pane.get_by_label("extra").fill("")
        pane.get_by_role("button", name="Add an entry to parts").click()
        start.click()
        expect(fault(page, "parts.0.name")).to_have_text("is required")
        shoot(page, "tools-faults")
    assert "showcase.shape" not in calls


def test_an_error_of_the_server_is_reported_at_its_field(site: Site) -> None:
    def changed(text: str) -> str:
        return text.replace('"amount":3', '"amount":300')

    with intercepted(site, sent=changed) as page:
        pane = show(site, page, "showcase.shape")
        pane.get_by_label("label").fill("kept")
        pane.get_by_text("More options").click()
        pane.get_by_role("textbox", name="amount").fill("3")
        pane.get_by_role("button", name="Run", exact=True).click()
        expect(fault(page, "amount")).to_contain_text("10")
        expect(pane.get_by_role("textbox", name="amount")).to_be_focused()
        expect(pane.get_by_label("label")).to_have_value("kept")
        expect(pane.get_by_role("button", name="Run", exact=True)).to_be_enabled()


def test_any_other_error_is_shown_below_the_form(site: Site) -> None:
    def changed(text: str) -> str:
        return text.replace('"method":"showcase.shape"', '"method":"showcase.gone"')

    with intercepted(site, sent=changed) as page:
        pane = show(site, page, "showcase.shape")
        pane.get_by_label("label").fill("kept")
        pane.get_by_role("button", name="Run", exact=True).click()
        expect(pane.get_by_role("alert")).to_contain_text("showcase.gone")
        expect(pane.get_by_label("label")).to_have_value("kept")


def test_a_lost_reply_does_not_start_a_second_run(site: Site) -> None:
    keys: list[str] = []
    lost: set[int] = set()

    def note(text: str) -> str:
        message = json.loads(text)
        if message["method"] == "showcase.settings":
            if not keys:
                lost.add(message["id"])
            keys.append(message["params"]["_run"])
        return text

    def arrives(text: str, socket: WebSocketRoute) -> bool:
        frame = json.loads(text)
        messages = frame if isinstance(frame, list) else [frame]
        if all(message.get("id") not in lost for message in messages):
            return True
        lost.clear()
        socket.close()
        return False

    with intercepted(site, sent=note, received=arrives) as page:
        pane = show(site, page, "showcase.settings")
        pane.get_by_label("user").fill("once only")
        pane.get_by_label("password").fill("x")
        pane.get_by_role("button", name="Run", exact=True).click()
        run = started(page)
    assert keys == [keys[0], keys[0]]
    found = site.call("plexus.history", search='"once only"')
    assert [each["run"] for each in found] == [run]


def test_a_run_continues_after_its_tab_is_closed(site: Site) -> None:
    with site.page() as page:
        pane = show(site, page, "showcase.steady")
        pane.get_by_label("count").fill("30")
        pane.get_by_label("pause_s").fill("0.1")
        pane.get_by_role("button", name="Run", exact=True).click()
        run = started(page)
    [state] = [each["state"] for each in site.call("plexus.runs", limit=50) if each["run"] == run]
    assert state == "running"
    assert result(site, run)["total"] == 30


def test_the_arguments_of_a_run_can_be_edited_and_run_again(site: Site, page: Page) -> None:
    prefill = {"method": "showcase.shape", "arguments": {"label": "again", "amount": 5}}
    page.evaluate(
        "(value) => localStorage.setItem('substrate.prefill', JSON.stringify(value))", prefill
    )
    pane = show(site, page, "showcase.shape")
    expect(pane.get_by_label("label")).to_have_value("again")
    # Optional parameters with a value are not folded.
    expect(pane.get_by_role("textbox", name="amount")).to_have_value("5")
    assert page.evaluate("() => localStorage.getItem('substrate.prefill')") is None
    pane.get_by_role("button", name="Run", exact=True).click()
    assert result(site, started(page))["amount"] == 5
    show(site, page, "showcase.shape")
    recent = page.get_by_role("region", name="Recent runs")
    expect(recent.get_by_role("link").filter(has_text="showcase.shape").first).to_contain_text(
        "Done"
    )


def test_a_call_can_be_copied_for_other_programs(site: Site, page: Page) -> None:
    pane = show(site, page, "bash.execute")
    pane.get_by_label("command").fill("echo it's")
    pane.get_by_text("Copy as…").click()
    text = page.locator(".copy-text")
    program = f"substrate --port {site.origin.rsplit(':', 1)[1]}"
    expect(text).to_contain_text(f"Bearer $({program} token)")
    expect(text).to_contain_text(f"curl -N {site.origin}/rpc")
    expect(text).to_contain_text("it'\\''s")
    for form, expected in (
        ("substrate call", f"{program} call bash.execute --command 'echo it'\\''s'"),
        ("Python", 'plexus.bash.execute(command="echo it\'s")'),
        ("MCP tools/call", '"name": "bash.execute"'),
    ):
        pane.get_by_role("button", name=form, exact=True).click()
        expect(text).to_contain_text(expected)
    assert site.server.token not in text.inner_text()


def test_a_copied_call_contains_no_secret(site: Site, page: Page) -> None:
    pane = show(site, page, "showcase.settings")
    pane.get_by_label("password").fill("open sesame")
    pane.get_by_text("Copy as…").click()
    expect(page.locator(".copy-text")).to_contain_text('"password":"<password>"')
    expect(page.locator(".copy-text")).not_to_contain_text("sesame")


def test_a_reload_returns_to_the_same_tool(site: Site, page: Page) -> None:
    show(site, page, "arbor.node_append")
    page.reload()
    expect(page.locator("article h1")).to_have_text("Add several nodes")


def test_an_unknown_tool_suggests_similar_names(site: Site, page: Page) -> None:
    site.open(page, "tools", "bash.exceute")
    expect(page.get_by_role("heading", name="There is no tool bash.exceute")).to_be_visible()
    page.locator(".tool-links").get_by_role("link", name="bash.execute").click()
    expect(page.locator("article h1")).to_have_text("Run a shell command")


def test_a_server_without_tools_tells_how_to_add_a_plugin(site: Site, page: Page) -> None:
    page.get_by_role("link", name="Tools").wait_for()
    page.evaluate(
        """async () => {
            const { loadSchema, schema } = await import("/page/core/schema.js");
            await loadSchema();
            const own = schema.value.activations.filter((each) => each.namespace === "health");
            schema.value = { ...schema.value, activations: own };
        }"""
    )
    site.open(page, "tools")
    expect(page.get_by_role("heading", name="No tools yet")).to_be_visible()
    expect(page.get_by_text("substrate --activation FILE")).to_be_visible()
    page.get_by_role("link", name="Show the methods of the server").click()
    expect(page.locator("article h1")).to_have_text("Check server health")


MARKDOWN = """\
1. First:
   ```bash
   ls *.py
   ```
2. Second **bold *both***

| a | b |
|---|--:|
| 1 | 2 |

<img src=x> [bad](javascript:alert(1)) [good](https://example.org/) ![a cat](https://example.org/cat.png)

```python
print("the fence is open")
"""


def test_markdown_that_arrives_in_parts_is_rendered_like_the_whole(page: Page) -> None:
    streamed, whole = page.evaluate(
        """async (text) => {
            const { Markdown } = await import("/page/ui/markdown.js");
            const { html, render } = await import("/page/core/html.js");
            const [parts, once] = [document.createElement("div"), document.createElement("div")];
            for (let end = 0; end <= text.length; end += 1) {
                render(html`<${Markdown} text=${text.slice(0, end)} />`, parts);
            }
            render(html`<${Markdown} text=${text} />`, once);
            return [parts.innerHTML, once.innerHTML];
        }""",
        MARKDOWN,
    )
    assert streamed == whole
    assert "<code>ls *.py</code>" in whole
    assert whole.count("<li>") == 2
    assert "<strong>bold <em>both</em></strong>" in whole
    assert 'text-align: right;">2</td>' in whole
    assert "&lt;img src=x&gt;" in whole
    assert "<img" not in whole
    assert "[bad](javascript:alert(1))" in whole
    link = 'target="_blank" rel="noopener noreferrer"'
    assert f'<a href="https://example.org/" {link}>good</a>' in whole
    assert f'<a href="https://example.org/cat.png" {link}>a cat</a>' in whole
    assert '<code>print("the fence is open")\n</code>' in whole


def test_a_large_json_value_opens_in_slices(page: Page) -> None:
    page.evaluate(
        """async () => {
            const { JsonTree } = await import("/page/ui/json_tree.js");
            const { html, render } = await import("/page/core/html.js");
            const place = document.body.appendChild(document.createElement("div"));
            const value = { list: Array.from({ length: 20000 }, (_, index) => index) };
            render(html`<${JsonTree} value=${value} label="Numbers" />`, place);
        }"""
    )
    tree = page.get_by_role("group", name="Numbers")
    expect(tree.locator(".j-leaf")).to_have_count(0)
    for label in ("list: [20,000]", "10,000 … 19,999", "12,300 … 12,399"):
        tree.get_by_text(label).click()
    expect(tree.locator(".j-leaf")).to_have_count(100)
    expect(tree.get_by_text("12345: 12345")).to_be_visible()


def test_a_phone_shows_the_list_or_the_tool(site: Site) -> None:
    with site.page(phone=True) as page:
        site.open(page, "tools")
        row = page.locator(".tool-row[data-row='showcase.shape']")
        expect(row).to_be_visible()
        assert overflow(page) == 0
        shoot(page, "tools-list-phone")
        row.click()
        expect(page.locator("article h1")).to_have_text("Shape")
        expect(row).not_to_be_visible()
        page.get_by_text("More options").click()
        page.get_by_role("button", name="Add an entry to parts").click()
        page.get_by_label("Kind of either").select_option(label="text")
        page.get_by_text("Copy as…").click()
        assert overflow(page) == 0
        page.get_by_role("link", name="All tools").click()
        expect(row).to_be_visible()


def overflow(page: Page) -> int:
    """Return by how many pixels the widest element is cut off or scrolls sideways."""
    found = page.evaluate(
        """() => {
            const parts = document.querySelectorAll("html, main, .tool-pane, .tool, .tool-groups");
            return Math.max(...[...parts].map((each) => each.scrollWidth - each.clientWidth));
        }"""
    )
    return int(found)


@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, False), (False, True)])
def test_tools_are_accessible(site: Site, dark: bool, phone: bool) -> None:
    with site.page(dark=dark, phone=phone) as page:
        site.open(page, "tools")
        page.get_by_role("button", name=re.compile("^System")).click()
        assert violations(page) == []
        pane = show(site, page, "showcase.shape")
        pane.get_by_text("More options").click()
        pane.get_by_text("Copy as…").click()
        pane.get_by_text("Schema", exact=True).click()
        pane.get_by_label("Kind of either").select_option(label="text")
        pane.get_by_role("button", name="Set part").click()
        pane.get_by_role("button", name="Add an entry to parts").click()
        pane.get_by_role("button", name="Add an entry to words").click()
        pane.get_by_role("button", name="Run", exact=True).click()
        expect(fault(page, "label")).to_be_visible()
        assert violations(page) == []
        shoot(page, f"tools{'-dark' if dark else ''}{'-phone' if phone else ''}")
        pane = show(site, page, "showcase.settings")
        pane.get_by_text("More options").click()
        pane.get_by_role("button", name="Add an entry to env").click()
        assert violations(page) == []
        site.open(page, "tools", "no.such.tool")
        page.get_by_role("heading", name="There is no tool").wait_for()
        assert violations(page) == []
