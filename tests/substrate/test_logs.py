"""The log on stderr: real processes, every line checked."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from child_processes import clean_environment
from network import Server, bearer, serving
from project_folders import trust_always
from websockets.sync.client import connect

from plexus.errors import Denied
from plexus.principal import Principal
from plexus.text import escape_controls
from substrate.telemetry.logging import (
    JsonFormatter,
    LineHandler,
    LogStream,
    TextFormatter,
)
from substrate.telemetry.refusals import BURST, OTHER, REASONS, Refusals

ROOT = Path(__file__).parents[2]
DEMO = str(ROOT / "tests" / "activations_for_tests.py")
WAIT_S = 30.0
SECRET = "a-secret-that-is-nobodys-business"
#: The start of a line in the text format, and of its continuation lines.
BEGINS = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [\w.]+: ")
MARGIN = "  | "
#: All kinds of line ends, and control characters for terminals.
NASTY = "a\nb\r\x1b[2J\x85\u2028\u2029\u202e\x9b\x7f\x00end"


def environment() -> dict[str, str]:
    return clean_environment(PYTHONPATH=str(ROOT))


def call(method: str, params: Any = None, number: int = 1) -> str:
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}
    return json.dumps(message) + "\n"


def stderr_of(tmp_path: Path, stdin: str, *options: str, **variables: str) -> str:
    """Return what `substrate --stdio` writes to stderr for this input."""
    done = subprocess.run(
        [sys.executable, "-m", "substrate", "--stdio", "--activation", DEMO, *options],
        cwd=tmp_path,
        env=environment() | variables,
        input=stdin.encode(),
        capture_output=True,
        timeout=WAIT_S,
        check=True,
    )
    return done.stderr.decode()


def records(text: str) -> list[dict[str, Any]]:
    """Decode the lines, each of which must be an object and end with a newline only."""
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.split("\n")[:-1]]


INFO = ("--log-level", "info")
AS_JSON = (*INFO, "--log-format", "json")


# --- runs -----------------------------------------------------------------------------------------


def test_each_run_that_ends_is_one_line_of_json_without_its_content(tmp_path: Path) -> None:
    calls = call("demo.echo", {"text": SECRET}) + call("demo.count", {"to": 3})
    calls += call("demo.fail", {"code": "no_luck", "message": SECRET})
    text = stderr_of(tmp_path, calls, *AS_JSON)
    echo, count, fail = records(text)
    assert SECRET not in text
    assert list(echo)[:4] == ["time", "level", "logger", "message"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", echo["time"])
    assert (echo["level"], echo["logger"]) == ("info", "substrate.runs")
    assert (echo["message"], echo["principal"]) == ("run ended", "local")
    assert (echo["method"], echo["outcome"], echo["transport"]) == (
        "demo.echo",
        "complete",
        "stdio",
    )
    assert isinstance(echo["run"], int)
    assert echo["ms"] >= 0
    assert (echo["items"], count["items"]) == (1, 5)
    assert echo["bytes"] == len(f'{{"type":"complete","result":"{SECRET}"}}')
    assert "code" not in echo
    assert (fail["outcome"], fail["code"]) == ("error", "no_luck")


def test_a_run_in_the_text_form_is_one_line_for_a_person(tmp_path: Path) -> None:
    text = stderr_of(tmp_path, call("demo.echo", {"text": SECRET}), *INFO)
    [line] = text.splitlines()
    assert BEGINS.match(line)
    assert " run ended principal=local method=demo.echo run=" in line
    assert line.endswith(" transport=stdio")
    assert SECRET not in text


def test_the_line_of_a_child_run_has_its_parent(tmp_path: Path) -> None:
    inner = {"method": "demo.echo", "params": {"text": "x"}}
    runs = records(stderr_of(tmp_path, call("plexus.call", inner), *AS_JSON))
    by_method = {run["method"]: run for run in runs}
    assert by_method["demo.echo"]["parent"] == by_method["plexus.call"]["run"]
    assert "transport" not in by_method["demo.echo"]


def test_the_line_of_a_cancelled_run_has_the_outcome_but_not_the_reason(tmp_path: Path) -> None:
    text = stderr_of(tmp_path, call("demo.wait"), *AS_JSON, "--eof-grace", "0")
    [run] = records(text)
    assert run["outcome"] == "cancelled"
    assert "input ended" not in text


def test_runs_are_not_logged_by_default(tmp_path: Path) -> None:
    calls = call("demo.echo", {"text": "x"}) + call("no.such")
    assert stderr_of(tmp_path, calls) == ""
    assert stderr_of(tmp_path, calls, SUBSTRATE_LOG_FORMAT="json") == ""


def test_arguments_are_logged_only_where_that_is_set_and_within_a_bound(tmp_path: Path) -> None:
    calls = call("demo.echo", {"text": SECRET}) + call("demo.echo", {"text": "x" * 50_000})
    short, long = records(stderr_of(tmp_path, calls, *AS_JSON, SUBSTRATE_LOG_ARGUMENTS="true"))
    assert json.loads(short["arguments"])["text"] == SECRET
    assert len(long["arguments"]) < 2100
    assert long["arguments"].endswith("...")


def test_secret_arguments_are_never_logged(tmp_path: Path) -> None:
    (tmp_path / "vault.py").write_text(
        "from typing import Annotated\n"
        "from plexus import Activation, Secret\n"
        "vault = Activation('vault', description='A vault.')\n"
        "@vault.method\n"
        "async def unlock(name: str, password: Annotated[str, Secret()]) -> str:\n"
        "    'Unlock a vault.'\n"
        "    return name\n"
    )
    params = {"name": "box", "password": SECRET}
    calls = call("vault.unlock", params)
    calls += call("plexus.call", {"method": "vault.unlock", "params": params})
    text = stderr_of(
        tmp_path, calls, *AS_JSON, "--activation", "vault.py", SUBSTRATE_LOG_ARGUMENTS="true"
    )
    assert SECRET not in text
    logged = [json.loads(run["arguments"]) for run in records(text)]
    hidden = {"name": "box", "password": "[redacted]"}
    assert len(logged) == 3
    assert logged.count(hidden) == 2
    assert {"method": "vault.unlock", "params": hidden} in logged


# --- one line stays one line ----------------------------------------------------------------------


@pytest.mark.parametrize("options", [AS_JSON, INFO], ids=["json", "text"])
def test_a_method_name_full_of_control_characters_stays_one_line(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    text = stderr_of(tmp_path, call(NASTY), *options)
    assert len(text.splitlines()) == 1  # splits at every kind of line end
    assert text[:-1].isprintable()
    assert "reason" in text
    assert "unknown_method" in text
    if options is AS_JSON:
        [refused] = records(text)
        assert refused["method"] == NASTY
        assert refused["message"] == "call refused"


PLUGIN = """
import logging
import warnings

