"""Prometheus rules for objectives: burn rates over several windows, and alerts on pairs of windows.

An alert checks two windows together (Google's SRE workbook, "Alerting on SLOs"): the long one shows that
the burn matters, the short one that it continues. Rates are such that a page means 2 % of the budget in one
hour or 5 % in six, a ticket 10 % in one day or in three.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hopline.slo import promql
from hopline.slo.objectives import Objective


class Pace(NamedTuple):
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
    Pace("1h", "5m", 1, 0.02, "page"),
    Pace("6h", "30m", 6, 0.05, "page"),
    Pace("1d", "2h", 24, 0.10, "ticket"),
    Pace("3d", "6h", 72, 0.10, "ticket"),
)
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")


def write_rules(objectives: Sequence[Objective]) -> str:
    """Write a rules file in YAML; tests check it with `promtool check rules`."""
    return "\n".join(_lines(objectives)) + "\n"


def _lines(objectives: Sequence[Objective]) -> Iterator[str]:
    yield "# Written by `hopline slo --rules`; change the SLO file and write the rules again."
    yield "groups:"
    yield "  - name: hopline-slo-burn"
    yield "    rules:"
    for objective in objectives:
        for window in WINDOWS:
            yield f"      - record: hopline:slo_burn:{window}"
            share = promql.bad_share(objective, window)
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
