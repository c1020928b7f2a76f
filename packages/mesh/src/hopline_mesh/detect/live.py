"""Present deviations of a mesh: those of the last interval, updated by events since then.

Created from a detector after a step, and independent of it afterwards: nothing here changes the detector,
and no verdict depends on an event. Values become deviations as in `kernels.observe`, from baselines after
the interval.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest
from hopline_mesh.detect import kernels
from hopline_mesh.detect.series import SeriesTable
from hopline_mesh.roster import SlotArray
from hopline_mesh.snapshot import Snapshot

_transform, _doubted = kernels.transform.py_func, kernels.doubted.py_func


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
        services: names of its services.
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
        name = snapshot.roster.name
        self.services = [name(slot) for slot in snapshot.nodes.tolist()]
        self._row_of = {service: row for row, service in enumerate(self.services)}
        self._services = _Side(nodes, snapshot.nodes, snapshot.node_features, interval_s)
        self._calls = _Side(edges, paths, snapshot.edge_features, interval_s)
        #: caller -> callee -> row in `_calls`; None: the call path was not in the interval
        self._calls_of: dict[str, dict[str, int | None]] = defaultdict(dict)
        ends = zip(snapshot.edge_src.tolist(), snapshot.edge_dst.tolist(), strict=True)
        for row, (src, dst) in enumerate(ends):
            self._calls_of[name(src)][name(dst)] = row
        self._gone: set[tuple[str, str]] = set()

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
        self._row(service)
        return {
            callee: {} if row is None else self._calls.deviations(row)
            for callee, row in self._calls_of[service].items()
            if (service, callee) not in self._gone
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
        path = caller, callee = event.caller, event.callee
        self._row(caller)
        self._row(callee)
        rows = self._calls_of[caller]
        if event.gone:
            if callee not in rows or path in self._gone:
                raise BadRequest(f"gone: there is no call path from {caller!r} to {callee!r}")
            self._gone.add(path)
        else:
            row = rows.get(callee)
            self._calls.change(row, event.values, f"{caller} → {callee}")
            rows[callee] = row
            self._gone.discard(path)
        return list(dict.fromkeys(path))

    def _row(self, service: str) -> int:
        row = self._row_of.get(service)
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

    def change(self, row: int | None, values: Mapping[str, float | None], whose: str) -> None:
        """Compute a row again after some values have changed; None: only check them.

        Raises:
            BadRequest: an unknown column, or an invalid value.
        """
        places = [self._place(column, value, whose) for column, value in values.items()]
        if row is None:
            return
        for place, value in zip(places, values.values(), strict=True):
            self._values[row, place] = math.nan if value is None else value
        again = set(places)
        if self._load in again:  # a share of few requests is uncertain
            again |= {place for place, kind in enumerate(self._kinds) if kind == kernels.SHARE}
        for place in again:
            self._slow[row, place] = self._deviation(row, place)

    def _place(self, column: str, value: float | None, whose: str) -> int:
        if column not in self._columns:
            raise BadRequest(
                f"{whose!r} has no column {column[:100]!r}; its columns are {', '.join(self._columns)}"
            )
        place = self._columns.index(column)
        if value is not None and math.isnan(_transform(value, self._kinds[place], 1.0)):
            wanted = "a share, 0 to 1" if self._kinds[place] == kernels.SHARE else "an amount, 0 or more"
            raise BadRequest(f"{column} of {whose!r} is {value!r}; it must be {wanted}")
        return place

    def _deviation(self, row: int, place: int) -> float:
        """Return the deviation as in `kernels.observe`, for a series with a baseline; NaN is none."""
        value, level, offset, spread = (
            float(values[row, place]) for values in (self._values, self._level, self._offset, self._spread)
        )
        kind = self._kinds[place]
        u = _transform(value, kind, max(offset, 1e-9))
        if math.isnan(u) or math.isnan(level):
            return math.nan
        if offset < 0:  # never measured before: the value is its baseline
            return 0.0
        requests = float(self._values[row, self._load]) * self._interval_s if self._load >= 0 else 0.0
        return float((u - level) / _doubted(spread, level, kind, requests))


def replay(state: LiveState, events: Iterable[Event]) -> None:
    """Apply events again that arrived after the state's interval; skips those that are no longer valid."""
    for event in events:
        with suppress(BadRequest):
            state.take(event)
