"""Sends each query once, and finds out why a result is empty: for `hopline mesh queries`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import msgspec

from hopline.errors import ConfigError
from hopline_mesh.collect.answer import UNREADABLE, Answer, read_answer
from hopline_mesh.collect.collector import Collector
from hopline_mesh.collect.prometheus import Prometheus
from hopline_mesh.collect.promql import duration, window_for
from hopline_mesh.collect.query import CollectReport, Query, QuerySet
from hopline_mesh.errors import QueryFailed, SourceUnavailable
from hopline_mesh.snapshot import Snapshot

_TEXT = r'"(?:[^"\\]|\\.)*"'
_SELECTOR = re.compile(rf"([a-zA-Z_:][\w:]*)\s*(?:\{{((?:[^{{}}\"]|{_TEXT})*)\}}|(?=\[))")
_MATCHER = re.compile(rf"[a-zA-Z_]\w*\s*(?:=~|!~|!=|=)\s*{_TEXT}")

#: Timeout of one additional query.
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Findings:
    """The result of a probe.

    Attributes:
        snapshot: one interval, as the watch would have collected it.
        report: of the collection.
        hints: query -> reason for its empty result, if it is known.
        scrape_s: scrape interval of the series, seconds; None if unknown.
        notes: recommended changes, for people.
    """

    snapshot: Snapshot
    report: CollectReport
    hints: dict[str, str]
    scrape_s: float | None
    notes: tuple[str, ...]


async def probe(
    client: Prometheus, collector: Collector, queries: QuerySet, now_s: float, window_s: float
) -> Findings:
    """Collect one interval, and explain missing data.

    Args:
        client: of Prometheus.
        collector: a new one with these queries.
        queries: those of the collector.
        now_s: our clock, Unix seconds.
        window_s: of rates.

    Raises:
        SourceUnavailable: Prometheus responds to no query.
    """
    snapshot = await collector.collect(now_s)
    report = collector.report
    assert report is not None
    if all(query.outcome == "unavailable" for query in report.queries):
        raise SourceUnavailable(report.queries[0].reason)
    if abs(report.ahead_s) > 0:  # the first collection used the wrong time
        snapshot = await collector.collect(now_s + 0.001)
        report = collector.report
        assert report is not None
    asked_s = now_s + report.ahead_s
    hints = {}
    for query, each in zip(queries.queries, report.queries, strict=True):
        if each.outcome == "empty" and (hint := await _why_empty(client, query, asked_s)):
            hints[query.name] = hint
        if each.series and not each.matched and not each.reason and len(snapshot.nodes):
            by = "the owners of its pods are" if query.service.pod else "its names are"
            hints[query.name] = f"none of its series is of a service of the mesh: {by} other names"
    scrape_s = await _scrape_s(client, queries, asked_s)
    notes = []
    if scrape_s is not None and 4 * scrape_s > 1.05 * window_s:
        notes.append(
            f"series are scraped every {scrape_s:.3g} s: rates over {duration(window_s)} are unreliable; "
            f"set rate_window_s to {window_for(scrape_s):g}"
        )
    if not len(snapshot.nodes):
        notes.append("no service was found: there is nothing to watch")
    elif not len(snapshot.edge_src):
        notes.append("no call path was found: root causes cannot be distinguished from effects")
    return Findings(snapshot, report, hints, scrape_s, tuple(notes))


def selectors(promql: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the metrics that an expression reads, without duplicates, with their matchers."""
    found = [(match[1], tuple(_MATCHER.findall(match[2] or ""))) for match in _SELECTOR.finditer(promql)]
    return list(dict.fromkeys(found))


async def _why_empty(client: Prometheus, query: Query, time_s: float) -> str:
    reasons = []
    for metric, matchers in selectors(query.promql):
        counts = await _count(client, metric, (), time_s)
        if counts is None:
            return ""
        if counts == 0:
            reasons.append(f"there is no metric {metric}")
            continue
        if await _count(client, metric, matchers, time_s):
            if query.per:
                reasons.append(f"{metric} exists: nothing failed")
            elif not query.ceiling_of:
                reasons.append(f"{metric} exists, but has fewer than two samples within the window")
            continue
        alone = [each for each in matchers if await _count(client, metric, (each,), time_s) == 0]
        what = " and ".join(alone) if alone else ",".join(matchers)
        if query.per and alone:
            reasons.append(f"{metric} exists: nothing failed")
        else:
            reasons.append(f"{metric} exists, but not with {what}")
    return "; ".join(dict.fromkeys(reasons))


async def _count(client: Prometheus, metric: str, matchers: tuple[str, ...], time_s: float) -> float | None:
    return await _number(client, f"count({metric}{{{','.join(matchers)}}})", time_s)


async def _scrape_s(client: Prometheus, queries: QuerySet, time_s: float) -> float | None:
    """Return the scrape interval of the first existing metric, from `up` of one of its targets.

    The metric itself may have a million series.
    """
    for metric, matchers in dict.fromkeys(
        one for query in queries.queries if query.reveals for one in selectors(query.promql)
    ):
        chosen = f"{metric}{{{','.join(matchers)}}}"
        target = await _ask(client, f"topk(1, count by (job, instance) ({chosen}))", time_s)
        if target is None or not target.labels:
            continue
        try:
            labels = msgspec.json.decode(target.labels[0], type=dict[str, str])
        except UNREADABLE:
            return None
        up = ",".join(f"{name}={json.dumps(value)}" for name, value in sorted(labels.items()))
        times = f"timestamp(up{{{up}}})[10m:1s]"
        scrapes = await _number(client, f"max(changes({times}))", time_s)
        span_s = await _number(client, f"max(max_over_time({times}) - min_over_time({times}))", time_s)
        return span_s / scrapes if scrapes and span_s and scrapes >= 4 else None
    return None


async def _ask(client: Prometheus, promql: str, time_s: float) -> Answer | None:
    """Return a response; None if the query failed."""
    try:
        return read_answer((await client.query(promql, time_s, _TIMEOUT_S)).body)
    except (SourceUnavailable, QueryFailed, ConfigError):
        return None


async def _number(client: Prometheus, promql: str, time_s: float) -> float | None:
    """Return the single value of an expression, 0 for an empty result; None if the query failed."""
    answer = await _ask(client, promql, time_s)
    if answer is None:
        return None
    return float(answer.values[0]) if len(answer) else 0.0
