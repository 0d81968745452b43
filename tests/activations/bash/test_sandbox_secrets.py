"""What a sandboxed command must not see or reach: secrets, sockets, and the server itself."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from bash_calls import run, stdout
from sandbox_setup import PROFILES, home, needs_bwrap, project

from activations.bash import Bash, OwnPaths
from activations.processes.sandbox.hidden_paths import SOCKETS, socket_paths
from activations.processes.sandbox.profiles import Profile, environment
from activations.processes.sandbox.seccomp import strict_filter
from plexus.private_files import data_folder, make_folders
from substrate.build_hub import built_in_hub
from substrate.settings import Settings

__all__ = ("home", "project")

SECRET = "s3cret-value"


def bash_of(settings: Settings, folder: Path) -> Bash:
    """Return the activation as the program builds it."""
    bash = dict(built_in_hub(settings, folder).activations())["bash"]
    assert isinstance(bash, Bash)
    return bash


# --- variables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    "name",
    [
        *("GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "ANTHROPIC_AUTH_TOKEN"),
        *("OPENAI_API_KEY", "DATABASE_URL", "PGPASSWORD", "MY_PASSWORD", "SSH_AUTH_SOCK"),
        *("SUBSTRATE_TOKEN", "SUBSTRATE_DATABASE", "DBUS_SESSION_BUS_ADDRESS", "NOBODY_KNOWS"),
        *("LD_PRELOAD", "BASH_ENV", "PYTHONPATH", "NPM_CONFIG__AUTH", "PIP_INDEX_URL"),
    ],
)
def test_a_sandboxed_command_sees_only_allowed_variables(profile: Profile, name: str) -> None:
    assert environment(profile, {name: SECRET, "PATH": "/bin"}) == {"PATH": "/bin"}


def test_the_workspace_profile_keeps_what_programs_need_to_work() -> None:
    needed = {"PATH": "/bin", "LC_ALL": "C", "https_proxy": "http://proxy:1", "JAVA_HOME": "/j"}
    assert environment("workspace", needed) == needed


def test_a_proxy_with_a_password_is_not_passed_on() -> None:
    assert environment("workspace", {"HTTPS_PROXY": "http://me:word@proxy:1"}) == {}


@needs_bwrap
@pytest.mark.parametrize("profile", PROFILES)
def test_the_secrets_of_the_servers_environment_are_nowhere_inside(
    profile: Profile, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", SECRET)
    script = f"env; cat /proc/*/environ /proc/*/cmdline; cat /proc/{os.getpid()}/environ; echo end"
    seen = stdout(run(script, Bash(profile, str(project))))
    assert SECRET not in seen
    assert seen.endswith("end\n")


# --- files ----------------------------------------------------------------------------------------


@needs_bwrap
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("variables", [(), ("XDG_STATE_HOME", "XDG_DATA_HOME")])
def test_the_tokens_and_trees_of_the_server_are_hidden(
    profile: Profile,
    variables: tuple[str, ...],
    home: Path,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders = [home / ".local/state", home / ".local/share"]
    for number, variable in enumerate(variables):
        folders.append(home.with_name(f"{home.name}.{number}"))
        monkeypatch.setenv(variable, str(folders[-1]))
    with contextlib.ExitStack() as undo:
        for folder in folders:
            (folder / "substrate" / "servers").mkdir(parents=True)
            (folder / "substrate" / "servers" / "4444.json").write_text(SECRET)
            (folder / "substrate" / "arbor.db").write_text(SECRET)
            undo.callback(subprocess.run, ["rm", "-rf", str(folder)], check=True)
        script = f"grep -r {SECRET} {home} {' '.join(map(str, folders))}; echo end"
        bash = bash_of(Settings(bash_sandbox=profile), project)
        assert stdout(run(script, bash)) == "end\n"


@needs_bwrap
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("variable", ["", "XDG_DATA_HOME"])
def test_recorded_runs_are_hidden(
    profile: Profile, variable: str, home: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setenv(variable, str(home / "data"))
    files = [data_folder() / name for name in ("runs.db", "runs.db-wal", "search-2026-31.db")]
    make_folders(data_folder())
    for file in files:
        file.write_text(SECRET)
    attacks = [f"cat {file}; cp {file} .; echo bad > {file}; rm -f {file}" for file in files]
    script = "; ".join(
        [*attacks, f"ls -A {data_folder()}", f"grep -r {SECRET} {home} .", "echo end"]
    )
    assert stdout(run(script, bash_of(Settings(bash_sandbox=profile), project))) == "end\n"
    assert {file.read_text() for file in files} == {SECRET}


@needs_bwrap
@pytest.mark.parametrize("profile", [*PROFILES, "off"])
def test_the_sockets_that_wake_other_processes_cannot_be_reached(
    profile: Profile, home: Path, project: Path
) -> None:
    signals = data_folder() / "signals"
    assert signals.is_relative_to(home)
    make_folders(signals)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as early:
        early.bind(str(signals / "1"))
        early.settimeout(0)
        script = (
            "python3 -c 'import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM);"
            f' s.sendto(b"x", "{signals / "1"}")\'; ls {signals}; echo end'
        )
        seen = stdout(run(script, bash_of(Settings(bash_sandbox=profile), project)))
        if profile == "off":  # the attack itself works
            assert (early.recv(1), seen) == (b"x", "1\nend\n")
        else:
            assert seen == "end\n"
            with pytest.raises(BlockingIOError):
                early.recv(1)


@needs_bwrap
@pytest.mark.parametrize("profile", PROFILES)
def test_folders_of_the_server_that_appear_later_are_hidden_too(
    profile: Profile, home: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "later"))
    os.mkfifo(project / "gate")
    lock = home / "later" / "substrate" / "servers" / "4444.json"

    def start_a_server() -> None:
        with (project / "gate").open("w"):  # opened by both: the command runs
            lock.parent.mkdir(parents=True)
            lock.write_text(SECRET)

    thread = threading.Thread(target=start_a_server)
    thread.start()
    events = run(
        f"cat gate; cat {lock}; echo end", bash_of(Settings(bash_sandbox=profile), project)
    )
    thread.join()
    assert lock.read_text() == SECRET
    assert stdout(events) == "end\n"


@needs_bwrap
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    "place", ["{home}/trees.db", "sqlite:///{home}/trees.db", "{project}/t.db"]
)
def test_the_database_in_use_is_hidden_wherever_it_is(
    profile: Profile, place: str, home: Path, project: Path
) -> None:
    database = place.format(home=home, project=project)
    file = Path(database.removeprefix("sqlite:///"))
    for suffix in ("", "-wal", "-shm"):
        file.with_name(file.name + suffix).write_text(SECRET)
    settings = Settings(bash_sandbox=profile, database=database)
    script = f"grep -r {SECRET} {home}; echo bad > {file}; rm -f {file}; echo end"
    assert stdout(run(script, bash_of(settings, project))) == "end\n"
    assert file.read_text() == SECRET


@needs_bwrap
def test_secrets_are_hidden_where_variables_have_moved_them(
    home: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {
        "XDG_CONFIG_HOME": "conf/gh/hosts.yml",
        "XDG_RUNTIME_DIR": "runtime/token",
        "GNUPGHOME": "keys/private",
        "KUBECONFIG": "kube.yaml",
        "GOOGLE_APPLICATION_CREDENTIALS": "google.json",
    }
    for variable, place in places.items():
        (home / place).parent.mkdir(parents=True, exist_ok=True)
        (home / place).write_text(SECRET)
        monkeypatch.setenv(variable, str(home / place.partition("/")[0]))
    script = f"grep -r {SECRET} {home}; echo end"
    assert stdout(run(script, Bash("workspace", str(project)))) == "end\n"


@needs_bwrap
def test_the_home_of_the_account_is_hidden_in_strict_whatever_the_value_of_home(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Path(f"~{os.environ.get('USER', 'root')}").expanduser()
    if not account.is_dir():
        pytest.skip("the account has no home folder")
    monkeypatch.setenv("HOME", str(project))
    assert stdout(run(f"ls -A {account}", Bash("strict", str(project)))) == ""


# --- settings and plugins of the server -----------------------------------------------------------


@needs_bwrap
@pytest.mark.parametrize("profile", PROFILES)
def test_files_that_the_next_start_reads_cannot_be_created(profile: Profile, project: Path) -> None:
    settings = Settings(bash_sandbox=profile, activations_folder="plugins/mine")
    script = (
        "echo \"bash_sandbox = 'off'\" > substrate.toml; mkdir -p plugins/mine;"
        " echo bad > plugins/mine/p.py; mv plugins p2; mkdir -p plugins/mine; touch plugins/mine/x"
    )
    run(script, bash_of(settings, project))
    assert list(project.iterdir()) == []


@needs_bwrap
@pytest.mark.parametrize("profile", PROFILES)
def test_files_that_the_next_start_reads_cannot_be_changed(
    profile: Profile, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "prefix", str(project / "env"))
    files = ("substrate.toml", "activations.d/a.py", "mine.py", "tools/b.py", "env/bin/python")
    for name in files:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("good")
    settings = Settings(bash_sandbox=profile, activation=("mine:Mine", "tools/b.py"))
    attacks = [f"echo bad > {name}; rm -f {name}; mv {name} x" for name in files]
    # Bytecode that seems to belong to a source is run in its place.
    attacks += ["mkdir __pycache__; touch __pycache__/x; mkdir tools/__pycache__"]
    attacks += [f"mv {name} moved; rm -rf {name}" for name in ("activations.d", "tools", "env")]
    run("; ".join(attacks), bash_of(settings, project))
    assert {name: (project / name).read_text() for name in files} == dict.fromkeys(files, "good")
    assert not [*project.rglob("__pycache__")]


# --- sockets --------------------------------------------------------------------------------------


@pytest.fixture
def service(home: Path) -> Iterator[Path]:
    """Return a socket in the home folder, like that of an agent or a container engine."""
    path = home / "agent.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield path


CONNECT = "python3 -c 'import socket; socket.socket({family}).connect({address}); print(\"in\")'"


@needs_bwrap
@pytest.mark.parametrize("profile", PROFILES)
def test_a_socket_of_another_program_cannot_be_connected_to(
    profile: Profile, project: Path, service: Path
) -> None:
    script = CONNECT.format(family="socket.AF_UNIX", address=f'"{service}"')
    assert stdout(run(script, Bash(profile, str(project)))) == ""


def test_any_number_of_sockets_in_the_workspace_leaves_the_others_hidden(
    project: Path, service: Path
) -> None:
    with contextlib.ExitStack() as bound:
        for number in range(SOCKETS + 20):
            each = bound.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            each.bind(str(project / str(number)))
        assert service in socket_paths(project)


@needs_bwrap
def test_a_socket_that_is_bound_after_the_start_cannot_be_connected_to_in_strict(
    project: Path,
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(project / "s"))
        listener.listen()
        script = CONNECT.format(family="socket.AF_UNIX", address='"s"')
        assert stdout(run(script, Bash("strict", str(project)))) == ""
        # The workspace profile leaves the sockets of the workspace to its commands.
        assert stdout(run(script, Bash("workspace", str(project)))) == "in\n"


@needs_bwrap
def test_a_strict_command_can_use_its_own_loopback_and_pairs_of_sockets(project: Path) -> None:
    script = (
        'python3 -c \'import socket; s = socket.create_server(("127.0.0.1", 0));'
        " socket.create_connection(s.getsockname()); socket.socketpair(); print(1)'"
    )
    assert stdout(run(script, Bash("strict", str(project)))) == "1\n"


@needs_bwrap
@pytest.mark.parametrize(
    "call",
    [
        "libc.socket(1, 1, 0)",
        "libc.socket(40, 1, 0)",  # AF_VSOCK: it leads to the host of a virtual machine
        "libc.socket(38, 5, 0)",  # AF_ALG
        "libc.syscall(425, 1, 0)",  # io_uring_setup: it makes sockets without the call for it
        "libc.unshare(0x10000000)",
        "libc.syscall({keyctl}, 0, -3, 0)",
    ],
)
def test_a_strict_command_cannot_bypass_the_filter(call: str, project: Path) -> None:
    keyctl = 250 if os.uname().machine == "x86_64" else 219
    script = f"python3 -c 'import ctypes; libc = ctypes.CDLL(None); print({call})'"
    events = run(script.replace("{keyctl}", str(keyctl)), Bash("strict", str(project)))
    assert stdout(events) == "-1\n"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "riscv64", "loongarch64"])
def test_the_filter_is_a_program_whose_jumps_stay_inside(machine: str) -> None:
    program = strict_filter(machine)
    steps = [program[at : at + 8] for at in range(0, len(program), 8)]
    for place, step in enumerate(steps):
        assert len(step) == 8
        assert place + 1 + max(step[2], step[3]) <= len(steps) - 1 or step[0] == 0x06
    assert steps[-1][0] == 0x06


def test_the_filter_is_refused_for_a_machine_whose_calls_are_not_known() -> None:
    with pytest.raises(LookupError, match="vax"):
        strict_filter("vax")


# --- the server -----------------------------------------------------------------------------------


@needs_bwrap
@pytest.mark.parametrize("profile", PROFILES)
def test_the_server_cannot_be_traced_or_signalled(profile: Profile, project: Path) -> None:
    pid = os.getpid()
    script = (
        f"kill -0 {pid} && echo signalled; ls /proc/{pid} && echo seen;"
        f" python3 -c 'import ctypes; print(ctypes.CDLL(None).ptrace(16, {pid}, 0, 0))'"
    )
    assert stdout(run(script, Bash(profile, str(project)))) == "-1\n"


def test_a_server_passes_its_private_files(project: Path) -> None:
    own = OwnPaths(databases=(project / "t.db",), executed=(Path("/etc"), Path("a/../b"), project))
    assert {path.name for path in own.hidden()} == {"t.db", "t.db-wal", "t.db-shm", "t.db-journal"}
    assert own.protected(project) == ["b"]
