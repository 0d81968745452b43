"""Resources of a sandboxed command: processes, memory, and the file systems in memory."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from bash_calls import exit_of, run, stderr, stdout
from sandbox_setup import PROFILES, home, needs_bwrap, project

from activations.bash import Bash, OwnPaths
from activations.processes.sandbox import profiles
from activations.processes.sandbox.confinement import Confinement
from activations.processes.sandbox.profiles import Profile

__all__ = ("home", "project")

pytestmark = needs_bwrap

#: An account that is not root, for which the kernel counts processes.
NOBODY = 65534

#: Forks until it is refused, and then prints the number of processes.
FORK_BOMB = """python3 -c '
import os, signal
children = []
try:
    while len(children) < 1000:
        child = os.fork()
        if child == 0:
            signal.pause()
        children.append(child)
except OSError as error:
    print(error.errno, len(children), flush=True)
for child in children:
    os.kill(child, signal.SIGKILL)
'
"""


def test_a_fork_bomb_meets_the_limit_of_processes(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid() != 0:
        monkeypatch.setitem(profiles.PROCESSES, "strict", 64)
        assert stdout(run(FORK_BOMB, Bash("strict", str(project)))).split()[0] == "11"
        return
    # The kernel does not count those of root. So another user runs what a server of that user
    # would, with the descriptors as files, because that user cannot open those of root.
    monkeypatch.setattr(os, "getuid", lambda: NOBODY)
    monkeypatch.setitem(profiles.PROCESSES, "strict", 64)
    with Confinement("strict", project, OwnPaths()) as prepared:
        command = prepared.command(FORK_BOMB, None, {})
        arguments = list(command.arguments)
        for place, argument in enumerate(arguments):
            if argument.startswith("/proc/"):
                copy = project / f"descriptor-{place}"
                shutil.copyfile(argument, copy)
                arguments[place] = str(copy)
        shutil.chown(project, NOBODY)
        project.parent.chmod(0o755)
        done = subprocess.run(
            arguments,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            env={},
            cwd=project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    error, count = map(int, done.stdout.split())
    assert error == 11, done.stderr
    assert count < 64


def test_the_process_limit_is_part_of_the_command_except_for_root(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for user, expected in ((1000, True), (0, False)):
        monkeypatch.setattr(os, "getuid", lambda user=user: user)
        for profile in PROFILES:
            with Confinement(profile, project, OwnPaths()) as prepared:
                arguments = prepared.command("true", None, {}).arguments
            assert (str(profiles.PROCESSES[profile]) in arguments) is expected


def test_a_strict_command_cannot_allocate_more_memory_than_its_limit(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {**profiles.LIMITS["strict"], "DATA": 128 * profiles.MIB}
    monkeypatch.setitem(profiles.LIMITS, "strict", limits)
    script = "python3 -c 'b = bytearray(256 << 20)'"
    events = run(script, Bash("strict", str(project)))
    assert exit_of(events).failed
    assert "MemoryError" in stderr(events)


def test_a_strict_command_has_the_limit_of_memory(project: Path) -> None:
    assert stdout(run("ulimit -d", Bash("strict", str(project)))) == f"{4 * 1024 * 1024}\n"


@pytest.mark.parametrize("profile", PROFILES)
def test_a_command_is_killed_before_the_server_when_memory_is_short(
    profile: Profile, project: Path
) -> None:
    events = run("cat /proc/self/oom_score_adj", Bash(profile, str(project)))
    assert stdout(events) == "1000\n"


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_a_full_folder_in_memory_refuses_more(
    profile: Profile, folder: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(profiles.TMP_BYTES, profile, 4 * profiles.MIB)
    script = f"head -c 8M /dev/zero > {folder}/full; stat -c %s {folder}/full"
    events = run(script, Bash(profile, str(project)))
    assert stdout(events) == f"{4 * profiles.MIB}\n"
    assert "No space left" in stderr(events)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_file_system_in_memory_has_a_size_limit(profile: Profile, project: Path) -> None:
    """Every file system in memory that can be written has a size."""
    script = "awk '$3 == \"tmpfs\" && $4 ~ /(^|,)rw/ { print $2, $4 }' /proc/mounts"
    for line in stdout(run(script, Bash(profile, str(project)))).splitlines():
        place, mounted = line.split()
        sizes = [option for option in mounted.split(",") if option.startswith("size=")]
        # What the host itself has mounted is read-only inside, whatever the kernel prints.
        assert sizes, place


@pytest.mark.parametrize("profile", PROFILES)
def test_a_bubblewrap_without_sizes_works_without_them(
    profile: Profile, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("bwrap")
    old = tmp_path / "bwrap"
    old.write_text(
        "#!/bin/bash\n"
        "if tr '\\0' '\\n' < /proc/self/fd/3 | grep -qx -e --size; then\n"
        "  echo 'bwrap: Unknown option --size' >&2; exit 1\n"
        f'fi\nexec {real} "$@"\n'
    )
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert stdout(run("echo works", Bash(profile, str(project)))) == "works\n"
