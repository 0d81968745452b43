"""Measures of the page, in headless Chromium: start, events, large output, a long list, memory.

A frame is the time between two calls of `requestAnimationFrame`. The note of each figure has its
worst round. Without Playwright and Chromium there are no figures.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import history
from bench.measure import FULL, Effort, Figure, Target, single
from bench.servers import OURS_HTTP, ROOT, port_of, scratch_folder, start
from plexus.principal import LOCAL
from plexus.storage.engine import open_engine
from substrate.run_store.schema import RUNS

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ("busy_run", "events", "lines", "runs", "start_up")

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
SWITCHES = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
VIEWPORT = {"width": 1440, "height": 900}
ROUNDS = 3
WAIT_MS = 100_000
EVENTS = 10_000
LINES = 5_000_000
#: Lines that a command writes before it pauses, so that the run store drops none.
PART = 100_000
#: An hour of 100 lines each second.
BUSY_EVENTS = 360_000
SCROLLS = 100
#: Deadline of a server whose page reads millions of lines.
DEADLINE_S = 400.0

START = """() => {
  const files = performance.getEntriesByType("resource")
    .filter((each) => each.name.includes("/page/"));
  return {
    paint: performance.getEntriesByName("first-contentful-paint")[0].startTime,
    ready: performance.getEntriesByName("ready")[0].startTime,
    bytes: files.reduce((sum, each) => sum + each.decodedBodySize, 0),
  };
}"""
#: Starts a run and shows it. Returns the time until all of it is read, and the longest frame.
SHOW = """async ([method, params]) => {
  const { startRun } = await import("/page/tools/start_run.js");
  await import("/page/views/run.js");
  const started = performance.now();
  location.hash = `#/runs/${await startRun(method, params)}`;
  const isDone = () => document.querySelector(".run-head .outcome[data-kind=done]")
    && document.querySelector(".log-row") && !document.querySelector("progress.loading");
  let [last, longest] = [performance.now(), 0];
  while (!isDone()) {
    const now = await new Promise(requestAnimationFrame);
    longest = Math.max(longest, now - last);
    last = now;
  }
  return { took: performance.now() - started, longest };
}"""
#: Scrolls an element from its beginning to its end. Returns the longest frame.
SCROLL = """async ([selector, steps]) => {
  const list = document.querySelector(selector);
  const frame = () => new Promise(requestAnimationFrame);
  list.scrollTop = 0;
  await frame();
  let [last, longest] = [await frame(), 0];
  for (let step = 1; step <= steps; step += 1) {
    list.scrollTop = (list.scrollHeight - list.clientHeight) * step / steps;
    const now = await frame();
    longest = Math.max(longest, now - last);
    last = now;
  }
  return longest;
}"""
#: Scrolls to the end of a list until no more rows are loaded.
LOAD_ALL = """async () => {
  const list = document.querySelector(".fixed-list");
  let [height, since] = [0, performance.now()];
  while (performance.now() - since < 2000) {
    list.scrollTop = list.scrollHeight;
    await new Promise(requestAnimationFrame);
    if (list.scrollHeight !== height) [height, since] = [list.scrollHeight, performance.now()];
  }
}"""


def start_up(effort: Effort) -> list[Figure]:
    """Measure the first paint, the time until the page is ready, and the size of its files."""
    found: list[dict[str, float]] = []
    with scratch_folder() as folder, _server(folder) as address:
        for _ in range(_rounds(effort)):
            found += [page.evaluate(START) for page in _pages(address)]
    if not found:
        return []
    return [
        _figure("page_paint", "ms", [each["paint"] for each in found], 300, "first contentful"),
        _figure(
            "page_ready", "ms", [each["ready"] for each in found], 600, "all views can be used"
        ),
        _figure("page_bytes", "KB", [each["bytes"] / 1000 for each in found], 250, "first view"),
    ]


def events(effort: Effort) -> list[Figure]:
    """Measure a run with many events, from its start until all of it is shown."""
    count = EVENTS if effort is FULL else EVENTS // 10
    found: list[dict[str, float]] = []
    with scratch_folder() as folder, _server(folder) as address:
        run = ["bench.lines", {"to": count}]
        for _ in range(_rounds(effort)):
            found += [page.evaluate(SHOW, run) for page in _pages(address)]
    if not found:
        return []
    note = f"{count:,} events of a new run"
    return [
        _figure("page_events", "ms", [each["took"] for each in found], 300, note),
        _figure("page_events_frame", "ms", [each["longest"] for each in found], 100, note),
    ]


def lines(effort: Effort) -> list[Figure]:
    """Measure the longest frame while large output is scrolled from its beginning to its end."""
    count = LINES if effort is FULL else LINES // 50
    command = f"for n in $(seq 1 {PART} {count}); do seq $n $((n + {PART} - 1)); sleep 0.1; done"
    params = {"command": command, "max_output_bytes": 100_000_000}
    found: list[float] = []
    with scratch_folder() as folder, _server(folder) as address:
        for page in _pages(address):
            page.evaluate(SHOW, ["bash.execute", params])
            rounds = range(_rounds(effort))
            found += [page.evaluate(SCROLL, [".log", SCROLLS]) for _ in rounds]
    return [_figure("page_lines", "ms", found, 50, f"{count:,} lines")] if found else []


def runs(effort: Effort) -> list[Figure]:
    """Measure the longest frame while a list of recorded runs is scrolled to its end."""
    count = history.RUNS_STORED if effort is FULL else history.RUNS_STORED // 100
    found: list[float] = []
    with scratch_folder() as folder:
        (folder / "substrate").mkdir()
        with ThreadPoolExecutor() as thread:  # the main thread has the event loop of the browser
            thread.submit(lambda: asyncio.run(_fill(folder / "substrate", count))).result()
        with _server(folder) as address:
            for page in _pages(f"{address}#/runs?range=all"):
                page.locator(".run-row").first.wait_for()
                page.evaluate(LOAD_ALL)
                rounds = range(_rounds(effort))
                found += [page.evaluate(SCROLL, [".fixed-list", SCROLLS]) for _ in rounds]
    return [_figure("page_runs", "ms", found, 100, f"{count:,} recorded runs")] if found else []


def busy_run(effort: Effort) -> list[Figure]:
    """Measure the growth of the heap of the page after it has followed a busy run."""
    count = BUSY_EVENTS if effort is FULL else BUSY_EVENTS // 100
    found: list[float] = []
    with scratch_folder() as folder, _server(folder) as address:
        for _ in range(_rounds(effort)):
            for page in _pages(address):
                before = _heap_mb(page)
                page.evaluate(SHOW, ["bench.lines", {"to": count}])
                found.append(_heap_mb(page) - before)
    note = f"{count:,} events followed, an hour of 100 each second"
    return [_figure("page_heap", "MB", found, 15, note)] if found else []


async def _fill(folder: Path, count: int) -> None:
    """Write runs of the project of the server into its store, without output."""
    engine = await open_engine(str(folder / "runs.db"), RUNS)
    now_ms = time.time_ns() // 1_000_000
    marks = ", ".join("?" * len(history.COLUMNS.split(",")))
    rows: list[list[object]] = []
    for number in range(count):
        at_ms = now_ms - (count - number) * history.STEP_MS
        row: list[object] = [number + 1, "bash.execute", "bash", LOCAL.name, str(ROOT), 1, 1]
        row += ["host", "claude-code/2.1", f"session-{number % 50}", 3]
        row += ["failed" if number % 20 == 0 else "succeeded", 0, 0, at_ms, at_ms + 100, 3, 4000]
        row += ["all", "{}", f"make test-{number}", now_ms * 2, 0, "never", 1]
        rows.append(row)
    await engine.write(
        lambda tx: tx.many(f"INSERT INTO runs ({history.COLUMNS}) VALUES ({marks})", rows)
    )
    await engine.close()


def _rounds(effort: Effort) -> int:
    return ROUNDS if effort is FULL else 1


def _figure(name: str, unit: str, values: list[float], at_most: float, note: str) -> Figure:
    worst = f"{note}; worst of {len(values)}: {max(values):.0f} {unit}"
    return single(name, unit, values, Target("value", at_most), worst)


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    """Start a server with its data in a folder. Yields its address."""
    with start(OURS_HTTP, {"XDG_DATA_HOME": str(folder)}, DEADLINE_S) as server:
        yield f"http://127.0.0.1:{port_of(server)}/"


def _pages(address: str) -> Iterator[Page]:
    """Open the page once in a new browser; nothing if there is no browser."""
    if util.find_spec("playwright") is None or not Path(CHROMIUM).exists():
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        try:
            page = browser.new_page(viewport=VIEWPORT)  # type: ignore[arg-type]  # two numbers
            page.set_default_timeout(WAIT_MS)
            page.goto(address)
            page.wait_for_function("() => performance.getEntriesByName('ready').length > 0")
            yield page
        finally:
            browser.close()


def _heap_mb(page: Page) -> float:
    session: Any = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    return float(session.send("Runtime.getHeapUsage")["usedSize"]) / 1e6
