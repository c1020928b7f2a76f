"""Spans of requests: as a receiver sees them, with the caller's trace above them."""

import contextlib
import gzip
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hopline.answering.served import Ran
from hopline.config.reader import load_config
from hopline.errors import ConfigError, Overloaded
from hopline.observe.metrics import Metrics
from hopline.types import ScoreRequest, ScoreResult
from hopline_slo.scrape import Scrape
from hopline_slo.tracing import TraceRecorder, open_exporter

SERVED = SimpleNamespace(name="risk", version="7", graph_version="g1")
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"
STAGES = {"sample": 0.001, "compute": 0.004, "post": 0.001}


def config(**settings):
    values = {"tracing.endpoint": "console", "tracing.sample_share": 0.0}
    return load_config(overrides=values | {name.replace("__", "."): v for name, v in settings.items()})


def ran(*parents, outcome=None, stages=STAGES):
    requests = [
        ScoreRequest("risk", nodes=[i], request_id=f"r{i}", traceparent=parent)
        for i, parent in enumerate(parents)
    ]
    result = outcome or ScoreResult("risk", "7", "g1", {"x": np.zeros(1)}, degraded=("stale",))
    count = len(requests)
    return Ran(SERVED, requests, [result] * count, [0.002] * count, 0.006, stages, 1700000000.0)


async def spans_of(*batches, draw=None, **settings):
    exporter, metrics = InMemorySpanExporter(), Metrics()
    more = {} if draw is None else {"draw": draw}
    recorder = TraceRecorder(config(**settings), metrics, exporter, **more)
    for batch in batches:
        recorder.record(batch)
    await recorder.close()
    return exporter.get_finished_spans(), Scrape(metrics.render().decode())


async def test_a_request_is_a_span_with_one_below_for_each_stage():
    spans, scrape = await spans_of(ran(SAMPLED))
    request = next(span for span in spans if span.name == "score risk")
    assert f"{request.context.trace_id:032x}" == TRACE
    assert f"{request.parent.span_id:016x}" == SPAN
    assert request.attributes == {
        "hopline.request_id": "r0",
        "hopline.model": "risk",
        "hopline.version": "7",
        "hopline.graph_version": "g1",
        "hopline.batch_size": 1,
        "hopline.degraded": ("stale",),
    }
    assert request.end_time == 1700000000 * 10**9
    stages = [span for span in spans if span is not request]
    assert [(span.name, (span.end_time - span.start_time) / 1e9) for span in stages] == [
        ("queue", pytest.approx(0.002)),
        ("sample", pytest.approx(0.001)),
        ("compute", pytest.approx(0.004)),
        ("post", pytest.approx(0.001)),
    ]
    for before, after in zip([*stages[:-1]], stages[1:], strict=True):
        assert before.end_time == after.start_time
        assert before.parent.span_id == request.context.span_id
    assert stages[0].start_time == request.start_time
    assert stages[-1].end_time == pytest.approx(request.end_time, abs=10)
    assert scrape.total("hopline_trace_spans_total") == 5
    assert request.resource.attributes["service.name"] == "hopline"


async def test_time_away_for_rows_is_a_span_of_its_own():
    spans, _ = await spans_of(ran(SAMPLED)._replace(away_s=[0.5]))
    request = next(span for span in spans if span.name == "score risk")
    fetch = next(span for span in spans if span.name == "fetch")
    assert (fetch.end_time - fetch.start_time) / 1e9 == pytest.approx(0.5)
    assert (request.end_time - request.start_time) / 1e9 == pytest.approx(0.508)


async def test_a_caller_that_does_not_sample_is_not_traced_and_one_that_does_is():
    batch = ran(UNSAMPLED, SAMPLED, "", UNSAMPLED)
    spans, _ = await spans_of(batch)
    assert [s.attributes["hopline.request_id"] for s in spans if s.name == "score risk"] == ["r1"]
    spans, _ = await spans_of(batch, tracing__sample_share=1.0)
    found = {s.attributes["hopline.request_id"]: s for s in spans if s.name == "score risk"}
    assert set(found) == {"r1", "r2"}
    assert found["r2"].parent is None


@pytest.mark.parametrize(
    "text", ["x", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'z' * 16}-01", "é" * 54 + "1"]
)
async def test_what_is_no_trace_begins_a_new_one(text):
    spans, _ = await spans_of(ran(text), tracing__sample_share=1.0)
    (request,) = [span for span in spans if span.name == "score risk"]
    assert request.parent is None
    assert request.context.trace_id


