"""A service with a real model, from the HTTP request to the span, the access line and the log line."""

import asyncio
import io
import json
import logging
import re
import time

import grpc
import httpx
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hopline.config.reader import load_config
from hopline.records.recorders import AccessLog
from hopline.service import Service
from hopline.transports.http import HttpApp
from hopline.transports.proto import message
from hopline_slo.scrape import Scrape
from hopline_slo.tracing import TraceRecorder
from packages.slo.tests.test_tracing import receiver
from tests.engine import zoo
from tests.warm_start import start
from turnserve.http1.messages import Request

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01".encode()


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    from tests.packaged import package

    root = tmp_path_factory.mktemp("observed")
    graph = zoo.homogeneous(1).save(root / "graph")
    options = {"name": "plain", "fanouts": [4, 3, 5], "task": "multiclass", "check_nodes": 60}
    package(zoo.Plain().eval(), graph, root / "models", **options)
    return root


@pytest.fixture
async def observed(places):
    """A service, its application, and where its spans and lines go."""
    settings = {
        "graph.path": places / "graph",
        "models.repository": places / "models",
        "tracing.sample_share": 0.0,
        "cost.cpu_hour": 36.0,
    }
    service = Service(load_config(overrides=settings))
    # where its recorders send to is this test's own affair
    config = load_config(overrides={**settings, "tracing.endpoint": "console"})
    spans, lines = InMemorySpanExporter(), io.StringIO()
    recorders = [TraceRecorder(config, service.metrics, spans), AccessLog(service.metrics, lines)]
    service.recorders += recorders
    await service.start()
    yield service, HttpApp(service, config), spans, lines
    service.begin_drain()
    assert await service.drain(5)
    for recorder in recorders:
        await recorder.close()
    await service.close()


async def ask(app, body, **headers):
    named = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    waiting = app(Request(b"POST", b"/v1/models/plain/score", named, json.dumps(body).encode()))
    while waiting.response is None:  # noqa: ASYNC110 - a connection would be told
        await asyncio.sleep(0.001)
    return waiting.response


async def settled(read):
    for _ in range(500):
        if found := read():
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("nothing came")


async def test_a_request_leaves_its_trace_its_line_and_its_numbers(observed):
    service, app, spans, lines = observed
    response = await ask(app, {"nodes": ["n1"]}, traceparent=PARENT, x_request_id=b"r-7")
    assert response.status == 200
    await ask(app, {"nodes": ["n2"]})
    found = await settled(spans.get_finished_spans)
    assert [span.name for span in found] == ["queue", "sample", "compute", "post", "score plain"]
    assert {f"{span.context.trace_id:032x}" for span in found} == {TRACE}
    assert found[-1].attributes["hopline.request_id"] == "r-7"
    text = await settled(lambda: lines.getvalue().count("\n") == 2 and lines.getvalue())
    first, second = map(json.loads, text.splitlines())
    assert (first["request_id"], first["status"], first["model"]) == ("r-7", "ok", "plain")
    assert first["version"] == found[-1].attributes["hopline.version"]
    assert second["request_id"] != "r-7"
    page = service.metrics.render(open_metrics=True).decode()
    (exemplar,) = re.findall(r'hopline_stage_seconds_bucket{(.*)} \d+ # {trace_id="(\w+)"} (\S+)', page)
    assert 'model="plain"' in exemplar[0]
    assert 'stage="total"' in exemplar[0]
    assert exemplar[1] == TRACE
    lasted_s = (found[-1].end_time - found[-1].start_time) / 1e9
    assert float(exemplar[2]) == pytest.approx(lasted_s)
    scrape = Scrape(service.metrics.render().decode())
    for stage in ("queue", "sample", "compute", "post"):
        assert scrape.total("hopline_stage_seconds_count", model="plain", stage=stage) == 2
    assert scrape.total("hopline_cpu_seconds_total", model="plain") > 0
    cost = scrape.total("hopline_cost_total", model="plain", currency="USD")
    assert cost == pytest.approx(scrape.total("hopline_cpu_seconds_total") / 100)


