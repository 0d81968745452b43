"""OpenTelemetry: a span for each run, in the trace that its caller is in.

Off, and nothing of it imported, unless the standard variables ask for it: an address to export to
(`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`) or
`OTEL_TRACES_EXPORTER=otlp`; `OTEL_SDK_DISABLED=true` and `OTEL_TRACES_EXPORTER=none` forbid it.
The library reads all other variables itself.

Where a call comes from is a context variable, because nothing between the transport and the run has
any use for it: whoever watches runs looks here when one begins, which happens in the context of its
request. A run that another run began has that one as its origin, and nothing is to be found here.

A span says what was called and how it ended. It holds no argument, no result and no text of an
error. Spans wait in a bounded queue for a thread that sends them; what does not fit is dropped.
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

if TYPE_CHECKING:  # imported when it is asked for
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ("ORIGIN", "STDIO", "Origin", "Tracing", "WithOrigin", "is_wanted", "open_tracing")

logger = logging.getLogger("substrate.telemetry.tracing")

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
#: What has to be there beside the interface, which other packages bring too.
NEEDED: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
#: How long the last spans may take to be sent when the server ends.
FLUSH_S: Final = 1.0
#: Headers of a request that say which trace it belongs to.
TRACE_HEADERS: Final = {b"traceparent": "traceparent", b"tracestate": "tracestate"}


class Origin(NamedTuple):
    """How a call came in."""

    #: `stdio`, `http` or `websocket`.
    transport: str
    #: The trace context in its headers, if any.
    trace: Mapping[str, str] | None = None


STDIO: Final = Origin("stdio")
ORIGIN: Final[ContextVar[Origin | None]] = ContextVar("origin", default=None)


class WithOrigin:
    """Around an app: whatever it does for a request is known to come from there."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Note the origin and pass the request on. Every request has a context of its own."""
        if scope["type"] != "lifespan":
            found = {
                TRACE_HEADERS[name]: value.decode("latin-1")
                for name, value in scope["headers"]
                if name in TRACE_HEADERS
            }
            ORIGIN.set(Origin(scope["type"], found if "traceparent" in found else None))
        await self._app(scope, receive, send)


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Whether the variables ask for spans."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter:
        return exporter == "otlp"
    return any(environ.get(name) for name in ENDPOINTS)


def open_tracing(runs: Runs) -> Tracing | None:
    """Trace these runs as the variables say; None, with a word about it, if that cannot be."""
    if not all(map(_is_there, NEEDED)):
        logger.warning(
            "OTEL_* variables ask for spans, but the packages for that are not installed: "
            "pip install 'plexus-substrate[otel]'"
        )
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # While nobody takes them, one line for each batch that is given up says enough.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)
    # What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say wins over this.
    ours = Resource({"service.name": "substrate", "service.version": __version__})
    provider = TracerProvider(resource=ours.merge(Resource.create()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(runs, provider)


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # not even what it lies in
        return False


class Tracing:
    """Makes the spans of a hub's runs."""

    def __init__(self, runs: Runs, provider: TracerProvider) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("substrate", __version__)
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._open: dict[int, Span] = {}
        self._stops: list[Callable[[], None]] = [
            runs.on_start(self._began),
            runs.on_end(self._ended),
        ]

    def _began(self, run: Run, _: Mapping[str, Any], given: Mapping[str, str] | None) -> None:
        kinds = self._trace.SpanKind
        self._open[run.id] = self._tracer.start_span(
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
        """What the span belongs under: the run that began this one, what came with the message,
        or what came with the request around it."""
        from opentelemetry.context import Context

        # Empty, so that a span of somebody else in this process is not taken for the parent.
        nothing = Context()
        if run.parent is not None:
            parent = self._open.get(run.parent)
            return nothing if parent is None else self._trace.set_span_in_context(parent, nothing)
        if given is None:
            origin = ORIGIN.get()
            given = None if origin is None else origin.trace
        return nothing if given is None else self._propagator.extract(given, nothing)

    def _ended(self, run: Run) -> None:
        span = self._open.pop(run.id, None)
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
        """Make no more spans, and send the last ones if whoever takes them is there."""
        for stop in self._stops:
            stop()
        # It may try for longer than anybody waits, so it is left to end with the process.
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(FLUSH_S)
