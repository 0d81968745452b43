"""Draw the picture of the README: the page, which follows a command that an agent has started.

`python docs/make_picture.py` starts a server and Chromium, and writes docs/_static/page.png. What
differs between two runs of the script, such as durations and numbers, is replaced in the page
before the picture is taken, so the picture changes only if the page does. It needs the extra
`test`, and Chromium at `CHROMIUM` or on the PATH.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from native_rpc.client import connect
from native_rpc.client.local_server import find_local_server

PICTURE = Path(__file__).with_name("_static") / "page.png"
SIZE = {"width": 1120, "height": 440}
MAX_BYTES = 200_000
WAIT_MS = 20_000
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
#: The command of the run, and the client that runs it.
COMMAND = "make test"
CLIENT = "claude-code/2.4"
MAKEFILE = "test:\n\t@sh tests.sh\n"
TESTS = """for t in cart checkout invoice login orders payment returns; do
  printf '\\033[32mPASSED\\033[0m tests/test_%s.py\\n' $t
done
printf '\\033[31mFAILED\\033[0m tests/test_search.py: timed out after 30 s\\n'
printf '\\033[32mPASSED\\033[0m tests/test_shipping.py\\n'
sleep 60
"""
#: Text that differs between runs, in the order in which it is replaced.
VARYING = (
    (r"\b\d+(\.\d+)? ?(ms|s)\b", "2 s"),
    (r"\b\d{12,}\b", "7441205531913584"),
    (r"^[0-9a-f]{4}$", "9c71"),
    (r"pid \d+", "pid 4711"),
    (r"/tmp/\w+", "/home/you"),
    (r"127\.0\.0\.1:\d+", "127.0.0.1:4444"),
    (r"\b\d\d?:\d\d(:\d\d)?\b", "09:30"),
)
REPLACE = """(rules) => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    let text = walker.currentNode.data;
    for (const [pattern, by] of rules) text = text.replace(new RegExp(pattern, "g"), by);
    if (text !== walker.currentNode.data) walker.currentNode.data = text;
  }
}"""


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "shop")
        project.mkdir()
        (project / "Makefile").write_text(MAKEFILE)
        (project / "tests.sh").write_text(TESTS)
        os.environ.update(XDG_DATA_HOME=f"{folder}/data", XDG_STATE_HOME=f"{folder}/state")
        with subprocess.Popen(
            [sys.executable, "-m", "substrate", "--port", "0"],
            cwd=project,
            stderr=subprocess.PIPE,
            text=True,
        ) as server:
            assert server.stderr is not None
            try:
                [address] = re.findall(r"http://127\.0\.0\.1:\d+", server.stderr.readline())
                running = asyncio.run(start_run(project))
                draw(f"{address}/#token={find_local_server(project).token}", running)
            finally:
                server.terminate()
    size = PICTURE.stat().st_size
    assert size < MAX_BYTES, f"the picture has {size} bytes"
    print(f"Wrote {PICTURE} ({size} bytes)")  # noqa: T201


async def start_run(project: Path) -> int:
    """Start the command, which continues without its caller, and return the number of its run."""
    server = find_local_server(project)
    params = {"command": COMMAND, "_on_disconnect": "keep"}
    async with (
        connect(server.url, token=server.token, client=CLIENT) as plexus,
        plexus.call("bash.execute", params) as call,
    ):
        async for event in call:
            if "shipping" in event.get("data", ""):
                break
        [newest, *_] = await plexus.runs("running")
        return int(newest["run"])


def draw(link: str, run: int) -> None:
    """Open a run in the page, and take the picture."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(viewport=SIZE, color_scheme="light", reduced_motion="reduce")
        page = context.new_page()
        page.goto(link)
        page.get_by_text(COMMAND).first.wait_for(timeout=WAIT_MS)
        page.goto(link.partition("#")[0] + f"#/runs/{run}")
        page.get_by_text("test_shipping").first.wait_for(timeout=WAIT_MS)
        page.wait_for_load_state("networkidle")
        page.evaluate(REPLACE, [list(rule) for rule in VARYING])
        PICTURE.parent.mkdir(exist_ok=True)
        page.screenshot(path=PICTURE, animations="disabled", caret="hide")
        browser.close()


if __name__ == "__main__":
    main()
