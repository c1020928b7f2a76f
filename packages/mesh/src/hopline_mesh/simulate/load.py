"""The rate of requests that enter the mesh: a daily pattern, slow drift, noise and bursts."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hopline_mesh.simulate.plan import MeshPlan
from hopline_mesh.simulate.topology import Floats

_DAY_S = 86_400.0


class _Burst(NamedTuple):
    entry: int
    start_s: float
    end_s: float
    height: float


class Load:
    """Requests per second at each entry; call `rates` with growing times."""

    def __init__(self, plan: MeshPlan, shares: Floats, rng: np.random.Generator) -> None:
        self._plan, self._rng = plan, rng
        self._base = shares * plan.rate
        self._entries = np.flatnonzero(shares)
        self._drift = np.zeros(len(shares))
        self._bursts: list[_Burst] = []

    def rates(self, time_s: float, step_s: float) -> Floats:
        """Return requests per second at a time.

        Args:
            time_s: Unix seconds.
            step_s: since the last call.
        """
        day = 2.0 * math.pi * (time_s / _DAY_S - 3.0 / 24.0)
        level = 1.0 - self._plan.daily * (0.85 * math.cos(day) + 0.15 * math.cos(2.0 * day))
        keep = math.exp(-step_s / 600.0)
        shock = self._rng.standard_t(4, len(self._base))
        self._drift = keep * self._drift + math.sqrt(1.0 - keep * keep) * 0.05 * self._plan.noise * shock
        rates = self._base * level * np.exp(self._drift)
        if self._entries.size and self._rng.random() < self._plan.bursts_per_hour / 3600.0 * step_s:
            length = self._rng.uniform(120.0, 600.0)
            entry = int(self._rng.choice(self._entries))
            self._bursts.append(_Burst(entry, time_s, time_s + length, self._rng.uniform(0.3, 1.2)))
        self._bursts = [burst for burst in self._bursts if burst.end_s > time_s]
        for burst in self._bursts:
            # Rises within half a minute and falls as fast.
            shape = min(1.0, (time_s - burst.start_s + step_s) / 30.0, (burst.end_s - time_s) / 30.0)
            rates[burst.entry] *= 1.0 + burst.height * max(0.0, shape)
        return rates
