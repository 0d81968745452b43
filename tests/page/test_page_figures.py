"""Speed and memory of the page, measured in the browser.

The figures are printed and saved for review by people; no test fails on them, because a busy
machine is not a defect. The tests fail if what is shown is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from page_browser import ARTIFACTS, Site, opened
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.timeout(300)

EVENTS = 10_000
LINES = 5_000_000
PART = 100_000
FOLLOWED = 100_000
#: Timeout for what takes long on a busy machine.
SLOW_MS = 100_000
#: Records every frame and every task over 50 ms from now on.
MEASURE = """() => {
  window.frames_ms = [];
  window.tasks_ms = [];
  let last = performance.now();
  const look = (now) => {
    window.frames_ms.push(now - last);
    last = now;
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) window.tasks_ms.push(entry.duration);
  }).observe({ entryTypes: ["longtask"] });
}"""
#: Returns the frames since the last call.
FRAMES = "() => window.frames_ms.splice(0).slice(1)"
#: Starts a run and shows it; returns the time until all of it is read.
TIME = """async ([method, params]) => {
  const { startRun } = await import("/page/tools/start_run.js");
  await import("/page/views/run.js");
  const started = performance.now();
  const run = await startRun(method, params);
  location.hash = `#/runs/${run}`;
  const isDone = () => document.querySelector(".run-head .outcome[data-kind=done]")
    && document.querySelector(".log-row") && !document.querySelector("progress.loading");
  while (!isDone()) await new Promise(requestAnimationFrame);
  return { run, took_ms: performance.now() - started };
}"""
#: The text of each row in view.
IN_VIEW = """(list) => {
  const box = list.getBoundingClientRect();
  return [...list.querySelectorAll(".log-row")].filter((row) => {
    const { top, bottom } = row.getBoundingClientRect();
    return bottom > box.top + 1 && top < box.bottom - 1;
  }).map((row) => row.innerText.trim().split(/\\s+/));
}"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with opened() as site:
        yield site


def keep(name: str, figures: dict[str, Any]) -> None:
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    path = ARTIFACTS / "figures.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | {name: figures}, indent=2) + "\n")
    print(f"{name}: {json.dumps(figures)}")  # noqa: T201


