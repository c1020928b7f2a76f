"""Asks each query once, and finds out why an answer is empty: for whoever sets a watch up."""

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
from hopline_mesh.collect.query import Query, QuerySet
from hopline_mesh.collect.report import CollectReport
from hopline_mesh.errors import QueryFailed, SourceUnavailable
from hopline_mesh.snapshot import Snapshot

_TEXT = r'"(?:[^"\\]|\\.)*"'
_SELECTOR = re.compile(rf"([a-zA-Z_:][\w:]*)\s*(?:\{{((?:[^{{}}\"]|{_TEXT})*)\}}|(?=\[))")
_MATCHER = re.compile(rf"[a-zA-Z_]\w*\s*(?:=~|!~|!=|=)\s*{_TEXT}")

#: How long one further question may take.
_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Findings:
    """What a probe found.

    Attributes:
        snapshot: one interval, as the watch would have got it.
        report: how it went.
        hints: query -> why its answer is empty, where that can be told.
        scrape_s: how often the series are scraped, seconds; None where that cannot be told.
        notes: what should be changed, for people.
    """

    snapshot: Snapshot
    report: CollectReport
    hints: dict[str, str]
    scrape_s: float | None
    notes: tuple[str, ...]


async def probe(
    client: Prometheus, collector: Collector, queries: QuerySet, now_s: float, window_s: float
) -> Findings:
    """Collect one interval, and look into what is missing.

    Args:
        client: whom to ask.
        collector: a new one of these queries.
        queries: those of the collector.
        now_s: our clock, Unix seconds.
        window_s: that rates are taken over.

    Raises:
        SourceUnavailable: Prometheus answers nothing at all.
    """
    snapshot = await collector.collect(now_s)
    report = collector.report
    assert report is not None
    if all(query.outcome == "unavailable" for query in report.queries):
        raise SourceUnavailable(report.queries[0].reason)
    if abs(report.ahead_s) > 0:  # asked about the wrong moment, as is known by now
        snapshot = await collector.collect(now_s + 0.001)
        report = collector.report
        assert report is not None
    asked_s = now_s + report.ahead_s
    hints = {}
    for query, each in zip(queries.queries, report.queries, strict=True):
        if each.outcome == "empty" and (hint := await _why_empty(client, query, asked_s)):
            hints[query.name] = hint
    scrape_s = await _scrape_s(client, queries, asked_s)
    notes = []
    if scrape_s is not None and 4 * scrape_s > 1.05 * window_s:
        wanted = window_for(scrape_s)
        notes.append(
            f"series are scraped every {scrape_s:.0f} s: rates over {duration(window_s)} are unreliable; "
            f"set rate_window_s to {wanted:.0f}"
        )
    if not len(snapshot.nodes):
        notes.append("no service was found: nothing could be watched")
    elif not len(snapshot.edge_src):
        notes.append("no call path was found: causes cannot be told from effects")
    return Findings(snapshot, report, hints, scrape_s, tuple(notes))


def selectors(promql: str) -> list[tuple[str, tuple[str, ...]]]:
    """The metrics that an expression reads, each once, with their matchers."""
    found = [(match[1], tuple(_MATCHER.findall(match[2] or ""))) for match in _SELECTOR.finditer(promql)]
    return list(dict.fromkeys(found))


async def _why_empty(client: Prometheus, query: Query, time_s: float) -> str:
    said = []
    for metric, matchers in selectors(query.promql):
        counts = await _count(client, metric, (), time_s)
        if counts is None:
            return ""
        if counts == 0:
            said.append(f"there is no {metric}")
            continue
        if await _count(client, metric, matchers, time_s):
            if query.per:
                said.append(f"{metric} is there: nothing failed")
            elif not query.ceiling_of:
                said.append(f"{metric} is there, but has no two samples within the window")
            continue
        alone = [each for each in matchers if await _count(client, metric, (each,), time_s) == 0]
        what = " and ".join(alone) if alone else ",".join(matchers)
        if query.per and alone:
            said.append(f"{metric} is there: nothing failed")
        else:
            said.append(f"there is {metric}, but none with {what}")
    return "; ".join(dict.fromkeys(said))


async def _count(client: Prometheus, metric: str, matchers: tuple[str, ...], time_s: float) -> float | None:
    return await _number(client, f"count({metric}{{{','.join(matchers)}}})", time_s, 0.0)


async def _scrape_s(client: Prometheus, queries: QuerySet, time_s: float) -> float | None:
    """How often the first metric that is there is scraped: from `up` of one target that has it.

    Not from the metric itself, of which there may be a million series.
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
        scrapes = await _number(client, f"max(changes({times}))", time_s, 0.0)
        span_s = await _number(client, f"max(max_over_time({times}) - min_over_time({times}))", time_s, 0.0)
        return span_s / scrapes if scrapes and span_s and scrapes >= 4 else None
    return None


async def _ask(client: Prometheus, promql: str, time_s: float) -> Answer | None:
    """An answer; None where there is none."""
    try:
        return read_answer((await client.query(promql, time_s, _PATIENCE_S)).body)
    except (SourceUnavailable, QueryFailed, ConfigError):
        return None


async def _number(client: Prometheus, promql: str, time_s: float, empty: float) -> float | None:
    """The one value of an expression; None where Prometheus does not say."""
    answer = await _ask(client, promql, time_s)
    if answer is None:
        return None
    return float(answer.values[0]) if len(answer) else empty
