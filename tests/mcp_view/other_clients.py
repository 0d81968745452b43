"""The expected session of third-party clients with the fixture, over any transport."""

from __future__ import annotations

import subprocess
from typing import Any

from conformance.node import node, script
from conformance.serving import COMMAND, REPOSITORY

__all__ = ("STDIO", "check_session", "run_node")

#: The command that starts the fixture for one client.
STDIO = [*COMMAND, "--stdio"]
#: Longer than the timeouts of the drivers.
NODE_S = 45.0

SERVER = "conformance-fixture"
EXPECTED: dict[str, Any] = {
    "text": "This is a simple text response for testing.",
    "progress": [[0, 100], [50, 100], [100, 100]],
    "after_progress": "All steps are done.",
    "cancelled": True,
    "stopped": 1,
    "failed": [True, "This tool intentionally returns an error for testing"],
    "resource": ["This is the content of the static text resource."],
    "prompt": ["Prompt with arguments: arg1='hello', arg2='world'"],
    "elicited": "Hello, Ada!",
    "asked": ["What is your name?"],
}


def check_session(seen: dict[str, Any], revision: str) -> None:
    """Compare the session of a client with the expected one."""
    assert seen.pop("server", SERVER) == SERVER
    tools = seen.pop("tools")
    assert {"test_simple_text", "wait_for_cancel", "plexus.runs"} <= set(tools)
    # The last text may be reported as progress too, if there was time for it.
    done = [done for done, _ in seen["progress"]]
    assert done == sorted(set(done))
    del seen["progress"][3:]
    assert seen == EXPECTED | {"revision": revision}


def run_node(name: str, *arguments: str) -> str:
    """Run a script of `tests/node` and return its output. Raises NotInstalled."""
    done = subprocess.run(
        [str(node()), str(script(name)), *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=NODE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
