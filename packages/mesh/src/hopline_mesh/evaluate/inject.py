"""Injects faults into normal hours, to judge detectors by faults that they were not tuned on.

Each fault changes measured numbers of one service or call path for some minutes, at one of three
severities. Which, when and how strongly is drawn from a seed, so every detector sees the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.evaluate.recording import Event, Recording
from hopline_mesh.roles import Role, is_processor_time, load_column, role_of
from hopline_mesh.schema import kind_of
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
#: Roles of latencies.
_LATENCIES: tuple[Role, ...] = ("outgoing", "latency")


def inject(recording: Recording, seed: int) -> Recording:
    """Return the recording with faults in its test, each with a label; the training is unchanged.

    Kinds and severities come in turn, so each occurs as often as every other.

    Args:
        recording: its test must be normal time.

    Raises:
        SnapshotInvalid: the test has labelled events, or is too short for one fault.
    """
    if recording.test_events():
        raise SnapshotInvalid(f"{recording.name}: faults are injected into normal time, and it has events")
    times = _times(recording)
    if not times:
        raise SnapshotInvalid(f"{recording.name}: its test is too short for a fault")
    faults = _Faults(recording, np.random.default_rng([seed, 33]))
    snapshots = list(recording.snapshots)
    order = [(kind, severity) for severity in range(3) for kind in KINDS]
    events = []
    start = int(faults.rng.integers(len(order)))
    for number, time in enumerate(times):
        kind, severity = order[(start + number) % len(order)]
        stretch = _Stretch(snapshots, time)
        target = faults.draw(kind, _SIZES[kind][severity], stretch)
        if target is None:
            continue
        snapshots[time] = stretch.snapshots
        first, last = stretch.snapshots[0], stretch.snapshots[-1]
        names = first.roster.names
        caller, service = None if target[0] is None else names[target[0]], names[target[1]]
        events.append(Event(first.time_s, last.time_s, service, caller, f"{kind} {SEVERITIES[severity]}"))
    return replace(recording, snapshots=snapshots, events=events)


def _times(recording: Recording) -> list[slice]:
    """Return the positions of the snapshots of each fault."""
    found = []
    times = [snapshot.time_s for snapshot in recording.snapshots]
    for period in recording.test:
        at_s = max(period.start_s, times[0]) + FIRST_S
        while at_s + DURATION_S + FIRST_S <= min(period.end_s, times[-1]):
            first, end = np.searchsorted(times, [at_s, at_s + DURATION_S]).tolist()
            if end - first >= 2:
                found.append(slice(first, end))
            at_s += EVERY_S
    return found


def _paths(snapshot: Snapshot) -> list[tuple[int, int]]:
    return list(zip(snapshot.edge_src.tolist(), snapshot.edge_dst.tolist(), strict=True))


class _Stretch:
    """The snapshots of one fault, with numbers that can be changed.

    Args:
        snapshots: of the recording; numbers are copied.

    Attributes:
        time: positions of the snapshots in the recording.
        snapshots: with the changed numbers.
        services, paths: that are in all of them.
    """

    def __init__(self, snapshots: Sequence[Snapshot], time: slice) -> None:
        self.time = time
        self.snapshots = [
            replace(one, node_features=one.node_features.copy(), edge_features=one.edge_features.copy())
            for one in snapshots[time]
        ]
        self.services = set.intersection(*({*one.nodes.tolist()} for one in self.snapshots))
        self.paths = set.intersection(*({*_paths(one)} for one in self.snapshots))

    def of_service(self, service: int) -> list[FloatArray]:
        """Return the row of a service in each snapshot, float32 [columns]; changes are kept."""
        return [one.node_features[np.flatnonzero(one.nodes == service)[0]] for one in self.snapshots]

    def of_path(self, path: tuple[int, int]) -> list[FloatArray]:
        """Return the row of a call path in each snapshot, float32 [columns]; changes are kept."""
        return [one.edge_features[_paths(one).index(path)] for one in self.snapshots]


class _Faults:
    """Draws faults for a recording. They do not overlap, so none is drawn from another one's numbers.

    Args:
        recording: normal time.
        rng: draws targets.
    """

    def __init__(self, recording: Recording, rng: np.random.Generator) -> None:
        self.rng = rng
        self._snapshots, self._contexts = recording.snapshots, recording.contexts
        schema = self._snapshots[0].schema
        self._columns, self._edge_columns = schema.node_features, schema.edge_features
        self._load = load_column(self._columns)
        training, _ = recording.training()
        values = np.full((len(training), len(training[0].roster), len(self._columns)), np.nan)
        for at, snapshot in enumerate(training):
            values[at, snapshot.nodes] = snapshot.node_features
        with np.errstate(all="ignore"):
            filled = np.where(np.isnan(values).all(axis=0), 0.0, values)
            self._middle = np.nanmedian(filled, axis=0)
            self._spread = 1.4826 * np.nanmedian(np.abs(filled - self._middle), axis=0)

    def draw(self, kind: InjectedKind, size: float, stretch: _Stretch) -> tuple[int | None, int] | None:
        """Change numbers of a drawn service or call path.

        Returns: the caller of a path or None, and the root cause; None if no target fits.
        """
        name = self._snapshots[0].roster.name
        ends = self._contexts[stretch.time.start], self._contexts[stretch.time.stop - 1]
        busy = {change.service for context in ends for change in context.changes}
        quiet = {service for service in stretch.services if name(service) not in busy}
        targets: list[tuple[int | None, int]] = [(None, service) for service in sorted(quiet)]
        if kind in ("delay", "dropped"):
            targets = [
                path for path in sorted(stretch.paths) if path[0] != path[1] and quiet.issuperset(path)
            ]
        for _ in range(_TRIES if targets else 0):
            caller, service = targets[int(self.rng.integers(len(targets)))]
            if caller is not None:
                fits = self._of_path(kind, size, (caller, service), stretch)
            elif kind == "swapped":
                fits = self._swapped(size, service, stretch)
            elif kind == "errors":
                fits = self._errors(size, service, stretch)
            else:
                fits = self._one_column(kind, size, service, stretch)
            if fits:
                return caller, service
        return None

    def _one_column(self, kind: str, size: float, service: int, stretch: _Stretch) -> bool:
        """One number of a service is out of place, and no other follows."""
        usable = [
            column
            for column, name in enumerate(self._columns)
            if role_of(name) in _LATENCIES or (is_processor_time(name) and kind_of(name) == "amount")
        ]
        if not usable:
            return False
        column = usable[int(self.rng.integers(len(usable)))]
        rows = stretch.of_service(service)
        middle, spread = self._middle[service, column], self._spread[service, column]
        seen = np.mean([row[column] for row in rows])
        if not seen > 0 or not spread > 0 or seen > 5 * middle:
            return False
        for row in rows:
            row[column] = row[column] * size if kind == "scale" else row[column] + size * spread
        return True

    def _swapped(self, size: float, service: int, stretch: _Stretch) -> bool:
        """A service has the numbers of another time, in which its load was as different as `size` says."""
        if self._load < 0:
            return False
        snapshots, time = self._snapshots, stretch.time
        times = [each.time_s for each in snapshots]
        rows = [each.node_features[each.nodes == service] for each in snapshots]  # one, or none
        rates = np.array([row[0, self._load] if len(row) else np.nan for row in rows])
        count = time.stop - time.start
        now = np.nanmean(rates[time])
        begins = [
            begin
            for begin in range(0, len(snapshots) - count, max(1, count // 2))
            if abs(begin - time.start) > count
            and (rates[begin : begin + count] > 0).all()
            and times[begin + count - 1] - times[begin] < 2 * DURATION_S
        ]
        if not begins or not now > 0:
            return False
        away = [abs(np.log(np.mean(rates[begin : begin + count]) / now)) for begin in begins]
        begin = begins[int(np.argsort(away)[round(size * (len(away) - 1))])]
        for at, numbers in enumerate(stretch.of_service(service), start=begin):
            numbers[:] = rows[at][0]
        return True

    def _errors(self, size: float, service: int, stretch: _Stretch) -> bool:
        """Responses of a service fail, as its callers see too."""
        column, on_edge = _failed_share(self._columns), _failed_share(self._edge_columns)
        if column is None:
            return False
        rows = stretch.of_service(service)
        before = [row[column] for row in rows]
        if not np.isfinite(before).all() or np.mean(before) > 0.5:
            return False
        for row, one in zip(rows, stretch.snapshots, strict=True):
            row[column] = min(1.0, row[column] + size)
            if on_edge is not None:
                called = one.edge_dst == service
                one.edge_features[called, on_edge] = np.minimum(
                    1.0, one.edge_features[called, on_edge] + size
                )
        return True

    def _of_path(self, kind: str, size: float, path: tuple[int, int], stretch: _Stretch) -> bool:
        """Calls of one path take longer, or a share of them gets lost."""
        roles = [role_of(name) for name in self._edge_columns]
        wanted = [role for role in (_LATENCIES if kind == "delay" else ("load",)) if role in roles]
        if not wanted:
            return False
        column = roles.index(wanted[0])
        calls, callers, callees = (
            stretch.of_path(path),
            stretch.of_service(path[0]),
            stretch.of_service(path[1]),
        )
        usual = float(np.mean([call[column] for call in calls]))
        if not usual > 0:
            return False
        slower = [at for at, name in enumerate(self._columns) if role_of(name) in _LATENCIES]
        for call, caller, callee in zip(calls, callers, callees, strict=True):
            if kind == "delay":
                call[column] += size * usual
                caller[slower] += size * usual
                continue
            lost = size * call[column]
            call[column] -= lost
            if self._load >= 0:
                rate = callee[self._load]
                callee[self._load] = max(rate - lost, 0.05 * rate)
        return True


def _failed_share(columns: Sequence[str]) -> int | None:
    """Return the position of the first share of failed requests."""
    return next(
        (at for at, name in enumerate(columns) if role_of(name) == "errors" and kind_of(name) == "share"),
        None,
    )
