"""OpenTelemetry traces of requests: one span per request, with a child span per stage.

    score risk ────────────────────────────────────   (child of the caller's span, if there is one)
      queue ──────── sample ─── compute ──────── post ─

A request of a caller that traces is traced if the caller's trace is sampled (the flag of `traceparent`);
of all other requests a share is sampled. Spans are built and sent on a thread, after the answer, from
times that are measured anyway. Sent traces become exemplars of the latency histogram. The SDK is imported
only if tracing is on.
"""

from __future__ import annotations

import logging
import math
import random
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from hopline.answering.served import Ran
from hopline.config.schema import Config
from hopline.errors import ConfigError, HoplineError
from hopline.observe.exposition import Exemplar
from hopline.observe.metrics import Metrics
from hopline.records.background import BackgroundQueue
from hopline.records.pace import Pace

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

log = logging.getLogger("hopline.tracing")

#: Length of a `traceparent` of version 00, whose last digit has the sampled flag.
_LENGTH = 55
_SAMPLED = frozenset("13579bdf")
#: Spans per export: encoding holds the GIL for 20 µs per span.
_TOGETHER = 64


class TraceRecorder:
    """A `Recorder` that sends traces; one for each worker.

    Args:
        config: section `tracing` (its `endpoint` is set) and the worker's index.
        metrics: counts sent and dropped traces.
        exporter: exporter of spans; None creates the one for the endpoint.
        draw: returns a random number in [0, 1).

    Raises: ConfigError: the endpoint is invalid, or the SDK is not installed.
    """

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        exporter: SpanExporter | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        settings = config.tracing
        self._exporter = exporter or open_exporter(settings.endpoint)
        self._spans: list[ReadableSpan] = []
        self._metrics = metrics
        #: Of the spans that are not sent yet: model, version and exemplar.
        self._exemplars: list[tuple[str, str, Exemplar]] = []
        self._tracer = _tracer(settings.service_name, config.worker.index, self._spans)
        self._share = settings.sample_share
        self._draw = draw
        self._until = self._gap()
        self._pace = Pace()
        self._sent = metrics.counter("hopline_trace_spans_total", "Spans sent.")()
        lost = metrics.counter(
            "hopline_traces_dropped_total", "Sampled requests whose trace was dropped.", ("reason",)
        )
        self._refused = lost("export")
        self._complained = False
        self._background: BackgroundQueue[tuple[Ran, list[int]]] = BackgroundQueue(
            "hopline-traces", self._send, settings.max_pending, lost("queue")
        )

    def record(self, ran: Ran) -> None:
        """Record the requests that are traced: 0.1 µs for each one that is not."""
        picked = None
        for at, request in enumerate(ran.requests):
            parent = request.traceparent
            if parent and len(parent) == _LENGTH:
                if parent[-1] not in _SAMPLED:
                    continue
            elif self._until > 0:
                self._until -= 1
                continue
            else:
                self._until = self._gap()
            if picked is None:
                picked = [at]
            else:
                picked.append(at)
        if picked is not None:
            self._background.put((ran, picked), len(picked))

    async def close(self) -> None:
        """Send pending spans."""
        await self._background.close()
        self._exporter.shutdown()

    def _gap(self) -> float:
        """Number of requests until the next sampled one: one random number instead of one per request."""
        if self._share >= 1:
            return 0
        if self._share <= 0:
            return math.inf
        return math.floor(math.log(1 - self._draw()) / math.log(1 - self._share))

    # The thread

    def _send(self, pending: Iterator[tuple[Ran, list[int]]]) -> None:
        num_traces = 0
        for ran, picked in pending:
            for at in picked:
                if ran.outcomes[at] is not None:
                    self._make(ran, at)
                    num_traces += 1
                    self._pace()
                if len(self._spans) >= _TOGETHER:
                    self._export(num_traces)
                    num_traces = 0
        self._export(num_traces)

    def _make(self, ran: Ran, at: int) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        request, outcome, queue_s = ran.requests[at], ran.outcomes[at], ran.queue_s[at]
        ended = int(ran.ended * 1e9)
        started = ended - int(ran.compute_s * 1e9)
        fetching = started - int((ran.away_s[at] if ran.away_s else 0.0) * 1e9)
        queued = fetching - int(queue_s * 1e9)
        attributes: dict[str, Any] = {
            "hopline.request_id": request.request_id,
            "hopline.model": ran.served.name,
            "hopline.version": ran.served.version,
            "hopline.graph_version": ran.served.graph_version,
            "hopline.batch_size": len(ran.requests),
        }
        if request.client:
            attributes["hopline.client"] = request.client
        if request.is_copy:
            attributes["hopline.copy"] = True
        if isinstance(outcome, HoplineError):
            attributes["error.type"] = outcome.code
        elif outcome is not None and outcome.degraded:
            attributes["hopline.degraded"] = list(outcome.degraded)
        span = self._tracer.start_span(
            f"score {ran.served.name}",
            _parent(request.traceparent),
            SpanKind.SERVER,
            attributes,
            start_time=queued,
        )
        inside = set_span_in_context(span)
        # The request may have been queued before and after it waited for rows; both times form one span.
        self._tracer.start_span("queue", inside, start_time=queued).end(fetching)
        if fetching != started:
            self._tracer.start_span("fetch", inside, start_time=fetching).end(started)
        begun = started
        for name, seconds in (ran.stages or {"compute": ran.compute_s}).items():
            until = begun + int(seconds * 1e9)
            self._tracer.start_span(name, inside, start_time=begun).end(until)
            begun = until
        if isinstance(outcome, HoplineError):
            span.set_status(Status(StatusCode.ERROR, str(outcome)))
        elif not request.is_copy and "cache" not in ran.stages:  # the histogram does not count those
            trace_id = f"{span.get_span_context().trace_id:032x}"
            exemplar = Exemplar(trace_id, (ended - queued) / 1e9, ran.ended)
            self._exemplars.append((ran.served.name, ran.served.version, exemplar))
        span.end(ended)

    def _export(self, num_traces: int) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        if not self._spans:
            return
        spans, exemplars = list(self._spans), list(self._exemplars)
        self._spans.clear()
        self._exemplars.clear()
        if self._exporter.export(spans) is SpanExportResult.SUCCESS:
            self._sent.inc(len(spans))
            for model, version, exemplar in exemplars:  # only traces that can be found
                self._metrics.exemplify(model, version, exemplar)
            return
        self._refused.inc(num_traces)
        if not self._complained:
            self._complained = True
            log.warning("traces: the endpoint accepts none; they are dropped and counted (logged once)")


