"""Speed of the page, measured in the browser.

The figures are printed and saved for review by people; no test fails on them, because a busy
machine is not a defect.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from page_browser import ARTIFACTS, Site, opened
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.timeout(180)

EVENTS = 10_000
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
  window.began_at = performance.now();
}"""
RESULT = """() => ({
  frames: window.frames_ms.slice(1), tasks: window.tasks_ms,
  took_ms: performance.now() - window.began_at,
  heap_mb: performance.memory ? performance.memory.usedJSHeapSize / 1e6 : null,
  elements: document.querySelectorAll("*").length,
})"""


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


def begin(page: Page, method: str, **params: Any) -> None:
    page.evaluate(
        """async ([method, params]) => {
          const { beginRun } = await import("/page/runs.js");
          location.hash = `#/run/${(await beginRun(method, params)).run}`;
        }""",
        [method, params],
    )


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
    with site.page() as page:
        site.open(page, "run")
        page.locator("h1").wait_for()
        page.evaluate(MEASURE)
        begin(page, "showcase.many", count=EVENTS, kind=kind)
        expect(page.locator(".b-complete")).to_be_visible(timeout=60_000)
        found = page.evaluate(RESULT)
        # Then scroll through all of it, from the end to the beginning.
        page.evaluate("() => { window.frames_ms = []; }")
        log = page.get_by_role("region", name="What the run says")
        for part in range(20, -1, -1):
            log.evaluate("(list, at) => { list.scrollTop = list.scrollHeight * at / 20; }", part)
            page.wait_for_timeout(30)
        scrolled = page.evaluate("() => window.frames_ms.slice(1)")
        expect(page.locator(".block").first).to_contain_text("#1")
    assert found["elements"] < 2000
    frames = sorted(found["frames"])
    keep(
        f"{EVENTS} events of {kind}",
        {
            "took_ms": round(found["took_ms"]),
            "frames": len(frames),
            "longest_frame_ms": round(frames[-1]),
            "frames_over_100_ms": sum(each > 100 for each in frames),
            "longest_task_ms": round(max(found["tasks"], default=0)),
            "heap_mb": round(found["heap_mb"], 1),
            "elements": found["elements"],
            "longest_frame_scrolling_ms": round(max(scrolled)),
        },
    )
