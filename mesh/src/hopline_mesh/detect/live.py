"""Present deviations of a mesh: those of the last interval, updated by events since then.

Created from a detector after a step, and independent of it afterwards: nothing here changes the detector,
and no verdict depends on an event. Values become deviations as in `kernels.observe`, from baselines after
the interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest
from hopline_mesh.detect import kernels
from hopline_mesh.detect.series import SeriesTable
from hopline_mesh.roster import SlotArray
from hopline_mesh.snapshot import Snapshot

if TYPE_CHECKING:
    Values = Mapping[str, float | None]

_transform = kernels.transform.py_func


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One event of a service, or of a call path.

    Attributes:
        service: the service whose values changed.
        caller, callee: the call path whose values changed, or that is new.
        values: column -> value, in the units of the snapshots; None is not measured any more. Missing
            columns keep their values.
        gone: the call path does not exist any more.
    """

    service: str = ""
    caller: str = ""
    callee: str = ""
    values: dict[str, float | None] = {}
    gone: bool = False

    def check(self) -> None:
        """Check the fields.

        Raises:
            BadRequest: no target, two targets, or no values.
        """
        if bool(self.service) == bool(self.caller or self.callee):
            raise BadRequest("an event needs either a service, or a call path: caller and callee")
        if bool(self.caller) != bool(self.callee):
            raise BadRequest("an event of a call path needs caller and callee")
        if self.gone and (self.service or self.values):
            raise BadRequest(
                "gone: allowed only for a call path, without values; the next interval detects a removed "
                "service"
            )
        if not self.gone and not self.values and self.service:
            raise BadRequest(f"the event of {self.service!r} has no values")


