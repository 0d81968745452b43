"""MCP in the benchmark: the limit sends the same bytes as the program, and peers are compared."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench import measure, servers
from bench.clients import live_delays_us, read_some, write_all
from bench.mcp import (
    contenders,
    http_calls,
    http_client,
    memory,
    messages,
    requests,
    stdio_client,
    streams,
)
from bench.measure import ASGI, LIMIT, OURS
from bench.report import render

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

EVENTS = 3
#: Accept headers: either kind of response, and only events.
ACCEPTED = (http_client.Endpoint(0).accept, b"text/event-stream")


def on_stdio(command: contenders.Command) -> list[bytes]:
    """Send all requests of the benchmark on stdio. Returns the responses."""
    with servers.start(command) as server:
        answers = [
            stdio_client.exchange(server, messages.discover()),
            stdio_client.handshake(server),
            *stdio_client.list_all(server),
            stdio_client.exchange(server, messages.call_echo(2)),
            stdio_client.exchange(server, messages.call_echo(3, stateless=True)),
            stdio_client.exchange(server, messages.call_collect(EVENTS, 4)),
        ]
        write_all(server.input_fd, messages.call_count(EVENTS) + b"\n")
        return [*answers, stdio_client.read_lines(server, EVENTS + 1)]


def over_http(command: contenders.Command) -> list[bytes]:
    """Send all requests of the benchmark over HTTP. Returns the normalised responses."""
    answers: list[bytes] = []
    with servers.start_http(command) as (_, port):
        for accept in ACCEPTED:
            endpoint = http_client.handshake(port, accept)
            with http_client.connect(port) as sock:
                answers += [
                    http_client.exchange(sock, endpoint.request(messages.call_echo(2))),
                    http_client.exchange(
                        sock, http_client.Endpoint(port, accept).stateless_echo(3)
                    ),
                ]
            request = endpoint.request(messages.call_count(EVENTS, 4))
            answers.append(http_client.stream(port, request)[1])
    return [normalise(answer) for answer in answers]


def normalise(answer: bytes) -> bytes:
    """Remove dates, event ids and chunk boundaries, which differ between runs."""
    answer = re.sub(rb"(?m)^date: .*\r\n", b"", answer)
    answer = re.sub(rb"(?m)^id: .*\n", b"id: N\n", answer)
    answer = re.sub(rb"(?m)^[0-9a-f]+\r\n", b"", answer)
    head, _, body = answer.partition(b"\r\n\r\n")
    return b"\r\n".join(sorted(head.split(b"\r\n"))) + b"\r\n\r\n" + body.replace(b"\r\n", b"")


def test_the_mcp_limit_on_stdio_sends_the_same_bytes_as_the_program() -> None:
    with contenders.stdio_commands() as commands:
        ours, limit = on_stdio(commands[OURS]), on_stdio(commands[LIMIT])

    assert limit == ours


def test_the_mcp_limit_over_http_sends_the_same_bytes_as_the_program() -> None:
    with contenders.http_commands("sse") as commands:
        ours, limit, asgi = (over_http(commands[name]) for name in (OURS, LIMIT, ASGI))

    assert limit == ours
    assert asgi == ours


def test_the_program_lists_a_thousand_additional_tools() -> None:
    with (
        contenders.stdio_commands("Thousand", listing=True) as commands,
        contenders.start_all({OURS: commands[OURS]}) as started,
    ):
        pages = stdio_client.list_all(started[OURS])

    names = [tool["name"] for page in pages for tool in json.loads(page)["result"]["tools"]]
    assert sum(name.startswith("many.tool_") for name in names) == 1_000


def test_peers_that_are_installed_answer_the_same_calls() -> None:
    commands = {name: (*command, "stdio", "0") for name, command in contenders.installed().items()}

    with contenders.start_all(commands) as started:
        for server in started.values():
            echoed = json.loads(stdio_client.exchange(server, messages.call_echo(2)))
            write_all(server.input_fd, messages.call_count(EVENTS) + b"\n")
            read = stdio_client.read_lines(server, EVENTS + 1).split(b"\n")[:-1]
            *progress, counted = map(json.loads, read)

            assert [line["params"]["progress"] for line in progress] == [1, 2, 3]
            for answer, text in (echoed, messages.ECHOED.decode()), (counted, "1 2 3 "):
                assert answer["result"]["content"] == [{"type": "text", "text": text}]

            write_all(server.input_fd, messages.call_ticks(EVENTS) + b"\n")
            ticks = partial(read_some, server.output_fd, 65536)
            assert min(live_delays_us(ticks, EVENTS)) > 0


SMALL = dataclasses.replace(measure.QUICK, mcp_rounds=1, mcp_events=100, ticks=3)


@pytest.mark.parametrize(
    ("measured", "names"),
    [
        (requests.first_lists, ["mcp_first_list"]),
        (requests.buffered, ["mcp_buffered"]),
        (streams.first_events, ["mcp_first_event stdio", "mcp_first_event sse"]),
        (streams.live_events, ["mcp_live_delay"]),
        (memory.idle, ["mcp_memory_idle"]),
        (http_calls.health_checks, ["health_check", "health_check p99"]),
    ],
)
def test_a_measure_compares_the_program_with_the_limit_if_no_peer_is_installed(
    measured: Callable[[measure.Effort], list[measure.Figure]],
    names: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contenders, "installed", dict)

    figures = measured(SMALL)

    assert [figure.name for figure in figures] == names
    for figure in figures:
        assert figure.ours.median > 0
        assert figure.targets
        if measured is http_calls.health_checks:
            continue
        assert figure.ratio is not None
        assert figure.peers.keys() - {ASGI} == set(contenders.PEERS)
        assert not any(figure.peers[name] for name in contenders.PEERS)


def test_a_prefix_selects_all_measures_that_start_with_it(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"

    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--only", "calls", "--json", str(file)],
        cwd=servers.ROOT,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    figures: list[dict[str, Any]] = json.loads(file.read_text())["figures"]
    names = [figure["name"] for figure in figures]
    assert names == ["calls_latency p50", "calls_latency p99", "calls_pipelined"]
    assert all(figure["ratio"]["median"] > 0 for figure in figures)


def test_an_unknown_measure_is_rejected() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--only", "nothing"],
        cwd=servers.ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert done.returncode == 2
    assert "no measure starts with 'nothing'" in done.stderr


def test_a_target_may_be_a_multiple_of_a_peer() -> None:
    taken = {OURS: [1.0, 2.0], LIMIT: [1.0, 1.0], "them": [40.0, 80.0]}
    met = measure.compare_all("it", "us", taken, (measure.Target("them", 1 / 30),))
    missed = measure.compare_all("it", "us", taken, (measure.Target("them", 1 / 50),))

    assert met.reached is True
    assert missed.reached is False
    assert ">= 30x them" in render([met])


def test_a_peer_that_is_not_installed_is_reported_as_missing() -> None:
    taken = {OURS: [1.0], LIMIT: [1.0], "them": None}

    figure = measure.compare_all("it", "us", taken, (measure.Target("them", 1.0),))

    assert figure.reached is None
    assert "not installed" in render([figure])


def test_each_of_many_sides_starts_in_turn() -> None:
    order: list[str] = []

    measure.take_turns({name: partial(order.append, name) for name in "abc"}, 3)

    assert "".join(order) == "abc" + "abc" + "bca" + "cab"
