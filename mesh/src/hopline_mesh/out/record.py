"""An incident with its evidence over time, and what people say of it.

Knows incidents and snapshots, and no readers. Everything is bounded, because an incident may last weeks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from hopline.errors import BadRequest
from hopline_mesh.detect.calls import CallsPerRequest
from hopline_mesh.incident import Evidence, Incident
from hopline_mesh.out.words import name_of
from hopline_mesh.snapshot import Snapshot

#: Maximum number of series of one incident, and of points of each.
MAX_SERIES = 8
MAX_POINTS = 240
#: Maximum length of the name of who set a mark.
_LONGEST_BY = 100

#: feature, service, caller of a series.
Key: TypeAlias = tuple[str, str, str | None]


#: `acknowledged`: someone looks after it. `muted`: its alert ends; the page still shows it.
#: `not_an_incident`: as muted, and the next training learns from its time as normal.
MarkKind = Literal["acknowledged", "muted", "not_an_incident"]


class Mark(msgspec.Struct, frozen=True):
    """A mark on an incident.

    Attributes:
        kind: see `MarkKind`.
        by: who set it, for people; "" if unknown.
        at_s: when, Unix seconds.
    """

    kind: MarkKind
    by: str = ""
    at_s: float = 0.0


class MarkRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: a mark, or null to remove it."""

    mark: MarkKind | None
    by: str = ""


def read_mark(body: bytes) -> MarkRequest:
    """Parse the body of a request.

    Raises:
        BadRequest: the body is invalid.
    """
    try:
        found = msgspec.json.decode(body, type=MarkRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(
            f'the body must be such as {{"mark": "acknowledged", "by": "ada"}}: {error}'
        ) from None
    if len(found.by) > _LONGEST_BY:
        raise BadRequest(f"by: longer than {_LONGEST_BY} characters")
    return found


class Point(msgspec.Struct, frozen=True, array_like=True):
    """The expected and seen value at one time; None if unknown."""

    time_s: float
    expected: float | None
    seen: float | None


class Series(msgspec.Struct):
    """One measurement of an incident over time.

    Attributes:
        feature, service, caller: as in `Evidence`.
        points: oldest first, at most `MAX_POINTS`; when full, every second point is dropped.
    """

    feature: str
    service: str
    caller: str | None
    points: list[Point] = []

    @property
    def key(self) -> Key:
        """The identity of the series."""
        return self.feature, self.service, self.caller

    def add(self, point: Point) -> None:
        """Append a point, and drop points if there are too many. Points later than it are removed first."""
        if self.points and point.time_s <= self.points[-1].time_s:
            self.points = [old for old in self.points if old.time_s < point.time_s]
        self.points.append(point)
        if len(self.points) > MAX_POINTS:
            self.points = [*self.points[:-1:2], self.points[-1]]


class Record(msgspec.Struct):
    """One incident and its series.

    Attributes:
        incident: as of the newest verdict.
        series: of the strongest evidence when it was first seen, in the order of the suspects.
        tail: number of intervals that are still recorded after the incident ended.
        name: the first suspect when it was first seen; it stays, even if another is suspected later.
        mark: what people say of it.
    """

    incident: Incident
    series: list[Series] = []
    tail: int = 20
    name: str = ""
    mark: Mark | None = None

    @property
    def is_open(self) -> bool:
        """Whether the incident is open."""
        return self.incident.end_s is None

    def take(self, incident: Incident) -> None:
        """Set the incident as of the newest verdict."""
        self.incident = incident
        self.name = self.name or name_of(incident)
        self._follow_new()

    def follow(self, snapshot: Snapshot, seen: Mapping[Key, float | None]) -> None:
        """Add the values of one interval.

        Args:
            snapshot: the interval.
            seen: values of at least the series of this record; see `seen_in`.
        """
        evidence = {(each.feature, each.service, each.caller): each for each in evidence_of(self.incident)}
        for series in self.series:
            found = evidence.get(series.key)
            known = snapshot.time_s >= self.incident.start_s and self.is_open and found is not None
            # Evidence without a column of the snapshot (a trouble) has its value only in itself.
            value = seen.get(series.key, found.seen if known and found is not None else None)
            series.add(
                Point(snapshot.time_s, found.expected if known and found is not None else None, value)
            )

    def _follow_new(self) -> None:
        known = {each.key for each in self.series}
        for each in evidence_of(self.incident):
            key = each.feature, each.service, each.caller
            if len(self.series) >= MAX_SERIES:
                break
            if key not in known:
                known.add(key)
                self.series.append(Series(*key))


def evidence_of(incident: Incident) -> list[Evidence]:
    """Return all evidence of an incident, that of the first suspects first."""
    return [each for suspect in incident.suspects for each in suspect.evidence]


def seen_in(snapshot: Snapshot, keys: set[Key]) -> dict[Key, float | None]:
    """Return the values of series in an interval.

    Args:
        snapshot: the interval.
        keys: the series.

    Returns: for each key whose feature is a column, or is computed from columns: the value, None if it was
        not measured or the service or call path is missing. Other keys are left out.
    """
    found: dict[Key, float | None] = {}
    schema, slots = snapshot.schema, {key: _slots(snapshot, key) for key in keys}
    nodes = {slot for slot, caller in slots.values() if caller is None and slot is not None}
    callers = {caller for _, caller in slots.values() if caller is not None}
    # One pass over all services and call paths for any number of keys.
    rows = np.flatnonzero(np.isin(snapshot.nodes, list(nodes)))
    node_row = {int(snapshot.nodes[row]): int(row) for row in rows}
    rows = np.flatnonzero(np.isin(snapshot.edge_src, list(callers)))
    edge_row = {(int(snapshot.edge_dst[row]), int(snapshot.edge_src[row])): int(row) for row in rows}
    calls = CallsPerRequest(schema)
    is_counted = any(key[0] in calls.columns and key[2] is not None for key in keys)
    edge_values = calls.of(snapshot) if is_counted else snapshot.edge_features
    edge_columns = (*schema.edge_features, *calls.columns) if is_counted else schema.edge_features
    for key, (slot, caller) in slots.items():
        feature, of_edge = key[0], key[2] is not None
        columns = edge_columns if of_edge else schema.node_features
        if feature not in columns:
            continue
        if of_edge:
            row = edge_row.get((slot, caller)) if slot is not None and caller is not None else None
        else:
            row = node_row.get(slot) if slot is not None else None
        values = edge_values if of_edge else snapshot.node_features
        value = float("nan") if row is None else float(values[row, columns.index(feature)])
        found[key] = None if value != value else value
    return found


def _slots(snapshot: Snapshot, key: Key) -> tuple[int | None, int | None]:
    """Return the slots of the service and of the caller."""
    _, service, caller = key
    return snapshot.roster.find(service), None if caller is None else snapshot.roster.find(caller)
