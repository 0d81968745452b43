"""Attacks that try to run code outside the sandbox, in the same call or in a later one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from bash_calls import calling, collect, exit_of, play, run, stdout
from sandbox_setup import PROFILES, home, needs_bwrap, project

from activations.bash import Bash
from activations.processes.sandbox.profiles import Profile
from plexus import Event, Failed, InvalidParams

__all__ = ("home", "project")

pytestmark = needs_bwrap

#: The loader runs this in every program that it loads it into.
LIBRARY = """
#include <fcntl.h>
#include <unistd.h>
unsigned int la_version(unsigned int version) { return version; }
__attribute__((constructor)) static void fire(void) {
    close(open(CANARY, O_CREAT | O_WRONLY, 0600));
}
"""


@pytest.fixture
def canary(home: Path) -> Path:
    return home / "canary"


@pytest.fixture
def library(project: Path, canary: Path) -> Path:
    """Return a shared object in the workspace that writes the canary when it is loaded."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    built = project / "canary.so"
    command = [compiler, "-shared", "-fPIC", f'-DCANARY="{canary}"', "-xc", "-", "-o", str(built)]
    subprocess.run(command, input=LIBRARY, text=True, check=True)
    return built


def plant(path: Path, canary: Path) -> None:
    """Create a program there that writes the canary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\ntouch {canary}\nexec /usr/bin/env "$(basename $0)" "$@"\n')
    path.chmod(0o755)


# --- before the sandbox ---------------------------------------------------------------------------


def test_the_canary_fires_outside_the_sandbox(library: Path, canary: Path) -> None:
    run("true", Bash(), env={"LD_PRELOAD": str(library)})
    assert canary.exists()


@pytest.mark.parametrize("variable", ["LD_PRELOAD", "LD_AUDIT"])
@pytest.mark.parametrize("profile", PROFILES)
def test_a_variable_of_the_loader_does_not_reach_a_program_outside(
    profile: Profile, variable: str, project: Path, library: Path, canary: Path
) -> None:
    run("true", Bash(profile, str(project)), env={variable: str(library)})
    assert not canary.exists()


@pytest.mark.parametrize("profile", PROFILES)
def test_a_library_in_the_workspace_does_not_replace_one_of_a_program_outside(
    profile: Profile, project: Path, library: Path, canary: Path
) -> None:
    for name in ("libcap.so.2", "libselinux.so.1", "libtinfo.so.6"):
        shutil.copy(library, project / name)
    bash = Bash(profile, str(project))
    run("true", bash, env={"LD_LIBRARY_PATH": str(project), "GCONV_PATH": str(project)})
    assert not canary.exists()


@pytest.mark.parametrize("profile", PROFILES)
def test_the_variables_of_a_call_arrive_inside(profile: Profile, project: Path) -> None:
    given = {"LD_LIBRARY_PATH": "/nowhere", "PLAIN": "a b\nc", "BASH_FUNC_f%%": "() { echo f; }"}
    script = 'echo "$LD_LIBRARY_PATH" "$PLAIN"; f'
    events = run(script, Bash(profile, str(project)), env=given)
    assert stdout(events) == "/nowhere a b\nc\nf\n"


@pytest.mark.parametrize("profile", PROFILES)
def test_a_shell_outside_reads_no_file_and_no_function_that_a_call_names(
    profile: Profile, project: Path, canary: Path
) -> None:
    plant(project / "startup", canary)
    names = dict.fromkeys(("BASH_ENV", "ENV"), str(project / "startup"))
    functions = {f"BASH_FUNC_{name}%%": f"() {{ touch {canary}; }}" for name in ("exec", "echo")}
    run("true", Bash(profile, str(project)), env=names | functions)
    assert not canary.exists()


@pytest.mark.parametrize("program", ["bwrap", "bash", "sh"])
@pytest.mark.parametrize("path", ["{project}/bin", "{project}/link", "bin", ""])
def test_a_program_planted_in_the_workspace_is_not_run_outside(
    path: str, program: str, project: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(project / "bin" / program, canary)
    plant(project / program, canary)
    (project / "link").symlink_to("bin")
    monkeypatch.chdir(project)
    monkeypatch.setenv("PATH", f"{path.format(project=project)}:{os.environ['PATH']}")
    events = run("true", Bash("workspace", str(project)))
    assert exit_of(events).exit_code == 0
    assert not canary.exists()


@pytest.mark.parametrize("profile", PROFILES)
def test_a_path_of_the_call_does_not_choose_programs_outside(
    profile: Profile, project: Path, canary: Path
) -> None:
    plant(project / "bwrap", canary)
    plant(project / "bash", canary)
    run("true", Bash(profile, str(project)), env={"PATH": f"{project}:/usr/bin:/bin"})
    assert not canary.exists()


@pytest.mark.parametrize("profile", PROFILES)
def test_a_working_directory_outside_the_workspace_is_read_only(
    profile: Profile, project: Path, home: Path
) -> None:
    (project / "out").symlink_to(home)
    for cwd in ("out", "..", "/var/tmp", str(home)):
        events = run("touch canary", Bash(profile, str(project)), cwd=cwd)
        # In `strict` the home is an empty folder of the command's own.
        assert exit_of(events).failed or profile == "strict"
        assert not (home / "canary").exists()


@pytest.mark.parametrize("profile", PROFILES)
def test_options_of_bubblewrap_cannot_be_given_by_a_call(
    profile: Profile, project: Path, canary: Path
) -> None:
    bash = Bash(profile, str(project))
    (project / "--bind").mkdir()
    values = {"--bind": "/", "A": "--bind", "B": "\n--bind\n/\n/\n"}
    run(f"--bind / / ; touch {canary}", bash, env=values)
    run(f"touch {canary}", Bash(profile, str(project)), cwd="--bind")
    assert not canary.exists()


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("env", [{"A": "x\0--bind"}, {"A\0B": "x"}, {"A": "\ud800"}])
def test_values_that_no_variable_can_contain_are_refused(
    profile: Profile, project: Path, env: dict[str, str]
) -> None:
    with pytest.raises(InvalidParams):
        run("true", Bash(profile, str(project)), env=env)


@pytest.mark.parametrize(
    "env", [{"A": "x" * 140_000}, {f"V{n}": "x" for n in range(5000)}], ids=["long", "many"]
)
def test_an_environment_that_is_too_large_is_an_error_and_not_a_failed_command(
    project: Path, env: dict[str, str]
) -> None:
    with pytest.raises(Failed, match="too long") as caught:
        run("true", Bash("workspace", str(project)), env=env)
    assert caught.value.data == {"errno": "E2BIG"}


def test_other_users_cannot_read_the_environment_of_a_command(project: Path) -> None:
    def arguments_of_all() -> bytes:
        seen = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                seen.append(path.read_bytes())
        return b"".join(seen)

    async def scenario(bash: Bash) -> bytes:
        async with calling(bash, "sleep 1000.5; echo", env={"WORD": "s3cret"}) as call:
            await anext(call)
            seen = arguments_of_all()
            while b"sleep\x001000.5" not in seen:  # the command itself runs
                await asyncio.sleep(0.01)
                seen = arguments_of_all()
            return seen

    assert b"s3cret" not in play(scenario, Bash("workspace", str(project)))


def test_a_command_inherits_no_descriptor(project: Path) -> None:
    for profile in PROFILES:
        events = run("ls /proc/self/fd | wc -l", Bash(profile, str(project)))
        assert stdout(events) == "4\n"  # three, and that of ls


# --- switching the sandbox off --------------------------------------------------------------------

#: Whatever a command does to these, the workspace must have nothing there afterwards.
ATTEMPTS = (
    "mkdir -p {path}; touch {path}/x; echo bad > {path}",
    "rm -rf {path}; mkdir {path} && echo bad > {path}/x",
    "mv {path} moved; mkdir {path} && touch {path}/x",
    "ln -s /etc {path}; ln -sfn /etc {path}",
    "mkdir new; touch new/x; mv -T new {path}; mv -T -f new {path}",
    "umount {path}; umount -l {path}; rmdir {path} && touch {path}",
    "unshare -rm sh -c 'umount -l {path}; rmdir {path}; mkdir -p {path}; touch {path}/x'",
    (
        "unshare -rm sh -c 'mkdir /tmp/m; mount --bind . /tmp/m; cd /tmp/m;"
        " rm -rf {path}; mkdir -p {path}; touch {path}/x; echo bad > {path}'"
    ),
    "unshare -rm sh -c 'mount -o remount,rw,bind {path}; touch {path}/x; echo bad > {path}'",
)
MISSING = (".venv", ".git", ".claude", "refs")


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("path", MISSING)
def test_what_runs_outside_cannot_be_created_and_leaves_nothing(
    profile: Profile, path: str, project: Path
) -> None:
    run("; ".join(ATTEMPTS).format(path=path), Bash(profile, str(project)))
    assert not os.path.lexists(project / path)
    # What it may create is there, which shows that the attempts were made.
    assert {entry.name for entry in project.iterdir()} <= {"new", "moved"}


@pytest.fixture
def repository(project: Path) -> Path:
    """The project as a repository with a commit, hooks and an environment."""
    for command in (
        ["init", "-q"],
        ["config", "user.email", "a@example.org"],
        ["config", "user.name", "A"],
        ["commit", "-q", "--allow-empty", "-m", "first"],
    ):
        subprocess.run(["git", *command], cwd=project, check=True)
    (project / ".git" / "hooks" / "pre-commit").unlink(missing_ok=True)
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / ".venv" / "bin" / "python").write_text("good")
    (project / ".mcp.json").write_text("{}")
    (project / ".vscode").mkdir()
    return project


def state_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    "path", [".git/hooks", ".git/config", ".venv", ".venv/bin", ".mcp.json", ".vscode"]
)
def test_what_runs_outside_cannot_be_changed(profile: Profile, path: str, repository: Path) -> None:
    before = {name: state_of(repository / name) for name in (".git/hooks", ".venv", ".vscode")}
    config = (repository / ".git" / "config").read_bytes()
    attacks = f"{'; '.join(ATTEMPTS)}; echo bad >> {{path}}; rm -rf {{path}}; chmod 777 {{path}}"
    run(attacks.format(path=path), Bash(profile, str(repository)))
    assert {name: state_of(repository / name) for name in before} == before
    assert (repository / ".git" / "config").read_bytes() == config
    assert (repository / ".mcp.json").read_text() == "{}"


@pytest.mark.parametrize("profile", PROFILES)
def test_a_parent_of_what_runs_outside_cannot_be_replaced(
    profile: Profile, repository: Path
) -> None:
    events = run(
        "mv .git .git2 && mkdir .git && cp -r .git2/* .git && echo bad > .git/hooks/pre-commit",
        Bash(profile, str(repository)),
    )
    assert exit_of(events).failed
    assert not (repository / ".git2").exists()
    assert not (repository / ".git" / "hooks" / "pre-commit").exists()


#: Makes the workspace a repository whose config is the command's, in the two ways that git knows.
REPOSITORIES = {
    "another common folder": (
        "cp -r .git evil; rm -rf evil/hooks; git config -f evil/config core.fsmonitor {hook};"
        " echo ../evil > .git/commondir"
    ),
    "a bare repository": (
        "cp -r .git/objects .git/refs .git/HEAD .; cp .git/config config;"
        " git config -f config core.fsmonitor {hook}; git config -f config core.worktree .;"
        " git config -f config core.bare false; rm .git/HEAD"
    ),
    "worktree config": (
        "git config extensions.worktreeConfig true;"
        " git config -f .git/config.worktree core.fsmonitor {hook}"
    ),
    "config": "git config core.fsmonitor {hook}",
}


@pytest.mark.parametrize("way", REPOSITORIES)
def test_git_outside_runs_nothing_that_a_command_has_chosen(
    way: str, repository: Path, canary: Path
) -> None:
    plant(repository / "hook", canary)
    script = REPOSITORIES[way].format(hook=repository / "hook")
    run(script, Bash("workspace", str(repository)))
    subprocess.run(["git", "status"], cwd=repository, check=False, capture_output=True)
    assert not canary.exists()


def test_hooks_and_configs_that_the_config_names_are_protected_too(repository: Path) -> None:
    for key, value in (("core.hooksPath", ".husky"), ("include.path", "../team.gitconfig")):
        subprocess.run(["git", "config", key, value], cwd=repository, check=True)
    (repository / "team.gitconfig").write_text("[alias]\n")
    script = "mkdir .husky; echo bad > .husky/pre-commit; echo bad >> team.gitconfig"
    run(script, Bash("workspace", str(repository)))
    assert not (repository / ".husky").exists()
    assert (repository / "team.gitconfig").read_text() == "[alias]\n"


def test_a_config_that_is_included_and_missing_is_an_error(repository: Path) -> None:
    command = ["git", "config", "include.path", "../team.gitconfig"]
    subprocess.run(command, cwd=repository, check=True)
    with pytest.raises(Failed, match=r"includes .*team\.gitconfig") as caught:
        run("true", Bash("workspace", str(repository)))
    assert caught.value.code == "sandbox_unavailable"


def test_a_worktree_keeps_the_file_that_names_its_repository(project: Path, home: Path) -> None:
    (project / ".git").write_text(f"gitdir: {home}/elsewhere\n")
    script = "rm -rf .git; mv .git x; mkdir .git; echo gitdir: evil > .git"
    run(script, Bash("workspace", str(project)))
    assert (project / ".git").read_text() == f"gitdir: {home}/elsewhere\n"


@pytest.mark.parametrize("name", [".git", ".venv", ".git/hooks"])
def test_a_link_instead_of_a_protected_path_is_refused(
    name: str, project: Path, home: Path
) -> None:
    (home / "elsewhere").mkdir()
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).symlink_to(home / "elsewhere")
    with pytest.raises(Failed, match="is a symbolic link") as caught:
        run("true", Bash("workspace", str(project)))
    assert caught.value.code == "sandbox_unavailable"
    assert {entry.name for entry in project.iterdir()} == {name.partition("/")[0]}


def test_a_folder_of_the_project_that_is_called_refs_stays_writable(repository: Path) -> None:
    (repository / "refs").mkdir()
    run("touch refs/mine; mkdir objects; touch objects/x", Bash("workspace", str(repository)))
    assert (repository / "refs" / "mine").exists()
    assert not (repository / "objects").exists()


# --- placeholders ---------------------------------------------------------------------------------


def test_a_command_that_ends_does_not_remove_the_protection_of_another(project: Path) -> None:
    async def scenario(bash: Bash) -> list[Event]:
        os.mkfifo(project / "gate")
        long = bash.execute("echo begun; read < gate; mkdir .venv; touch .venv/x; ls -A")
        events: list[Event] = []
        async for event in long:
            events.append(event)
            if "begun" in event.as_text():
                await collect(bash, "true")
                await collect(bash, "true")
                assert (project / ".venv").is_dir()
                await asyncio.to_thread((project / "gate").write_text, "\n")
        return events

    events = play(scenario, Bash("workspace", str(project)))
    assert ".venv" in stdout(events)
    assert {entry.name for entry in project.iterdir()} == {"gate"}


def test_many_concurrent_commands_leave_nothing(project: Path) -> None:
    async def scenario(bash: Bash) -> None:
        await asyncio.gather(*(collect(bash, "mkdir .venv; touch .venv/x") for _ in range(12)))

    play(scenario, Bash("workspace", str(project)))
    assert list(project.iterdir()) == []


def test_placeholders_of_a_killed_server_are_removed_by_the_next_command(project: Path) -> None:
    (project / ".venv").mkdir(mode=0o1500)
    run("true", Bash("workspace", str(project)))
    assert list(project.iterdir()) == []


def test_a_file_that_a_killed_server_has_left_is_removed_too(repository: Path) -> None:
    left = repository / ".git" / "commondir"
    left.write_text(".\n")
    left.chmod(0o1500)
    command = ["git", "log", "--oneline"]
    subprocess.run(command, cwd=repository, check=True)  # git works with it
    run("true", Bash("workspace", str(repository)))
    assert not left.exists()


def test_an_empty_folder_of_the_user_stays(project: Path) -> None:
    (project / ".venv").mkdir()
    run("true", Bash("workspace", str(project)))
    assert [entry.name for entry in project.iterdir()] == [".venv"]


def test_a_command_that_is_cancelled_or_does_not_start_leaves_nothing(project: Path) -> None:
    async def cancelled(bash: Bash) -> None:
        async with calling(bash, "sleep 1000") as call:
            await anext(call)

    play(cancelled, Bash("workspace", str(project)))
    with pytest.raises(Failed, match="cannot be entered"):
        run("true", Bash("workspace", str(project)), cwd="nowhere")
    assert list(project.iterdir()) == []
