"""Short numbers and `last` name a run in every command; calls of the server displace no run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

import pytest
from command_line import lines
from terminal_server import Running, running

from native_rpc.client import connect
from substrate.cli.target.run_reference import short_numbers
from substrate.security.lockfile import find_running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("project")) as found:
        yield found


def test_every_command_accepts_short_numbers_and_last(server: Running) -> None:
    with server.called("bash.execute", "echo hi; sleep 1000") as (process, number):
        process.out.wait_for("hi")
        short = str(number)[:8]
        for reference in (short, "last"):
            assert str(number) in server.run("show", reference).stdout
        stopped = server.run("cancel", short, "--json")
        assert lines(stopped.stdout) == [{"run": number, "was_running": True}]
        assert process.end() == 1
    for command in (["attach", short], ["watch", "last"], ["replay", "last", "--speed", "99"]):
        assert server.run(*command).stdout == "hi\n", command
    assert server.run("runs", "pin", "last").stdout == f"Run {number} is pinned.\n"
    assert server.run("runs", "unpin", short).returncode == 0
    deleted = server.run("runs", "delete", "last", "--json")
    assert lines(deleted.stdout) == [{"deleted": 1}], deleted.stderr
    assert server.run("show", short).returncode == 1


def test_a_question_is_answered_by_its_run(server: Running) -> None:
    for reference, words in (("last", ["--yes"]), ("", ["--no"])):
        with server.called("asks.confirm", state="asking") as (process, number):
            listed = server.run("respond")
            assert listed.stdout == f"{number}.1  asks.confirm asks: Really?\n"
            answered = server.run("respond", reference or str(number)[:7], *words)
            assert answered.returncode == 0, answered.stderr
            assert process.end() == 0
    refused = server.run("respond", "123456", "--yes")
    assert refused.returncode == 1
    assert "No pending question '123456'" in refused.stderr


def test_an_ambiguous_number_lists_the_candidates(server: Running) -> None:
    async def start_two() -> list[int]:
        """Start runs until two of the latest begin with the same four digits.

        Older ones are evicted, because the server retains few runs of health.check.
        """
        running = find_running(int(server.port))
        assert running is not None
        latest: deque[int] = deque(maxlen=40)
        async with connect(f"ws://127.0.0.1:{server.port}", token=running.token) as client:
            for _ in range(5000):
                async with client.call("health.check", {}) as call:
                    assert call.run is not None
                    for run in latest:
                        if str(run)[:4] == str(call.run)[:4]:
                            return [run, call.run]
                    latest.append(call.run)
        raise AssertionError("of 5000 random numbers, no two that are close share four digits")

    first, second = asyncio.run(start_two())
    refused = server.run("show", str(first)[:4])
    assert refused.returncode == 1
    assert f"2 runs begin with {str(first)[:4]}. Write more digits:" in refused.stderr
    assert {str(first), str(second)} <= set(refused.stderr.split())


def test_a_reference_that_names_no_run_is_an_error(server: Running) -> None:
    wrong = server.run("show", "seventy")
    assert wrong.returncode == 2
    assert "'seventy' is not a run. Write its number, the first digits of it" in wrong.stderr
    assert "Unknown run 99887766." in server.run("cancel", "99887766").stderr


def test_calls_of_the_server_displace_no_run(server: Running) -> None:
    with server.called("bash.execute", "sleep 1; echo kept") as (process, number):
        assert process.end() == 0

    async def inspect() -> None:
        running = find_running(int(server.port))
        assert running is not None
        async with connect(f"ws://127.0.0.1:{server.port}", token=running.token) as client:
            for _ in range(1000):
                await client.call("plexus.runs", {"limit": 1})

    asyncio.run(inspect())
    assert number in [entry["run"] for entry in server.runs()]
    assert number in [entry["run"] for entry in server.runs("--all")]
    assert number in [entry["run"] for entry in server.runs("--since", "1h")]
    assert server.run("show", "last").stdout.endswith("kept\n")
    system = {entry["method"] for entry in server.runs("--system")}
    assert {"plexus.runs", "bash.execute"} <= system


def test_short_numbers_tell_the_runs_of_a_list_apart() -> None:
    runs = [{"run": 1234567890123456}, {"run": 1234567990123456}, {"run": 7}]
    assert short_numbers(runs) == {
        1234567890123456: "12345678",
        1234567990123456: "12345679",
        7: "7",
    }
    assert short_numbers([]) == {}
