"""Tracing: parents and content of spans, and calls that never wait for the exporter."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from activations_for_tests import Demo
from hub_calls import call, settled, until
from mcp_network import ENVELOPE, stateless_headers
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from mcp_view.protocol import McpConnection
from mcp_view.server import McpOptions
from mcp_view.session import Session
from native_rpc.framing import LINES
from plexus.runtime.builtin import PlexusActivation
from plexus.runtime.hub import Plexus
from substrate.mcp_server import make_mcp_server
from substrate.security.authentication import Access
from substrate.server.serve import bind, make_server
from substrate.stdio import StdioServer
from substrate.telemetry.tracing import Tracing, is_enabled, open_tracing

ROOT = Path(__file__).parents[2]
DEMO = str(ROOT / "tests" / "activations_for_tests.py")
WAIT_S = 20.0
SECRET = "a-secret-that-is-nobodys-business"
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
OTHER_TRACE = "1bf7651916cd43dd8448eb211c80319d"
OTHER = f"00-{OTHER_TRACE}-{SPAN}-01"


class Traced:
    """A hub whose spans are collected in memory."""

    def __init__(self) -> None:
        self.hub = Plexus()
        self.hub.register(PlexusActivation(self.hub))
        self.hub.register(Demo())
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(self.hub.runs, provider)

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        """Return the exported spans by name."""
        spans = self.exporter.get_finished_spans()
        assert len({span.name for span in spans}) == len(spans)
        return {span.name: span for span in spans}

    def run(self, work: Callable[[], Awaitable[Any]]) -> dict[str, ReadableSpan]:
        """Run a coroutine, close the hub and return the spans."""

        async def run_and_close() -> None:
            async with asyncio.timeout(WAIT_S):
                await work()
                await self.hub.close()

        asyncio.run(run_and_close())
        return self.spans


@pytest.fixture
def traced() -> Traced:
    return Traced()


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def id_of(span: ReadableSpan) -> str:
    return f"{context_of(span).span_id:016x}"


def trace_of(span: ReadableSpan) -> str:
    return f"{context_of(span).trace_id:032x}"


def parent_of(span: ReadableSpan) -> str | None:
    return None if span.parent is None else f"{span.parent.span_id:016x}"


# --- what a span says -----------------------------------------------------------------------------


def test_a_run_is_a_span_with_its_method_and_outcome(traced: Traced) -> None:
    [span] = traced.run(lambda: call(traced.hub, "demo.count", {"to": 3})).values()
    assert (span.name, span.kind, span.parent) == ("demo.count", SpanKind.SERVER, None)
    assert span.attributes is not None
    assert dict(span.attributes) | {"substrate.run": 0, "substrate.bytes": 0} == {
        "rpc.system": "jsonrpc",
        "rpc.method": "demo.count",
        "substrate.run": 0,
        "substrate.principal": "local",
        "substrate.outcome": "complete",
        "substrate.items": 5,
        "substrate.bytes": 0,
    }
    assert span.status.status_code is StatusCode.UNSET
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time >= span.start_time


def test_the_span_of_a_failure_has_its_code_but_no_text_or_arguments(
    traced: Traced,
) -> None:
    params = {"code": "no_luck", "message": SECRET}
    [span] = traced.run(lambda: call(traced.hub, "demo.fail", params)).values()
    assert span.attributes is not None
    assert span.attributes["error.type"] == "no_luck"
    assert span.status.status_code is StatusCode.ERROR
    assert SECRET not in span.to_json()


def test_a_run_that_is_stopped_has_ended_and_not_failed(traced: Traced) -> None:
    async def work() -> None:
        run = traced.hub.call("demo.wait").run
        await until(lambda: run.log.last > 0)
        run.cancel(SECRET)
        await settled(run)

    [span] = traced.run(work).values()
    assert span.attributes is not None
    assert span.attributes["substrate.outcome"] == "cancelled"
    assert span.status.status_code is StatusCode.UNSET
    assert SECRET not in span.to_json()


# --- whose child it is ----------------------------------------------------------------------------


def test_a_run_that_another_began_is_its_child(traced: Traced) -> None:
    inner = {"method": "demo.echo", "params": {"text": "x"}}
    outer = {"method": "plexus.call", "params": inner}
    spans = traced.exporter.get_finished_spans
    traced.exporter.clear()

    async def work() -> None:
        traced.hub.call("plexus.call", outer, trace={"traceparent": PARENT})
        await until(lambda: len(spans()) == 3)

    asyncio.run(work())
    echo, between, first = spans()
    assert [trace_of(span) for span in spans()] == [TRACE] * 3
    assert parent_of(first) == SPAN
    assert parent_of(between) == id_of(first)
    assert parent_of(echo) == id_of(between)
    assert (echo.name, echo.kind) == ("demo.echo", SpanKind.INTERNAL)


def test_concurrent_runs_do_not_become_each_others_children(traced: Traced) -> None:
    async def work() -> None:
        first = traced.hub.call("demo.wait", {"seconds": 0.05}, trace={"traceparent": PARENT})
        second = traced.hub.call("demo.echo", {"text": "x"})
        await asyncio.gather(settled(first.run), settled(second.run))

    spans = traced.run(work)
    assert trace_of(spans["demo.wait"]) == TRACE
    assert spans["demo.echo"].parent is None


@pytest.mark.parametrize(
    "context",
    [
        {"traceparent": "nonsense"},
        {"traceparent": ""},
        {"traceparent": f"00-{'0' * 32}-{SPAN}-01"},
        {"traceparent": f"ff-{TRACE}-{SPAN}-01"},
        {"tracestate": "a=b"},
        {},
    ],
)
def test_an_invalid_trace_context_starts_a_new_trace(
    traced: Traced, context: Mapping[str, str]
) -> None:
    async def work() -> None:
        await settled(traced.hub.call("demo.echo", {"text": "x"}, trace=context).run)

    [span] = traced.run(work).values()
    assert span.parent is None


def test_the_sampling_decision_of_the_caller_is_respected(traced: Traced) -> None:
    async def work() -> None:
        context = {"traceparent": f"00-{TRACE}-{SPAN}-00"}
        await settled(traced.hub.call("demo.echo", {"text": "x"}, trace=context).run)

    assert traced.run(work) == {}


# --- over stdio -----------------------------------------------------------------------------------


def over_stdio(traced: Traced, *messages: dict[str, Any]) -> dict[str, ReadableSpan]:
    """Send messages to an MCP server on pipes and return the spans."""
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    os.write(our_out, b"".join(json.dumps(message).encode() + b"\n" for message in messages))
    os.close(our_out)

    async def work() -> None:
        server = make_mcp_server(traced.hub, McpOptions())
        view = McpConnection(server, Session(), LINES)
        await StdioServer(traced.hub, view, their_in, their_out, eof_grace_s=WAIT_S).serve()

    try:
        spans = traced.run(work)
        answers = os.read(our_in, 1 << 20)
    finally:
        for fd in (their_in, their_out, our_in):
            os.close(fd)
    assert answers.count(b'"result"') == sum("id" in message for message in messages)
    return spans


def tool(meta: dict[str, Any], name: str = "demo.echo") -> dict[str, Any]:
    params = {"name": name, "arguments": {"text": "x"}, "_meta": meta}
    return {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}


HANDSHAKE: list[dict[str, Any]] = [
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
]


@pytest.mark.parametrize("handshake", [True, False])
def test_over_stdio_a_call_of_a_tool_is_a_child_of_the_span_in_its_meta(
    traced: Traced, *, handshake: bool
) -> None:
    meta = {"traceparent": PARENT, "tracestate": "vendor=value"}
    before = HANDSHAKE if handshake else []
    [span] = over_stdio(traced, *before, tool(meta if handshake else ENVELOPE | meta)).values()
    assert (trace_of(span), parent_of(span)) == (TRACE, SPAN)
    assert context_of(span).trace_state.get("vendor") == "value"


def test_reading_and_listing_are_children_too(traced: Traced) -> None:
    meta = {"_meta": ENVELOPE | {"traceparent": PARENT}}
    listing = {"jsonrpc": "2.0", "id": 3, "method": "resources/list", "params": meta}
    [span] = over_stdio(traced, listing).values()
    assert (span.name, parent_of(span)) == ("plexus.resources", SPAN)


@pytest.mark.parametrize(
    "meta",
    [
        {"traceparent": 7},
        {"traceparent": None},
        {"traceparent": [PARENT]},
        {"traceparent": PARENT + "x" * 2000},
        {"traceparent": "é\n"},
        {"tracestate": "a=b"},
    ],
)
def test_an_invalid_meta_does_not_fail_the_call(traced: Traced, meta: dict[str, Any]) -> None:
    [span] = over_stdio(traced, *HANDSHAKE, tool(meta)).values()
    assert span.parent is None


def test_an_invalid_tracestate_keeps_the_parent(traced: Traced) -> None:
    meta = {"traceparent": PARENT, "tracestate": {"a": 1}}
    [span] = over_stdio(traced, *HANDSHAKE, tool(meta)).values()
    assert parent_of(span) == SPAN


# --- over HTTP ------------------------------------------------------------------------------------


def over_http(
    traced: Traced, path: str, message: dict[str, Any], headers: dict[str, str]
) -> dict[str, ReadableSpan]:
    """Post a message to a server in this process and return the spans."""

    def post(port: int) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        all_headers = {"Content-Type": "application/json", "Connection": "close"} | headers
        connection.request("POST", path, json.dumps(message), all_headers)
        with connection.getresponse() as response:
            return response.status, response.read()

    async def work() -> None:
        sock = bind(0)
        port = sock.getsockname()[1]
        server = make_server(
            traced.hub, port, mcp_options=McpOptions(), access=Access.open(), origins=True
        )
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        status, body = await asyncio.to_thread(post, port)
        server.should_exit = True
        await serving
        assert status == 200, body
        assert b'"error"' not in body

    return traced.run(work)


STATELESS_CALL = stateless_headers("tools/call", "demo.echo")


def test_over_http_a_call_is_a_child_of_the_span_in_its_meta(traced: Traced) -> None:
    message = tool(ENVELOPE | {"traceparent": PARENT})
    [span] = over_http(traced, "/mcp", message, STATELESS_CALL).values()
    assert (trace_of(span), parent_of(span)) == (TRACE, SPAN)


def test_over_http_the_header_is_as_good(traced: Traced) -> None:
    headers = STATELESS_CALL | {"traceparent": PARENT, "tracestate": "vendor=value"}
    [span] = over_http(traced, "/mcp", tool(dict(ENVELOPE)), headers).values()
    assert (trace_of(span), parent_of(span)) == (TRACE, SPAN)
    assert context_of(span).trace_state.get("vendor") == "value"


def test_the_native_protocol_uses_the_header_too(traced: Traced) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "demo.echo", "params": {"text": "x"}}
    [span] = over_http(traced, "/rpc", message, {"traceparent": PARENT}).values()
    assert (trace_of(span), parent_of(span)) == (TRACE, SPAN)


def test_trace_context_in_the_message_overrides_the_header(traced: Traced) -> None:
    message = tool(ENVELOPE | {"traceparent": PARENT})
    headers = STATELESS_CALL | {"traceparent": OTHER}
    [span] = over_http(traced, "/mcp", message, headers).values()
    assert trace_of(span) == TRACE


# --- whether there are any ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, False),
        ({"OTEL_SDK_DISABLED": "false", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, True),
        ({"OTEL_SERVICE_NAME": "x"}, False),
    ],
)
def test_the_standard_variables_enable_and_disable_tracing(
    variables: dict[str, str], *, expected: bool
) -> None:
    assert is_enabled(variables) is expected


def test_missing_packages_are_logged_and_disable_tracing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("substrate.telemetry.tracing.REQUIRED_PACKAGES", ("opentelemetry.no.such",))
    assert open_tracing(Plexus().runs) is None
    assert "pip install 'plexus-substrate[otel]'" in caplog.text


# --- exporters ------------------------------------------------------------------------------------


class Collector(ThreadingHTTPServer):
    """An OTLP collector that records what it receives."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ExportHandler)
        self.requests: list[tuple[str, ExportTraceServiceRequest]] = []

    @property
    def variables(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.server_port}"}


