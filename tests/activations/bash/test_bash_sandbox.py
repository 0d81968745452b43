"""The sandbox: the options of its profiles, and their effect."""

from __future__ import annotations

import http.server
import itertools
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from bash_calls import Call, calling, exit_of, is_alive, play, run, stderr, stdout
from sandbox_setup import PROFILES, home, needs_bwrap

from activations.bash import Bash
from activations.processes.sandbox.hidden_paths import homes, secret_paths
from activations.processes.sandbox.profiles import Policy, Profile, environment, options
from activations.processes.sandbox.protected_paths import Mounts
from plexus import Failed

__all__ = ("home",)


def pairs(arguments: list[str]) -> set[tuple[str, str]]:
    return set(itertools.pairwise(arguments))


def options_of(profile: Profile, workspace: Path, cwd: Path | None = None) -> list[str]:
    """Return the options of bwrap for a workspace with nothing to protect."""
    policy = Policy(
        workspace=workspace,
        homes=tuple(homes(os.environ)),
        hidden=tuple(secret_paths(os.environ, homes(os.environ), ())),
        sockets=(),
        protected=Mounts((), (), (), ()),
        common_dir_fd=4,
        sized=True,
    )
    return options(profile, policy, cwd or workspace, {"NAME": "value"})


def test_the_workspace_profile_mounts_hides_and_keeps_the_network(home: Path) -> None:
    project = home / "project"
    given = options_of("workspace", project, project / "src")

    assert given[-6:] == ["--clearenv", "--setenv", "NAME", "value", "--chdir", f"{project}/src"]
    assert {"--die-with-parent", "--new-session", "--unshare-user", "--unshare-pid"} < {*given}
    assert {"--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"} < {*given}
    assert {("--ro-bind", "/"), ("--bind", str(project)), ("--cap-drop", "ALL")} < pairs(given)
    assert {("--tmpfs", "/tmp"), ("--proc", "/proc"), ("--dev", "/dev")} < pairs(given)
    assert ("--tmpfs", str(home / ".ssh")) in pairs(given)
    assert ("/dev/null", str(home / ".netrc")) in pairs(given)
    assert ("--tmpfs", str(home / ".aws")) not in pairs(given)
    assert ("--tmpfs", str(home)) not in pairs(given)
    assert "--unshare-net" not in given


def test_the_strict_profile_also_hides_the_home_and_the_network(home: Path) -> None:
    project = home / "project"
    given = options_of("strict", project)

    assert "--unshare-net" in given
    covered = given.index(str(home))
    assert given[covered - 1] == "--tmpfs"
    # The workspace comes after what covers it, or it would be covered too.
    assert covered < given.index(str(project))
    assert str(home / ".ssh") not in given


def test_a_home_that_is_itself_the_workspace_still_hides_its_secrets(home: Path) -> None:
    given = options_of("strict", home)
    assert given.index(str(home / ".ssh")) > given.index("--bind")


def test_the_target_of_a_secret_that_is_a_link_is_hidden(home: Path) -> None:
    (home / "elsewhere").mkdir()
    (home / ".aws").symlink_to(home / "elsewhere")
    assert ("--tmpfs", str(home / "elsewhere")) in pairs(options_of("workspace", home / "project"))


