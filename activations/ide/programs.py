"""Runs the checkers and formatters of a project, bounded in time, output and number.

They run in the sandbox of `bash`, because checkers load the configuration and plugins of the
project, which are code of the workspace. They end with the server.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from activations.ide.workspace import Workspace
from activations.processes.pipes import OutputPipe
from activations.processes.sandbox.hidden_paths import OwnPaths
from activations.processes.sandbox.launcher import SandboxLauncher
from activations.processes.sandbox.profiles import Profile
from plexus import Failed
from plexus.errors import DeadlineExceeded, TooBig

__all__ = ("Output", "Programs")

#: Maximum output of a program, and how many run at the same time.
OUTPUT_BYTES: Final = 4 * 1024 * 1024
CONCURRENT: Final = 2
#: Seconds that the place of a program is remembered.
FOUND_S: Final = 10.0
#: Where a project keeps its own programs.
FOLDERS: Final = (".venv/bin", "venv/bin", "node_modules/.bin")


class Output(NamedTuple):
    """What a program has written, and its exit code."""

    code: int
    stdout: str
    stderr: str


class Programs:
    """The programs that a workspace can use."""

    def __init__(
        self, workspace: Workspace, sandbox: Profile, own_paths: OwnPaths | None = None
    ) -> None:
        self._workspace = workspace
        self._launcher = SandboxLauncher(sandbox, str(workspace.folder), own_paths)
        self._places = asyncio.Semaphore(CONCURRENT)
        self._found: dict[str, tuple[float, str | None]] = {}

    def find(self, name: str) -> str | None:
        """Return the path of a program: that of the project, or of the PATH; None without one."""
        known = self._found.get(name)
        now = time.monotonic()
        if known is not None and now - known[0] < FOUND_S:
            return known[1]
        places = [str(self._workspace.folder / each) for each in FOLDERS]
        found = shutil.which(name, path=os.pathsep.join(places)) or shutil.which(name)
        path = None if found is None else str(Path(found).absolute())
        self._found[name] = now, path
        return path

    async def run(self, arguments: list[str], stdin: str | None, timeout_s: float) -> Output:
        """Run a program in the workspace and return its output.

        Raises DeadlineExceeded, TooBig, and Failed if it cannot be started.
        """
        async with self._places:
            await self._launcher.check()
            script = f"exec {shlex.join(arguments)}"
            with self._launcher.prepare(script, str(self._workspace.folder), {}) as command:
                process = await self._launcher.start(command, stdin)
                try:
                    process.expire_after(timeout_s)
                    stdout, stderr = await asyncio.gather(
                        _read(process.stdout, process.kill), _read(process.stderr, process.kill)
                    )
                    await process.wait()
                finally:
                    await process.end()
        name = Path(arguments[0]).name
        if process.expired:
            raise DeadlineExceeded(
                f"{name} took longer than {timeout_s:g} s.", data={"limit_s": timeout_s}
            )
        if max(len(stdout), len(stderr)) > OUTPUT_BYTES:
            raise TooBig(
                f"The output of {name} exceeds {OUTPUT_BYTES:,} bytes.",
                data={"limit": OUTPUT_BYTES},
            )
        if process.returncode is None:
            raise Failed(f"{name} was killed.", code="lost")
        texts = (each.decode(errors="replace") for each in (stdout, stderr))
        return Output(process.returncode, *texts)

    async def close(self) -> None:
        """End all programs."""
        await self._launcher.close()


async def _read(pipe: OutputPipe, kill: Callable[[], None]) -> bytes:
    """Return the output; kill the program when it exceeds its limit."""
    parts: list[bytes] = []
    size = 0
    async for data in pipe:
        parts.append(data)
        size += len(data)
        if size > OUTPUT_BYTES:
            kill()
            break
    return b"".join(parts)