def open_exporter(endpoint: str) -> SpanExporter:
    """The exporter for an endpoint: "console", or the URL of an OTLP/HTTP receiver.

    Raises: ConfigError: the endpoint is neither, or the SDK is not installed.
    """
    if endpoint == "console":
        exporters = _imported("opentelemetry.sdk.trace.export")
        console: SpanExporter = exporters.ConsoleSpanExporter(out=sys.stderr)
        return console
    scheme, _, rest = endpoint.partition("://")
    if scheme not in ("http", "https") or not rest:
        raise ConfigError(
            f"tracing.endpoint: {endpoint!r} must be 'console' or a URL such as http://127.0.0.1:4318"
        )
    if "/" not in rest.rstrip("/"):
        endpoint = f"{endpoint.rstrip('/')}/v1/traces"
    otlp = _imported("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    # Without the exporter's retries, which would block the queue; rejected spans are dropped and counted.
    sender: SpanExporter = otlp.OTLPSpanExporter(endpoint=endpoint, timeout=2)
    return sender


def _imported(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"tracing.endpoint needs {error.name}: pip install 'hopline[otel]'") from None


def _tracer(service: str, worker: int, spans: list[ReadableSpan]) -> Any:
    """A tracer that appends ended spans to `spans`."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    from hopline import __version__

    class Collect(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            spans.append(span)

    resource = Resource.create(
        {"service.name": service, "service.version": __version__, "hopline.worker": worker}
    )
    provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(Collect())
    return provider.get_tracer("hopline", __version__)


def _parent(traceparent: str) -> Any:
    """The parent context of a span; a new trace if the text is not a valid traceparent."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not traceparent:
        return Context()
    return TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())
