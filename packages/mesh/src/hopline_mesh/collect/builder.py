"""Builds a snapshot from responses. Knows no HTTP and no clock.

A value that a rule leaves out becomes NaN and a `Gap`, because a missing number is not an anomaly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.collect.answer import Answer
from hopline_mesh.collect.containers import owner_queries
from hopline_mesh.collect.options import CollectOptions
from hopline_mesh.collect.owners import Owners
from hopline_mesh.collect.places import NO_ROOM, UNWATCHED, IdArray, Places, Recalled
from hopline_mesh.collect.presence import Presence
from hopline_mesh.collect.query import Combine, Outcome, Query, QuerySet
from hopline_mesh.roster import Roster
from hopline_mesh.schema import kind_of
from hopline_mesh.scope import Scope
from hopline_mesh.snapshot import Gap, Snapshot

Column = NDArray[np.float64]
Table = NDArray[np.float32]

#: Larger numbers are infinite in float32.
_LARGEST = float(np.finfo(np.float32).max)

#: Decay of the usual number of series of a query in each interval: to 0.7 in 18 intervals. Fewer series
#: than the second share of the usual number are reported.
_FORGET = 0.98
_FEW = 0.7

#: Maximum number of names in the roster, as a multiple of `max_services`.
_NAMES_PER_SERVICE = 4

#: Number of failed intervals in a row after which a query no longer keeps missing services in the snapshot.
_MAX_FAILURES = 20


#: How the owners of pods become known; see docs/collect.md.
_HOW_TO_KNOW = "Prometheus needs kube_pod_owner of kube-state-metrics"


class Failure(NamedTuple):
    """A failed query: the kind of failure, and the reason for people."""

    outcome: Outcome
    reason: str


class Reading(NamedTuple):
    """The services of a response's series, and the response without its labels."""

    recalled: Recalled
    answer: Answer


class Built(NamedTuple):
    """A snapshot with its statistics.

    Attributes:
        snapshot: of the interval.
        matched: for each query, the number of series that belong to a watched service.
        left_out: see `CollectReport`.
    """

    snapshot: Snapshot
    matched: list[int]
    left_out: int


@dataclass(slots=True, eq=False)
class _Part:
    """The usable part of a response."""

    query: Query
    ids: IdArray
    values: Column
    #: services of which a part may be missing, so that the rest is no measurement
    partial: IdArray = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(slots=True)
class _Found:
    """The content of the responses of an interval."""

    parts: list[_Part] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    whole: bool = True
    no_room: int = 0


