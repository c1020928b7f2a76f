"""The same threshold for every service, as in most alert rules: CPU over 80 %, p99 over 1 s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hopline_mesh.changes import Context
from hopline_mesh.evaluate.baselines.alarm import MIN_DURATION_S
from hopline_mesh.evaluate.baselines.bounds import Bounded
from hopline_mesh.evaluate.baselines.rows import Values
from hopline_mesh.snapshot import Snapshot


class Static(Bounded):
    """Fixed thresholds.

    Args:
        cpu_share: maximum share of a service's CPU limit.
        p99_ms: maximum 99th percentile of its latency.
        error_share: maximum share of failed requests; None: ignored.
        cpu_limits: CPU limit of each service in cores; without it, CPU time is ignored, unless the
            recording has it as a share (column `cpu_share`).
        min_duration_s: see `Bounded`.
    """

    def __init__(
        self,
        *,
        cpu_share: float = 0.8,
        p99_ms: float = 1000.0,
        error_share: float | None = None,
        cpu_limits: Mapping[str, float] | None = None,
        min_duration_s: float = MIN_DURATION_S,
    ) -> None:
        reach = {"cpu_share": cpu_share, "p99_ms": p99_ms}
        if error_share is not None:
            reach["error_share"] = error_share
        super().__init__("static", self._same, min_duration_s=min_duration_s, columns=[*reach, "cpu_cores"])
        self._reach = reach
        self._cpu_share = cpu_share
        self._cpu_limits = cpu_limits or {}
        self._columns_of_nodes: tuple[str, ...] = ()
        self._names: Sequence[str] = ()

    def fit(self, snapshots: Sequence[Snapshot], contexts: Sequence[Context]) -> None:
        """See `Detector.fit`: learns only the interval and the services."""
        self._columns_of_nodes = snapshots[0].schema.node_features
        self._names = snapshots[0].roster.names
        super().fit(snapshots, contexts)

    def _same(self, values: Values) -> tuple[Values, Values]:
        """Return the bounds, the same for all series of a column."""
        _, rows, width = values.shape
        reach = np.full((rows, width), np.nan)
        if width == len(self._columns_of_nodes):
            for column, name in enumerate(self._columns_of_nodes):
                if name == "cpu_cores":
                    reach[:, column] = [
                        self._cpu_share * self._cpu_limits.get(self._names[row], np.nan)
                        for row in range(rows)
                    ]
                else:
                    reach[:, column] = self._reach.get(name, np.nan)
        return np.zeros((rows, width)), reach

    def reach_of_new(self, column: str) -> float:
        """See `Bounded.reach_of_new`: a threshold also applies to new services."""
        return self._reach.get(column, float("nan"))
