"""OpenMetrics: read by prometheus_client's parser and scraped by a real Prometheus, exemplars included."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from hopline.config.schema import Config
from hopline.observe.exposition import Exemplar, wants_open_metrics
from hopline.observe.metrics import Metrics
from hopline.transports.http import HttpApp
from hopline_brokers.stream.follow import metrics_port
from tests.fake_service import FakeService
from tests.prometheus_server import prometheus
from turnserve.http1.messages import Request

TRACE = "0af7651916cd43dd8448eb211c80319c"
#: What Prometheus 2.42 sends.
PROMETHEUS = (
    b"application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    b"text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


def filled(directory: Path | None = None, slot: int = 0) -> Metrics:
    metrics = Metrics(directory, slot)
    model = metrics.model('m"\\', "1")
    model.outcome("ok", 3)
    model.total.observe_all([0.0015, 0.0018, 99.0])
    metrics.queue_rows("m", "1").set(2.5)
    metrics.exemplify('m"\\', "1", Exemplar(TRACE, 0.0015, 1_700_000_000.25))
    metrics.counter("hopline_text_total", 'Says "a\\b".')().inc()
    return metrics


def families(metrics: Metrics) -> dict[str, Any]:
    text = metrics.render(open_metrics=True).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def exemplars(metrics: Metrics) -> dict[str, Any]:
    """le -> exemplar, of the latency histogram."""
    samples = families(metrics)["hopline_stage_seconds"].samples
    return {s.labels["le"]: s.exemplar for s in samples if s.exemplar}


def test_a_strict_parser_reads_the_same_numbers_as_from_the_text_format() -> None:
    metrics = filled()
    metrics.render()  # process time moves on
    found = families(metrics)
    wanted = {family.name: family for family in text_families(metrics.render().decode())}
    assert found.keys() == wanted.keys()
    for name, family in found.items():
        assert (family.type, family.documentation) == (wanted[name].type, wanted[name].documentation)
        if name == "hopline_process_cpu_seconds":
            continue
        read = {(s.name, *sorted(s.labels.items())): s.value for s in family.samples}
        assert read == {(s.name, *sorted(s.labels.items())): s.value for s in wanted[name].samples}


def test_the_text_ends_as_the_format_requires() -> None:
    assert filled().render(open_metrics=True).endswith(b"\n# EOF\n")
    assert b"EOF" not in filled().render()


def test_an_exemplar_is_on_the_bucket_of_its_value() -> None:
    found = exemplars(filled())
    assert found.keys() == {"0.002"}
    assert found["0.002"].labels == {"trace_id": TRACE}
    assert (found["0.002"].value, float(found["0.002"].timestamp)) == (0.0015, 1_700_000_000.25)
    assert TRACE.encode() not in filled().render()  # the text format has none


def test_a_later_exemplar_replaces_an_earlier_one_and_an_unknown_model_has_none() -> None:
    metrics = filled()
    metrics.exemplify('m"\\', "1", Exemplar("b" * 32, 0.0019, 1_800_000_000.0))
    metrics.exemplify('m"\\', "1", Exemplar("c" * 32, 0.0019, 1_600_000_000.0))
    metrics.exemplify('m"\\', "1", Exemplar("d" * 32, 99.0, 1_800_000_000.0))
    metrics.exemplify("unloaded", "1", Exemplar("e" * 32, 99.0, 1_800_000_000.0))
    assert {le: each.labels["trace_id"][0] for le, each in exemplars(metrics).items()} == {
        "0.002": "b",
        "+Inf": "d",
    }
    assert not any("unloaded" in str(family.samples) for family in families(metrics).values())


def test_every_worker_shows_the_latest_exemplar_of_all(tmp_path: Path) -> None:
    workers = [filled(tmp_path, 0), filled(tmp_path, 1)]
    workers[1].exemplify('m"\\', "1", Exemplar("f" * 32, 0.0012, 1_900_000_000.0))
    for worker in workers:
        worker.flush()
    for worker in workers:
        assert exemplars(worker)["0.002"].labels == {"trace_id": "f" * 32}


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        (None, False),
        (b"", False),
        (b"*/*", False),
        (b"text/plain", False),
        (b"application/json", False),
        (PROMETHEUS, True),
        (b"application/openmetrics-text", True),
        (b"Application/OpenMetrics-Text; Version=1.0.0", True),
        (b"application/openmetrics-text;version=2.0.0", False),
        (b"application/openmetrics-text;q=0", False),
        (b"application/openmetrics-text;q=0.3, text/plain;q=0.9", False),
        (b"application/openmetrics-text;q=abc", False),
        (b";;,=,;q", False),
        (b"application/openmetrics-text" + b"," * 64_000, False),
    ],
)
def test_the_scraper_chooses_the_format(accept: bytes | None, is_open: bool) -> None:
    assert wants_open_metrics(accept) is is_open
    app = HttpApp(FakeService(Config()), Config())
    answer = app(Request(b"GET", b"/metrics", {} if accept is None else {b"accept": accept}))
    assert answer.content_type.startswith(b"application/openmetrics-text" if is_open else b"text/plain")
    assert b"vary: accept" in answer.headers
    assert answer.body.endswith(b"# EOF\n") is is_open


@pytest.mark.release
async def test_prometheus_scrapes_openmetrics_and_stores_exemplars(tmp_path: Path) -> None:
    """From the port of `hopline stream`."""
    metrics = Metrics()
    metrics.model("m", "1").total.observe(0.0015)
    metrics.exemplify("m", "1", Exemplar(TRACE, 0.0015, time.time()))
    async with metrics_port(metrics, "127.0.0.1", 0) as port:
        config = (
            "scrape_configs:\n- job_name: hopline\n  scrape_interval: 100ms\n  scrape_timeout: 100ms\n"
            f"  static_configs:\n  - targets: ['127.0.0.1:{port}']\n"
        )
        found = await asyncio.to_thread(_exemplars_of, tmp_path, config)
    assert found["labels"] == {"trace_id": TRACE}
    assert float(found["value"]) == 0.0015


def _exemplars_of(folder: Path, config: str) -> dict[str, Any]:
    """The first exemplar that Prometheus has scraped."""
    with prometheus(folder / "data", config, options=["--enable-feature=exemplar-storage"]) as url:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            asked = {"query": "hopline_stage_seconds_bucket", "start": "0", "end": str(time.time() + 60)}
            series = httpx.get(f"{url}/api/v1/query_exemplars", params=asked).json()["data"]
            if series:
                assert series[0]["seriesLabels"]["le"] == "0.002"
                return dict(series[0]["exemplars"][0])
            time.sleep(0.1)
    raise AssertionError("Prometheus has scraped no exemplar")
