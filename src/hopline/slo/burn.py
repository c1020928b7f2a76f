"""Remaining error budgets and their burn rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hopline.observe.scrape import Scrape
from hopline.slo import promql
from hopline.slo.counts import buckets_of, count, quantile
from hopline.slo.objectives import LATENCIES, Objective
from hopline.slo.prometheus import Prometheus

#: Windows of burn rates: rate 1 uses the budget up exactly at the end of the objective's window.
BURN_WINDOWS = ("5m", "1h", "6h", "3d")


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of one objective.

    Attributes:
        over: measured period, in words.
        requests: valid requests in that period.
        bad_share: share of bad requests.
        measured: in the unit of the objective's target; None without requests.
        burn: window -> burn rate; None without requests. Only Prometheus stores windows.
    """

    objective: Objective
    over: str
    requests: float
    bad_share: float
    measured: float | None
    burn: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def budget_left(self) -> float:
        """Share of the budget that is left; below 0 if the objective is missed."""
        return 1 - self.bad_share / self.objective.budget

    @property
    def is_burnt(self) -> bool:
        """True if the budget is used up."""
        # the exact target meets the objective, despite the rounding of 1 - 0.999
        return self.budget_left < -1e-9


def since_start(scrape: Scrape, objectives: Sequence[Objective]) -> list[Standing]:
    """Measure with the counters of a server, which begin when it starts."""
    standings = []
    for objective in objectives:
        found = count(scrape, objective)
        measured = _measured(objective, found.share) if found.valid else None
        if objective.kind in LATENCIES:
            seconds = quantile(buckets_of(scrape, objective), 0.99)
            measured = None if seconds is None else 1e3 * seconds
        standings.append(Standing(objective, "since start", found.valid, found.share, measured))
    return standings


def over_window(prometheus: Prometheus, objectives: Sequence[Objective]) -> list[Standing]:
    """Measure with Prometheus, over each objective's own window.

    Raises: Unavailable, BadRequest: see `Prometheus.value`.
    """
    standings = []
    for objective in objectives:
        window = f"{objective.window_days}d"
        requests = prometheus.value(promql.valid(objective, window)) or 0.0
        share = prometheus.value(promql.bad_share(objective, window)) or 0.0
        measured = _measured(objective, share) if requests else None
        if objective.kind in LATENCIES and requests:
            measured = prometheus.value(promql.quantile_ms(objective, window))
        burn = {}
        for each in BURN_WINDOWS:
            recent = prometheus.value(promql.bad_share(objective, each))
            burn[each] = None if recent is None else recent / objective.budget
        standings.append(Standing(objective, window, requests, share, measured, burn))
    return standings


def _measured(objective: Objective, bad_share: float) -> float:
    return 1 - bad_share if objective.kind == "availability" else bad_share
