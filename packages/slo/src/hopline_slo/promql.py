"""Objectives in PromQL, over windows that Prometheus stores, and Prometheus rules for them.

A rule records a burn rate over one window. An alert checks two windows together (Google's SRE workbook,
"Alerting on SLOs"): the long one shows that the burn matters, the short one that it continues. Rates are
such that a page means 2 % of the budget in one hour or 5 % in six, a ticket 10 % in one day or in three.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hopline.observe.metrics import FRESHNESS_BUCKETS, LATENCY_BUCKETS
from hopline_slo.objectives import LATENCIES, NOT_VALID, REFUSALS, Objective


class _Pace(NamedTuple):
    """The share of a budget used in a window that raises an alert.

    Attributes:
        long, short: names of both windows.
        hours: length of the long window.
        share: share of the budget.
        severity: label of the alert.
    """

    long: str
    short: str
    hours: int
    share: float
    severity: str

    def rate(self, window_days: int) -> float:
        """The burn rate of this pace for a budget of `window_days`."""
        return self.share * 24 * window_days / self.hours


PACES = (
    _Pace("1h", "5m", 1, 0.02, "page"),
    _Pace("6h", "30m", 6, 0.05, "page"),
    _Pace("1d", "2h", 24, 0.10, "ticket"),
    _Pace("3d", "6h", 72, 0.10, "ticket"),
)
_WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")


def write_rules(objectives: Sequence[Objective]) -> str:
    """Write a rules file in YAML; tests check it with `promtool check rules`."""
    return "\n".join(_lines(objectives)) + "\n"


def _lines(objectives: Sequence[Objective]) -> Iterator[str]:
    yield "# Written by `hopline slo --rules`; change the SLO file and write the rules again."
    yield "groups:"
    yield "  - name: hopline-slo-burn"
    yield "    rules:"
    for objective in objectives:
        for window in _WINDOWS:
            yield f"      - record: hopline:slo_burn:{window}"
            share = bad_share(objective, window)
            yield f"        expr: {_text(f'{share} / {objective.budget:.9g}')}"
            yield f"        labels: {{{_labels(objective)}}}"
    yield "  - name: hopline-slo-alerts"
    yield "    rules:"
    for objective in objectives:
        for pace in PACES:
            if pace.rate(objective.window_days) < 1:
                continue  # a short budget may be used up that fast
            yield "      - alert: HoplineBudgetBurns"
            rate = f"{pace.rate(objective.window_days):.6g}"
            own = f'{{model={json.dumps(objective.model)},objective="{objective.kind}"}}'
            long, short = (f"hopline:slo_burn:{each}{own} > {rate}" for each in (pace.long, pace.short))
            yield f"        expr: {_text(f'{long} and {short}')}"
            labels = f"severity: {pace.severity}, window: {pace.long}"
            yield f"        labels: {{{labels}, {_labels(objective)}}}"
            yield "        annotations:"
            summary = (
                f"{objective.model}: {objective.text} burns {pace.share:.0%} of its budget in {pace.long}"
            )
            yield f"          summary: {_text(summary)}"


def _labels(objective: Objective) -> str:
    return f"model: {_text(objective.model)}, objective: {objective.kind}"


def _text(text: str) -> str:
    """A YAML string: JSON strings are YAML strings."""
    return json.dumps(text, ensure_ascii=False)


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
