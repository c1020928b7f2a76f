"""The current embeddings of a mesh: those of the last interval, updated by events since then.

Created from a detector after a step, and independent of it afterwards: nothing here changes the detector,
and no verdict depends on an event. Values become deviations as in `kernels.observe`, from baselines after
the interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest
from hopline_mesh.event import Event
from hopline_mesh.model.events import LiveEmbeddings
from hopline_mesh.model.graph import IntArray, MeshGraph
from hopline_mesh.model.weights import FloatArray, Weights
from hopline_mesh.roster import SlotArray
from hopline_mesh.snapshot import Snapshot
from hopline_mesh.tagae import arrivals, kernels, rows
from hopline_mesh.tagae.series import SeriesTable
from hopline_mesh.tagae.sweep_kernels import MAX_INPUT

if TYPE_CHECKING:
    Values = Mapping[str, float | None]

_FIRST = np.zeros(1, np.int32)
_transform = kernels.transform.py_func


class LiveState:
    """The embeddings of one mesh, between two intervals. Not thread-safe.

    Args:
        weights: of the detector's model.
        snapshot: the newest judged interval.
        paths: int32 [e], slots of its call paths.
        nodes, edges: the series after it; needed parts are copied.
        interval_s: seconds between intervals.

    Attributes:
        time_s: of the interval.
    """

    #: Whether compiled code is loaded, which takes 20 ms.
    _is_warm: ClassVar[bool] = False

    def __init__(
        self,
        weights: Weights,
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
        keys = (snapshot.edge_src.astype(np.int64) << 32) | snapshot.edge_dst
        self._keys: list[int] = keys.tolist()
        self._edge_of = {key: edge for edge, key in enumerate(self._keys)}
        self._call_of = self._edge_of.copy()
        #: call path that was not in the interval -> its reported deviations
        self._new: dict[int, NDArray[np.float32]] = {}
        graph = MeshGraph()
        graph.at_slots(snapshot.nodes, snapshot.edge_src, snapshot.edge_dst, nodes.size)
        h = self._services.h.copy()
        amounts = np.ones(len(paths), np.float32)
        if edges.load >= 0:
            amounts = snapshot.edge_features[:, edges.load]
        arrivals.fill(graph, h, snapshot.nodes, nodes, amounts)
        if not LiveState._is_warm:
            _warm_up(weights)
            LiveState._is_warm = True
        self._embeddings = LiveEmbeddings(weights)
        self._embeddings.reset(graph.sources, graph.targets, self._services.x, h, self._calls.x)

    @property
    def services(self) -> Sequence[str]:
        """Names of all services that have an embedding."""
        return [self._roster.name(slot) for slot in self._slots.tolist()]

    def embedding(self, service: str) -> FloatArray:
        """Return the current embedding, float32 [d_out].

        Raises:
            BadRequest: no such service in the last interval.
        """
        found: FloatArray = self._embeddings.z[self._row(service)].copy()
        return found

    def deviations(self, service: str) -> dict[str, float | None]:
        """Return column -> deviation from the baseline in spreads, without correction for load.

        None is not measured.

        Raises:
            BadRequest: see `embedding`.
        """
        return self._services.deviations(self._row(service))

    def take(self, event: Event) -> list[str]:
        """Apply an event: update its service and the neighbours that depend on it.

        Returns: services whose embeddings were recomputed.

        Raises:
            BadRequest: an unknown service or column, an invalid value, or a missing call path. Then nothing
                has changed.
        """
        event.check()
        if event.service:
            row = self._row(event.service)
            x = self._services.changed(row, event.values, event.service)
            return self._named(self._embeddings.set_node(row, x))
        caller, callee = self._row(event.caller), self._row(event.callee)
        key = int(self._slots[caller]) << 32 | int(self._slots[callee])
        edge = self._edge_of.get(key)
        if event.gone:
            return self._named(self._without(key, edge, event))
        name = f"{event.caller} → {event.callee}"
        if key in self._call_of:
            x = self._calls.changed(self._call_of[key], event.values, name)
        else:
            self._new[key], x = self._calls.came(self._new.get(key), event.values, name)
        if edge is not None:
            return self._named(self._embeddings.set_edge(edge, x))
        self._edge_of[key] = len(self._keys)
        self._keys.append(key)
        return self._named(self._embeddings.add_edge(caller, callee, x))

    def _without(self, key: int, edge: int | None, event: Event) -> IntArray:
        if edge is None:
            raise BadRequest(f"gone: there is no call path from {event.caller!r} to {event.callee!r}")
        del self._edge_of[key]
        self._new.pop(key, None)
        last = self._keys.pop()  # it gets the number of the removed one
        if last != key:
            self._keys[edge] = last
            self._edge_of[last] = edge
        return self._embeddings.remove_edge(edge)

    def _row(self, service: str) -> int:
        slot = self._roster.find(service)
        row = None if slot is None else self._row_of.get(slot)
        if row is None:
            raise BadRequest(
                f"service {service[:200]!r} was not in the last interval; names are namespace/service, and "
                "new services appear with the next interval"
            )
        return row

    def _named(self, touched: IntArray) -> list[str]:
        return [self._roster.name(int(self._slots[row])) for row in touched.tolist()]


class _Side:
    """One table's rows of the interval: deviations of series, and inputs of the model."""

    def __init__(
        self, table: SeriesTable, slots: SlotArray, values: NDArray[np.float32], interval_s: float
    ) -> None:
        width = table.modelled
        self._columns = table.columns[:width]
        self._place = {column: place for place, column in enumerate(self._columns)}
        self._kinds = table.kinds[:width].tolist()
        self._load = table.load
        self._interval_s = interval_s
        self._offset, self._level = table.offset[slots, :width], table.level[slots, :width]
        self._spread, self._slope = table.spread[slots, :width], table.slope[slots, :width]
        self._slow, self._near = table.slow[slots, :width], table.near[slots, :width]
        self._values = values.copy()
        self.x, self.h = (
            np.empty((len(slots), 2 * width), np.float32),
            np.empty((len(slots), width), np.float32),
        )
        everything = np.arange(len(slots), dtype=np.int32)
        rows.gather(self._slow, self._near, self._slope, self._load, everything, MAX_INPUT, self.x, self.h)
        #: for a series without history
        self._fresh = np.full((1, width), np.nan, np.float32)
        self._flat = np.zeros((1, width), np.float32)
        self._x, self._h = np.empty((1, 2 * width), np.float32), np.empty((1, width), np.float32)

    def deviations(self, row: int) -> dict[str, float | None]:
        return {
            column: None if math.isnan(spreads) else round(spreads, 4)
            for column, spreads in zip(self._columns, self._slow[row].tolist(), strict=True)
        }

    def changed(self, row: int, values: Values, whose: str) -> FloatArray:
        """Return the model's row after some values have changed.

        Raises:
            BadRequest: an unknown column, or an invalid value.
        """
        places = [self._checked(column, value, whose) for column, value in values.items()]
        shown = self._values[row]
        for place, value in zip(places, values.values(), strict=True):
            shown[place] = math.nan if value is None else value
        again = set(places)
        if self._load in again:  # a share of few requests is uncertain
            again |= {place for place, kind in enumerate(self._kinds) if kind == kernels.SHARE}
        for place in again:
            self._slow[row, place] = self._deviation(row, place)
        return self._read(self._slow[row : row + 1], self._slope[row : row + 1])

    def came(
        self, before: NDArray[np.float32] | None, values: Values, whose: str
    ) -> tuple[NDArray[np.float32], FloatArray]:
        """Return the model's row of a series that was not in the interval; its values count as normal.

        Args:
            before: its previous deviations, float32 [1, F]; None: it is new.

        Returns: its present deviations, and the model's row.
        """
        places = [self._checked(column, value, whose) for column, value in values.items()]
        slow = self._fresh.copy() if before is None else before
        for place, value in zip(places, values.values(), strict=True):
            slow[0, place] = math.nan if value is None else 0.0
        return slow, self._read(slow, self._flat)

    def _read(self, slow: NDArray[np.float32], slope: NDArray[np.float32]) -> FloatArray:
        rows.gather(slow, self._fresh, slope, self._load, _FIRST, MAX_INPUT, self._x, self._h)
        found: FloatArray = self._x[0]
        return found

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


def _warm_up(weights: Weights) -> None:
    """Load all compiled code before the first event: one event of each kind, in a mesh of two services."""
    shape = weights.shape
    first, second = np.array([0], np.int32), np.array([1], np.int32)
    x, h = np.zeros((2, shape.d_in), np.float32), np.zeros((2, shape.d_temporal), np.float32)
    e = np.zeros((1, shape.d_edge), np.float32)
    tried = LiveEmbeddings(weights)
    tried.reset(first, second, x, h, e)
    tried.set_node(0, x[0])
    tried.add_edge(1, 0, e[0])
    tried.set_edge(1, e[0])
    tried.remove_edge(0)


def replay(state: LiveState, events: Iterable[Event]) -> None:
    """Apply events again that arrived after the state's interval; skips those that are no longer valid."""
    for event in events:
        try:
            state.take(event)
        except BadRequest:
            continue
