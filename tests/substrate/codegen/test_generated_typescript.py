"""The generated TypeScript client: compiled by the real compiler, run by Node against a server."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client_files import COUNTING, codegen, shown, tsc
from conformance.node import NotInstalled, compiler, node
from network import Server, serving
from odd_schemas import ODD
from servers import eventually, proxied

from substrate.devtools.codegen.typescript import write_typescript

#: npm may have to fetch the compiler first.
pytestmark = pytest.mark.timeout(400)

DRIVER = Path(__file__).with_name("driver.ts")
#: No scenario needs longer, on a busy machine either.
SCENARIO_S = 45.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the client, compiled with the code that uses it."""
    try:
        node()
        compiler()
    except NotInstalled as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("typescript")
    (folder / "client.ts").write_text(codegen("typescript"))
    (folder / "driver.ts").write_text(DRIVER.read_text())
    tsc(folder, ["client.ts", "driver.ts"], lib=["es2023"], types=["node"])
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--activation", str(COUNTING), auth="token") as server:
        yield server


def command(folder: Path, server: Server, scenario: str, port: int, *more: str) -> list[str]:
    url = f"ws://127.0.0.1:{port}/rpc"
    return [str(node()), str(folder / "out" / "driver.js"), scenario, url, server.token, *more]


def play(folder: Path, server: Server, scenario: str, port: int | None = None) -> Any:
    """Return the observations of a scenario."""
    done = subprocess.run(
        command(folder, server, scenario, port or server.port),
        capture_output=True,
        text=True,
        timeout=SCENARIO_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""
    return json.loads(done.stdout)


async def play_in_background(*arguments: str) -> Any:
    """Return the same, while this event loop keeps running."""
    process = await asyncio.create_subprocess_exec(*arguments, stdout=subprocess.PIPE)
    try:
        async with asyncio.timeout(SCENARIO_S):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode == 0
    return json.loads(out)


# --- compiling -----------------------------------------------------------------------------------


def test_it_compiles_for_a_browser_too(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "client.ts").write_text((folder / "client.ts").read_text())
    tsc(tmp_path, ["client.ts"], lib=["es2022", "dom"], types=[])


def test_the_client_of_an_unusual_schema_compiles(folder: Path, tmp_path: Path) -> None:  # noqa: ARG001 - installs
    (tmp_path / "client.ts").write_text(write_typescript(ODD, [], ["substrate", "codegen"]))
    tsc(tmp_path, ["client.ts"], lib=["es2022", "dom"], types=[])


def test_the_example_in_the_document_compiles(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "client.ts").write_text((folder / "client.ts").read_text())
    (tmp_path / "shown.ts").write_text(shown("ts"))
    tsc(tmp_path, ["shown.ts"], lib=["es2022", "dom"], types=[])


def test_node_runs_it_as_it_is(folder: Path, server: Server) -> None:
    program = (
        f"import {{ connect }} from {json.dumps((folder / 'client.ts').as_uri())};"
        f"const plexus = connect('http://127.0.0.1:{server.port}', {{ token: '{server.token}' }});"
        "console.log(await plexus.demo.echo({ text: 'as it is' }));"
    )
    done = subprocess.run(
        [str(node()), "--input-type=module", "--eval", program],
        capture_output=True,
        text=True,
        timeout=SCENARIO_S,
        check=False,
    )
    assert done.stdout == "as it is\n", done.stderr


# --- calls ---------------------------------------------------------------------------------------


def test_a_stream_can_be_iterated_and_awaited(folder: Path, server: Server) -> None:
    seen = play(folder, server, "stream")
    assert seen["texts"] == ["1 ", "2 ", "2/2", "total 2"]
    assert seen["last"] == {"type": "complete", "total": 3}


def test_the_hash_in_the_file_is_that_of_a_server_with_the_same_methods(
    folder: Path, server: Server
) -> None:
    assert play(folder, server, "stream")["same"] is True


def test_a_plain_method_returns_its_value(folder: Path, server: Server) -> None:
    assert play(folder, server, "plain") == {
        "echoed": "grüße 😀 \u2028" * 2,
        "status": "healthy",
        "moon": "the moon",
        "all": ["x", "xx", "xxx"],
        "untyped": "y",
    }


def test_a_failed_call_rejects_with_code_message_and_data(folder: Path, server: Server) -> None:
    seen = play(folder, server, "errors")
    failed, crashed, wrong, unknown, missing = seen["failures"]
    assert seen["before"] == ["so far, so good"]
    assert failed == {
        "name": "PlexusError",
        "code": "no_planet",
        "message": "no Vulcan",
        "data": {"hint": "none"},
    }
    assert (crashed["code"], wrong["code"]) == ("internal", "invalid_params")
    assert wrong["data"]["errors"][0]["at"] == "text"
    assert unknown["code"] == "unknown_method"
    assert "Did you mean demo.echo?" in unknown["message"]
    assert missing["code"] == "not_found"


def test_without_the_token_it_is_denied(folder: Path, server: Server) -> None:
    seen = play(folder, server, "denied")
    assert seen["code"] == "denied"
    assert "token" in seen["message"]


def test_without_a_server_it_fails_without_waiting(folder: Path, server: Server) -> None:
    with serving() as other:
        port = other.port
    assert play(folder, server, "nobody", port)["code"] == "connection_lost"


# --- stopping ------------------------------------------------------------------------------------


def test_leaving_the_loop_cancels_the_run_and_a_call_is_used_once(
    folder: Path, server: Server
) -> None:
    seen = play(folder, server, "left")
    assert seen["state"] == "cancelled"
    assert "was used already" in seen["again"]["message"]


def test_aborting_cancels_the_run(folder: Path, server: Server) -> None:
    seen = play(folder, server, "aborted")
    assert seen == {"seen": ["content"], "name": "AbortError", "state": "cancelled"}


def test_a_call_aborted_before_its_reply_is_cancelled_too(folder: Path, server: Server) -> None:
    seen = play(folder, server, "aborted_at_once")
    assert seen == {"message": "enough", "state": "cancelled", "never": None}


def test_a_run_can_be_cancelled_and_reports_it(folder: Path, server: Server) -> None:
    seen = play(folder, server, "cancelled")
    assert seen["answers"] == [True]
    assert (seen["caught"]["code"], seen["caught"]["message"]) == ("cancelled", "enough")


# --- connections that break ----------------------------------------------------------------------

#: In the head of the first response, behind it, in items at odd places, and again and again.
CUTS = [[60], [300], [700, 777, 1234], [5003, 703, 4001], [650 + 97 * i for i in range(8)]]


@pytest.mark.anyio
@pytest.mark.parametrize("cuts", CUTS, ids=str)
async def test_every_event_arrives_once_wherever_the_connection_is_cut(
    folder: Path, server: Server, cuts: list[int], tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    async with proxied(server.port, cuts) as proxy:
        arguments = command(folder, server, "resumed", proxy.port, str(mark))
        seen = await play_in_background(*arguments)
        connections = proxy.connections
    assert seen["numbers"] == list(range(1, 201))
    assert seen["last"] == {"type": "complete"}
    assert mark.read_text() == "begun\n"
    assert connections > len(cuts)


@pytest.mark.anyio
async def test_a_temporarily_unreachable_server_is_reconnected(
    folder: Path, server: Server, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    async with proxied(server.port) as proxy:
        arguments = command(folder, server, "resumed", proxy.port, str(mark))
        playing = asyncio.create_task(play_in_background(*arguments))
        assert await eventually(mark.exists, 20.0)
        proxy.down = True
        proxy.cut()
        before = proxy.connections
        assert await eventually(lambda: proxy.connections > before + 3, 20.0)
        proxy.down = False
        seen = await playing
    assert seen["numbers"] == list(range(1, 201))
    assert mark.read_text() == "begun\n"


def test_following_a_run_from_any_item_does_not_cancel_it(folder: Path, server: Server) -> None:
    seen = play(folder, server, "followed")
    assert seen["own"] == list(range(1, 51))
    assert seen["seen"] == list(range(11, 51))


def test_a_run_that_the_server_no_longer_has_is_not_restarted(folder: Path, server: Server) -> None:
    seen = play(folder, server, "forgotten")
    assert seen == {"code": "connection_lost", "state": "cancelled"}


def test_it_does_not_reconnect_if_that_is_disabled(folder: Path, server: Server) -> None:
    assert play(folder, server, "not_sought")["code"] == "connection_lost"


# --- questions -----------------------------------------------------------------------------------


def test_a_question_of_a_run_is_answered(folder: Path, server: Server) -> None:
    assert play(folder, server, "asked") == {
        "said": ["Delete 3 files?", "invalid_params", "Where?", "deleted there"],
        "value": False,
        "declined": "declined",
    }


def test_the_error_codes_are_those_of_the_protocol(folder: Path) -> None:
    text = (folder / "client.ts").read_text()
    found = dict(re.findall(r'^  \[(-\d+)\]: "(\w+)",$', text, re.M))
    assert found["-32001"] == "denied"
    assert len(found) == 12
