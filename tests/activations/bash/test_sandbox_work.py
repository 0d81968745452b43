"""Usual work in a workspace, done by a sandboxed command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from bash_calls import exit_of, run, stderr, stdout
from sandbox_setup import PROFILES, home, needs_bwrap, project

from activations.bash import Bash
from activations.processes.sandbox.profiles import Profile

__all__ = ("home", "project")

pytestmark = needs_bwrap


@pytest.fixture
def repository(project: Path) -> Path:
    for command in (["init", "-q"], ["config", "user.email", "a@b"], ["config", "user.name", "A"]):
        subprocess.run(["git", *command], cwd=project, check=True)
    return project


@pytest.mark.parametrize("profile", PROFILES)
def test_work_is_committed_with_git(profile: Profile, repository: Path) -> None:
    script = (
        "echo text > file && git add -A && git commit -qm first && git switch -qc topic"
        " && echo more >> file && git stash -q && git stash pop -q && git commit -qam second"
        " && git tag done && git gc -q && git status --short && git log --oneline | wc -l"
    )
    events = run(script, Bash(profile, str(repository)))
    assert (stdout(events), stderr(events)) == ("2\n", "")
    # And the repository is the same to git outside.
    command = ["git", "status", "--short", "--branch"]
    done = subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True)
    assert done.stdout == "## topic\n"


def test_adding_everything_adds_no_placeholder(repository: Path) -> None:
    events = run("echo a > a; git add -A; git ls-files", Bash("workspace", str(repository)))
    assert stdout(events) == "a\n"


def test_the_config_of_the_repository_cannot_be_changed_and_git_reports_it(
    repository: Path,
) -> None:
    events = run("git config alias.x '!true'", Bash("workspace", str(repository)))
    assert exit_of(events).failed
    assert "could not write config file" in stderr(events)
    assert not (repository / ".git" / "config.lock").exists()


def test_git_finds_the_repository_above_a_workspace(repository: Path) -> None:
    (repository / "part").mkdir()
    events = run("git rev-parse --show-toplevel", Bash("workspace", str(repository / "part")))
    assert stdout(events) == f"{repository}\n"


def test_a_python_environment_is_created_in_another_folder(project: Path) -> None:
    script = "python3 -m venv --without-pip env && env/bin/python -c 'print(1)'"
    assert stdout(run(script, Bash("workspace", str(project)))) == "1\n"


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("profile", PROFILES)
def test_a_program_is_compiled_and_run(profile: Profile, project: Path) -> None:
    script = "echo 'int main(void) { return 7; }' > m.c && cc m.c -o m && ./m"
    assert exit_of(run(script, Bash(profile, str(project)))).exit_code == 7


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm")
def test_npm_installs_a_package_although_the_home_is_read_only(project: Path) -> None:
    (project / "dep").mkdir()
    (project / "dep" / "package.json").write_text('{"name": "dep", "version": "1.0.0"}')
    (project / "package.json").write_text(
        '{"name": "n", "version": "1.0.0", "dependencies": {"dep": "file:./dep"}}'
    )
    run("npm install --offline --no-audit --no-fund", Bash("workspace", str(project)))
    assert (project / "node_modules" / "dep" / "package.json").exists()


@pytest.mark.parametrize("profile", PROFILES)
def test_threads_and_processes_work_together(profile: Profile, project: Path) -> None:
    script = "python3 -c 'import multiprocessing as m; print(m.Pool(2).map(abs, [-1, -2]))'"
    assert stdout(run(script, Bash(profile, str(project)))) == "[1, 2]\n"
