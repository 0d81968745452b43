"""`substrate completion`: the scripts, and completions from a server or a store."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from command_line import WAIT_S, run
from terminal_server import running


def complete(words: str, project: Path) -> list[str]:
    """Return the completions of bash for the last of these words."""
    completed = run(
        cwd=project,
        _SUBSTRATE_COMPLETE="bash_complete",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split(" ")) - 1),
    )
    assert completed.stderr == ""
    return [line.partition(",")[2] for line in completed.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_accepts_its_script(shell: str, tmp_path: Path) -> None:
    script = run("completion", shell, cwd=tmp_path)
    assert script.returncode == 0
    assert f"_SUBSTRATE_COMPLETE={shell}_complete" in script.stdout
    assert script.stdout == run(cwd=tmp_path, _SUBSTRATE_COMPLETE=f"{shell}_source").stdout
    program = shutil.which(shell)
    if program is not None:
        check = [program, "-n"] if shell != "fish" else [program, "--no-execute"]
        subprocess.run(check, input=script.stdout, text=True, timeout=WAIT_S, check=True)


def test_an_unknown_shell_is_rejected_with_the_known_ones(tmp_path: Path) -> None:
    refused = run("completion", "tcsh", cwd=tmp_path)
    assert refused.returncode == 2
    assert "'bash', 'zsh', 'fish'" in refused.stderr


def test_commands_and_their_flags_are_completed(tmp_path: Path) -> None:
    assert complete("substrate doct", tmp_path) == ["doctor"]
    assert complete("substrate completion z", tmp_path) == ["zsh"]
    assert complete("substrate runs --state c", tmp_path) == ["cancelling", "complete", "cancelled"]


def test_runs_and_questions_of_a_server_are_completed(tmp_path: Path) -> None:
    with (
        running(tmp_path) as server,
        server.called("asks.confirm", state="asking") as (_, number),
    ):
        words = f"substrate --port {server.port}"
        assert complete(f"{words} attach ", tmp_path) == [str(number)]
        assert complete(f"{words} cancel {str(number)[:3]}", tmp_path) == [str(number)]
        assert complete(f"{words} respond ", tmp_path) == [f"{number}.1"]


def test_without_a_server_no_runs_are_completed(tmp_path: Path) -> None:
    assert complete("substrate attach ", tmp_path) == []


def test_sessions_are_completed_with_and_without_a_server(tmp_path: Path) -> None:
    file = str(tmp_path / "trees.db")
    assert complete(f"substrate --database {file} chat ", tmp_path) == []
    for name in ("tea", "teapot", "milk"):
        made = run("--database", file, "call", "chat.create", name, cwd=tmp_path)
        assert made.returncode == 0
    assert complete(f"substrate --database {file} chat te", tmp_path) == ["tea", "teapot"]