@pytest.mark.parametrize("nowhere", ["/", "/nonexistent"])
def test_an_account_without_a_home_has_none_to_hide(
    nowhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", nowhere)
    assert ("--tmpfs", nowhere) not in pairs(options_of("strict", tmp_path))


def test_a_strict_command_sees_four_variables_of_the_server() -> None:
    seen = {"PATH": "p", "HOME": "h", "LANG": "l", "TERM": "t"}
    server = seen | {"KEY": "k", "SUBSTRATE_A": "a", "ANTHROPIC_API_KEY": "sk"}
    assert environment("strict", server) == seen


def test_an_unconfined_command_sees_no_settings_of_the_server_and_no_keys_of_models() -> None:
    server = {"KEY": "k", "SUBSTRATE_A": "a", "ANTHROPIC_API_KEY": "sk", "OPENAI_API_KEY": "sk"}
    assert environment("off", server) == {"KEY": "k"}


def test_the_whole_file_system_cannot_be_a_workspace() -> None:
    with pytest.raises(ValueError, match="whole file system"):
        Bash("workspace", "/")


@pytest.mark.parametrize("profile", PROFILES)
def test_without_bubblewrap_every_call_and_the_health_check_fail(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    (tmp_path / "bash").symlink_to(bash)
    monkeypatch.setenv("PATH", str(tmp_path))

    for attempt in (
        lambda: run("true", Bash(profile)),
        lambda: play(Bash.check_health, Bash(profile)),
    ):
        with pytest.raises(Failed, match="install bubblewrap") as caught:
            attempt()
        assert caught.value.code == "sandbox_unavailable"


def test_a_bubblewrap_that_does_not_work_is_refused_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: no permission to make namespaces' >&2\nexit 1\n")
    fake.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(Failed, match="no permission to make namespaces") as caught:
        run("true", Bash("workspace"))
    assert caught.value.code == "sandbox_unavailable"


@needs_bwrap
@pytest.mark.parametrize("profile", PROFILES)
def test_a_sandboxed_command_runs_in_the_workspace_and_can_write_there(
    profile: Profile, home: Path
) -> None:
    events = run("pwd; echo mine > made; cat made", Bash(profile, str(home / "project")))
    assert stdout(events) == f"{home}/project\nmine\n"
    assert (home / "project" / "made").read_text() == "mine\n"


@needs_bwrap
@pytest.mark.parametrize("profile", PROFILES)
def test_writing_outside_the_workspace_is_refused(profile: Profile, home: Path) -> None:
    script = "touch /etc/x; touch /var/tmp/x; mount -o remount,rw /; touch /usr/x; echo tried"
    events = run(script, Bash(profile, str(home / "project")))
    assert stdout(events) == "tried\n"
    assert stderr(events).count("Read-only file system") == 3
    assert not any(Path(place, "x").exists() for place in ("/etc", "/var/tmp", "/usr"))


@needs_bwrap
def test_a_link_out_of_the_workspace_does_not_lead_out(home: Path) -> None:
    (home / "project" / "out").symlink_to(home)
    events = run("touch out/x", Bash("workspace", str(home / "project")))
    assert exit_of(events).failed
    assert not (home / "x").exists()


@needs_bwrap
@pytest.mark.parametrize("profile", PROFILES)
def test_tmp_is_private(profile: Profile, home: Path, tmp_path: Path) -> None:
    (tmp_path / "ours").touch()
    mark = Path("/tmp") / home.name
    events = run(f"ls {tmp_path}; ls -A /tmp; touch {mark}", Bash(profile, str(home / "project")))
    assert stdout(events) == ""
    assert exit_of(events).exit_code == 0
    assert not mark.exists()


@needs_bwrap
def test_the_workspace_profile_hides_secrets_but_not_the_home(home: Path) -> None:
    script = "ls -A ~/.ssh; cat ~/.netrc; cat ~/notes"
    events = run(script, Bash("workspace", str(home / "project")))
    assert stdout(events) == "private but no secret"


@needs_bwrap
def test_the_strict_profile_hides_all_of_the_home_but_the_workspace(home: Path) -> None:
    events = run("ls -A ~; env | sort | cut -d= -f1", Bash("strict", str(home / "project")))
    names = stdout(events).split()
    assert names[0] == "project"
    # The last three are made by bash itself.
    assert {*names[1:]} <= {"PATH", "HOME", "LANG", "TERM", "PWD", "SHLVL", "_"}


@needs_bwrap
def test_a_strict_command_gets_the_callers_variables_too(home: Path) -> None:
    bash = Bash("strict", str(home / "project"))
    assert stdout(run("echo $ASKED", bash, env={"ASKED": "for"})) == "for\n"


@pytest.fixture
def web_port() -> Iterator[int]:
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@needs_bwrap
def test_the_network_is_available_in_workspace_and_not_in_strict(home: Path, web_port: int) -> None:
    script = f"exec 3<>/dev/tcp/127.0.0.1/{web_port} && echo reached"
    project = str(home / "project")
    assert stdout(run(script, Bash("workspace", project))) == "reached\n"
    refused = run(script, Bash("strict", project))
    assert stdout(refused) == ""
    assert exit_of(refused).failed


@needs_bwrap
def test_a_strict_command_is_limited(home: Path) -> None:
    script = "ulimit -c; ulimit -n; ulimit -f; ulimit -t"
    limits = stdout(run(script, Bash("strict", str(home / "project")))).split()
    assert limits == ["0", "256", str(256 * 1024), "60"]


@needs_bwrap
@pytest.mark.parametrize("profile", PROFILES)
def test_other_processes_are_invisible(profile: Profile, home: Path) -> None:
    events = run("ls -d /proc/[0-9]* | wc -l", Bash(profile, str(home / "project")))
    assert int(stdout(events)) < 8


@needs_bwrap
@pytest.mark.parametrize("profile", PROFILES)
def test_cancelling_a_sandboxed_command_ends_all_its_processes(
    profile: Profile, home: Path
) -> None:
    marker = f"1000.{os.getpid()}"

    def sleepers() -> list[Path]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                arguments = path.read_bytes().split(b"\0")
            except OSError:
                continue
            if arguments[:2] == [b"sleep", marker.encode()]:
                found.append(path)
        return found

    async def scenario(bash: Bash) -> None:
        script = f"setsid sleep {marker} & (setsid sleep {marker} &); echo both; wait"
        async with calling(bash, script) as stream:
            call = Call(stream)
            await call.words(1)
            assert is_alive(call.pid)
        assert not is_alive(call.pid)
        assert not sleepers()

    play(scenario, Bash(profile, str(home / "project")))


@needs_bwrap
def test_exit_codes_and_signals_come_through_the_sandbox(home: Path) -> None:
    project = str(home / "project")
    assert exit_of(run("exit 7", Bash("workspace", project))).exit_code == 7
    assert exit_of(run("kill -9 $$", Bash("workspace", project))).exit_code == 137


@needs_bwrap
def test_the_health_check_of_a_working_sandbox_reports_it(home: Path) -> None:
    text = play(Bash.check_health, Bash("strict", str(home / "project")))
    assert "sandbox strict" in text
