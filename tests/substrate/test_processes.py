"""Runs of a stdio process, watched and controlled at the servers of its project."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from network import read_events
from project_processes import (
    WAIT_S,
    Host,
    ProjectServer,
    eventually,
    hosted,
    make_project,
    serving,
    skip_announcement,
)
from websockets.sync.client import connect as open_socket

from native_rpc.client import connect
from substrate.security.tokens import TokenFile

pytestmark = pytest.mark.timeout(120)

COUNT = "for i in $(seq 50); do echo $i; sleep 0.01; done"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    skip_announcement()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


@contextmanager
def watching(server: ProjectServer, method: str) -> Iterator[Iterator[dict[str, Any]]]:
    """Call a method that streams, and yield its events while they arrive."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}
    with server.request("POST", "/rpc", body, Accept="text/event-stream") as stream:
        yield (event.message["params"]["result"] for event in read_events(stream) if event.id)


# --- watching -------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [("--mcp",), ()])
def test_a_run_of_another_process_is_listed_and_followed_from_its_first_item(
    project: Path, flags: tuple[str, ...]
) -> None:
    with serving(project) as server, hosted(project, *flags) as host:
        call = host.use if flags else host.call
        call("bash.execute", command=f"{COUNT}; sleep 1")
        run = server.run("bash.execute", state="running")
        assert run["process"]["pid"] == host.process.pid
        assert run["process"]["project"] == str(project)
        assert "seq 50" in run["summary"]
        items = server.items(run["run"])
        assert [item["seq"] for item in items] == list(range(1, len(items) + 1))
        assert items[0]["type"] == "start"
        output = "".join(item["data"] for item in items if item["type"] == "stdout")
        assert output == "".join(f"{number}\n" for number in range(1, 51))
        assert (items[-1]["type"], items[-1]["exit_code"]) == ("complete", 0)
        ended = server.run("bash.execute", state="complete")
        assert ended["last_seq"] == len(items)
        assert ended["duration_ms"] > 1000
        assert ended["outcome"] == "succeeded"


def test_a_run_is_listed_within_a_second(project: Path) -> None:
    with serving(project) as server, hosted(project, "--mcp") as host:
        host.use("asks.steps", number=1)
        server.run("asks.steps")  # the store is open after this
        host.use("bash.execute", command="sleep 60")
        eventually(lambda: server.runs("bash.execute"), "the run", within_s=1.0)


def test_the_start_the_progress_and_the_end_of_a_run_are_watched_live(project: Path) -> None:
    with serving(project) as server, hosted(project) as host:
        with watching(server, "plexus.watch") as events:
            host.call("asks.steps", number=100, every_s=0.02)
            seen: list[tuple[str, int]] = []
            for event in events:
                runs = [run for run in event["runs"] if run["method"] == "asks.steps"]
                seen += [(run["state"], run["last_seq"]) for run in runs]
                if seen and seen[-1][0] == "complete":
                    break
        assert seen[0][0] == "running"
        assert seen[-1] == ("complete", 101)
        assert seen == sorted(seen, key=lambda each: each[1])
        assert len({last for _, last in seen}) > 2


def sse_items(server: ProjectServer, run: int) -> list[int]:
    with server.request("GET", f"/runs/{run}/events", Accept="text/event-stream") as stream:
        assert stream.status == 200
        return [int(str(event.id).rpartition(":")[2]) for event in read_events(stream) if event.id]


def socket_items(server: ProjectServer, run: int) -> list[int]:
    header = {"Authorization": f"Bearer {server.token}"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "plexus.attach", "params": {"run": run}}
    numbers: list[int] = []
    with open_socket(f"{server.address}/rpc", additional_headers=header, proxy=None) as socket:
        socket.send(json.dumps(call))
        while True:
            params = json.loads(socket.recv(WAIT_S)).get("params")
            if params is None:
                continue
            numbers.append(params["seq"])
            if params["result"]["type"] in ("complete", "error", "cancelled"):
                return numbers


def client_items(server: ProjectServer, run: int) -> list[int]:
    return [item["seq"] for item in server.items(run)]


@pytest.mark.parametrize("follow", [sse_items, socket_items, client_items])
def test_a_follower_sees_every_item_once_and_in_order(project: Path, follow: Any) -> None:
    with serving(project) as server, hosted(project) as host:
        host.call("asks.steps", number=1000, every_s=0.002)
        run = server.run("asks.steps", state="running")["run"]
        assert follow(server, run) == list(range(1, 1002))


