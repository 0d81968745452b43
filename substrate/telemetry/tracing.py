"""OpenTelemetry tracing: a span for each run, in the trace of its caller.

Tracing is off, and the library is not imported, unless the standard variables enable it: an export
address (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`) or
`OTEL_TRACES_EXPORTER=otlp`. `OTEL_SDK_DISABLED=true` and `OTEL_TRACES_EXPORTER=none` disable it.
The library reads all other variables itself.

The origin of a call is a context variable, because nothing between the transport and the run uses
it. Observers read it when a run starts, which happens in the context of its request. A run that
another run started has that one as its parent, and its origin is not set.

A span contains the method and the outcome, but no arguments, results or error texts. Spans wait in
a bounded queue for the thread that exports them; when the queue is full, spans are dropped.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from plexus.events import ErrorEvent
from plexus.runtime.run import Run
from plexus.runtime.runs import Runs
from plexus.version import __version__

if TYPE_CHECKING:  # imported at run time only if tracing is enabled
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ("ORIGIN", "STDIO", "Origin", "OriginMiddleware", "Tracing", "is_enabled", "open_tracing")

logger = logging.getLogger("substrate.telemetry.tracing")

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
#: Packages that are required in addition to the API, which other packages may have installed.
REQUIRED_PACKAGES: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
#: Seconds to export the last spans when the server stops.
FLUSH_S: Final = 1.0
#: W3C trace context headers.
TRACE_HEADERS: Final = {b"traceparent": "traceparent", b"tracestate": "tracestate"}


class Origin(NamedTuple):
    """The origin of a call: its transport and trace context."""

    #: `stdio`, `http` or `websocket`.
    transport: str
    #: The trace context in the request headers, if any.
    trace: Mapping[str, str] | None = None


STDIO: Final = Origin("stdio")
ORIGIN: Final[ContextVar[Origin | None]] = ContextVar("origin", default=None)


class OriginMiddleware:
    """ASGI middleware that records the origin of each request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Set the origin and call the app. Every request has a separate context."""
        if scope["type"] != "lifespan":
            found = {
                TRACE_HEADERS[name]: value.decode("latin-1")
                for name, value in scope["headers"]
                if name in TRACE_HEADERS
            }
            ORIGIN.set(Origin(scope["type"], found if "traceparent" in found else None))
        await self._app(scope, receive, send)


def is_enabled(environ: Mapping[str, str]) -> bool:
    """Whether the environment variables enable tracing."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter:
        return exporter == "otlp"
    return any(environ.get(name) for name in ENDPOINTS)


def open_tracing(runs: Runs) -> Tracing | None:
    """Start tracing. Returns None and logs a warning if packages are missing."""
    if not all(map(_is_installed, REQUIRED_PACKAGES)):
        logger.warning(
            "OTEL_* variables enable tracing, but its packages are not installed. Run "
            "pip install 'plexus-substrate[otel]' to install them"
        )
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # While the endpoint is unreachable, one line for each dropped batch is enough.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override these.
    ours = Resource({"service.name": "substrate", "service.version": __version__})
    provider = TracerProvider(resource=ours.merge(Resource.create()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(runs, provider)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False


class Tracing:
    """Creates the spans of a hub's runs."""

    def __init__(self, runs: Runs, provider: TracerProvider) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("substrate", __version__)
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._spans: dict[int, Span] = {}
        self._unsubscribe_callbacks: list[Callable[[], None]] = [
            runs.on_start(self._on_start),
            runs.on_end(self._on_end),
        ]

    def _on_start(self, run: Run, _: Mapping[str, Any], given: Mapping[str, str] | None) -> None:
        kinds = self._trace.SpanKind
        self._spans[run.id] = self._tracer.start_span(
            run.method,
            self._context(run, given),
            kinds.SERVER if run.parent is None else kinds.INTERNAL,
            {
                "rpc.system": "jsonrpc",
                "rpc.method": run.method,
                "substrate.run": run.id,
                "substrate.principal": run.principal.name,
            },
        )

    def _context(self, run: Run, given: Mapping[str, str] | None) -> Context:
        """Return the parent context of a span.

        It is the run that started this one, else the trace context of the message, else that of
        the request that carried the message.
        """
        from opentelemetry.context import Context

        # Empty, so that no other span in this process becomes the parent.
        empty = Context()
        if run.parent is not None:
            parent = self._spans.get(run.parent)
            return empty if parent is None else self._trace.set_span_in_context(parent, empty)
        if given is None:
            origin = ORIGIN.get()
            given = None if origin is None else origin.trace
        return empty if given is None else self._propagator.extract(given, empty)

    def _on_end(self, run: Run) -> None:
        span = self._spans.pop(run.id, None)
        terminal = run.terminal
        if span is None or terminal is None:
            return
        span.set_attributes(
            {
                "substrate.outcome": terminal.type,
                "substrate.items": run.log.last,
                "substrate.bytes": run.log.total,
            }
        )
        if isinstance(terminal, ErrorEvent):
            span.set_attribute("error.type", terminal.code)
            span.set_status(self._trace.StatusCode.ERROR)
        span.end()

    def close(self) -> None:
        """Stop creating spans and export the last ones, for at most `FLUSH_S`."""
        for stop in self._unsubscribe_callbacks:
            stop()
        # The library may retry for longer. The thread is then left to end with the process.
        exporter = threading.Thread(target=self._provider.shutdown, daemon=True)
        exporter.start()
        exporter.join(FLUSH_S)
