"""Injects faults into normal hours, to judge detectors by faults that they were not tuned on.

Each fault changes measured numbers of one service or call path for some minutes, at one of three
severities. Which, when and how strongly is drawn from a seed, so every detector sees the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.evaluate.recording import Event, Recording
from hopline_mesh.snapshot import FloatArray, Snapshot

#: `scale` and `shift`: one column of a service is multiplied, or moved by its own spreads. `swapped`: all
#: columns of a service come from another time, so each number is usual, and their relation to the load and
#: to the neighbours is not. `delay`: calls of one path take longer, for the caller too. `dropped`: a share
#: of a path's calls gets lost. `errors`: a share of a service's responses fails.
InjectedKind = Literal["scale", "shift", "swapped", "delay", "dropped", "errors"]
KINDS: tuple[InjectedKind, ...] = get_args(InjectedKind)
SEVERITIES = ("low", "middle", "high")
#: For each severity: the factor; spreads; rank of the other time by its difference, 0 to 1; additional
#: latency as a multiple of the usual one; the lost share; the failing share.
_SIZES: dict[InjectedKind, tuple[float, float, float]] = {
    "scale": (1.25, 1.6, 3.0),
    "shift": (3.0, 6.0, 12.0),
    "swapped": (0.6, 0.85, 1.0),
    "delay": (0.3, 1.0, 3.0),
    "dropped": (0.3, 0.6, 0.95),
    "errors": (0.02, 0.05, 0.2),
}
#: Seconds of a fault, from one to the next, and before the first.
DURATION_S, EVERY_S, FIRST_S = 480.0, 1800.0, 900.0
#: Draws of a target until one fits.
_TRIES = 50

#: Changes the columns of services and of call paths in the snapshot at a position.
_Change = Callable[[int, FloatArray, FloatArray], None]


@dataclass(frozen=True)
class _Slot:
    """A time in which a fault is injected: positions of its snapshots, and who is in all of them."""

    first: int
    last: int
    nodes: frozenset[int]
    paths: frozenset[tuple[int, int]]


def inject(recording: Recording, seed: int, *, every_s: float = EVERY_S) -> Recording:
    """Return the recording with faults in its test, each with a label; the training is unchanged.

    Kinds and severities come in turn, so each occurs as often as every other.

    Args:
        recording: its test must be normal time.
        every_s: from the start of one fault to the next.

    Raises:
        SnapshotInvalid: the test has labelled events, or is too short for one fault.
    """
    if recording.test_events():
        raise SnapshotInvalid(f"{recording.name}: faults are injected into normal time, and it has events")
    slots = _slots(recording, every_s)
    if not slots:
        raise SnapshotInvalid(f"{recording.name}: its test is too short for a fault")
    faults = _Faults(recording, np.random.default_rng([seed, 33]))
    snapshots = list(recording.snapshots)
    order = [(kind, severity) for severity in range(3) for kind in KINDS]
    events = []
    start = int(faults.rng.integers(len(order)))
    for number, slot in enumerate(slots):
        kind, severity = order[(start + number) % len(order)]
        made = faults.draw(kind, _SIZES[kind][severity], slot)
        if made is None:
            continue
        change, service, caller = made
        for at in range(slot.first, slot.last + 1):
            one = snapshots[at]
            nodes, edges = one.node_features.copy(), one.edge_features.copy()
            change(at, nodes, edges)
            snapshots[at] = replace(one, node_features=nodes, edge_features=edges)
        name = snapshots[slot.first].roster.name
        events.append(
            Event(
                snapshots[slot.first].time_s,
                snapshots[slot.last].time_s,
                name(service),
                None if caller is None else name(caller),
                f"{kind} {SEVERITIES[severity]}",
            )
        )
    return replace(recording, snapshots=snapshots, events=events)


def _slots(recording: Recording, every_s: float) -> list[_Slot]:
    found = []
    times = np.array([snapshot.time_s for snapshot in recording.snapshots])
    for period in recording.test:
        at_s = max(period.start_s, float(times[0])) + FIRST_S
        while at_s + DURATION_S + FIRST_S <= min(period.end_s, float(times[-1])):
            inside = np.flatnonzero((times >= at_s) & (times < at_s + DURATION_S))
            if len(inside) >= 2:
                some = [recording.snapshots[at] for at in inside.tolist()]
                nodes = frozenset.intersection(*(frozenset(each.nodes.tolist()) for each in some))
                paths = frozenset.intersection(*(frozenset(_paths(each)) for each in some))
                found.append(_Slot(int(inside[0]), int(inside[-1]), nodes, paths))
            at_s += every_s
    return found


def _paths(snapshot: Snapshot) -> list[tuple[int, int]]:
    return list(zip(snapshot.edge_src.tolist(), snapshot.edge_dst.tolist(), strict=True))


def _place(columns: Sequence[str], name: str) -> int | None:
    return columns.index(name) if name in columns else None


class _Faults:
    """Draws faults for a recording. Slots do not overlap, so no fault is drawn from another one's numbers.

    Args:
        recording: normal time.
        rng: draws targets.
    """

    def __init__(self, recording: Recording, rng: np.random.Generator) -> None:
        self.rng = rng
        self._snapshots, self._contexts = recording.snapshots, recording.contexts
        schema = self._snapshots[0].schema
        self._columns, self._edge_columns = schema.node_features, schema.edge_features
        training, _ = recording.training()
        values = np.full((len(training), len(training[0].roster), len(self._columns)), np.nan)
        for at, snapshot in enumerate(training):
            values[at, snapshot.nodes] = snapshot.node_features
        with np.errstate(all="ignore"):
            filled = np.where(np.isnan(values).all(axis=0), 0.0, values)
            self._middle = np.nanmedian(filled, axis=0)
            self._spread = 1.4826 * np.nanmedian(np.abs(filled - self._middle), axis=0)

    def draw(self, kind: InjectedKind, size: float, slot: _Slot) -> tuple[_Change, int, int | None] | None:
        """Return what changes the numbers of a snapshot, the root cause, and the caller of a path."""
        roster = self._snapshots[slot.first].roster
        busy = {
            change.service
            for at in (slot.first, slot.last)
            for change in self._contexts[at].changes
        }  # fmt: skip
        quiet = sorted(node for node in slot.nodes if roster.name(node) not in busy)
        paths = sorted(path for path in slot.paths if {*path} <= set(quiet) and path[0] != path[1])
        for _ in range(_TRIES):
            if kind in ("delay", "dropped"):
                if not paths:
                    return None
                path = paths[int(self.rng.integers(len(paths)))]
                made = self._of_path(kind, size, path, slot)
                if made is not None:
                    return made, path[1], path[0]
            elif quiet:
                service = quiet[int(self.rng.integers(len(quiet)))]
                if kind == "swapped":
                    made = self._swapped(size, service, slot)
                elif kind == "errors":
                    made = self._errors(size, service, slot)
                else:
                    made = self._one_column(kind, size, service, slot)
                if made is not None:
                    return made, service, None
        return None

    def _rows(self, slot: _Slot, service: int) -> dict[int, int]:
        """Return position of a snapshot -> the service's row in it."""
        return {
            at: int(np.flatnonzero(self._snapshots[at].nodes == service)[0])
            for at in range(slot.first, slot.last + 1)
        }

    def _one_column(self, kind: str, size: float, service: int, slot: _Slot) -> _Change | None:
        """One number of a service is out of place, and no other follows."""
        usable = [
            column
            for column, name in enumerate(self._columns)
            if name.endswith("_ms") or name == "cpu_cores"
        ]
        if not usable:
            return None
        column = usable[int(self.rng.integers(len(usable)))]
        rows = self._rows(slot, service)
        middle, spread = self._middle[service, column], self._spread[service, column]
        seen = np.mean([self._snapshots[at].node_features[row, column] for at, row in rows.items()])
        if not seen > 0 or not spread > 0 or seen > 5 * middle:
            return None

        def change(at: int, nodes: FloatArray, edges: FloatArray) -> None:
            if kind == "scale":
                nodes[rows[at], column] *= size
            else:
                nodes[rows[at], column] += size * spread

        return change

    def _swapped(self, size: float, service: int, slot: _Slot) -> _Change | None:
        """A service has the numbers of another time, in which its load was as different as `size` says."""
        load = _place(self._columns, "request_rate")
        if load is None:
            return None
        snapshots = self._snapshots
        times = np.array([each.time_s for each in snapshots])
        rates = np.full(len(snapshots), np.nan)
        where = np.full(len(snapshots), -1)
        for at, one in enumerate(snapshots):
            row = np.flatnonzero(one.nodes == service)
            if len(row):
                where[at], rates[at] = row[0], one.node_features[row[0], load]
        count = slot.last - slot.first + 1
        now = np.nanmean(rates[slot.first : slot.last + 1])
        begins = [
            begin
            for begin in range(0, len(snapshots) - count, max(1, count // 2))
            if abs(begin - slot.first) > count
            and (rates[begin : begin + count] > 0).all()
            and times[begin + count - 1] - times[begin] < 2 * DURATION_S
        ]
        if not begins or not now > 0:
            return None
        away = [abs(np.log(np.mean(rates[begin : begin + count]) / now)) for begin in begins]
        begin = begins[int(np.argsort(away)[round(size * (len(away) - 1))])]
        rows = self._rows(slot, service)

        def change(at: int, nodes: FloatArray, edges: FloatArray) -> None:
            other = begin + at - slot.first
            nodes[rows[at]] = snapshots[other].node_features[where[other]]

        return change

    def _errors(self, size: float, service: int, slot: _Slot) -> _Change | None:
        """Responses of a service fail, as its callers see too."""
        column = _place(self._columns, "error_share")
        on_edge = _place(self._edge_columns, "error_share")
        if column is None:
            return None
        rows = self._rows(slot, service)
        before = [self._snapshots[at].node_features[row, column] for at, row in rows.items()]
        if not np.isfinite(before).all() or np.mean(before) > 0.5:
            return None

        def change(at: int, nodes: FloatArray, edges: FloatArray) -> None:
            nodes[rows[at], column] = min(1.0, nodes[rows[at], column] + size)
            if on_edge is not None:
                called = self._snapshots[at].edge_dst == service
                edges[called, on_edge] = np.minimum(1.0, edges[called, on_edge] + size)

        return change

    def _of_path(self, kind: str, size: float, path: tuple[int, int], slot: _Slot) -> _Change | None:
        """Calls of one path take longer, or a share of them gets lost."""
        wanted = "client" if kind == "delay" else "request_rate"
        fits = [
            column
            for column, name in enumerate(self._edge_columns)
            if name == wanted or (kind == "delay" and wanted in name)
        ]
        if not fits:
            return None
        column = fits[0]
        at_callers, at_callees = (self._rows(slot, each) for each in path)
        rows = {at: _paths(self._snapshots[at]).index(path) for at in at_callers}
        usual = float(np.mean([self._snapshots[at].edge_features[row, column] for at, row in rows.items()]))
        if not usual > 0:
            return None
        slower = [at for at, name in enumerate(self._columns) if name.endswith("_ms")]
        load = _place(self._columns, "request_rate")

        def change(at: int, nodes: FloatArray, edges: FloatArray) -> None:
            row = rows[at]
            if kind == "delay":
                edges[row, column] += size * usual
                nodes[at_callers[at], slower] += size * usual
                return
            lost = size * edges[row, column]
            edges[row, column] -= lost
            if load is not None:
                rate = nodes[at_callees[at], load]
                nodes[at_callees[at], load] = max(rate - lost, 0.05 * rate)

        return change