def test_a_burst_of_100_000_events_is_followed_without_a_loss(project: Path) -> None:
    with serving(project) as server, hosted(project) as host:
        host.call("asks.steps", number=1)  # the store is open after this
        host.read_until('"complete"')
        first = server.run("asks.steps", state="complete")["run"]
        host.call("asks.steps", number=100_000)
        found = eventually(
            lambda: [each for each in server.runs("asks.steps") if each["run"] != first], "the run"
        )

        async def follow() -> list[int]:
            async with (
                asyncio.timeout(WAIT_S),
                connect(server.address, token=server.token) as client,
                client.attach(found[0]["run"]) as call,
            ):
                return [item.seq async for item in call]

        with ThreadPoolExecutor() as threads:
            reading = threads.submit(host.read_until, '"complete"')
            assert asyncio.run(follow()) == list(range(1, 100_002))
            reading.result(WAIT_S)


def test_a_server_that_starts_later_has_every_item_of_a_run(project: Path) -> None:
    with hosted(project) as host:
        host.call("asks.steps", number=20_000, every_s=0)
        host.call("asks.steps", number=600, every_s=0.01)
        host.read_until('"complete"')
        with serving(project) as server:
            running = server.run("asks.steps", state="running")
            items = server.items(running["run"], after=5)
            assert [item["seq"] for item in items] == list(range(6, 602))
            [ended] = [run for run in server.runs("asks.steps") if run["run"] != running["run"]]
            whole = server.items(ended["run"])
            assert [item["seq"] for item in whole] == list(range(1, 20_002))


def test_a_run_that_ended_with_its_process_is_found_by_a_later_server(project: Path) -> None:
    with hosted(project, "--mcp") as host:
        host.use("bash.execute", command="echo one; echo two")
        assert "two" in json.dumps(host.answer())
        assert host.close_input() == 0
    with serving(project) as server:
        run = server.run("bash.execute", state="complete")
        assert (run["outcome"], run["exit_code"]) == ("succeeded", 0)
        assert run["client"] == "test/1"
        items = server.items(run["run"])
        assert "".join(item.get("data", "") for item in items) == "one\ntwo\n"
        assert "one\ntwo\n" in server.ask("plexus.transcript", run=run["run"])


def test_an_event_of_900_kb_arrives_whole(project: Path) -> None:
    with serving(project) as server, hosted(project) as host:
        host.call("asks.large", size=900_000)
        run = server.run("asks.large", last_seq=2)["run"]
        server.ask("plexus.cancel", run=run)
        items = server.items(run)
        assert [item["type"] for item in items] == ["content", "content", "cancelled"]
        assert items[0]["text"] == "x" * 900_000
        assert items[1]["text"] == "y" * 900_000


# --- control --------------------------------------------------------------------------------------


def test_a_run_is_stopped_from_the_server_with_all_its_processes(project: Path) -> None:
    with serving(project) as server, hosted(project, "--mcp") as host:
        host.use("bash.execute", command="sleep 3600 & echo $! > child; wait")
        run = server.run("bash.execute")["run"]
        file = project / "child"
        child = eventually(lambda: file.exists() and int(file.read_text() or 0), "the child")
        assert server.ask("plexus.cancel", run=run, reason="enough") is True
        assert server.items(run)[-1]["type"] == "cancelled"
        assert "enough" in json.dumps(host.answer())
        eventually(lambda: not Path(f"/proc/{child}").exists(), "its process is gone")
        assert server.ask("plexus.cancel", run=run) is False


def test_a_question_is_answered_from_the_server(project: Path) -> None:
    with serving(project) as server, hosted(project) as host:
        host.call("asks.name")
        run = server.run("asks.name", state="asking")["run"]
        [pending] = eventually(server.approvals, "an open question")
        assert (pending["run"], pending["message"]) == (run, "Your name?")
        with pytest.raises(Exception, match="must be text"):
            server.ask("plexus.respond", run=run, request=pending["request"], answer=5)
        with pytest.raises(Exception, match="no open question"):
            server.ask("plexus.respond", run=run, request="77", answer="x")
        assert server.ask("plexus.respond", run=run, request=pending["request"], answer="Ada")
        answered, end = server.items(run)[-2:]
        assert (answered["type"], answered["answer"], answered["seq"]) == ("answered", "Ada", 2)
        assert end == {"seq": 3, "type": "complete", "result": "Ada"}
        assert server.approvals() == []


