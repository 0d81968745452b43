"""`/metrics`: real scrapes, read by the library's own parser."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from network import ANSWER_S, REPOSITORY, Server, bearer, events, serving
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from plexus.runtime.hub import Plexus
from substrate.telemetry.metrics import BUCKETS, Metrics
from substrate.telemetry.refusals import Refusals

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    store = tmp_path_factory.mktemp("metrics") / "trees.db"
    with serving("--database", str(store)) as running:
        yield running


def scrape(server: Server, headers: dict[str, str] | None = None) -> Samples:
    """Return every sample of a scrape by name and labels."""
    with server.request("GET", "/metrics", headers=headers) as response:
        assert response.status == 200
        kind = response.headers["Content-Type"]
        text = response.read().decode()
    openmetrics = kind.startswith("application/openmetrics-text")
    assert openmetrics or kind.startswith("text/plain; version=")
    samples: Samples = {}
    for family in (read_openmetrics if openmetrics else read_text)(text):
        assert family.documentation, family.name
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples
            samples[key] = sample.value
    return samples


def one(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((name, tuple(sorted(labels.items()))), 0.0)


def call(server: Server, method: str, params: Any = None) -> Any:
    with server.call(method, params) as response:
        return json.loads(response.read())


def test_runs_are_counted_by_method_and_outcome(server: Server) -> None:
    def counted(samples: Samples, method: str, outcome: str) -> float:
        return one(samples, "substrate_runs_total", method=method, outcome=outcome)

    before = scrape(server)
    for _ in range(3):
        call(server, "demo.echo", {"text": "x"})
    call(server, "demo.fail", {"code": "no_luck", "message": "m"})
    after = scrape(server)
    expected = {
        ("demo.echo", "complete"): 3,
        ("demo.echo", "error"): 0,
        ("demo.fail", "complete"): 0,
        ("demo.fail", "error"): 1,
    }
    for (method, outcome), many in expected.items():
        assert counted(after, method, outcome) - counted(before, method, outcome) == many


def test_events_bytes_and_durations_are_counted_by_method(server: Server) -> None:
    answer = call(server, "demo.count", {"to": 7})["result"]
    samples = scrape(server)
    events = [*answer["events"], answer["terminal"]]
    size = sum(len(json.dumps(event, separators=(",", ":"))) for event in events)
    assert one(samples, "substrate_run_events_total", method="demo.count") == len(events)
    assert one(samples, "substrate_run_bytes_total", method="demo.count") == size
    name = "substrate_run_duration_seconds"
    assert one(samples, f"{name}_count", method="demo.count") == 1
    assert one(samples, f"{name}_sum", method="demo.count") > 0
    bounds = [*map(str, BUCKETS), "+Inf"]
    buckets = [one(samples, f"{name}_bucket", method="demo.count", le=bound) for bound in bounds]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 1


def test_a_run_lands_in_the_bucket_that_it_belongs_to(server: Server) -> None:
    before = scrape(server)
    call(server, "demo.wait", {"seconds": 0.3})
    after = scrape(server)
    name = "substrate_run_duration_seconds_bucket"
    for bound, more in (("0.25", 0), ("600.0", 1)):
        labels = {"method": "demo.wait", "le": bound}
        assert one(after, name, **labels) - one(before, name, **labels) == more


def test_active_runs_and_open_connections_are_exported(server: Server) -> None:
    assert one(scrape(server), "substrate_runs_in_flight") == 0
    with server.stream("demo.wait") as response:
        _, reply = next(events(response))
        samples = scrape(server)
        assert one(samples, "substrate_runs_in_flight") == 1
        assert one(samples, "substrate_open_connections") == 2  # this one and the scrape itself
        call(server, "plexus.cancel", {"run": reply["result"]})
        response.read()


def test_refusals_are_counted_by_reason_and_never_by_text_of_a_client(
    server: Server,
) -> None:
    def refused(samples: Samples, reason: str) -> float:
        return one(samples, "substrate_refused_total", reason=reason)

    before = scrape(server)
    for _ in range(50):
        assert server.status("GET", "/metrics", {"Host": "example.org"}) == 421
    assert server.status("GET", "/metrics", {"Origin": "http://example.org"}) == 403
    for number in range(5):
        assert "error" in call(server, f"no_such_method_{number}")
        assert "error" in call(server, "demo.echo", {"text": 7})
    after = scrape(server)
    expected = {"host": 50, "origin": 1, "unknown_method": 5, "invalid_params": 5}
    for reason, many in expected.items():
        assert refused(after, reason) - refused(before, reason) == many, reason
    assert "no_such_method" not in str(after)


def test_every_method_label_is_a_method_that_is_registered(server: Server) -> None:
    call(server, "demo_echo", {"text": "x"})  # the old spelling
    call(server, "nothing.of.the.kind")
    known = {
        method["name"]
        for activation in call(server, "plexus.schema")["result"]["terminal"]["result"][
            "activations"
        ]
        for method in activation["methods"]
    }
    labels = {dict(labels).get("method") for _, labels in scrape(server)} - {None}
    assert {name for name in labels if name and name not in known} == set()


def test_process_and_store_metrics_are_exported(server: Server) -> None:
    assert "result" in call(server, "arbor.tree_create")
    samples = scrape(server)
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    resident = int(line.split()[1]) * 1024
    assert one(samples, "process_resident_memory_bytes") == pytest.approx(resident, rel=0.5)
    assert one(samples, "process_open_fds") > 5
    assert one(samples, "substrate_store_bytes") > 4096
    [version] = [dict(labels)["version"] for name, labels in samples if name == "substrate_info"]
    assert version == json.loads(server.request("GET", "/").read())["version"]


def test_the_document_lists_exactly_what_there_is(server: Server) -> None:
    text = (REPOSITORY / "docs" / "operating.md").read_text()
    documented = set(re.findall(r"^\| `(substrate_\w+)`", text, re.MULTILINE))
    assert "result" in call(server, "arbor.tree_create")  # creates the store
    assert "error" in call(server, "nothing.of.the.kind")  # a refused call
    ends = "_(bucket|count|sum|created)$"
    exported = {
        re.sub(ends, "", name) for name, _ in scrape(server) if name.startswith("substrate_")
    }
    assert exported == documented


def test_a_connection_too_many_is_counted() -> None:
    with serving(settings={"SUBSTRATE_LIMITS__CONNECTIONS": "1"}) as server:
        address = ("127.0.0.1", server.port)
        with (
            socket.create_connection(address, ANSWER_S) as first,
            socket.create_connection(address, ANSWER_S),
        ):
            assert b" 503 " in first.recv(1000)  # unauthenticated, so it is evicted
        deadline = time.monotonic() + ANSWER_S
        while server.status("GET", "/") == 503:  # until the server has noticed the disconnect
            assert time.monotonic() < deadline
        assert one(scrape(server), "substrate_refused_total", reason="connections") >= 1


def test_a_scraper_that_accepts_openmetrics_gets_it(server: Server) -> None:
    accept = {"Accept": "application/openmetrics-text; version=1.0.0; charset=utf-8"}
    assert one(scrape(server, accept), "substrate_runs_abandoned_total") == 0


def test_metrics_are_only_read(server: Server) -> None:
    assert server.status("HEAD", "/metrics") == 200
    assert server.status("DELETE", "/metrics") == 405


def test_metrics_are_behind_the_guard() -> None:
    with serving(auth="token") as server:
        assert server.status("GET", "/metrics") == 401
        samples = scrape(server, bearer(server.token))
        assert one(samples, "substrate_refused_total", reason="token") == 1
        assert ("substrate_store_bytes", ()) not in samples  # the scrape opens no store


def test_a_hub_without_observers_notifies_none() -> None:
    hub = Plexus()
    assert not hub.runs._on_end  # noqa: SLF001 - checks that it is empty
    Metrics(hub, Refusals())
    assert hub.runs._on_end  # noqa: SLF001
