"""An incident with its evidence over time, and what people say of it.

Knows incidents and snapshots, and no readers. Everything is bounded, because an incident may last weeks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest
from hopline.transports.json_body import decode_body
from hopline_mesh.detect.calls import CallsPerRequest
from hopline_mesh.incident import Evidence, Incident
from hopline_mesh.out.words import name_of
from hopline_mesh.snapshot import Snapshot

#: Maximum number of series of one incident, and of points of each.
MAX_SERIES = 8
MAX_POINTS = 240
#: Number of intervals that are recorded after the end of an incident.
_TAIL = 20

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
    by: Annotated[str, msgspec.Meta(max_length=100)] = ""


#: Control characters, line separators, and characters that change the direction of text around them.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_read = msgspec.json.Decoder(MarkRequest).decode


def read_mark(body: bytes) -> MarkRequest:
    """Parse the body of a request.

    Raises:
        BadRequest: the body is invalid.
    """
    asked = decode_body(body, _read, MarkRequest, example='{"mark": "acknowledged", "by": "ada"}')
    if found := _CONTROL.search(asked.by):
        code = f"U+{ord(found[0]):04X}"
        raise BadRequest(f"by: has the control character {code}; send a name on one line", "by")
    return asked


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
    tail: int = _TAIL
    name: str = ""
    mark: Mark | None = None

    @property
    def is_open(self) -> bool:
        """True if the incident is open."""
        return self.incident.end_s is None

    def take(self, incident: Incident) -> None:
        """Set the incident as of the newest verdict."""
        self.incident = incident
        self.name = self.name or name_of(incident)
        if self.is_open:
            self.tail = _TAIL  # it may have been open before: a pod that crashes again
        known = {each.key for each in self.series}
        for key in evidence_of(incident):
            if key not in known and len(self.series) < MAX_SERIES:
                self.series.append(Series(*key))

    def follow(self, snapshot: Snapshot, seen: Mapping[Key, float | None]) -> None:
        """Add the values of one interval.

        Args:
            snapshot: the interval.
            seen: values of at least the series of this record; see `seen_in`.
        """
        is_current = self.is_open and snapshot.time_s >= self.incident.start_s
        evidence = evidence_of(self.incident) if is_current else {}
        for series in self.series:
            found = evidence.get(series.key)
            # Evidence without a column of the snapshot (a trouble) has its value only in itself.
            value = seen.get(series.key, None if found is None else found.seen)
            series.add(Point(snapshot.time_s, None if found is None else found.expected, value))


def evidence_of(incident: Incident) -> dict[Key, Evidence]:
    """Return the evidence of an incident by series, that of the first suspects first."""
    evidence = [each for suspect in incident.suspects for each in suspect.evidence]
    return {(each.feature, each.service, each.caller): each for each in evidence}


def seen_in(snapshot: Snapshot, keys: set[Key]) -> dict[Key, float | None]:
    """Return the values of series in an interval.

    Args:
        snapshot: the interval.
        keys: the series.

    Returns: for each key whose feature is a column, or is computed from columns: the value, None if it was
        not measured or the service or call path is missing. Other keys are left out.
    """
    schema, num_slots = snapshot.schema, len(snapshot.roster)
    calls = CallsPerRequest(schema)
    edge_columns, edge_values = schema.edge_features, snapshot.edge_features
    if any(feature in calls.columns and caller is not None for feature, _, caller in keys):
        edge_columns, edge_values = (*edge_columns, *calls.columns), calls.of(snapshot)

    def number(service: str, caller: str | None) -> int:
        """Return a number for a service, or for a call path; -1 for an unknown one."""
        slot = snapshot.roster.find(service)
        caller_slot = 0 if caller is None else snapshot.roster.find(caller)
        return -1 if slot is None or caller_slot is None else caller_slot * num_slots + slot

    numbers = {key: number(key[1], key[2]) for key in keys}
    edges = snapshot.edge_src.astype(np.int64) * num_slots + snapshot.edge_dst
    node_row = _rows(snapshot.nodes, [at for key, at in numbers.items() if key[2] is None])
    edge_row = _rows(edges, [at for key, at in numbers.items() if key[2] is not None])
    found: dict[Key, float | None] = {}
    for key, at in numbers.items():
        columns, values, row_of = schema.node_features, snapshot.node_features, node_row
        if key[2] is not None:
            columns, values, row_of = edge_columns, edge_values, edge_row
        if key[0] in columns:
            value = float(values[row_of[at], columns.index(key[0])]) if at in row_of else math.nan
            found[key] = None if math.isnan(value) else value
    return found


def _rows(numbers: NDArray[Any], wanted: list[int]) -> dict[int, int]:
    """Return the row of each wanted number that is among the numbers."""
    rows = np.flatnonzero(np.isin(numbers, wanted))
    return dict(zip(numbers[rows].tolist(), rows.tolist(), strict=True))
