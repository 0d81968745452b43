"""`substrate mount`: servers are mounted, listed, diagnosed and approved from a terminal."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from command_line import environment, eventually, lines, run, started, terminal, without_colours
from gateway_kit import UPSTREAM

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

COMMAND = [sys.executable, str(UPSTREAM)]


class Person:
    """A person with mounts, whose files are all in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "HOME")
        self.variables = {name: str(folder / name.lower()) for name in names}

    @property
    def file(self) -> Path:
        return self.folder / "xdg_config_home" / "substrate" / "mounts.toml"

    def mount(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = run("mount", *arguments, cwd=self.folder, **self.variables)
        assert done.returncode == code, (done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    def tables(self) -> dict[str, Any]:
        found: dict[str, Any] = tomllib.loads(self.file.read_text())["mounts"]
        return found


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def test_a_server_is_mounted_listed_shown_called_and_removed(person: Person) -> None:
    added = person.mount("add", "up", "--deny", "die", "--", *COMMAND)
    assert "up offers 23 tools, 1 resources, 2 prompts." in added.stdout
    assert person.tables()["up"]["args"] == [str(UPSTREAM)]
    assert person.file.stat().st_mode & 0o077 == 0
    assert "mounted already" in person.mount("add", "up", "--", "x", code=1).stderr

    [row] = lines(person.mount("list", "--json").stdout)
    assert (row["name"], row["tools"], row["session"]) == ("up", 23, "connection")
    assert "up" in person.mount("list").stdout
    shown = {each["tool"]: each for each in lines(person.mount("show", "up", "--json").stdout)}
    assert shown["ask-twice"]["method"] == "up.ask_twice"
    assert (shown["die"]["state"], shown["echo"]["state"]) == ("denied", "offered")
    assert re.fullmatch("[0-9a-f]{64}", shown["echo"]["sha256"])

    called = run("call", "up.echo", "hello there", cwd=person.folder, **person.variables)
    assert (called.returncode, called.stdout.strip()) == (0, "hello there"), called.stderr

    [removed] = lines(person.mount("remove", "up", "--json").stdout)
    assert (removed["name"], removed["removed"]) == ("up", True)
    assert not list((person.folder / "xdg_data_home" / "substrate" / "mounts").glob("up-*"))
    assert "Unknown mount 'up'" in person.mount("show", "up", code=1).stderr


def test_a_call_exits_with_1_if_the_tool_of_the_server_failed(person: Person) -> None:
    person.mount("add", "up", "--", *COMMAND)

    def call(*arguments: str) -> tuple[int, str]:
        done = run("call", *arguments, cwd=person.folder, **person.variables)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    # A result with isError, which has no exit code to pass on, and an error of the protocol.
    for arguments in (["up.fail"], ["--exit-code", "up.fail"], ["--json", "up.fail"]):
        code, text = call(*arguments)
        assert (code, text.count("it is broken")) == (1, 1), (arguments, text)
    code, text = call("up.error")
    assert (code, "no way" in text) == (1, True)
    assert call("up.echo", "it is broken")[0] == 0


def test_a_secret_is_refused_where_a_file_would_keep_it(person: Person) -> None:
    secret = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
    url = "https://mcp.example/mcp"
    for option in (
        ["--header", f"Authorization: Bearer {secret}"],
        ["--env", f"TOKEN={secret}"],
        ["--oauth", f"client_secret={secret}"],
    ):
        refused = person.mount("add", "docs", *option, "--no-check", url, code=1)
        assert "looks like a secret" in refused.stderr
    assert not person.file.exists()
    header = "Authorization: Bearer ${DOCS_TOKEN}"
    person.mount("add", "docs", "--header", header, "--no-check", "--oauth", "client_id=ab", url)
    assert person.tables()["docs"] == {
        "url": url,
        "headers": {"Authorization": "Bearer ${DOCS_TOKEN}"},
        "oauth": {"client_id": "ab"},
    }


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["Up", "--", "x"], "lower case"),
        (["bash", "--", "x"], "namespace of the program"),
        (["up", "--header", "nothing", "https://x.example"], "as NAME:VALUE"),
        (["up", "--oauth", "colour=red", "--no-check", "https://x.example"], "client_id"),
        (["up", "--allow", "a b", "--", "x"], "--allow"),
    ],
)
def test_a_mount_that_cannot_be_is_refused_with_its_fault(
    person: Person, arguments: list[str], reason: str
) -> None:
    assert reason in person.mount("add", *arguments, code=1).stderr
    assert not person.file.exists()


