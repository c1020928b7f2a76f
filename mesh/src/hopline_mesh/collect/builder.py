"""Makes a snapshot of answers. Knows no HTTP and asks no clock.

What a rule here leaves out becomes NaN and a `Gap`: a number that is not there says nothing of the service.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hopline.errors import ConfigError
from hopline_mesh.collect.answer import Answer
from hopline_mesh.collect.options import CollectOptions
from hopline_mesh.collect.places import NO_ROOM, UNWATCHED, IdArray, Places, Recalled
from hopline_mesh.collect.presence import Presence
from hopline_mesh.collect.query import Query, QuerySet
from hopline_mesh.collect.report import Outcome
from hopline_mesh.collect.table import Column, fill, share
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema, kind_of
from hopline_mesh.snapshot import Gap, Snapshot

#: A larger number is infinite in float32.
_LARGEST = 3e38

#: How fast it is forgotten how many series a question had: to 0.7 of it in 18 intervals.
_FORGET = 0.98
_FEW = 0.7

#: Intervals in a row after which a question without an answer is no news.
_PATIENCE = 20


@dataclass(frozen=True, slots=True)
class Failure:
    """A question without an answer.

    Attributes:
        outcome: in which way.
        reason: why, for people.
    """

    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """An answer whose labels were looked up, and need no more room.

    Attributes:
        recalled: which services its series are about.
        values, times, unreadable, warnings: as in `Answer`.
    """

    recalled: Recalled
    values: Column
    times: NDArray[np.float64]
    unreadable: int
    warnings: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A snapshot, and what it took.

    Attributes:
        snapshot: of the interval.
        matched: for each query, the series that are of a watched service.
        new, held, left_out: see `CollectReport`.
    """

    snapshot: Snapshot
    matched: tuple[int, ...]
    new: int
    held: int
    left_out: int


@dataclass(slots=True, eq=False)
class _Part:
    """What is left of an answer."""

    query: Query
    ids: IdArray
    values: Column


@dataclass(slots=True)
class _Found:
    """What the answers of an interval gave."""

    parts: list[_Part] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    matched: list[int] = field(default_factory=list)
    whole: bool = True
    no_room: int = 0