class SnapshotBuilder:
    """Builds snapshots in order.

    Args:
        queries: of the responses.
        roster: of the snapshots.
        options: limits.
        matchers: for the queries for owners of pods; the other queries contain theirs.

    Raises:
        ConfigError: invalid matchers, or an invalid regular expression of a namespace.

    Attributes:
        owner_queries: whose responses `learn_owners` gets; () if no series names a pod.
    """

    def __init__(self, queries: QuerySet, roster: Roster, options: CollectOptions, matchers: str) -> None:
        self._queries = queries.queries
        self._schema = queries.schema()
        self._roster = roster
        self._options = options
        self.owner_queries = owner_queries(matchers) if queries.by_pod else ()
        self._owners = Owners()
        most_names = max(len(roster), _NAMES_PER_SERVICE * options.max_services)
        scope = Scope(options.namespaces, options.exclude_namespaces)
        self._places = Places(roster, scope, self._owners, most_names)
        self._nodes = Presence(options.keep_missing_s)
        self._edges = Presence(options.keep_missing_s)
        self._usual: dict[str, float] = {}
        self._lacking: dict[str, int] = {}
        #: services whose own requests were counted once
        self._counted: set[int] = set()

    @property
    def needs_owners(self) -> bool:
        """True to query the owners of pods: at first, and for new pods."""
        return bool(self.owner_queries) and self._owners.due

    def learn_owners(self, answers: Sequence[Answer]) -> None:
        """Join pods to their owners, from the responses to `owner_queries`; before `build`."""
        if answers and self._owners.learn(answers):
            self._places.forget_pods()

    def read(self, query: Query, answer: Answer) -> Reading:
        """Look up the services of a response."""
        return Reading(self._places.recall(query, answer.labels), replace(answer, labels=[]))

    def build(self, time_s: float, asked_s: float, answers: Sequence[Reading | Failure]) -> Built:
        """Build the snapshot of one interval.

        Args:
            time_s: of the snapshot.
            asked_s: time of the queries, by Prometheus' clock.
            answers: one for each query, in order.
        """
        self._places.begin(sum(len(each.answer) for each in answers if isinstance(each, Reading)))
        found = self._read(asked_s, answers)
        nodes, edges, left_out = self._present(time_s, found)
        self._note_ownerless(nodes, found)
        node_table = self._table("node", nodes, found)
        edge_table = self._table("edge", edges, found)
        self._set_rates_of_entries(nodes, node_table, edges, edge_table, found)
        snapshot = Snapshot(
            time_s,
            self._schema,
            self._roster,
            nodes.astype(np.int32),
            node_table,
            (edges >> 32).astype(np.int32),
            (edges & 0xFFFFFFFF).astype(np.int32),
            edge_table,
            tuple(found.gaps),
        )
        matched = dict.fromkeys((query.name for query in self._queries), 0)
        for part in found.parts:
            present = nodes if part.query.of == "node" else edges
            matched[part.query.name] = int(np.isin(part.ids, present).sum())
        return Built(snapshot, list(matched.values()), left_out + found.no_room)

    def _read(self, asked_s: float, answers: Sequence[Reading | Failure]) -> _Found:
        found = _Found()
        failures = [answer for answer in answers if isinstance(answer, Failure)]
        # If all queries failed, one gap is enough.
        down = len(failures) == len(answers) and all(f.outcome in ("unavailable", "late") for f in failures)
        if down:
            found.whole = False
            found.gaps.append(Gap("prometheus", failures[0].reason))
        for query, reading in zip(self._queries, answers, strict=True):
            if isinstance(reading, Failure):
                self._note_whole(query, found, whole=False)
                if not down:
                    found.gaps.append(Gap(query.name, reading.reason))
                continue
            recalled, answer = reading
            # Warnings of PromQL itself are the same in every interval; others mean that parts are missing.
            partial = [text for text in answer.warnings if not text.startswith("PromQL")]
            self._note_whole(query, found, whole=not partial)
            ids = self._places.find(query, recalled)
            found.no_room += int(np.count_nonzero(ids == NO_ROOM))
            fresh = np.abs(asked_s - answer.times) <= self._options.stale_s
            usable = (ids >= 0) & fresh
            values = answer.values[usable]
            with np.errstate(over="ignore"):
                part = _Part(query, ids[usable], values * query.scale)
            found.parts.append(part)
            reasons = [f"Prometheus warns: {text}" for text in answer.warnings]
            reasons += _left_out(query, answer, ids, fresh)
            reasons += _only_numbers(part, np.isinf(values))
            reasons += self._few(query, len(part.ids))
            found.gaps.extend(Gap(query.name, text) for text in reasons)
        if not failures and not any(len(part.ids) for part in found.parts):
            blind = Gap("prometheus", "it responds, but has no series of any watched service")
            others = [gap for gap in found.gaps if gap.reason not in ("no series", "no series any more")]
            found.gaps = [blind, *others]
        return found

    def _note_whole(self, query: Query, found: _Found, *, whole: bool) -> None:
        """Note whether missing services may be in a missing part of the responses.

        A query that has failed for long is ignored, because it would hide removed services for ever.
        """
        run = self._lacking[query.name] = 0 if whole else self._lacking.get(query.name, 0) + 1
        if query.reveals and 0 < run <= _MAX_FAILURES:
            found.whole = False

    def _few(self, query: Query, count: int) -> list[str]:
        """Report if there are far fewer series than recently."""
        if query.per or query.ceiling_of:
            return []  # their number varies
        usual = self._usual.get(query.name, 0.0)
        self._usual[query.name] = max(float(count), usual * _FORGET)
        if count == 0:
            return ["no series any more"] if usual >= 1 else ["no series"]
        return [f"{count} series instead of the usual {usual:.0f}"] if count < _FEW * usual - 1 else []

    def _present(self, time_s: float, found: _Found) -> tuple[IdArray, IdArray, int]:
        """Return services, call paths, and the number of those beyond the limits."""
        shown = {
            of: [part.ids for part in found.parts if part.query.of == of and part.query.reveals]
            for of in ("node", "edge")
        }
        edges_seen = _distinct(shown["edge"])
        nodes_seen = _distinct([*shown["node"], edges_seen >> 32, edges_seen & 0xFFFFFFFF])
        before, edges_before = self._nodes.ids, self._edges.ids
        nodes, lost = self._nodes.settle(time_s, nodes_seen, whole=found.whole)
        edges, edges_lost = self._edges.settle(time_s, edges_seen, whole=found.whole)
        # A held call path also holds its ends.
        nodes = _distinct([nodes, edges >> 32, edges & 0xFFFFFFFF]) if len(edges_lost) else nodes
        num_nodes, num_edges = len(nodes), len(edges)
        nodes = _at_most(self._options.max_services, nodes, before)
        if len(nodes) < num_nodes:
            self._nodes.keep_only(nodes)
            edges = edges[np.isin(edges >> 32, nodes) & np.isin(edges & 0xFFFFFFFF, nodes)]
            self._edges.keep_only(edges)
            left = f"{num_nodes - len(nodes)} of {num_nodes}"
            found.gaps.append(Gap("services", f"{left} are not watched: the limit is max_services"))
        fitting = len(edges)
        edges = _at_most(self._options.max_edges, edges, edges_before)
        if len(edges) < fitting:
            self._edges.keep_only(edges)
            left = f"{fitting - len(edges)} of {num_edges} call paths"
            found.gaps.append(Gap("edges", f"{left} are not watched: the limit is max_edges"))
        if found.no_room:
            found.gaps.append(
                Gap(
                    "services",
                    f"{found.no_room} series have new names, but {len(self._roster)} names are known "
                    "already, which is the limit; a restart forgets them",
                )
            )
        missing = ""
        if len(lost):
            missing = f"{len(lost)} of {num_nodes} services are in no response ({self._named(lost)})"
        elif len(edges_lost):
            few = self._named(edges_lost, "edge")
            missing = f"{len(edges_lost)} of {num_edges} call paths are in no response ({few})"
        if missing:
            why = "implausibly many, or some queries failed: they stay as not measured"
            found.gaps.append(Gap("services" if len(lost) else "edges", f"{missing}; {why}"))
        return nodes, edges, num_nodes - len(nodes) + num_edges - len(edges)

    def _note_ownerless(self, nodes: IdArray, found: _Found) -> None:
        """Report series of pods without a known owner, in namespaces that have services of the mesh.

        The name of a pod begins with that of its workload. So of a service with such a name a part of the
        column may be missing: a sum of the others would be too small, and the service is not measured.
        """
        lost = np.setdiff1d(self._places.ownerless, nodes)
        by_pod = [part for part in found.parts if part.query.service.pod and part.query.of == "node"]
        if not len(lost) or not any(np.isin(part.ids, lost).any() for part in by_pod):
            return
        present = {self._roster.name(slot): slot for slot in nodes.tolist()}
        namespaces = {name.rpartition("/")[0] for name in present}
        lost = np.array(
            [i for i in lost.tolist() if self._roster.name(i).rpartition("/")[0] in namespaces], np.int64
        )
        for part in by_pod:
            ids = part.ids[np.isin(part.ids, lost)]
            if not len(ids):
                continue
            owners = (_longest_prefix(self._roster.name(slot), present) for slot in ids.tolist())
            part.partial = np.array(sorted({slot for slot in owners if slot is not None}), np.int64)
            if part.query.ceiling_of:
                continue
            have = "series has" if len(ids) == 1 else "series have"
            text = (
                f"{len(ids)} {have} a pod without a known owner, such as {self._roster.name(int(ids[0]))}"
            )
            text = f"{text}; {_HOW_TO_KNOW}"
            if len(part.partial):
                are = "is" if len(part.partial) == 1 else "are"
                text = f"{text}; {self._named(part.partial)} {are} not measured"
            found.gaps.append(Gap(part.query.name, text))

    def _table(self, of: str, rows: IdArray, found: _Found) -> Table:
        """Return the measurements: float32 [rows, columns of the schema]."""
        names = self._schema.node_features if of == "node" else self._schema.edge_features
        columns: dict[str, Column] = {name: np.full(len(rows), np.nan) for name in names}
        parts = [part for part in found.parts if part.query.of == of]
        for part in parts:
            if not part.query.ceiling_of:
                column = fill(rows, part.ids, part.values, part.query.combine)
                column[np.isin(rows, part.partial)] = np.nan
                columns[part.query.column] = column
        for part in parts:
            if part.query.per:
                column = share(columns[part.query.column], columns[part.query.per])
                column[np.isin(rows, part.partial)] = np.nan
                columns[part.query.column] = column
            for name, quantile in part.query.ceiling_of:
                # The values stay, as a lower bound.
                measured = rows[~np.isnan(columns[name])]
                above = np.intersect1d(part.ids[part.values < quantile], measured)
                if len(above):
                    text = (
                        f"above the last bucket of the histogram for {len(above)} of {len(rows)} "
                        f"({self._named(above, of)}): the values are a lower bound"
                    )
                    found.gaps.append(Gap(f"{of}.{name}", text))
        table = np.empty((len(rows), len(names)), np.float32)
        for index, name in enumerate(names):
            table[:, index] = columns[name]
        return table

    def _set_rates_of_entries(
        self, nodes: IdArray, node_table: Table, edges: IdArray, edge_table: Table, found: _Found
    ) -> None:
        """Set the request rate of services of which no proxy ever counted requests to that of their calls.

        An ingress gateway reports only as a caller.
        """
        schema, column = self._schema, "request_rate"
        if not {f"node.{column}", f"edge.{column}"} <= {query.name for query in self._queries}:
            return
        rates = node_table[:, schema.node_features.index(column)]
        self._counted.update(nodes[~np.isnan(rates)].tolist())
        if any(gap.what in ("prometheus", f"node.{column}", f"edge.{column}") for gap in found.gaps):
            return
        sent = fill(
            nodes, edges >> 32, edge_table[:, schema.edge_features.index(column)].astype(float), "sum"
        )
        entries = np.array([one not in self._counted for one in nodes.tolist()], bool)
        rates[entries] = sent[entries]

    def _named(self, ids: IdArray, of: str = "node") -> str:
        """Return the first three names, for people."""
        names = [
            self._roster.name(i)
            if of == "node"
            else f"{self._roster.name(i >> 32)} to {self._roster.name(i & 0xFFFFFFFF)}"
            for i in ids[:3].tolist()
        ]
        return ", ".join(names) + (", …" if len(ids) > len(names) else "")