async def test_a_failure_in_the_engine_is_logged_with_the_request(observed, caplog, monkeypatch):
    _, app, _, lines = observed
    monkeypatch.setattr("hopline.engine.answer.Answerer.answer", lambda *_: 1 / 0)
    with caplog.at_level(logging.ERROR, "hopline"):
        logging.getLogger("hopline").propagate = True
        response = await ask(app, {"nodes": ["n1"]}, x_request_id=b"r-8")
    assert response.status == 500
    (record,) = [each for each in caplog.records if "engine" in each.message]
    assert record.request_id == "r-8"
    text = await settled(lines.getvalue)
    assert json.loads(text)["status"] == "runtime_failure"


def test_workers_of_a_server_trace_and_log_what_each_of_them_answers(places):
    settings = {
        "models.repository": places / "models",
        "server.http_port": 0,
        "server.grpc_port": 0,
        "server.workers": 2,
        "server.drain_delay_s": 0,
        "tracing.sample_share": 0.0,
        "log.access": "true",
        "log.format": "json",
        "cost.cpu_hour": 1.0,
    }
    with receiver() as (endpoint, got, _):
        arguments = [f"--set={name}={value}" for name, value in settings.items()]
        arguments += [f"--graph={places / 'graph'}", f"--set=tracing.endpoint={endpoint}"]
        process = start(["-m", "hopline.cli", "serve", *arguments])
        try:
            ready = re.search(r"(http://\S+) grpc://(\S+)", process.stdout.readline())
            assert ready, process.stderr.read()
            for number in range(40):  # a connection each, so that both workers get some
                answer = httpx.post(
                    f"{ready[1]}/v1/models/plain/score",
                    json={"nodes": ["n1"]},
                    headers={"traceparent": PARENT.decode(), "x-request-id": f"r-{number}"},
                )
                assert answer.status_code == 200
            with grpc.insecure_channel(ready[2]) as channel:
                infer = channel.unary_unary(
                    "/inference.GRPCInferenceService/ModelInfer",
                    request_serializer=message("inference.ModelInferRequest").SerializeToString,
                    response_deserializer=message("inference.ModelInferResponse").FromString,
                )
                call = message("inference.ModelInferRequest")(model_name="plain", id="r-grpc")
                item = call.inputs.add(name="node_ids", datatype="BYTES", shape=[1])
                item.contents.bytes_contents.append(b"n2")
                infer(call, metadata=[("traceparent", PARENT.decode())], timeout=10)
            end = time.monotonic() + 20
            scrapes = []
            while not scrapes or any(
                each.total("hopline_requests_total", outcome="ok") < 41 for each in scrapes
            ):
                assert time.monotonic() < end, "a worker does not tell what it counted"
                scrapes = [Scrape(httpx.get(f"{ready[1]}/metrics").text) for _ in range(6)]
        finally:
            process.terminate()
            _, errors = process.communicate(timeout=30)
    asked = {f"r-{number}" for number in range(40)} | {"r-grpc"}
    for scrape in scrapes:
        assert scrape.total("hopline_requests_total", outcome="ok") == 41
        for stage in ("queue", "total"):
            assert scrape.total("hopline_stage_seconds_count", stage=stage) == 41
        cpu_s = scrape.total("hopline_cpu_seconds_total")
        assert scrape.total("hopline_cost_total") == pytest.approx(cpu_s / 3600)
        assert 0 < cpu_s < scrape.total("hopline_process_cpu_seconds_total")
    lines = [json.loads(line) for line in errors.splitlines() if "hopline.access" in line]
    assert {line["request_id"] for line in lines} == asked
    spans = [
        (span, resource)
        for _, trace in got
        for resource in trace.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        if span.name == "score plain"
    ]
    assert {value_of(span.attributes, "hopline.request_id") for span, _ in spans} == asked
    assert {span.trace_id.hex() for span, _ in spans} == {TRACE}
    workers = {value_of(resource.resource.attributes, "hopline.worker") for _, resource in spans}
    assert workers <= {0, 1}


def value_of(pairs, name):
    """An attribute as OTLP writes it."""
    (found,) = [getattr(p.value, p.value.WhichOneof("value")) for p in pairs if p.key == name]
    return found
