"""Remaining error budgets and their burn rates, from a server's own counters or from Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from hopline_slo import promql
from hopline_slo.objectives import LATENCIES, NOT_VALID, REFUSALS, Objective
from hopline_slo.prometheus import Prometheus
from hopline_slo.scrape import MetricReading, Scrape


class _Count(NamedTuple):
    """Requests that an objective covers.

    Attributes:
        valid: number of valid requests.
        bad: number that were slow, refused or failed.
    """

    valid: float
    bad: float

    @property
    def share(self) -> float:
        """Share of bad requests; 0 without requests."""
        return self.bad / self.valid if self.valid else 0.0


def count(scrape: Scrape, objective: Objective) -> _Count:
    """Count requests since the server started."""
    model = objective.model
    if objective.kind in LATENCIES:
        buckets = _buckets_of(scrape, objective)
        valid = buckets[-1][1] if buckets else 0.0
        return _Count(valid, max(0.0, valid - within(buckets, objective.target / 1e3)))
    valid = bad = 0.0
    for reading in scrape.samples("hopline_requests_total", model=model):
        outcome = reading.labels["outcome"]
        if outcome in NOT_VALID:
            continue
        valid += reading.value
        if outcome != "ok" and (objective.kind == "availability" or outcome not in REFUSALS):
            bad += reading.value
    return _Count(valid, bad)


def _buckets_of(scrape: Scrape, objective: Objective) -> list[tuple[float, float]]:
    """(upper bound in seconds, count up to it) of the requests of a latency objective."""
    if objective.kind == "p99_ms":
        return latency_buckets(scrape, objective.model)
    return _summed(scrape.samples("hopline_stream_freshness_seconds_bucket"))


def latency_buckets(scrape: Scrape, model: str) -> list[tuple[float, float]]:
    """(upper bound in seconds, requests up to it) of total request times, over all versions of a model."""
    return _summed(scrape.samples("hopline_stage_seconds_bucket", model=model, stage="total"))


def _summed(readings: Iterable[MetricReading]) -> list[tuple[float, float]]:
    sums: dict[float, float] = {}
    for reading in readings:
        bound = float(reading.labels["le"])
        sums[bound] = sums.get(bound, 0.0) + reading.value
    return sorted(sums.items())


def within(buckets: Sequence[tuple[float, float]], limit_s: float) -> float:
    """Requests within a time limit; evenly spread within a bucket, as in Prometheus."""
    for (low, before), (high, up_to) in pairwise([(0.0, 0.0), *buckets]):
        if limit_s <= high:
            share = 0.0 if high == float("inf") else (limit_s - low) / (high - low)
            return before + share * (up_to - before)
    return 0.0


def quantile(buckets: Sequence[tuple[float, float]], q: float) -> float | None:
    """Seconds within which a share `q` of requests ended, interpolated; None without requests."""
    if not buckets or not buckets[-1][1]:
        return None
    rank = q * buckets[-1][1]
    for (low, before), (high, up_to) in pairwise([(0.0, 0.0), *buckets]):
        if up_to >= rank:
            if high == float("inf"):
                return low
            return low + (high - low) * ((rank - before) / (up_to - before) if up_to > before else 0.0)
    return None


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
            seconds = quantile(_buckets_of(scrape, objective), 0.99)
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
