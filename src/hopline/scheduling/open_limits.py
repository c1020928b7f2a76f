"""Opens the buckets of rates: this worker's own, or those that it shares with the other workers."""

from __future__ import annotations

from pathlib import Path

from hopline.config.schema import Config
from hopline.scheduling.limiter import Limits, LocalLimits


def open_limits(config: Config) -> Limits:
    """The buckets of this worker, which it shares with the other workers of its server."""
    worker = config.worker
    if worker.count == 1 or not worker.metrics_dir:
        return LocalLimits()
    from hopline.scheduling.shared_limiter import SharedLimits

    return SharedLimits(Path(worker.metrics_dir) / "limits", worker.count)