def test_the_doctor_names_what_is_wrong_with_each_mount(person: Person) -> None:
    person.file.parent.mkdir(parents=True)
    person.file.write_text(
        f'[mounts.good]\ncommand = "{COMMAND[0]}"\nargs = ["{COMMAND[1]}"]\n'
        f'[mounts.gone]\ncommand = "{COMMAND[0]}"\nargs = ["{COMMAND[1]}", "exit"]\n'
        '[mounts.missing]\ncommand = "no-such-program-anywhere"\n'
        '[mounts.unset]\ncommand = "x"\nenv = { KEY = "${NOT_SET_AT_ALL}" }\n'
        '[mounts.odd]\ncommand = "x"\nsesion = "shared"\n'
    )
    text = person.mount("doctor", code=1).stdout
    assert re.search(r"^OK +good: 23 tools in [\d.]+ s$", text, re.M)
    assert "problem gone: gone: " in text
    assert "        cannot find the license" in text  # its standard error
    assert "'no-such-program-anywhere', which is not a program on PATH" in text
    assert "variables that are not set: NOT_SET_AT_ALL" in text
    assert "unknown key 'sesion'" in text
    person.mount("doctor", "good")
    assert "NOT_SET_AT_ALL" in person.mount("refresh", "unset", code=1).stderr


def test_a_command_that_does_not_use_a_mount_is_silent_about_its_missing_program(
    person: Person,
) -> None:
    person.file.parent.mkdir(parents=True)
    person.file.write_text('[mounts.missing]\ncommand = "no-such-program-anywhere"\n')
    # The command lasts until the program was looked for: the log names it.
    script = "until grep -q no-such-program-anywhere log; do sleep 0.05; done"
    log = person.folder / "log"
    flags = ["--local", "bash.execute", script]
    with log.open("w") as stderr:
        done = subprocess.run(
            [sys.executable, "-m", "substrate", "--log-level", "debug", "call", *flags],
            cwd=person.folder,
            env=environment(**person.variables),
            stderr=stderr,
            timeout=30,
            check=False,
        )
    assert done.returncode == 0
    [line] = [each for each in log.read_text().splitlines() if "no-such-program" in each]
    assert " DEBUG activations.gateway: mount missing: " in line
    doctor = run("doctor", cwd=person.folder, **person.variables).stdout
    assert "missing starts 'no-such-program-anywhere'" in doctor


def test_a_running_server_notices_mounts_and_approvals_of_a_command(person: Person) -> None:
    command = ["--", *COMMAND]
    with started("serve", "--port", "0", cwd=person.folder, **person.variables) as server:
        port = server.err.wait_for(r"http://127\.0\.0\.1:(\d+)")[1]

        def on_server(*call: str) -> str:
            variables = person.variables | {"SUBSTRATE_PORT": port}
            done = run("call", *call, cwd=person.folder, **variables)
            return done.stdout + done.stderr

        assert "no method 'mounts.list'" in on_server("mounts.list")  # there is none yet
        person.mount("add", "up", *command)
        eventually(lambda: on_server("up.echo", "hi").strip() == "hi", "the mount is offered")
        person.mount("remove", "up")
        eventually(lambda: "no method 'up.echo'" in on_server("up.echo", "x"), "it is gone")


def test_a_changed_tool_is_shown_with_its_difference_and_approved_at_a_terminal(
    person: Person,
) -> None:
    person.mount("add", "up", "--session", "shared", "--", *COMMAND)
    [path] = (person.folder / "xdg_data_home" / "substrate" / "mounts").glob("up-*.json")
    catalogue = json.loads(path.read_text())
    catalogue["tools"]["echo"]["description"] = "Echo a text, as it was."
    path.write_text(json.dumps(catalogue))
    assert "1 tools wait for approval" in person.mount("refresh", "up").stdout
    refused = run("call", "up.echo", "x", cwd=person.folder, **person.variables)
    assert refused.returncode != 0
    assert "substrate mount approve up" in refused.stderr
    assert "Run it again with --yes" in person.mount("approve", "up", code=1).stderr
    with terminal("mount", "approve", "up", cwd=person.folder, **person.variables) as screen:
        screen.screen.wait_for(r"Approve 1 tools of up\? \[y/N\]: ")
        screen.type("y\n")
        code, text = screen.end()
    shown = without_colours(text)
    assert code == 0
    assert "echo: changed" in shown
    assert "- description: Echo a text, as it was." in shown
    assert "+ description: Echo a text." in shown
    called = run("call", "up.echo", "x", cwd=person.folder, **person.variables)
    assert called.stdout.strip() == "x"
    assert "holds no tools" in person.mount("approve", "up").stderr