def test_an_approval_and_a_permission_are_granted_from_the_server(project: Path) -> None:
    with serving(project) as server, hosted(project, "--mcp") as host:
        for tool, arguments, outcome in (
            ("approvals.permit", {"tool_name": "Write", "input": {"a": 1}}, '"allow"'),
            ("asks.confirm", {}, "true"),
        ):
            host.use(tool, **arguments)
            run = server.run(tool)["run"]
            [pending] = eventually(server.approvals, f"{tool} asks")
            assert pending["run"] == run
            server.ask("approvals.respond", approval_id=pending["approval_id"], approve=True)
            assert outcome in json.dumps(server.items(run)[-1]).replace("\\", "")
            if tool == "approvals.permit":
                assert outcome in json.dumps(host.answer()).replace("\\", "")
        assert server.approvals() == []
        assert not server.runs("approvals.respond")  # requests of other processes are not listed


@pytest.mark.parametrize("method", ["approvals.permit", "asks.confirm"])
def test_questions_of_another_process_are_watched(project: Path, method: str) -> None:
    given = {"tool_name": "Write", "input": {"a": 1}} if method == "approvals.permit" else {}
    with serving(project) as server, hosted(project) as host:
        with watching(server, "approvals.watch") as events:
            host.call(method, **given)
            asked = next(events)
            assert (asked["type"], asked["method"]) == ("approval_pending", method)
            assert asked.get("details", {}).items() >= given.items()
            refusal = {"approve": False, "message": "not now"}
            server.ask("approvals.respond", approval_id=asked["approval_id"], **refusal)
            settled = next(events)
            assert settled["approval_id"] == asked["approval_id"]
            assert settled["type"] == "approval_settled"
        expected = "not now" if given else "false"
        assert expected in json.dumps(server.items(asked["run"])[-1])


def test_a_permission_that_is_withdrawn_is_no_longer_open(project: Path) -> None:
    with serving(project) as server, hosted(project) as host:
        host.call("approvals.permit", tool_name="Write", input={})
        [pending] = eventually(server.approvals, "an open question")
        assert server.ask("plexus.cancel", run=pending["run"]) is True
        eventually(lambda: not server.approvals(), "it is closed")
        with pytest.raises(Exception, match="no open question"):
            server.ask("approvals.respond", approval_id=pending["approval_id"], approve=True)


# --- processes that end ---------------------------------------------------------------------------


def test_a_run_outlives_the_server_and_is_seen_by_the_next_one(project: Path) -> None:
    with hosted(project) as host:
        with serving(project) as server:
            host.call("asks.steps", number=400, every_s=0.02)
            run = server.run("asks.steps")["run"]
        with serving(project) as server:  # after the first was killed
            assert server.run("asks.steps")["run"] == run
            items = server.items(run)
            assert [item["seq"] for item in items] == list(range(1, 402))
            assert items[-1]["type"] == "complete"


def test_two_servers_of_one_project_show_and_control_the_same_run(project: Path) -> None:
    with serving(project) as one, serving(project) as two, hosted(project) as host:
        host.call("asks.name")
        run = one.run("asks.name", state="asking")["run"]
        assert two.run("asks.name", state="asking")["run"] == run
        eventually(two.approvals, "the question")
        assert one.ask("plexus.respond", run=run, request="1", answer="Ada") is True
        for server in (one, two):
            assert server.items(run)[-1]["result"] == "Ada"
            assert server.approvals() == []


def has_output(server: ProjectServer, run: int) -> bool:
    return "one" in server.ask("plexus.transcript", run=run)


#: One second, and the interval of the watch.
LATE_S = 1.5


def kill_while_watched(server: ProjectServer, host: Host) -> tuple[float, dict[str, Any]]:
    """Kill a process and return how long it took until the end of its run was seen."""
    with watching(server, "plexus.watch") as events:
        killed_at = time.monotonic()
        host.process.send_signal(signal.SIGKILL)
        for event in events:
            for run in event["runs"]:
                if run["method"] == "bash.execute" and run["state"] == "error":
                    return time.monotonic() - killed_at, run
    raise AssertionError("the watch has ended")


