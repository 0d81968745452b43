"""Project folders that leave a mark if any of their code is executed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from command_line import SUBSTRATE, WAIT_S, environment

PLUGIN = '''
from pathlib import Path
from plexus import Activation, method

Path({mark!r}).touch()

class {cls}(Activation):
    """Planted."""
    namespace = "{name}"
    version = "1.0.0"

    @method
    async def word(self) -> str:
        """Return a word."""
        return {word!r}
'''


class Folder:
    """A project folder whose files leave marks when they are executed."""

    def __init__(self, where: Path) -> None:
        self.path = where / "project"
        self.path.mkdir(parents=True)
        self.plugins = self.path / "activations.d"
        self._marks = where / "marks"
        self._marks.mkdir()

    def plant(self, file: str, word: str = "one") -> Path:
        """Write a plugin that leaves a mark."""
        path = self.path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        name = path.stem
        mark = str(self._marks / name)
        path.write_text(PLUGIN.format(mark=mark, cls=name.title(), name=name, word=word))
        return path

    def settings(self, text: str) -> None:
        """Write `substrate.toml`."""
        (self.path / "substrate.toml").write_text(text)

    def executed(self) -> list[str]:
        """Return the names of the files executed since the last call."""
        found = sorted(self._marks.iterdir())
        for mark in found:
            mark.unlink()
        return [mark.name for mark in found]

    def run(
        self, *arguments: str, stdin: str = "", cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the installed command in this or another folder, and wait for its end."""
        return self._run(arguments, variables, stdin, cwd or self.path)

    def _run(
        self, arguments: Sequence[str], variables: dict[str, str], stdin: str, cwd: Path
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*SUBSTRATE, *arguments],
            cwd=cwd,
            env=environment(**variables),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    def methods(self, *flags: str, **variables: str) -> set[str]:
        """Return the methods of a hub in this folder."""
        done = self._run([*flags, "list", "--json", "--local"], variables, "", self.path)
        assert done.returncode == 0, done.stderr
        return {json.loads(line)["name"] for line in done.stdout.splitlines()}

    def notices(self, *flags: str, **variables: str) -> list[dict[str, Any]]:
        """Return the notices of `health.check` on stdio about the files of the folder."""
        request = '{"jsonrpc":"2.0","id":1,"method":"health.check"}\n'
        done = self._run(["--stdio", *flags], variables, request, self.path)
        for line in map(json.loads, done.stdout.splitlines()):
            if "params" in line:
                notices: list[dict[str, Any]] = line["params"]["result"]["result"]["notices"]
                return notices
        raise AssertionError(done.stdout + done.stderr)
