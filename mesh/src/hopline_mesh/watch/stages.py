"""Timing of the stages of an interval, for metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from hopline_mesh.out.metrics import MeshMetrics


class Stages:
    """Measures the time of stages by name."""

    def __init__(self, metrics: MeshMetrics) -> None:
        self._metrics = metrics

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Record the time of the `with` block, also if it fails."""
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self._metrics.step_seconds(name).observe(seconds)
            if name == "collect":
                self._metrics.collect_seconds.observe(seconds)