def _longest_prefix(pod: str, services: Mapping[str, int]) -> int | None:
    """Return the service with the longest name that a pod's name begins with, up to a "-"."""
    rest = pod
    while "-" in rest.rpartition("/")[2]:
        rest = rest.rpartition("-")[0]
        if rest in services:
            return services[rest]
    return None


def _left_out(query: Query, answer: Answer, ids: IdArray, fresh: NDArray[np.bool_]) -> list[str]:
    """Return reasons for the series that are left out of a response."""
    reasons = []
    if answer.unreadable:
        reasons.append(f"{answer.unreadable} series have a value that is not a number")
    if stale := int(np.count_nonzero(~fresh)):
        oldest = float(np.min(answer.times[~fresh]))
        reasons.append(f"{stale} series have the time {oldest:.0f} s instead of that of the query")
    placeless = int(np.count_nonzero((ids < 0) & (ids != NO_ROOM) & (ids != UNWATCHED)))
    if placeless and placeless == len(ids):
        reasons.append(f"none of its {placeless} series has the label {' or '.join(query.service.service)}")
    return reasons


def _only_numbers(part: _Part, infinite: NDArray[np.bool_]) -> list[str]:
    """Replace impossible values of a column by NaN, in place; returns the reasons.

    NaN itself means that Prometheus observed nothing.

    Args:
        part: its values are scaled.
        infinite: bool [n], values that Prometheus sent as infinite.
    """
    values, reasons = part.values, []
    too_large = (np.abs(values) > _LARGEST) & ~infinite
    for wrong, what in ((infinite, "are infinite"), (too_large, "are too large; up to 3.4e38")):
        if count := int(np.count_nonzero(wrong)):
            reasons.append(f"{count} values {what}")
            values[wrong] = np.nan
    kind = "amount" if part.query.per or part.query.ceiling_of else kind_of(part.query.column)
    if kind in ("amount", "share"):
        wrong = values < 0
        if kind == "share":
            wrong |= values > 1.0 + 1e-6
        if count := int(np.count_nonzero(wrong)):
            reasons.append(f"{count} values are not {'within 0 to 1' if kind == 'share' else 'at least 0'}")
            values[wrong] = np.nan
        if kind == "share":
            np.minimum(values, 1.0, out=values)
    return reasons


