"""All pods of the mesh, as columns.

A pod is created, starts, becomes ready, may crash and restart, is deleted and disappears. Knows no
deployments; the caller decides the number of pods.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.simulate.columns import Columns
from hopline_mesh.simulate.lognormal import Floats

#: From creation to the first ready probe, and from deletion until it is gone, in seconds.
START_S = 12.0
GRACE_S = 20.0
#: A new process is slow until caches are warm.
COLD_S = 60.0

_COLUMNS = np.dtype(
    [
        ("serial", np.int64),  # unique, never reused
        ("service", np.int64),
        ("revision", np.int64),  # version of the service
        ("node", np.int64),  # machine
        ("created_s", np.float64),
        ("started_s", np.float64),  # the container's last start
        ("ready_s", np.float64),  # when it becomes ready
        ("deleted_s", np.float64),  # when its termination began; inf
        ("down_s", np.float64),  # its container does not run until then; -inf
        ("restarts", np.int64),
        ("last_start_s", np.float64),  # of the container that ended last
        ("ended_s", np.float64),  # when that was
        ("evicted", np.bool_),  # terminated because its node is drained
        ("oom", np.bool_),  # its last end was an OOM kill
        ("leaked", np.float64),  # bytes that it will never free
        ("phase", np.float64),  # of its garbage collection, 0 to 1
        ("cpu_cores", np.float64),  # in use
        ("cpu_s", np.float64),  # used since its start
        ("memory_bytes", np.float64),  # in use
    ]
)


class Pods(Columns):
    """All pods, in order of creation; `pods.service` is the column of that name."""

    def __init__(self, machines: int) -> None:
        super().__init__(_COLUMNS)
        self.machines = machines
        self._next = 0

    def create(
        self,
        service: int,
        count: int,
        revision: int,
        now_s: float,
        rng: np.random.Generator,
        start_s: float,
    ) -> None:
        """Add pods that become ready about `start_s` seconds from now; never if it is inf."""
        added = self.added(count)
        added["serial"] = np.arange(self._next, self._next + count)
        self._next += count
        added["ready_s"] = now_s + start_s * rng.uniform(0.7, 1.6, count)
        added["service"], added["revision"] = service, revision
        added["node"] = rng.integers(self.machines, size=count)
        for name in ("created_s", "started_s", "last_start_s"):
            added[name] = now_s
        added["deleted_s"] = np.inf
        added["down_s"] = added["ended_s"] = -np.inf
        added["phase"] = rng.random(count)

    def delete(self, rows: NDArray[np.int64], now_s: float, *, evicted: bool = False) -> None:
        """Terminate pods; they no longer get requests."""
        self.evicted[rows] = evicted
        self.deleted_s[rows] = np.minimum(self.deleted_s[rows], now_s)

    def forget(self, now_s: float) -> None:
        """Drop pods that are gone."""
        self.keep(self.deleted_s + GRACE_S > now_s)

    def ready(self, now_s: float) -> NDArray[np.bool_]:
        """Mask of the pods that get requests."""
        serves: NDArray[np.bool_] = (
            (self.ready_s <= now_s) & (self.deleted_s > now_s) & (self.down_s <= now_s)
        )
        return serves

    def staying(self) -> NDArray[np.bool_]:
        """Mask of the pods that are not terminating."""
        stays: NDArray[np.bool_] = np.isinf(self.deleted_s)
        return stays

    def restart(self, rows: NDArray[np.int64], now_s: float, pause_s: Floats, oom: bool) -> None:
        """Crash containers, which restart after a pause."""
        self.restarts[rows] += 1
        self.last_start_s[rows] = self.started_s[rows]
        self.ended_s[rows] = now_s
        self.oom[rows] = oom
        self.leaked[rows] = 0.0
        self.down_s[rows] = now_s + pause_s
        self.started_s[rows] = now_s + pause_s
        self.ready_s[rows] = now_s + pause_s + 6.0

    def slowness(self, now_s: float) -> Floats:
        """Return the factor on the usual time of a request in each pod: cold caches at first."""
        age = np.clip((now_s - self.ready_s) / COLD_S, 0.0, 1.0)
        return 1.0 + 0.8 * (1.0 - age) ** 2
