"""`substrate call` in a pipe: plain text out, stdin and files in, and exit codes passed on."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from command_line import SUBSTRATE, WAIT_S, add_plugin, environment, run, server, terminal

#: Timeout of a script with several commands.
SCRIPT_S = 4 * WAIT_S

SHOUT = '''
    from typing import Annotated
    from pydantic import Field
    from plexus import Activation, method

    class Shout(Activation):
        """Changes texts."""
        namespace = "shout"
        version = "1.0.0"

        @method
        async def text(self, text: str, times: Annotated[int, Field(ge=1, le=9)] = 1) -> str:
            """Return a text in upper case."""
            return text.upper() * times

        @method
        async def filter(self, prefix: str, stdin: str = "(nothing)") -> str:
            """Return what was piped in, with a prefix."""
            return prefix + stdin
'''


def shell(script: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script of bash in which `substrate` is the program under test."""
    function = f'substrate() {{ {" ".join(SUBSTRATE)} "$@"; }}\n'
    return subprocess.run(
        ["bash", "-c", function + script],
        cwd=cwd,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SCRIPT_S,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    add_plugin(tmp_path, "shout", SHOUT)
    return tmp_path


@pytest.mark.parametrize("mode", ["here", "server"])
def test_a_pipe_carries_the_plain_text_in_both_directions(mode: str, project: Path) -> None:
    script = """
        substrate call bash.execute 'seq 3' | wc -l
        echo piped | substrate call bash.execute 'tr a-z A-Z'
        substrate call bash.execute 'cat; echo end' < /dev/null
        substrate call --json bash.execute 'seq 3' | grep -c '^{"type":"'
    """
    if mode == "here":
        done = shell(script, project)
    else:
        with server(project) as port:
            done = shell(script, project, SUBSTRATE_PORT=port)
    counted, upper, end, events = done.stdout.split()
    assert (counted, upper, end) == ("3", "PIPED", "end"), done.stderr
    assert int(events) >= 3
    assert done.stderr == ""


def test_values_come_from_stdin_and_files(project: Path) -> None:
    (project / "a.txt").write_text("from a file")
    (project / "number.txt").write_text("2\n")
    (project / "params.json").write_text('{"text": "p"}')
    done = shell(
        """
        echo -n x | substrate call shout.text --text -
        substrate call shout.text @a.txt --times @number.txt
        substrate call shout.text @@home
        substrate call shout.text --params @params.json
        echo -n piped | substrate call shout.filter is-
        echo -n piped | substrate call shout.filter is- --stdin given
        substrate call shout.filter is-
        """,
        project,
    )
    assert done.stdout.splitlines() == [
        "X",
        "FROM A FILEFROM A FILE",
        "@HOME",
        "P",
        "is-piped",
        "is-given",
        "is-(nothing)",
    ]
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("substrate call shout.text @missing", "cannot read 'missing': No such file or directory"),
        ("substrate call shout.text @.", "cannot read '.': Is a directory"),
        ("printf '\\xff' | substrate call shout.text -", "stdin is not UTF-8 text"),
        ("echo x | substrate call shout.filter - -", "prefix has already read stdin"),
        ("yes | substrate call shout.text -", "stdin has more than 1 MiB, the limit of one call"),
        ("echo x | substrate call shout.text a --times -", "'x' is not a whole number"),
        ("substrate call shout.text a --times x", "'x' is not a whole number"),
        ("substrate runs --limit 5000", "'5000' is not a whole number from 1 to 1000"),
        ("substrate --port many runs", "'many' is not a whole number from 0 to 65535"),
        ("substrate --eof-grace nan --stdio", "'nan' is not a number of at least 0"),
        ("substrate replay last --speed 0", "'0' is not a number above 0"),
    ],
)
def test_input_that_cannot_be_read_is_a_usage_error(
    script: str, message: str, project: Path
) -> None:
    done = shell(script, project)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_waiting_for_an_open_stdin_is_explained(project: Path) -> None:
    reading, writing = os.pipe()
    with subprocess.Popen(
        [*SUBSTRATE, "call", "bash.execute", "cat"],
        cwd=project,
        env=environment(),
        stdin=reading,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(reading)
        assert process.stderr is not None
        assert "Waiting for the end of stdin" in process.stderr.readline()
        os.write(writing, b"late")
        os.close(writing)
        out, _ = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (0, "late")


def test_at_a_terminal_stdin_is_not_read(project: Path) -> None:
    with terminal("call", "bash.execute", "cat; echo end", cwd=project) as screen:
        assert screen.end() == (0, "end\r\n")


@pytest.mark.parametrize(
    ("flags", "command", "code"),
    [
        (["--exit-code"], "exit 7", 7),
        (["--exit-code"], "kill -9 $$", 137),
        (["--exit-code"], "true", 0),
        ([], "exit 7", 1),
    ],
)
def test_the_exit_code_of_a_command_is_passed_on_on_request(
    flags: list[str], command: str, code: int, tmp_path: Path
) -> None:
    assert run("call", *flags, "bash.execute", command, cwd=tmp_path).returncode == code
    done = run("call", "bash.execute", *flags, command, "--json", cwd=tmp_path)
    assert done.returncode == code
    assert json.loads(done.stdout.splitlines()[-1])["type"] == "complete"