def test_the_runs_of_a_process_that_was_killed_end_within_a_second(project: Path) -> None:
    with serving(project) as server:
        took_s = LATE_S
        # On a busy machine any single one may be late.
        for _ in range(5):
            with hosted(project, "--mcp") as host:
                host.use("bash.execute", command="echo one; sleep 3600")
                run = server.run("bash.execute", state="running")["run"]
                eventually(partial(has_output, server, run), "its output")
                took_s, ended = kill_while_watched(server, host)
            if took_s < LATE_S:
                break
        assert took_s < LATE_S
        assert ended["outcome"] == "failed"
        *_, item, last = server.items(run)
        assert item["data"] == "one\n"
        assert (last["type"], last["code"]) == ("error", "owner_lost")
        assert str(host.process.pid) in last["message"]
        with pytest.raises(Exception, match="has ended"):
            server.ask("plexus.respond", run=run, request="1", answer=True)


def test_a_follower_sees_the_end_of_a_run_whose_process_was_killed(project: Path) -> None:
    with serving(project) as server, hosted(project) as host:
        host.call("asks.steps", number=10_000, every_s=0.01)
        run = server.run("asks.steps")["run"]
        with server.request("GET", f"/runs/{run}/events", Accept="text/event-stream") as stream:
            events = read_events(stream)
            next(events)
            host.process.send_signal(signal.SIGKILL)
            *_, last = events
        assert "owner_lost" in last.data


def test_the_questions_of_a_process_that_was_killed_are_closed(project: Path) -> None:
    with serving(project) as server:
        with hosted(project) as host:
            host.call("asks.name")
            eventually(server.approvals, "the question")
        eventually(lambda: not server.approvals(), "it is closed", within_s=5.0)


def test_a_process_that_ends_in_order_leaves_its_runs_ended(project: Path) -> None:
    with serving(project) as server, hosted(project) as host:
        host.call("asks.steps", number=10_000, every_s=0.01)
        run = server.run("asks.steps")["run"]
        host.process.send_signal(signal.SIGTERM)
        assert host.process.wait(WAIT_S) is not None
        last = server.items(run)[-1]
        assert last["type"] == "cancelled"
        assert "SIGTERM" in last["reason"]


def test_a_server_that_is_stopped_does_not_block_a_run(project: Path) -> None:
    with serving(project) as server, hosted(project) as host:
        host.call("asks.steps", number=1)
        server.run("asks.steps")
        server.process.send_signal(signal.SIGSTOP)
        try:
            host.call("bash.execute", command="seq 1000000")
            host.read_until('"exit_code":0')
        finally:
            server.process.send_signal(signal.SIGCONT)
        ended = server.run("bash.execute", state="complete")
        assert server.items(ended["run"])[-1]["exit_code"] == 0


def test_a_process_that_is_stopped_keeps_its_runs(project: Path) -> None:
    with serving(project) as server, hosted(project) as host:
        host.call("asks.name")
        run = server.run("asks.name", state="asking")["run"]
        host.process.send_signal(signal.SIGSTOP)
        try:
            with watching(server, "plexus.watch") as events:
                [found] = [each for each in next(events)["runs"] if each["run"] == run]
                assert found["state"] == "asking"
        finally:
            host.process.send_signal(signal.SIGCONT)
        assert server.ask("plexus.respond", run=run, request="1", answer="Ada") is True


# --- who sees a run -------------------------------------------------------------------------------


def test_runs_are_not_listed_by_the_server_of_another_project(
    project: Path, tmp_path: Path
) -> None:
    other = make_project(tmp_path / "other")
    with serving(other) as stranger, serving(project) as server, hosted(project) as host:
        host.call("asks.confirm")
        server.run("asks.confirm")
        assert stranger.runs("asks.confirm") == []
        assert stranger.approvals() == []


def test_another_principal_sees_none_of_the_runs(project: Path) -> None:
    with serving(project) as server, hosted(project) as host:
        host.call("asks.name")
        run = server.run("asks.name")["run"]
        token = TokenFile().add("guest", None, principal="guest")

        async def look() -> None:
            async with connect(server.address, token=token) as client, asyncio.timeout(WAIT_S):
                found = await client.call("plexus.runs", {})
                assert [each for each in found if each["method"] == "asks.name"] == []
                assert (await client.call("approvals.pending", {}))["approvals"] == []
                for method, params in (
                    ("plexus.transcript", {}),
                    ("plexus.cancel", {}),
                    ("plexus.respond", {"request": "1", "answer": "x"}),
                ):
                    with pytest.raises(Exception, match="Unknown run"):
                        await client.call(method, {"run": run, **params})

        asyncio.run(look())
        headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
        with server.request("GET", f"/runs/{run}/events", **headers) as answer:
            assert answer.status == 404
