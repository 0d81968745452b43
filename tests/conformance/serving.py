"""The fixture as a server: its hub and options, and a process for tests."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mcp_view.server import McpOptions
from plexus import Activation, Plexus
from plexus.runtime.builtin import PlexusActivation

from . import fixture, questions

__all__ = ("COMMAND", "REPOSITORY", "FlatNames", "build_hub", "options_for", "serving")

REPOSITORY = Path(__file__).parents[2]
#: The command that starts the fixture; add `--stdio` or `--port N`.
COMMAND = (sys.executable, "-m", "tests.conformance")
READY = "listening on "
#: Timeouts of the start and the end of a process.
START_S = 60.0
STOP_S = 10.0
#: Seconds a response stays open before the client must reconnect for the rest.
STREAM_S = 1.0

ACTIVATIONS: Final[tuple[type[Activation], ...]] = (
    fixture.Contents,
    fixture.Lists,
    fixture.Prompts,
    fixture.Resources,
    fixture.Running,
    questions.Asking,
    questions.Rounds,
    questions.Tasks,
)


class FlatNames:
    """Tool names without a namespace for the fixture, because the suites use no namespaces."""

    def __init__(self, hub: Plexus) -> None:
        ours = {activation.namespace for activation in ACTIVATIONS}
        methods = (spec.name for spec in hub.methods() if spec.name.partition(".")[0] in ours)
        self._methods = {name.partition(".")[2]: name for name in methods}
        self._names = {method: name for name, method in self._methods.items()}

    def name_of(self, method: str) -> str:
        """Return the tool name of a method."""
        return self._names.get(method, method)

    def method_of(self, name: str) -> str:
        """Return the method of a tool name."""
        return self._methods.get(name, name)


def build_hub() -> Plexus:
    """Return a hub with the fixture and the hub's own methods."""
    hub = Plexus(name="conformance-fixture")
    hub.register(PlexusActivation(hub))
    for activation in ACTIVATIONS:
        hub.register(activation)
    return hub


def options_for(hub: Plexus) -> McpOptions:
    """Return the options of the fixture's server."""
    return McpOptions(names=FlatNames(hub), stream_s=STREAM_S)


@contextmanager
def serving() -> Iterator[str]:
    """Run the fixture as a process on a free port, and yield the URL of its endpoint."""
    clean = {key: value for key, value in os.environ.items() if "SUBSTRATE" not in key}
    process = subprocess.Popen(
        [*COMMAND, "--port", "0"],
        cwd=REPOSITORY,
        env=clean,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield _address(process)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        finally:
            process.kill()
            process.wait(STOP_S)
            assert process.stdout is not None
            process.stdout.close()


def _address(process: subprocess.Popen[str]) -> str:
    """Wait for the line that reports where the server listens."""
    output: queue.Queue[str] = queue.Queue()
    assert process.stdout is not None
    # A thread, because a read from a pipe has no timeout; it ends with the line or the process.
    threading.Thread(target=lambda out: output.put(out.readline()), args=(process.stdout,)).start()
    try:
        line = output.get(timeout=START_S)
    except queue.Empty:
        process.kill()
        raise RuntimeError(f"the fixture did not listen within {START_S:g} s") from None
    if not line.startswith(READY):
        raise RuntimeError("the fixture ended before it listened; see its stderr")
    return line.removeprefix(READY).strip()
