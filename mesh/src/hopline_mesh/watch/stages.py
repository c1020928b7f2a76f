"""How long each stage of an interval takes, into the metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from hopline_mesh.out.metrics import MeshMetrics


class Stages:
    """Times stages by name."""

    def __init__(self, metrics: MeshMetrics) -> None:
        self._metrics = metrics

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Count the time of what is done within, failed or not."""
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self._metrics.step_seconds(name).observe(seconds)
            if name == "collect":
                self._metrics.collect_seconds.observe(seconds)
