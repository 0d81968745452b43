"""The measured processes: start them, and ensure that none is left running.

A server is killed at its deadline, so its reader sees the end of output. Single reads therefore
need no timeout, which would cost time inside the measurement.
"""

from __future__ import annotations

import os
import re
import shutil
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
    "BARE_ASGI",
    "LIMIT_HTTP",
    "LIMIT_STDIO",
    "LIMIT_WEBSOCKET",
    "OURS_HTTP",
    "OURS_SERVER",
    "OURS_STDIO",
    "ROOT",
    "Server",
    "ServerExited",
    "format_command",
    "port_of",
    "private_folders",
    "resident_kb",
    "scratch_folder",
    "start",
    "start_http",
)

#: The repository. Servers run here, so that they can import `bench.activation`.
ROOT = Path(__file__).resolve().parents[1]

_ACTIVATION = ("--activation", "bench.activation:Bench")
OURS_STDIO = (sys.executable, "-m", "substrate", "--stdio", *_ACTIVATION)
#: Without a token, because the limit and the peers require none either.
OURS_HTTP = (sys.executable, "-m", "substrate", "--port", "0", "--auth", "off", *_ACTIVATION)
#: The server that processes with `--background` use.
OURS_SERVER = (sys.executable, "-m", "substrate", "--port", "0", *_ACTIVATION)
LIMIT_STDIO = (sys.executable, "bench/limit_stdio.py")
LIMIT_HTTP = (sys.executable, "-m", "bench.limit_http")
LIMIT_WEBSOCKET = (sys.executable, "-m", "bench.limit_websocket")
#: A web framework's part of the cost: what the program would need without its own code.
BARE_ASGI = (sys.executable, "-m", "bench.peers.bare_asgi")

#: Deadline of a server. Few measures take longer, even on a machine under load; they set their own.
DEADLINE_S = 600.0
STOP_S = 5.0
#: Arguments of servers that listen on a port.
NETWORK = frozenset({"--port", "json", "sse", *LIMIT_HTTP, *LIMIT_WEBSOCKET, *BARE_ASGI}) - {
    sys.executable,
    "-m",
}
#: No additional environment variables.
NONE: Mapping[str, str] = types.MappingProxyType({})
_ADDRESS = re.compile(rb"http://127\.0\.0\.1:(\d+)")


class ServerExited(Exception):
    """A server exited, or was killed at its deadline, before it responded."""


class Server:
    """Process with pipes to its standard input and output."""

    def __init__(
        self,
        command: Sequence[str],
        stderr: IO[bytes],
        variables: Mapping[str, str],
        deadline_s: float = DEADLINE_S,
        folder: Path = ROOT,
    ) -> None:
        self._stderr = stderr
        self.is_on_stdio = "--stdio" in command
        # Settings of the user must not change the measurement. Installed programs have bytecode.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("SUBSTRATE_") and name != "PYTHONDONTWRITEBYTECODE"
        }
        # A server on stdio exits at the end of its input. The others must end with the benchmark,
        # even if it is killed.
        setpriv = shutil.which("setpriv") if NETWORK.intersection(command) else None
        self._process = subprocess.Popen(
            (setpriv, "--pdeathsig", "KILL", *command) if setpriv else command,
            cwd=folder,
            # Processes in other folders must run the code of this tree too.
            env={**environment, "PYTHONPATH": str(ROOT), **variables},
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
        self._watchdog = threading.Timer(deadline_s, self._process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()

    def stderr(self) -> bytes:
        """Return the standard error output so far."""
        return Path(self._stderr.name).read_bytes()

    @property
    def has_exited(self) -> bool:
        """Whether the process has exited."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """Terminate the process, kill it after a timeout, and wait for its exit."""
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
def start(
    command: Sequence[str],
    variables: Mapping[str, str] = NONE,
    deadline_s: float = DEADLINE_S,
    folder: Path = ROOT,
) -> Iterator[Server]:
    """Start a server with additional environment variables, and stop it on exit."""
    with tempfile.NamedTemporaryFile() as stderr:
        server = Server(command, stderr, variables, deadline_s, folder)
        try:
            yield server
        except (ServerExited, OSError) as error:
            output = server.stderr()[-2000:].decode(errors="replace").strip()
            error.add_note(f"stderr of {format_command(command)}: {output or 'empty'}")
            raise
        finally:
            server.stop()


@contextmanager
def start_http(command: Sequence[str]) -> Iterator[tuple[Server, int]]:
    """Start an HTTP server. Yields the server and its port."""
    with start(command) as server:
        yield server, port_of(server)


def port_of(server: Server) -> int:
    """Wait for the server's port. Raises ServerExited."""
    until = time.monotonic() + 30.0
    while (address := _ADDRESS.search(server.stderr())) is None:
        if server.has_exited or time.monotonic() > until:
            raise ServerExited("the server did not report its port")
        time.sleep(0.01)
    return int(address[1])


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Create a temporary folder on the disk of the repository."""
    (ROOT / "artifacts").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "artifacts") as folder:
        yield Path(folder)


@contextmanager
def private_folders() -> Iterator[None]:
    """Let all servers keep their files in a temporary folder, not in those of the user.

    The runs of a measure must not enter the history of the user, and its size must not matter.
    """
    names = ("XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
    before = {name: os.environ.get(name) for name in names}
    with scratch_folder() as folder:
        os.environ.update({name: str(folder / name.lower()) for name in names})
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def resident_kb(pid: int) -> int:
    """Return the resident memory of a process in KiB. Raises ServerExited."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise ServerExited(f"process {pid} has exited")


def format_command(command: Sequence[str]) -> str:
    """Return a command as a user would type it."""
    return " ".join(("python", *command[1:]) if command[0] == sys.executable else command)
