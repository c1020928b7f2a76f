"""Objectives in PromQL: the counts of `counts`, over a window that Prometheus stores."""

from __future__ import annotations

import json
from bisect import bisect_left

from hopline.observe.metrics import FRESHNESS_BUCKETS, LATENCY_BUCKETS
from hopline.slo.objectives import LATENCIES, NOT_VALID, REFUSALS, Objective


def valid(objective: Objective, window: str) -> str:
    """Requests of the last `window` ("5m", "30d") that the objective covers."""
    if objective.kind in LATENCIES:
        return _sum(_histogram(objective, "_count"), window)
    return _sum(f"hopline_requests_total{{{_model(objective)},outcome!~{_any(NOT_VALID)}}}", window)


def bad(objective: Objective, window: str) -> str:
    """Valid requests that were slow, refused or failed; a vector of one value, 0 if there are none."""
    if objective.kind in LATENCIES:
        return f"({valid(objective, window)} - {_within(objective, window)})"
    left_out = NOT_VALID | {"ok"}
    if objective.kind == "error_rate":
        left_out |= REFUSALS
    text = f"hopline_requests_total{{{_model(objective)},outcome!~{_any(left_out)}}}"
    return f"({_sum(text, window)} or vector(0))"


def bad_share(objective: Objective, window: str) -> str:
    """Share of bad requests; no sample without requests."""
    return f"clamp_min({bad(objective, window)} / ({valid(objective, window)} > 0), 0)"


def quantile_ms(objective: Objective, window: str) -> str:
    """99th percentile of total request times, in milliseconds."""
    text = _histogram(objective, "_bucket")
    return f"1000 * histogram_quantile(0.99, sum by (le) (increase({text}[{window}])))"


def _within(objective: Objective, window: str) -> str:
    """Requests within the limit, evenly spread within a bucket."""
    limit_s = objective.target / 1e3
    bounds = LATENCY_BUCKETS if objective.kind == "p99_ms" else FRESHNESS_BUCKETS
    at = bisect_left(bounds, limit_s)
    high = bounds[at]
    upper = _bucket(objective, high, window)
    if limit_s == high:
        return upper
    low = bounds[at - 1] if at else 0.0
    share = (limit_s - low) / (high - low)
    if not at:
        return f"{share:.6g} * {upper}"
    lower = _bucket(objective, low, window)
    return f"({lower} + {share:.6g} * ({upper} - {lower}))"


def _bucket(objective: Objective, bound: float, window: str) -> str:
    return _sum(_histogram(objective, "_bucket", f'le="{bound!r}"'), window)


def _histogram(objective: Objective, suffix: str, label: str = "") -> str:
    if objective.kind == "p99_ms":
        labels = [_model(objective), 'stage="total"', *([label] if label else [])]
        return f"hopline_stage_seconds{suffix}{{{','.join(labels)}}}"
    return f"hopline_stream_freshness_seconds{suffix}" + (f"{{{label}}}" if label else "")


def _sum(selector: str, window: str) -> str:
    return f"sum(increase({selector}[{window}]))"


def _model(objective: Objective) -> str:
    return f"model={json.dumps(objective.model, ensure_ascii=False)}"


def _any(outcomes: frozenset[str] | set[str]) -> str:
    return json.dumps("|".join(sorted(outcomes)))