async def test_a_share_of_the_requests_without_a_trace_is_drawn():
    rng = np.random.default_rng(1)
    batches = [ran(*[""] * 50) for _ in range(80)]
    spans, _ = await spans_of(*batches, draw=rng.random, tracing__sample_share=0.05)
    found = sum(span.name == "score risk" for span in spans)
    assert found == pytest.approx(200, abs=45)  # three standard deviations


async def test_failures_are_errors_and_versions_without_stages_have_compute():
    spans, _ = await spans_of(ran(SAMPLED, outcome=Overloaded("full"), stages={}))
    request = next(span for span in spans if span.name == "score risk")
    assert request.attributes["error.type"] == "overloaded"
    assert request.status.description == "full"
    assert {span.name for span in spans} == {"score risk", "queue", "compute"}


@contextlib.contextmanager
def receiver(status=200):
    """An OTLP/HTTP receiver: its URL, and the requests it got."""
    got, seen = [], threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            got.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(status)
            self.end_headers()
            seen.set()

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got, seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_a_receiver_gets_the_trace():
    with receiver() as (url, got, _):
        recorder = TraceRecorder(config(tracing__endpoint=url, tracing__service_name="fraud"), Metrics())
        recorder.record(ran(SAMPLED, SAMPLED))
        await recorder.close()
    ((path, message),) = got
    assert path == "/v1/traces"
    (resource,) = message.resource_spans
    named = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
    assert named["service.name"] == "fraud"
    spans = [span for scope in resource.scope_spans for span in scope.spans]
    assert len(spans) == 10
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    requests = [span for span in spans if span.name == "score risk"]
    assert {span.parent_span_id.hex() for span in requests} == {SPAN}
    for request in requests:
        below = [span.name for span in spans if span.parent_span_id == request.span_id]
        assert below == ["queue", "sample", "compute", "post"]


async def test_an_export_holds_nobody_up():
    recorded, in_time = threading.Event(), []

    class Slow(InMemorySpanExporter):
        def export(self, spans):
            in_time.append(recorded.wait(60))
            return super().export(spans)

    recorder = TraceRecorder(config(), Metrics(), Slow())
    recorder.record(ran(SAMPLED))
    recorded.set()  # no export ends before
    await recorder.close()
    assert in_time == [True]


@pytest.mark.parametrize("status", [400, None], ids=["refuses", "absent"])
async def test_traces_that_nobody_takes_are_counted(status):
    metrics = Metrics()
    with receiver(status or 200) as (url, _, _):
        endpoint = url if status else "http://127.0.0.1:1"
        recorder = TraceRecorder(config(tracing__endpoint=endpoint), metrics)
        recorder.record(ran(SAMPLED))
        await recorder.close()
    scrape = Scrape(metrics.render().decode())
    assert scrape.total("hopline_traces_dropped_total", reason="export") == 1
    assert scrape.total("hopline_trace_spans_total") == 0


async def test_what_there_is_no_room_for_is_counted():
    batch = ran(*[SAMPLED] * 30)
    _, scrape = await spans_of(batch, batch, batch, tracing__max_pending=40)
    assert scrape.total("hopline_traces_dropped_total", reason="queue") >= 30


@pytest.mark.parametrize("endpoint", ["ftp://x", "collector:4318", "http://", "consle"])
def test_an_endpoint_that_is_none_is_refused(endpoint):
    with pytest.raises(ConfigError, match=r"tracing\.endpoint: "):
        open_exporter(endpoint)


@pytest.mark.parametrize("module", ["hopline.server", "hopline.service", "hopline_slo.tracing"])
def test_servers_that_do_not_trace_do_without_the_sdk(module):
    code = f"import {module}, sys; print([m for m in sys.modules if m.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_request_that_is_not_traced_costs_next_to_nothing():
    recorder = TraceRecorder(config(), Metrics(), InMemorySpanExporter())
    batch = ran(*[""] * 64)
    times = []
    for _ in range(200):
        began = time.perf_counter()
        recorder.record(batch)
        times.append((time.perf_counter() - began) / 64)
    recorder._background._stop.set()
    assert min(times) < 1e-6


@pytest.mark.parametrize(("stages", "has_exemplar"), [(STAGES, True), ({"cache": 0.0}, False)])
async def test_a_cached_answer_is_no_example_of_a_histogram_that_does_not_count_it(stages, has_exemplar):
    metrics, seen = Metrics(), []
    metrics.exemplify = lambda model, version, exemplar: seen.append((model, version))
    recorder = TraceRecorder(config(), metrics, InMemorySpanExporter())
    recorder.record(ran(SAMPLED, stages=stages))
    await recorder.close()
    assert seen == [("risk", "7")] * has_exemplar
