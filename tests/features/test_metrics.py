"""What the feature client does is in the metrics page, for one worker and for several."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hopline.features.base import FeatureGroup
from hopline.features.client import FeatureClient
from hopline.features.memory import MemoryStore
from hopline.features.metrics import FeatureMetrics
from hopline.observe.metrics import Metrics
from hopline_stores.testing.faulty_store import FaultyStore

GROUP = FeatureGroup("account", 4)


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """(name, label values …) -> value."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
        if "feature" in sample.name or "degraded" in sample.name
    }


async def store() -> FaultyStore:
    inner = MemoryStore()
    await inner.create(GROUP)
    await inner.write(GROUP, list(range(100)), np.ones((100, 4), np.float32))
    return FaultyStore(inner)


async def test_calls_rows_and_breakers_are_shown() -> None:
    metrics = Metrics()
    l2 = FaultyStore(MemoryStore())
    origin = await store()
    client = FeatureClient(GROUP, origin, l2, timeout_s=1.0, metrics=FeatureMetrics(metrics))
    await client.check_schema(GROUP)
    await client.fetch(np.array([1, 2, 1000]), [1, 2, 1000])
    await client.join()
    await client.fetch(np.array([1, 1000]), [1, 1000])
    seen = samples(metrics)
    assert seen["hopline_feature_fetch_seconds_count", "faulty", "l2"] == 2
    assert seen["hopline_feature_fetch_seconds_count", "faulty", "origin"] == 1
    assert seen["hopline_feature_calls_total", "l2", "ok"] == 2
    assert seen["hopline_feature_rows_total", "l2", "found"] == 1
    assert seen["hopline_feature_rows_total", "l2", "missing"] == 3
    assert seen["hopline_feature_rows_total", "l2", "written"] == 2
    assert seen["hopline_feature_rows_total", "origin", "found"] == 2
    assert seen["hopline_feature_rows_total", "origin", "missing"] == 1
    assert seen["hopline_feature_rows_total", "memory", "missing"] == 1
    assert seen["hopline_feature_breaker_state", "origin"] == 0
    origin.kill()
    for id in range(10, 20):
        await client.fetch(np.array([id]), [id])
    seen = samples(metrics)
    assert seen["hopline_feature_breaker_state", "origin"] == 1
    assert seen["hopline_feature_breaker_state", "l2"] == 0
    assert seen["hopline_feature_calls_total", "origin", "unavailable"] == 4
    assert seen["hopline_feature_rows_total", "origin", "breaker_open"] == 6
    await client.close()


def test_open_breakers_of_all_workers_are_added_up(tmp_path: Path) -> None:
    workers = [Metrics(tmp_path, slot) for slot in range(3)]
    for slot, worker in enumerate(workers):
        features = FeatureMetrics(worker)
        features.breaker("origin", 0)
        if slot:
            features.breaker("origin", 1)
        features.retried("origin")
        worker.flush()
    seen = samples(workers[0])
    assert seen["hopline_feature_breaker_state", "origin"] == 2
    assert seen["hopline_feature_retries_total", "origin"] == 3


def test_two_clients_of_one_process_share_the_families() -> None:
    metrics = Metrics()
    for features in (FeatureMetrics(metrics), FeatureMetrics(metrics)):
        features.rows("origin", "found", 3)
    assert samples(metrics)["hopline_feature_rows_total", "origin", "found"] == 6


def test_a_family_of_another_meaning_is_refused() -> None:
    metrics = Metrics()
    metrics.gauge("hopline_feature_retries_total", "x")
    with pytest.raises(ValueError, match="already declared"):
        FeatureMetrics(metrics)