class SnapshotBuilder:
    """Builds one snapshot after the other.

    Args:
        queries: whose answers it gets.
        schema: columns of the snapshots; all that is asked for must be among them.
        roster: of the snapshots.
        places: finds services in labels, for the same roster.
        options: limits.

    Raises:
        ConfigError: a query for a column that the schema does not have.
    """

    def __init__(
        self, queries: QuerySet, schema: Schema, roster: Roster, places: Places, options: CollectOptions
    ) -> None:
        for of, columns in (("node", schema.node_features), ("edge", schema.edge_features)):
            missing = sorted({q.column for q in queries.queries if q.of == of} - set(columns))
            if missing:
                raise ConfigError(
                    f"queries {queries.name}: {', '.join(f'{of}.{name}' for name in missing)} "
                    f"is no column of the mesh, which has {', '.join(columns)}"
                )
        self._queries = queries.queries
        self._schema = schema
        self._roster = roster
        self._places = places
        self._options = options
        self._nodes = Presence(options.keep_missing_s, options.lost_share)
        self._edges = Presence(options.keep_missing_s, options.lost_share)
        self._usual: dict[str, float] = {}
        self._lacking: dict[str, int] = {}

    def read(self, query: Query, answer: Answer) -> Reading:
        """Look up what an answer is about."""
        recalled = self._places.recall(query, answer.labels)
        return Reading(recalled, answer.values, answer.times, answer.unreadable, answer.warnings)

    def build(self, time_s: float, asked_s: float, answers: Sequence[Reading | Failure]) -> Built:
        """One interval.

        Args:
            time_s: of the snapshot.
            asked_s: the moment that was asked about, by Prometheus' clock.
            answers: one for each query, in order.
        """
        known = len(self._roster)
        self._places.begin(sum(len(answer) for answer in answers if isinstance(answer, Reading)))
        found = self._read(asked_s, answers)
        nodes, edges, held, left_out = self._present(time_s, found)
        node_table = self._table("node", nodes, found)
        edge_table = self._table("edge", edges, found)
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
        there = {
            part.query.name: int(np.isin(part.ids, nodes if part.query.of == "node" else edges).sum())
            for part in found.parts
            if not part.query.reveals
        }
        matched = [
            there.get(query.name, count) for query, count in zip(self._queries, found.matched, strict=True)
        ]
        return Built(snapshot, tuple(matched), len(self._roster) - known, held, left_out + found.no_room)

    def _read(self, asked_s: float, answers: Sequence[Reading | Failure]) -> _Found:
        found = _Found()
        failures = [answer for answer in answers if isinstance(answer, Failure)]
        # When none is answered, one reason says it all.
        down = len(failures) == len(answers) and all(f.outcome in ("unavailable", "late") for f in failures)
        if down:
            found.whole = False
            found.gaps.append(Gap("prometheus", failures[0].reason))
        for query, answer in zip(self._queries, answers, strict=True):
            if isinstance(answer, Failure):
                self._note_whole(query, found, whole=False)
                found.matched.append(0)
                if not down:
                    found.gaps.append(Gap(query.name, answer.reason))
                continue
            # What PromQL itself warns of is the same in every interval; what else is, is about parts.
            partial = [text for text in answer.warnings if not text.startswith("PromQL")]
            self._note_whole(query, found, whole=not partial)
            found.gaps.extend(Gap(query.name, f"Prometheus warns: {text}") for text in answer.warnings)
            ids = self._places.find(query, answer.recalled)
            found.no_room += int(np.count_nonzero(ids == NO_ROOM))
            fresh = np.abs(asked_s - answer.times) <= self._options.stale_s
            there = (ids >= 0) & fresh
            part = _Part(query, ids[there], answer.values[there] * query.scale)
            found.matched.append(len(part.ids))
            said = _said_of(query, answer, ids, fresh)
            said.extend(_only_numbers(part))
            said.extend(self._few(query, len(part.ids)))
            found.gaps.extend(Gap(query.name, text) for text in said)
            found.parts.append(part)
        if not failures and not any(found.matched):
            found.gaps = [
                gap for gap in found.gaps if gap.reason not in ("no series", "no series any more")
            ]
            found.gaps.insert(0, Gap("prometheus", "it answers, and has no series of any watched service"))
        return found

    def _note_whole(self, query: Query, found: _Found, *, whole: bool) -> None:
        """Whether what is in no answer may be in the part that is missing.

        A question that has not been answered for long does not count: it would hide for ever what is gone.
        """
        run = self._lacking[query.name] = 0 if whole else self._lacking.get(query.name, 0) + 1
        if query.reveals and 0 < run <= _PATIENCE:
            found.whole = False

    def _few(self, query: Query, count: int) -> list[str]:
        """Whether there are far fewer series than there were of late."""
        if query.per or query.ceiling_of:
            return []  # these come and go
        usual = self._usual.get(query.name, 0.0)
        self._usual[query.name] = max(float(count), usual * _FORGET)
        if count == 0:
            return ["no series any more"] if usual >= 1 else ["no series"]
        return [f"{count} series, of {usual:.0f} as usual"] if count < _FEW * usual - 1 else []

    def _present(self, time_s: float, found: _Found) -> tuple[IdArray, IdArray, int, int]:
        """What there is: services, call paths, how many of the services are held, how many left out."""
        shown = {
            of: [part.ids for part in found.parts if part.query.of == of and part.query.reveals]
            for of in ("node", "edge")
        }
        edges_seen = _distinct(shown["edge"])
        nodes_seen = _distinct([*shown["node"], edges_seen >> 32, edges_seen & 0xFFFFFFFF])
        before, edges_before = self._nodes.ids, self._edges.ids
        nodes, lost = self._nodes.settle(time_s, nodes_seen, whole=found.whole)
        edges, edges_lost = self._edges.settle(time_s, edges_seen, whole=found.whole)
        # A call path that is held holds its ends.
        nodes = _distinct([nodes, edges >> 32, edges & 0xFFFFFFFF]) if len(edges_lost) else nodes
        num_nodes, num_edges = len(nodes), len(edges)
        nodes = _at_most(self._options.max_services, nodes, before)
        if len(nodes) < num_nodes:
            self._nodes.keep_only(nodes)
            edges = edges[np.isin(edges >> 32, nodes) & np.isin(edges & 0xFFFFFFFF, nodes)]
            self._edges.keep_only(edges)
            found.gaps.append(
                Gap("services", f"{num_nodes - len(nodes)} of {num_nodes} are not watched: max_services")
            )
        fitting = len(edges)
        edges = _at_most(self._options.max_edges, edges, edges_before)
        if len(edges) < fitting:
            self._edges.keep_only(edges)
            found.gaps.append(
                Gap("edges", f"{fitting - len(edges)} of {num_edges} call paths are not watched: max_edges")
            )
        if found.no_room:
            found.gaps.append(
                Gap(
                    "services",
                    f"{found.no_room} series are of new names, and {len(self._roster)} names were seen "
                    "already, which is all that are remembered; a restart forgets them",
                )
            )
        if len(lost):
            found.gaps.append(
                Gap(
                    "services",
                    f"{len(lost)} of {num_nodes} are in no answer ({self._named(lost)}); too many at once, "
                    "or with too few answers, to be gone: kept as not measured",
                )
            )
        elif len(edges_lost):
            found.gaps.append(
                Gap(
                    "edges",
                    f"{len(edges_lost)} of {num_edges} call paths are in no answer "
                    f"({self._named(edges_lost, 'edge')}); too many at once, or with too few answers, to "
                    "be gone: kept as not measured",
                )
            )
        return nodes, edges, len(lost), num_nodes - len(nodes) + num_edges - len(edges)

    def _table(self, of: str, rows: IdArray, found: _Found) -> NDArray[np.float32]:
        names = self._schema.node_features if of == "node" else self._schema.edge_features
        columns: dict[str, Column] = {}
        parts = [part for part in found.parts if part.query.of == of]
        for part in parts:
            if not part.query.ceiling_of:
                columns[part.query.column] = fill(rows, part.ids, part.values, part.query.combine)
        absent = np.full(len(rows), np.nan)
        for part in parts:
            if part.query.per:
                whole = columns.get(part.query.per, absent)
                columns[part.query.column] = share(columns[part.query.column], whole)
            for column, quantile in part.query.ceiling_of:
                above = part.ids[part.values < quantile]
                self._note_ceiling(of, column, above, rows, columns.get(column, absent), found)
        table = np.full((len(rows), len(names)), np.nan, np.float32)
        for index, name in enumerate(names):
            if name in columns:
                table[:, index] = columns[name]
        return table

    def _note_ceiling(
        self, of: str, column: str, above: IdArray, rows: IdArray, values: Column, found: _Found
    ) -> None:
        """Say which latencies are only known to be large. The values stay: they are a lower bound."""
        above = np.intersect1d(above, rows[~np.isnan(values)])
        if len(above):
            found.gaps.append(
                Gap(
                    f"{of}.{column}",
                    f"above the last bucket of the histogram for {len(above)} of {len(rows)} "
                    f"({self._named(above, of)}): the values are a lower bound",
                )
            )

    def _named(self, ids: IdArray, of: str = "node") -> str:
        """The first three, for people."""
        names = [
            self._roster.name(i)
            if of == "node"
            else f"{self._roster.name(i >> 32)} to {self._roster.name(i & 0xFFFFFFFF)}"
            for i in ids[:3].tolist()
        ]
        return ", ".join(names) + (", …" if len(ids) > len(names) else "")