from plexus import Activation, method


class Loud(Activation):
    \"\"\"Writes to the log.\"\"\"

    namespace = "loud"
    version = "1.0.0"

    @method
    async def crash(self, text: str) -> str:
        \"\"\"Have a defect.\"\"\"
        raise RuntimeError(text)

    @method
    async def write(self, text: str) -> None:
        \"\"\"Write to the log.\"\"\"
        logging.getLogger("substrate.loud").error("%s", text)
        logging.getLogger("other").error("%d and %d", text)
        warnings.warn(text, stacklevel=1)
"""


@pytest.fixture
def loud(tmp_path: Path) -> Path:
    folder = trust_always(tmp_path) / "activations.d"
    folder.mkdir()
    (folder / "loud.py").write_text(PLUGIN)
    return tmp_path


def test_an_exception_cannot_forge_a_line_of_the_text_form(loud: Path) -> None:
    forged = "oops\n2026-01-01 00:00:00,000 INFO substrate.runs: run ended\x1b[2J"
    lines = stderr_of(loud, call("loud.crash", {"text": forged})).splitlines()
    assert BEGINS.match(lines[0])
    assert len(lines) > 3
    assert all(line.startswith(MARGIN) for line in lines[1:])
    assert not any("\x1b" in line for line in lines)


def test_a_traceback_is_a_field_of_the_json_form(loud: Path) -> None:
    [line] = records(stderr_of(loud, call("loud.crash", {"text": NASTY}), "--log-format", "json"))
    assert line["logger"] == "plexus.defects"
    assert line["exception"].startswith("Traceback")
    assert NASTY in line["exception"]


def test_every_record_of_a_plugin_is_one_line_of_json(loud: Path) -> None:
    text = stderr_of(loud, call("loud.write", {"text": NASTY}), "--log-format", "json")
    ours, miscounted, warning = records(text)
    assert ours["message"] == NASTY
    assert miscounted["message"].startswith("%d and %d (")
    assert warning["logger"] == "py.warnings"


def test_half_a_character_is_written_all_the_same() -> None:
    record = logging.makeLogRecord({"msg": "\ud800 %s", "args": ("x",), "levelname": "INFO"})
    record.fields = {"name": "\udfff", "odd": object()}
    assert "\\ud800 x" in TextFormatter().format(record)
    line = json.loads(JsonFormatter().format(record))
    assert line["message"] == "\\ud800 x"
    assert line["odd"].startswith("<object")


def test_what_is_escaped_is_what_ends_a_line_or_moves_a_cursor() -> None:
    assert escape_controls("plain text, naïve 漢字 🙂") == "plain text, naïve 漢字 🙂"
    assert len(escape_controls(NASTY).splitlines()) == 1
    assert escape_controls(NASTY).isprintable()


# --- readers that do not read -----------------------------------------------------------------


def test_a_host_that_does_not_read_stderr_is_served_all_the_same(tmp_path: Path) -> None:
    at_once, times = 100, 30
    with subprocess.Popen(
        [sys.executable, "-m", "substrate", "--stdio", "--activation", DEMO, *AS_JSON],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            for _ in range(times):
                process.stdin.write(
                    "".join(call("demo.echo", {"text": "x"}, n) for n in range(at_once))
                )
                process.stdin.flush()
                completed = 0
                while completed < at_once:  # the test's own time limit is the deadline
                    completed += '"type":"complete"' in process.stdout.readline()
            process.stdin.close()
            assert process.wait(WAIT_S) == 0
            lines = records(process.stderr.read())
        finally:
            process.kill()
    assert 0 < len(lines) < at_once * times


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def drained(fd: int) -> bytes:
    data = b""
    try:
        while chunk := os.read(fd, 1 << 20):
            data += chunk
    except BlockingIOError:
        pass
    return data


def test_dropped_lines_are_counted_and_reported(pipe: tuple[int, int]) -> None:
    ours, theirs = pipe
    handler = LineHandler(LogStream(theirs))
    handler.setFormatter(JsonFormatter())

    def log(text: str) -> None:
        handler.emit(logging.makeLogRecord({"name": "x", "levelname": "INFO", "msg": text}))

    for _ in range(200):
        log("y" * 3000)  # more than the capacity of a pipe
    kept = records(drained(ours).decode())
    log("again")
    notice, again = records(drained(ours).decode())
    assert (notice["level"], notice["lost"]) == ("warning", 200 - len(kept))
    assert again["message"] == "again"


def test_a_line_that_was_left_in_the_middle_does_not_spoil_the_next(pipe: tuple[int, int]) -> None:
    ours, theirs = pipe
    stream = LogStream(theirs)
    stream.write("z" * 1_000_000 + "\n")  # more than the capacity of any pipe
    assert stream.lost == 1
    assert set(drained(ours)) == {ord("z")}
    stream.write("next\n")
    assert drained(ours) == b"\nnext\n"


def test_a_closed_pipe_is_not_an_error() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    stream = LogStream(theirs)
    stream.write("not read\n")
    os.close(theirs)
    assert stream.lost == 1


# --- what is refused ------------------------------------------------------------------------------


def test_refusals_are_all_counted_and_logged_within_a_bound(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    refusals = Refusals(lambda: now)
    with caplog.at_level(logging.INFO, "substrate.telemetry.refusals"):
        for _ in range(1000):
            refusals.request("origin", "10.0.0.1", 403)
        assert len(caplog.records) == BURST
        now = 1.0
        refusals.call("bash.execute", Principal("ada"), Denied(SECRET, data={"scope": SECRET}))
    last = caplog.records[-1].__dict__["fields"]
    assert last == {
        "reason": "denied",
        "method": "bash.execute",
        "principal": "ada",
        "unsaid": 1000 - BURST,
    }
    assert refusals.counts == {"origin": 1000, "denied": 1}


def test_the_number_of_distinct_reasons_is_bounded() -> None:
    refusals = Refusals()
    for number in range(10 * REASONS):
        refusals.request(f"reason {number}", None)
    assert len(refusals.counts) == REASONS + 1
    assert refusals.counts[OTHER] == 9 * REASONS


# --- over HTTP ------------------------------------------------------------------------------------


def everything_after(server: Server) -> str:
    """Return what was written to stderr since the server was ready, after it has ended."""
    server.process.terminate()
    assert server.process.stderr is not None
    return server.process.stderr.read().decode()


@pytest.mark.parametrize("level", ["debug", "info"])
def test_over_http_and_websocket_neither_tokens_nor_arguments_are_logged(
    level: str,
) -> None:
    with serving("--log-level", level, "--log-format", "json", auth="token") as server:
        token = server.token
        with server.call("demo.echo", {"text": SECRET}, **bearer(token)) as response:
            assert response.status == 200
        message = call("demo.echo", {"text": SECRET})
        with connect(server.ws, additional_headers=bearer(token)) as socket:
            socket.send(message)
            while "complete" not in str(socket.recv(WAIT_S)):
                pass
        text = everything_after(server)
    lines = records(text)
    runs = [line for line in lines if line["logger"] == "substrate.runs"]
    assert [run["transport"] for run in runs] == ["http", "websocket"]
    assert token not in text
    assert "earer" not in text
    assert SECRET not in text


def test_startup_messages_are_json_too_and_omit_the_token(tmp_path: Path) -> None:
    clean = environment() | {"XDG_STATE_HOME": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "substrate", "--port", "0", "--log-format", "json"],
        cwd=tmp_path,
        env=clean,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            first = process.stderr.readline()
            [lock] = (tmp_path / "substrate" / "servers").glob("*.json")
            token = json.loads(lock.read_text())["authToken"]
            process.terminate()
            rest = process.stderr.read()
        finally:
            process.kill()
    assert " on http://127.0.0.1:" in json.loads(first)["message"]
    assert token not in first + rest
    records(rest)


def test_requests_that_the_guard_refuses_are_logged_with_reason_and_address() -> None:
    with serving(*AS_JSON, auth="token") as server:
        assert server.status("GET", "/rpc", {"Host": f"{SECRET}.example"}) == 421
        assert server.status("GET", "/rpc", {"Origin": f"http://{SECRET}.example"}) == 403
        assert server.status("GET", "/rpc", bearer(SECRET)) == 401
        text = everything_after(server)
    refused = [line for line in records(text) if line["logger"] == "substrate.telemetry.refusals"]
    assert [(line["reason"], line["status"]) for line in refused] == [
        ("host", 421),
        ("origin", 403),
        ("token", 401),
    ]
    assert {line["address"] for line in refused} == {"127.0.0.1"}
    assert SECRET not in text


def test_a_flood_of_bad_requests_is_no_flood_of_lines() -> None:
    flood = 300
    with serving(*AS_JSON) as server:
        for _ in range(flood):
            assert server.status("GET", "/", {"Host": "example.org"}) == 421
        text = everything_after(server)
    refused = [line for line in records(text) if line["logger"] == "substrate.telemetry.refusals"]
    assert BURST <= len(refused) < flood
    assert len(refused) + sum(line.get("unsaid", 0) for line in refused) <= flood