class ExportHandler(BaseHTTPRequestHandler):
    """Handles one export."""

    server: Collector

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Encoding"] == "gzip":
            data = gzip.decompress(data)
        self.server.requests.append((self.path, ExportTraceServiceRequest.FromString(data)))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def running_collector() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        collector.shutdown()
        collector.server_close()
        thread.join(WAIT_S)


def serve_calls(
    variables: dict[str, str], calls: int, tmp_path: Path
) -> subprocess.CompletedProcess[bytes]:
    """Run a server process that answers a number of calls in sequence and ends."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if "SUBSTRATE" not in name and "OTEL" not in name
    }
    begin = {"jsonrpc": "2.0", "method": "demo.echo", "params": {"text": SECRET}}
    messages = [json.dumps(begin | {"id": number}) for number in range(calls)]
    return subprocess.run(
        [sys.executable, "-m", "substrate", "--stdio", "--activation", DEMO],
        cwd=tmp_path,
        env=clean | {"PYTHONPATH": str(ROOT)} | variables,
        input="".join(f"{message}\n" for message in messages).encode(),
        capture_output=True,
        timeout=WAIT_S,
        check=True,
    )


def test_a_real_server_sends_its_spans_to_a_collector(tmp_path: Path) -> None:
    with running_collector() as collector:
        done = serve_calls(collector.variables | {"OTEL_SERVICE_NAME": "mine"}, 3, tmp_path)
        requests = list(collector.requests)
    assert done.stderr == b""
    assert {path for path, _ in requests} == {"/v1/traces"}
    groups = [group for _, request in requests for group in request.resource_spans]
    resource = {each.key: each.value.string_value for each in groups[0].resource.attributes}
    assert resource["service.name"] == "mine"
    assert resource["service.version"]
    spans = [span for group in groups for scope in group.scope_spans for span in scope.spans]
    assert [span.name for span in spans] == ["demo.echo"] * 3
    assert SECRET not in str(requests)


def test_an_unreachable_collector_does_not_affect_calls(tmp_path: Path) -> None:
    sock = bind(0)
    closed = f"http://127.0.0.1:{sock.getsockname()[1]}"
    sock.close()
    done = serve_calls({"OTEL_EXPORTER_OTLP_ENDPOINT": closed}, 100, tmp_path)
    assert done.stdout.count(b'"type":"complete"') == 100


def test_a_collector_that_never_answers_delays_neither_calls_nor_the_exit(tmp_path: Path) -> None:
    sock = bind(0)  # accepts connections and never answers
    try:
        silent = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{sock.getsockname()[1]}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "600",
            "OTEL_BSP_SCHEDULE_DELAY": "10",
        }
        done = serve_calls(silent, 100, tmp_path)
    finally:
        sock.close()
    assert done.stdout.count(b'"type":"complete"') == 100
