"""The measured processes: how each is started, and that none is left.

A server is killed when its deadline passes, so whoever reads from it sees the end of its output
and needs no timeout on any single read, which would cost time where time is measured.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = (
    "LIMIT_ASGI",
    "LIMIT_STDIO",
    "OURS_HTTP",
    "OURS_STDIO",
    "ROOT",
    "Server",
    "ServerGone",
    "port_of",
    "resident_kb",
    "scratch_folder",
    "shown",
    "start",
    "start_http",
)

#: The repository; servers run here, so that `bench.activation` can be imported.
ROOT = Path(__file__).resolve().parents[1]

_ACTIVATION = ("--activation", "bench.activation:Bench")
OURS_STDIO = (sys.executable, "-m", "substrate", "--stdio", *_ACTIVATION)
#: Without a token: the others ask for none either.
OURS_HTTP = (sys.executable, "-m", "substrate", "--port", "0", "--auth", "off", *_ACTIVATION)
LIMIT_STDIO = (sys.executable, "bench/limit_stdio.py")
LIMIT_ASGI = (sys.executable, "-m", "bench.limit_asgi")

#: No measure uses one server for longer than this; a machine under load is slow, not stuck.
DEADLINE_S = 120.0
STOP_S = 5.0
#: No variables beside those that are there.
NONE: Mapping[str, str] = types.MappingProxyType({})
_ADDRESS = re.compile(rb"http://127\.0\.0\.1:(\d+)")


class ServerGone(Exception):
    """A server ended, or was killed at its deadline, before it had answered."""


class Server:
    """A process with pipes to its standard input and output."""

    def __init__(
        self, command: Sequence[str], stderr: IO[bytes], variables: Mapping[str, str]
    ) -> None:
        self._stderr = stderr
        # Settings of whoever runs the benchmark must not change what is measured.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SUBSTRATE_")}
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environment, **variables},
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._pipes = (self._process.stdin, self._process.stdout)
        self.pid = self._process.pid
        self.input_fd = self._process.stdin.fileno()
        self.output_fd = self._process.stdout.fileno()
        self._watchdog = threading.Timer(DEADLINE_S, self._process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()

    def said(self) -> bytes:
        """What it wrote to its standard error so far."""
        return Path(self._stderr.name).read_bytes()

    @property
    def ended(self) -> bool:
        """Whether the process is over."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """End it, politely first, and wait until it is gone."""
        self._watchdog.cancel()
        try:
            self._process.terminate()
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._process.kill()
            self._process.wait()
            for pipe in self._pipes:
                pipe.close()


@contextmanager
def start(command: Sequence[str], variables: Mapping[str, str] = NONE) -> Iterator[Server]:
    """A server with these variables, that is ended on the way out, whatever happens."""
    with tempfile.NamedTemporaryFile() as stderr:
        server = Server(command, stderr, variables)
        try:
            yield server
        except (ServerGone, OSError) as error:
            said = server.said()[-2000:].decode(errors="replace").strip()
            error.add_note(f"{shown(command)} said: {said or 'nothing'}")
            raise
        finally:
            server.stop()


@contextmanager
def start_http(command: Sequence[str]) -> Iterator[tuple[Server, int]]:
    """A server that listens, and its port."""
    with start(command) as server:
        yield server, port_of(server)


def port_of(server: Server) -> int:
    """Where it listens, as soon as it says so."""
    until = time.monotonic() + 30.0
    while (address := _ADDRESS.search(server.said())) is None:
        if server.ended or time.monotonic() > until:
            raise ServerGone("a server did not say where it listens")
        time.sleep(0.01)
    return int(address[1])


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder on the disk of the repository."""
    (ROOT / "artifacts").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "artifacts") as folder:
        yield Path(folder)


def resident_kb(pid: int) -> int:
    """The resident memory of a process, in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise ServerGone(f"process {pid} has no memory any more")


def shown(command: Sequence[str]) -> str:
    """A command as a person would type it."""
    return " ".join(("python", *command[1:]) if command[0] == sys.executable else command)