def _distinct(parts: Sequence[IdArray]) -> IdArray:
    """Return all ids, ascending, without duplicates."""
    ids = np.concatenate(parts) if parts else np.empty(0, np.int64)
    ids.sort()  # a third of the time of np.unique, which hashes
    return ids[np.append(True, ids[1:] != ids[:-1])] if len(ids) else ids


def _at_most(most: int, ids: IdArray, before: IdArray) -> IdArray:
    """Return at most `most` ids, previously known ones first; ascending."""
    if len(ids) <= most:
        return ids
    old = np.isin(ids, before, assume_unique=True)
    order = np.argsort(~old, kind="stable")[:most]
    return np.sort(ids[order])


def fill(rows: IdArray, ids: IdArray, values: Column, combine: Combine) -> Column:
    """Return one value for each row.

    Args:
        rows: int64 [n], ascending, without duplicates.
        ids: int64 [m], any order, with repetitions and ids that are not among the rows.
        values: float64 [m]; NaN is ignored.
        combine: for several values of one id.

    Returns: float64 [n]; NaN for rows without a value.
    """
    column = np.full(len(rows), np.nan)
    if not len(rows) or not len(ids):
        return column
    position = np.searchsorted(rows, ids)
    position[position == len(rows)] = 0
    counts = (rows[position] == ids) & ~np.isnan(values)
    position, values = position[counts], values[counts]
    has_value = np.bincount(position, minlength=len(rows)) > 0
    if combine == "sum":
        total = np.bincount(position, weights=values, minlength=len(rows))
    else:
        total = np.full(len(rows), -np.inf)
        np.maximum.at(total, position, values)
    column[has_value] = total[has_value]
    return column


def share(part: Column, whole: Column) -> Column:
    """Return part / whole, within 0 to 1.

    Returns: NaN if the whole is 0 or unknown; 0 if only the part is unknown.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        result = np.nan_to_num(part, nan=0.0) / np.where(whole > 0, whole, np.nan)
    clipped: Column = np.clip(result, 0.0, 1.0)
    return clipped
