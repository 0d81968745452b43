"""Shell completion through the protocol of the shells' scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import COUNT, add_plugin, run

PLUGIN = (
    COUNT
    + '''
    @method
    async def down(self, pace: "Pace" = "slow", to_zero: bool = False) -> str:
        """Count down."""
        return pace

from typing import Literal
Pace = Literal["slow", "quick"]
'''
)


def complete(words: str, project: Path) -> list[str]:
    """Return the completions of bash for the last of these words."""
    completed = run(
        cwd=project,
        _SUBSTRATE_COMPLETE="bash_complete",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split(" ")) - 1),
    )
    assert completed.stderr == ""
    return [line.partition(",")[2] for line in completed.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("substrate sch", ["schema"]),
        ("substrate call count", ["count.down", "count.up"]),
        ("substrate schema count.u", ["count.up"]),
        ("substrate call count.up --t", ["--to"]),
        ("substrate call count.down --pa", ["--pace", "--params"]),
        ("substrate call count.down --pace q", ["quick"]),
        ("substrate call count.down --to", ["--to-zero"]),
    ],
)
def test_names_and_options_come_from_the_schema(
    words: str, offered: list[str], tmp_path: Path
) -> None:
    add_plugin(tmp_path, "count", PLUGIN)
    assert complete(words, tmp_path) == offered


def test_flags_before_the_command_count_for_completion_too(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(COUNT)
    words = "substrate --activation counting:Count call count."
    assert complete(words, tmp_path) == ["count.up"]


def test_a_plugin_that_prints_or_fails_does_not_disturb_completion(tmp_path: Path) -> None:
    add_plugin(tmp_path, "broken", "import nothing_like_it")
    assert complete("substrate call plexus.ha", tmp_path) == ["plexus.hash"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str, tmp_path: Path) -> None:
    script = run(cwd=tmp_path, _SUBSTRATE_COMPLETE=f"{shell}_source")
    assert "_SUBSTRATE_COMPLETE" in script.stdout
    # The completion variable is not a setting.
    assert "Warning" not in script.stderr
