"""A service with a real model, from the HTTP request to the span, the access line and the log line."""

import asyncio
import io
import json
import logging

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hopline.config import load_config
from hopline.observe.scrape import Scrape
from hopline.records.access import AccessLog
from hopline.records.tracing import TraceRecorder
from hopline.service import Service
from hopline.transports.http import HttpApp
from hopline.transports.http_messages import Request
from tests.engine import zoo

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01".encode()


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    from hopline.packaging import package

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
        "tracing.endpoint": "console",
        "tracing.sample_share": 0.0,
        "cost.cpu_hour": 36.0,
    }
    config = load_config(overrides=settings)
    service = Service(config)
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
