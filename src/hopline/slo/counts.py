"""Counts of valid and bad requests, from a server's own counters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from hopline.observe.scrape import Reading, Scrape
from hopline.slo.objectives import LATENCIES, NOT_VALID, REFUSALS, Objective


class Count(NamedTuple):
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


def count(scrape: Scrape, objective: Objective) -> Count:
    """Count requests since the server started."""
    model = objective.model
    if objective.kind in LATENCIES:
        buckets = buckets_of(scrape, objective)
        valid = buckets[-1][1] if buckets else 0.0
        return Count(valid, max(0.0, valid - within(buckets, objective.target / 1e3)))
    valid = bad = 0.0
    for reading in scrape.samples("hopline_requests_total", model=model):
        outcome = reading.labels["outcome"]
        if outcome in NOT_VALID:
            continue
        valid += reading.value
        if outcome != "ok" and (objective.kind == "availability" or outcome not in REFUSALS):
            bad += reading.value
    return Count(valid, bad)


def buckets_of(scrape: Scrape, objective: Objective) -> list[tuple[float, float]]:
    """(upper bound in seconds, count up to it) of the requests of a latency objective."""
    if objective.kind == "p99_ms":
        return latency_buckets(scrape, objective.model)
    return _summed(scrape.samples("hopline_stream_freshness_seconds_bucket"))


def latency_buckets(scrape: Scrape, model: str) -> list[tuple[float, float]]:
    """(upper bound in seconds, requests up to it) of total request times, over all versions of a model."""
    return _summed(scrape.samples("hopline_stage_seconds_bucket", model=model, stage="total"))


def _summed(readings: Iterable[Reading]) -> list[tuple[float, float]]:
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
