from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hopline.observe.metrics import Metrics


def sample(metrics: Metrics, name: str, **labels: str) -> float:
    for family in text_string_to_metric_families(metrics.render().decode()):
        for found in family.samples:
            if found.name == name and found.labels == labels:
                return found.value
    raise AssertionError(f"no sample {name} {labels}")


def test_counters_gauges_and_histograms_are_rendered() -> None:
    metrics = Metrics()
    model = metrics.model("m", "1")
    for code in ("ok", "ok", "overloaded"):
        model.outcome(code)
    model.compute.observe(0.0001)
    model.compute.observe(0.03)
    model.compute.observe(99.0)
    metrics.queue_rows("m", "1").set_function(lambda: 7.0)
    labels = {"model": "m", "version": "1"}
    assert sample(metrics, "hopline_requests_total", **labels, outcome="ok") == 2
    compute = {**labels, "stage": "compute"}
    assert sample(metrics, "hopline_stage_seconds_bucket", **compute, le="0.0001") == 1
    assert sample(metrics, "hopline_stage_seconds_bucket", **compute, le="0.05") == 2
    assert sample(metrics, "hopline_stage_seconds_bucket", **compute, le="+Inf") == 3
    assert sample(metrics, "hopline_stage_seconds_count", **compute) == 3
    assert sample(metrics, "hopline_stage_seconds_sum", **compute) == pytest.approx(99.0301)
    assert sample(metrics, "hopline_queue_rows", **labels) == 7


def test_odd_label_values_are_escaped() -> None:
    metrics = Metrics()
    metrics.model('a"b\\c\nd', "1").outcome("ok")
    assert sample(metrics, "hopline_requests_total", model='a"b\\c\nd', version="1", outcome="ok") == 1


def test_a_scrape_of_any_worker_reports_all(tmp_path: Path) -> None:
    workers = [Metrics(tmp_path, slot) for slot in range(2)]
    for slot, worker in enumerate(workers):
        for _ in range(slot + 1):
            worker.model("m", "1").outcome("ok")
            worker.model("m", "1").queue.observe(0.001)
        worker.queue_rows("m", "1").set(5)
        worker.flush()
    for worker in workers:
        assert sample(worker, "hopline_requests_total", model="m", version="1", outcome="ok") == 3
        assert sample(worker, "hopline_stage_seconds_count", model="m", version="1", stage="queue") == 3
        assert sample(worker, "hopline_queue_rows", model="m", version="1") == 10


def test_on_a_full_disk_all_workers_show_the_last_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    workers = [Metrics(tmp_path, slot) for slot in range(2)]
    counted = {"model": "m", "version": "1", "outcome": "ok"}
    for worker in workers:
        worker.model("m", "1").outcome("ok")
        worker.flush()

    def full(path: Path, *args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))

    with monkeypatch.context() as patch:
        patch.setattr("hopline.observe.metrics.write_atomically", full)
        for worker in workers:
            worker.model("m", "1").outcome("ok")
            worker.flush()
            worker.flush()
        assert [sample(worker, "hopline_requests_total", **counted) for worker in workers] == [2, 2]
    said = [record.getMessage() for record in caplog.records if "cannot be written" in record.message]
    assert len(said) == len(workers)
    assert "No space left on device" in said[0]
    for worker in workers:
        worker.flush()
    assert [sample(worker, "hopline_requests_total", **counted) for worker in workers] == [4, 4]


def test_totals_never_go_back_whichever_worker_is_scraped(tmp_path: Path) -> None:
    first, second = Metrics(tmp_path, 0), Metrics(tmp_path, 1)
    seen = []
    for _ in range(5):
        first.model("m", "1").outcome("ok")
        for worker in (first, second):
            seen.append(sample(worker, "hopline_requests_total", model="m", version="1", outcome="ok"))
    assert seen == sorted(seen)


def test_a_restarted_worker_goes_on_from_its_predecessor(tmp_path: Path) -> None:
    first = Metrics(tmp_path, 0)
    first.model("m", "1").outcome("ok")
    first.model("m", "1").queue.observe(0.5)
    first.queue_rows("m", "1").set(5)
    first.flush()
    second = Metrics(tmp_path, 0)
    second.model("m", "1").outcome("ok")
    assert sample(second, "hopline_requests_total", model="m", version="1", outcome="ok") == 2
    assert sample(second, "hopline_stage_seconds_count", model="m", version="1", stage="queue") == 1
    assert sample(second, "hopline_queue_rows", model="m", version="1") == 0


def test_a_name_has_one_meaning() -> None:
    metrics = Metrics()
    with pytest.raises(ValueError, match="already declared"):
        metrics.gauge("hopline_requests_total", "x")
    with pytest.raises(ValueError, match="has labels"):
        metrics.queue_rows("a")


def test_updates_cost_less_than_a_microsecond() -> None:
    model = Metrics().model("m", "1")

    def best(update: object, n: int = 5000) -> float:
        times = []
        for _ in range(15):
            start = time.perf_counter()
            for _ in range(n):
                update(0.001)  # type: ignore[operator]
            times.append((time.perf_counter() - start) / n)
        return min(times)

    # On a busy machine everything is slower: an empty function says by how much.
    limit = max(1e-6, 15 * best(lambda _: None))
    assert best(model.compute.observe) < limit
    assert best(lambda _: model.outcome("ok")) < limit