class LiveState:
    """The deviations of one mesh, between two intervals. Not thread-safe.

    Args:
        snapshot: the newest judged interval.
        paths: int32 [e], slots of its call paths.
        nodes, edges: the series after it; needed parts are copied.
        interval_s: seconds between intervals.

    Attributes:
        time_s: of the interval.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        paths: SlotArray,
        nodes: SeriesTable,
        edges: SeriesTable,
        interval_s: float,
    ) -> None:
        self.time_s = snapshot.time_s
        self._roster = snapshot.roster
        self._row_of = {slot: row for row, slot in enumerate(snapshot.nodes.tolist())}
        self._slots = snapshot.nodes
        self._services = _Side(nodes, snapshot.nodes, snapshot.node_features, interval_s)
        self._calls = _Side(edges, paths, snapshot.edge_features, interval_s)
        #: call path -> its row in `_calls`, of the interval
        self._row_of_call: dict[tuple[int, int], int] = {}
        #: caller -> callee -> that row, of present call paths; None: it was not in the interval
        self._calls_of: dict[int, dict[int, int | None]] = {}
        ends = zip(snapshot.edge_src.tolist(), snapshot.edge_dst.tolist(), strict=True)
        for row, (src, dst) in enumerate(ends):
            self._row_of_call[src, dst] = row
            self._calls_of.setdefault(src, {})[dst] = row

    @property
    def services(self) -> Sequence[str]:
        """Names of the services of the last interval."""
        return [self._roster.name(slot) for slot in self._slots.tolist()]

    def deviations(self, service: str) -> dict[str, float | None]:
        """Return column -> deviation from the baseline in spreads, without correction for load.

        None is not measured.

        Raises:
            BadRequest: no such service in the last interval.
        """
        return self._services.deviations(self._row(service))

    def calls(self, service: str) -> dict[str, dict[str, float | None]]:
        """Return callee -> deviations of the call path to it, as `deviations`; {} without a history.

        Raises:
            BadRequest: no such service in the last interval.
        """
        slot = int(self._slots[self._row(service)])
        return {
            self._roster.name(callee): {} if row is None else self._calls.deviations(row)
            for callee, row in self._calls_of.get(slot, {}).items()
        }

    def take(self, event: Event) -> list[str]:
        """Apply an event to its service, or to its call path.

        Returns: services whose deviations, or those of whose call paths, were computed again.

        Raises:
            BadRequest: an unknown service or column, an invalid value, or a missing call path. Then nothing
                has changed.
        """
        event.check()
        if event.service:
            self._services.change(self._row(event.service), event.values, event.service)
            return [event.service]
        src, dst = (int(self._slots[self._row(end)]) for end in (event.caller, event.callee))
        present = self._calls_of.setdefault(src, {})
        ends = list(dict.fromkeys((event.caller, event.callee)))
        if event.gone:
            if dst not in present:
                raise BadRequest(f"gone: there is no call path from {event.caller!r} to {event.callee!r}")
            del present[dst]
            return ends
        row = self._row_of_call.get((src, dst))
        name = f"{event.caller} → {event.callee}"
        if row is None:  # without a history
            self._calls.check(event.values, name)
        else:
            self._calls.change(row, event.values, name)
        present[dst] = row
        return ends

    def _row(self, service: str) -> int:
        slot = self._roster.find(service)
        row = None if slot is None else self._row_of.get(slot)
        if row is None:
            raise BadRequest(
                f"service {service[:200]!r} was not in the last interval; names are namespace/service, and "
                "new services appear with the next interval"
            )
        return row


class _Side:
    """One table's rows of the interval."""

    def __init__(
        self, table: SeriesTable, slots: SlotArray, values: NDArray[np.float32], interval_s: float
    ) -> None:
        width = values.shape[1]  # without what is derived
        self._columns = table.columns[:width]
        self._place = {column: place for place, column in enumerate(self._columns)}
        self._kinds = table.kinds[:width].tolist()
        self._load = table.load
        self._interval_s = interval_s
        self._offset, self._level = table.offset[slots, :width], table.level[slots, :width]
        self._spread = table.spread[slots, :width]
        self._slow = table.slow[slots, :width]
        self._values = values.copy()

    def deviations(self, row: int) -> dict[str, float | None]:
        return {
            column: None if math.isnan(spreads) else round(spreads, 4)
            for column, spreads in zip(self._columns, self._slow[row].tolist(), strict=True)
        }

    def change(self, row: int, values: Values, whose: str) -> None:
        """Compute a row again after some values have changed.

        Raises:
            BadRequest: an unknown column, or an invalid value.
        """
        places = self.check(values, whose)
        shown = self._values[row]
        for place, value in zip(places, values.values(), strict=True):
            shown[place] = math.nan if value is None else value
        again = set(places)
        if self._load in again:  # a share of few requests is uncertain
            again |= {place for place, kind in enumerate(self._kinds) if kind == kernels.SHARE}
        for place in again:
            self._slow[row, place] = self._deviation(row, place)

    def check(self, values: Values, whose: str) -> list[int]:
        """Return the places of the columns.

        Raises:
            BadRequest: an unknown column, or an invalid value.
        """
        return [self._checked(column, value, whose) for column, value in values.items()]

    def _checked(self, column: str, value: float | None, whose: str) -> int:
        place = self._place.get(column)
        if place is None:
            raise BadRequest(
                f"{whose!r} has no column {column[:100]!r}; its columns are {', '.join(self._columns)}"
            )
        if value is not None and math.isnan(_transform(value, self._kinds[place], 1.0)):
            wanted = "a share, 0 to 1" if self._kinds[place] == kernels.SHARE else "an amount, 0 or more"
            raise BadRequest(f"{column} of {whose!r} is {value!r}; it must be {wanted}")
        return place

    def _deviation(self, row: int, place: int) -> float:
        """Return the deviation as in `kernels.observe`, for a series with a baseline; NaN is none."""
        value, level = float(self._values[row, place]), float(self._level[row, place])
        kind = self._kinds[place]
        offset = max(float(self._offset[row, place]), 1e-9)
        u = _transform(value, kind, offset)
        if math.isnan(u) or math.isnan(level):
            return math.nan
        if self._offset[row, place] < 0:  # never measured before: the value is its baseline
            return 0.0
        width = float(self._spread[row, place])
        requests = 0.0
        if self._load >= 0 and self._values[row, self._load] > 0:
            requests = float(self._values[row, self._load]) * self._interval_s
        if kind == kernels.SHARE and requests > 0:
            share = min(max(level, 1.0 / requests), 0.5)
            width = math.sqrt(width * width + share * (1 - share) / requests)
        return float(u - level) / width


def replay(state: LiveState, events: Iterable[Event]) -> None:
    """Apply events again that arrived after the state's interval; skips those that are no longer valid."""
    for event in events:
        try:
            state.take(event)
        except BadRequest:
            continue