def frames(page: Page) -> dict[str, int]:
    """Return how long the frames were since the last call."""
    found = sorted(page.evaluate(FRAMES))
    assert found, "nothing was drawn"
    return {
        "frames": len(found),
        "median_frame_ms": round(found[len(found) // 2]),
        "longest_frame_ms": round(found[-1]),
        "frames_over_50_ms": sum(each > 50 for each in found),
        "frames_over_100_ms": sum(each > 100 for each in found),
    }


def heap_mb(page: Page) -> float:
    """Return the size of the live objects of the page."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    return round(float(session.send("Runtime.getHeapUsage")["usedSize"]) / 1e6, 1)


def scroll(log: Locator, fraction: float) -> None:
    log.evaluate("(list, at) => { list.scrollTop = list.scrollHeight * at; }", fraction)


def test_the_first_paint_comes_soon(site: Site) -> None:
    # Without the proxy, which is slower than the server.
    with site.with_server(site.server).page() as page:
        page.wait_for_function("() => performance.getEntriesByName('ready').length > 0")
        figures = page.evaluate(
            """() => {
              const paints = Object.fromEntries(
                performance.getEntriesByType("paint").map((each) => [each.name, each.startTime]));
              const files = performance.getEntriesByType("resource")
                .filter((each) => each.name.includes("/page/"));
              return {
                first_contentful_paint_ms: Math.round(paints["first-contentful-paint"]),
                ready_ms: Math.round(performance.getEntriesByName("ready")[0].startTime),
                files: files.length,
                bytes: files.reduce((sum, each) => sum + each.decodedBodySize, 0),
              };
            }"""
        )
    assert figures["files"] > 20
    keep("start", figures)


@pytest.mark.parametrize("kind", ["stdout", "content", "data"])
def test_ten_thousand_events_come_without_a_pause(site: Site, kind: str) -> None:
    with site.with_server(site.server).page() as page:
        page.evaluate(MEASURE)
        found = page.evaluate(TIME, ["showcase.many", {"count": EVENTS, "kind": kind}])
        shown = frames(page)
        tasks = page.evaluate("() => window.tasks_ms")
        log = page.locator(".log")
        log.focus()
        page.keyboard.press("End")
        expect(log.locator(".log-row").last).to_contain_text(f"total: {EVENTS}")
        # Then scroll through all of it, from the end to the beginning.
        for part in range(20, -1, -1):
            scroll(log, part / 20)
            page.wait_for_timeout(30)
        scrolled = frames(page)
        expect(log.locator(".log-row").first).to_contain_text("1")
        assert log.evaluate(IN_VIEW)[0][0] == "1"
        elements = page.evaluate("() => document.querySelectorAll('*').length")
        heap = heap_mb(page)
    assert elements < 4000
    keep(
        f"{EVENTS} events of {kind}",
        {
            "took_ms": round(found["took_ms"]),
            **shown,
            "longest_task_ms": round(max(tasks, default=0)),
            "longest_frame_scrolling_ms": scrolled["longest_frame_ms"],
            "heap_mb": heap,
            "elements": elements,
        },
    )


def test_five_million_lines_are_read_and_scrolled(site: Site) -> None:
    with site.with_server(site.server).page() as page:
        page.evaluate(MEASURE)
        # In parts: on a busy machine the run store drops what is written too fast, and the page
        # then shows a gap, with other line numbers after it.
        command = (
            f"for n in $(seq 1 {PART} {LINES}); do seq $n $((n + {PART} - 1)); sleep 0.1; done"
        )
        page.evaluate(TIME, ["bash.execute", {"command": command, "max_output_bytes": 100_000_000}])
        figures: dict[str, Any] = {"reading": frames(page)}
        page.reload()
        page.locator(".log-row").first.wait_for()
        page.evaluate(MEASURE)
        started = page.evaluate("() => performance.now()")
        expect(page.locator("progress.loading")).to_be_hidden(timeout=120_000)
        figures["read_again_ms"] = round(page.evaluate("() => performance.now()") - started)
        figures["reading_again"] = frames(page)
        log = page.locator(".log")
        log.focus()
        page.keyboard.press("End")
        expect(log).to_contain_text("Exit code 0")
        rows = log.evaluate(IN_VIEW)
        assert rows[-2] == [str(LINES), str(LINES)]
        assert len(rows) > 20
        page.keyboard.press("Home")
        expect(log.locator(".log-row").first).to_have_text("11")
        assert log.evaluate(IN_VIEW)[0] == ["1", "1"]
        frames(page)
        blank = 0
        for part in range(1, 40):  # like a person who drags the thumb
            scroll(log, part / 40)
            page.wait_for_timeout(16)
            rows = log.evaluate(IN_VIEW)
            blank += len(rows) < 20
            assert abs(int(rows[0][0]) - LINES * part / 40) < LINES / 40
        assert blank == 0
        figures["dragging"] = frames(page)
        for fraction in (0.5, 0.25, 0.75):
            scroll(log, fraction)
            near = fraction * LINES
            page.wait_for_function(
                "(near) => Math.abs(document.querySelector('.log-row').dataset.row - near) < 2000",
                arg=near,
            )
            expect(log.get_by_text("…", exact=True)).to_have_count(0)
            rows = log.evaluate(IN_VIEW)
            assert all(number == text for number, text in rows)
            assert len(rows) > 20
        frames(page)
        log.hover()
        for _ in range(60):
            page.mouse.wheel(0, 120)
            page.wait_for_timeout(10)
        figures["wheel"] = frames(page)
        for _ in range(60):
            page.keyboard.press("PageDown")
        figures["page_down"] = frames(page)
        expect(log.get_by_text("…", exact=True)).to_have_count(0)
        rows = log.evaluate(IN_VIEW)
        assert all(number == text for number, text in rows)
        started = page.evaluate("() => performance.now()")
        page.get_by_role("searchbox", name="Search the output").fill(str(LINES - 1))
        expect(page.locator(".matches")).to_have_text("1/1", timeout=120_000)
        figures["search_ms"] = round(page.evaluate("() => performance.now()") - started)
        figures["searching"] = frames(page)
        figures["heap_mb"] = heap_mb(page)
        figures["elements"] = page.evaluate("() => document.querySelectorAll('*').length")
    assert figures["elements"] < 2000
    keep(f"{LINES} lines", figures)


def test_a_busy_run_is_followed_in_bounded_memory(site: Site) -> None:
    with site.with_server(site.server).page() as page:
        before = heap_mb(page)
        page.evaluate(MEASURE)
        params = {"count": FOLLOWED, "kind": "stdout"}
        found = page.evaluate(TIME, ["showcase.many", params])
        shown = frames(page)
        log = page.locator(".log")
        last = log.locator(".log-row").last
        # On a busy machine the run may end before the page shows it; then its start is shown.
        log.focus()
        page.keyboard.press("End")
        expect(last).to_contain_text(f"total: {FOLLOWED}", timeout=SLOW_MS)
        rows = log.evaluate(IN_VIEW)
        assert rows[-2] == [str(FOLLOWED), "line", str(FOLLOWED)]
        after = heap_mb(page)
        page.get_by_role("tab", name="Events").click()
        page.locator(".log").focus()
        page.keyboard.press("End")
        expect(page.locator(".event").last).to_contain_text("complete")
        events = heap_mb(page)
    keep(
        f"{FOLLOWED} events followed",
        {
            "took_ms": round(found["took_ms"]),
            **shown,
            "heap_before_mb": before,
            "heap_after_mb": after,
            "heap_with_events_mb": events,
        },
    )