def _said_of(query: Query, answer: Reading, ids: IdArray, fresh: NDArray[np.bool_]) -> list[str]:
    """What was left out of an answer, and why."""
    said = []
    if answer.unreadable:
        said.append(f"{answer.unreadable} series have a value that is no number")
    if stale := int(np.count_nonzero(~fresh)):
        oldest = float(np.min(answer.times[~fresh]))
        said.append(f"{stale} series are not of the moment that was asked about, but of {oldest:.0f} s")
    placeless = int(np.count_nonzero((ids < 0) & (ids != NO_ROOM) & (ids != UNWATCHED)))
    if placeless and placeless == len(ids):
        said.append(f"none of its {placeless} series has the label {' or '.join(query.service.service)}")
    return said


def _only_numbers(part: _Part) -> list[str]:
    """Replace by NaN, in place, what the column cannot be; returns what is to be said of it.

    NaN itself is how Prometheus says that nothing was observed.
    """
    values, said = part.values, []
    infinite = np.abs(values) > _LARGEST
    if count := int(np.count_nonzero(infinite)):
        said.append(f"{count} values are infinite")
        values[infinite] = np.nan
    kind = "amount" if part.query.per or part.query.ceiling_of else kind_of(part.query.column)
    if kind in ("amount", "share"):
        wrong = values < 0
        if kind == "share":
            wrong |= values > 1.0 + 1e-6
        if count := int(np.count_nonzero(wrong)):
            said.append(f"{count} values are not {'within 0 to 1' if kind == 'share' else 'at least 0'}")
            values[wrong] = np.nan
        if kind == "share":
            np.minimum(values, 1.0, out=values)
    return said


def _distinct(parts: Sequence[IdArray]) -> IdArray:
    """All ids, ascending, each once."""
    ids = np.concatenate(parts) if parts else np.empty(0, np.int64)
    ids.sort()  # a third of the time of np.unique, which hashes
    return ids[np.append(True, ids[1:] != ids[:-1])] if len(ids) else ids


def _at_most(most: int, ids: IdArray, before: IdArray) -> IdArray:
    """The first `most`, those that were there before first; ascending as they were."""
    if len(ids) <= most:
        return ids
    old = np.isin(ids, before, assume_unique=True)
    order = np.argsort(~old, kind="stable")[:most]
    return np.sort(ids[order])
