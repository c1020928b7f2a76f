"""The detector of the watch: learns what is normal, then judges intervals in order.

A step: observe the interval (`series`), compute what neighbours leave of it (`regression`), judge. What is
left of a series is a series as any other: judged by the same rules, with a share of the same budget of
false alarms. Only if something is out of bounds: collect clues, group them and track them as incidents.

The file is long because learning, saving and judging share all of its state.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline_mesh.changes import Change, Context, KubernetesTrouble
from hopline_mesh.detect import calibrate, expected, kernels
from hopline_mesh.detect.abnormal import MAX_ABNORMAL_SHARE, Stretch, stretches
from hopline_mesh.detect.absence import Absence
from hopline_mesh.detect.calls import CallsPerRequest
from hopline_mesh.detect.clues import Clue, Key, services_of, together
from hopline_mesh.detect.live import LiveState
from hopline_mesh.detect.paths import Pairs
from hopline_mesh.detect.regression import FOLDS, NeighbourRegression, Weights
from hopline_mesh.detect.series import SeriesTable, part, prefixed
from hopline_mesh.detect.tracker import TrackedIncident, Tracker
from hopline_mesh.detect.witness import Places, Witness
from hopline_mesh.errors import SnapshotInvalid, StateDamaged
from hopline_mesh.incident import Verdict
from hopline_mesh.roster import SlotArray
from hopline_mesh.schema import Schema
from hopline_mesh.settings import HOLD, DetectorSettings
from hopline_mesh.snapshot import FloatArray, Gap, Snapshot

#: Anomaly score of a trouble, and of a missing service.
_REPORTED = 2.0
#: Maximum number of values to learn baselines from, 200 MB, and of series times intervals to learn a
#: regression from; of more intervals every second, third … is used.
_LEARN_VALUES, _LEARN_ROWS = 50_000_000, 10_000_000
_FORMAT = "hopline-mesh-4"
#: Number of an interval, and slots and values by table.
_Interval = tuple[int, Sequence[SlotArray], Sequence[FloatArray]]
#: Factor on the thresholds of what is left. A regression was learned at few loads, and errs more at others:
#: on three simulated days (seeds 9101 to 9103) thresholds for one false incident a day were 2.5 times those
#: of the learned time, and 1.15 times for the series themselves.
_CAUTION = 2.2
#: Names of the tables in the saved state.
_NAMES = ("nodes.", "edges.", "left.nodes.", "left.edges.")
#: An interval with less than this share of the known series is blind, as is one without any series.
_BLIND = 0.5


class MeshDetector:
    """Watches one mesh; implements `hopline_mesh.evaluate.run.Detector`.

    Args:
        neighbours: whether what the regression on neighbours leaves is judged too.

    Attributes:
        left_out: times that the last `fit` left out as abnormal.
    """

    def __init__(self, settings: DetectorSettings | None = None, *, neighbours: bool = True) -> None:
        self.settings = settings or DetectorSettings()
        self._neighbours = neighbours
        self.schema: Schema | None = None
        self.interval_s = 0.0
        self.steps = 0
        self._last_s = 0.0
        self._tracker = Tracker()
        self._regression: NeighbourRegression | None = None
        #: what it leaves of the series of services and call paths; () without a regression
        self._left: tuple[SeriesTable, ...] = ()
        self._learnt = 0
        self.left_out: list[Stretch] = []

    @property
    def thresholds(self) -> dict[str, float]:
        """Column, such as "node.p99_ms" or "edge.error_share" -> spreads at an anomaly score of 1."""
        if self.schema is None:
            return {}
        return {
            f"{kind}.{column}": float(spreads)
            for kind, table in zip(("node", "edge"), self._tables, strict=True)
            for column, spreads in zip(table.columns, table.threshold, strict=True)
        }

    # Learning

    def fit(self, snapshots: Sequence[Snapshot], contexts: Sequence[Context]) -> None:
        """Learn from normal intervals, oldest first; replaces all previous state.

        Times that would be an incident for any threshold are left out: see `left_out`.

        Raises:
            SnapshotInvalid: there are no snapshots.
        """
        if not snapshots:
            raise SnapshotInvalid("fit needs at least one snapshot")
        left_out = self._abnormal(snapshots, contexts)
        if left_out:
            kept = [not any(each.time_s in stretch for stretch in left_out) for each in snapshots]
            snapshots = list(itertools.compress(snapshots, kept))
            contexts = list(itertools.compress(contexts, kept))
        self._prepare(snapshots)
        self.left_out = left_out
        self._learn_scales(self._tables, self._measured(snapshots), len(snapshots))
        folds = self._learn_neighbours(snapshots) if self._neighbours else None
        self._count(snapshots, contexts, folds)
        self._learnt = len(snapshots)
        self._fitted = True
        self._set_thresholds()
        self._last_s = snapshots[-1].time_s

    def _abnormal(self, snapshots: Sequence[Snapshot], contexts: Sequence[Context]) -> list[Stretch]:
        """Return times that would be an incident for any threshold.

        Uses only baselines of series, because the regression is learned later, from the other times.
        """
        scout = MeshDetector(self.settings, neighbours=False)
        scout._prepare(snapshots)
        scout._learn_scales(scout._tables, scout._measured(snapshots), len(snapshots), MAX_ABNORMAL_SHARE)
        for table in scout._tables:
            table.threshold[:] = calibrate.HIGHEST
        beyond: list[list[Clue]] = []
        for snapshot, context in zip(snapshots, contexts, strict=True):
            scout._observe(snapshot)
            scout._excuse(expected.under_way(context, snapshot.time_s, scout.interval_s), snapshot)
            found, _ = scout._judge(kernels.NOTHING)
            scout.steps += 1
            beyond.append(scout._witness.firm(snapshot, found))
        times_s = [snapshot.time_s for snapshot in snapshots]
        return stretches(times_s, beyond, before=scout._hold - 1, apart=scout._patience)

    def _prepare(self, snapshots: Sequence[Snapshot]) -> None:
        """Reset the state, with space for all services and call paths of the snapshots."""
        self._begin(snapshots[0].schema)
        gaps = [b.time_s - a.time_s for a, b in itertools.pairwise(snapshots)]
        self.interval_s = float(np.median(gaps)) if gaps else 0.0
        for snapshot in snapshots:
            self._pairs.slots(snapshot.edge_src, snapshot.edge_dst)
        self._nodes.grow(len(snapshots[0].roster))
        self._edges.grow(len(self._pairs))

    def _learn_scales(
        self,
        tables: Sequence[SeriesTable],
        intervals: Iterable[_Interval],
        count: int,
        tail: float = calibrate.TAIL,
    ) -> None:
        """Learn levels and spreads of tables from numbered intervals, of `count`."""
        every = [max(1, -(-count * table.size * len(table.columns) // _LEARN_VALUES)) for table in tables]
        histories = [
            np.full((-(-count // each), table.size, len(table.columns)), np.nan, np.float32)
            for table, each in zip(tables, every, strict=True)
        ]
        for number, slots, values in intervals:
            for at, history in enumerate(histories):
                if number % every[at] == 0:
                    history[number // every[at], slots[at]] = values[at]
        for table, history in zip(tables, histories, strict=True):
            calibrate.learn_scales(table, history, tail)

    def _measured(self, snapshots: Sequence[Snapshot]) -> Iterator[_Interval]:
        """Yield what was measured."""
        for number, snapshot in enumerate(snapshots):
            paths = self._pairs.slots(snapshot.edge_src, snapshot.edge_dst)
            yield number, (snapshot.nodes, paths), (snapshot.node_features, self._calls.of(snapshot))

    def _replayed(self, snapshots: Sequence[Snapshot]) -> Iterator[tuple[int, int, Snapshot, SlotArray]]:
        """Observe the series from the start; after the warm-up yield number, fold, interval, path slots.

        Windows are empty afterwards.
        """
        for number, snapshot in enumerate(snapshots):
            paths = self._observe_series(snapshot)
            if number >= self.settings.warm_up:
                yield number, number * FOLDS // len(snapshots), snapshot, paths
        for table in self._tables:
            table.forget_window()

    def _learn_neighbours(self, snapshots: Sequence[Snapshot]) -> list[Weights]:
        """Learn the regression, and levels and spreads of what it leaves.

        Returns: for each fold of the time, weights that were learned from the others.
        """
        regression = NeighbourRegression(self._nodes, self._edges)
        sizes = [table.size for table in self._tables]
        every = max(1, -(-len(snapshots) * sum(sizes) // _LEARN_ROWS))
        folds = regression.fit(
            (snapshot, paths, fold)
            for number, fold, snapshot, paths in self._replayed(snapshots)
            if number % every == 0
        )
        tables = self._new_tables([table.columns for table in self._tables], are_plain=True)
        for table, size in zip(tables, sizes, strict=True):
            table.grow(size)
        left = (
            (number, (snapshot.nodes, paths), regression.left(snapshot, paths, folds[fold]))
            for number, fold, snapshot, paths in self._replayed(snapshots)
        )
        self._learn_scales(tables, left, len(snapshots))
        self._regression, self._left = regression, tables
        return folds

    def _count(
        self, snapshots: Sequence[Snapshot], contexts: Sequence[Context], folds: Sequence[Weights] | None
    ) -> None:
        """Replay normal time, and count deviations that nothing explains.

        Args:
            folds: of `_learn_neighbours`.
        """
        tables = self._all_tables
        for table in tables:
            table.threshold[:] = calibrate.LEAST_COUNTED
        peaks = [np.zeros_like(table.peak) for table in tables]
        for number, (snapshot, context) in enumerate(zip(snapshots, contexts, strict=True)):
            self._observe(snapshot, folds[number * FOLDS // len(snapshots)] if folds else None)
            self._absence.forget_planned(expected.with_slots(context.changes, snapshot))
            self._judge(kernels.ALL)
            found = [places for places, _ in self._found]
            shares = self._unexplained(snapshot, context, np.concatenate(found))
            each = np.split(shares, np.cumsum([len(places) for places in found])[:-1])
            for table, (places, lasting), left, peak in zip(tables, self._found, each, peaks, strict=True):
                calibrate.discount(table, places[:, 1:], lasting, left, peak)
            self.steps += 1
        for table, peak in zip(tables, peaks, strict=True):
            table.peak[:] = peak

    def _unexplained(self, snapshot: Snapshot, context: Context, found: Places) -> NDArray[np.float64]:
        """Return the share of each deviation that neither load nor a planned change explains."""
        if not len(found):
            return np.zeros(0)
        shares = self._witness.shares(snapshot, found)
        changes = expected.under_way(context, snapshot.time_s, self.interval_s)
        for number, factors in enumerate(self._factors(expected.with_slots(changes, snapshot))):
            is_here = found[:, 0] == number
            shares[is_here] *= factors[found[is_here, 1], found[is_here, 2]]
        return shares

    def _set_thresholds(self) -> None:
        tables = self._all_tables
        for number, table in enumerate(tables):
            calibrate.set_thresholds(
                table,
                self._learnt,
                self.interval_s,
                self.settings.false_alarms_per_day / len(tables),
                self.settings.anomaly_percentile,
                hold=self._hold if self._fitted else 0,
                times=_CAUTION if number >= len(self._tables) else 1.0,
            )

    def _begin(self, schema: Schema) -> None:
        self._calls = CallsPerRequest(schema)
        columns = schema.node_features, (*schema.edge_features, *self._calls.columns)
        self._tables = self._nodes, self._edges = self._new_tables(columns)
        self._pairs = Pairs()
        self._witness = Witness(self._nodes, self._edges, self._pairs)
        self._regression, self._left = None, ()
        #: of the newest interval, by table: series out of bounds, and how far, as `SeriesTable.judge`
        self._found: list[tuple[Places, NDArray[np.float64]]] = []
        self._fitted = False
        self._gaps: list[float] = []  # between the first intervals, to learn the interval
        self._excused: dict[int, expected.Excuse] = {}
        self._reported: dict[Key, float] = {}
        self._absence = Absence(self._nodes, self._edges)
        self.left_out = []
        self.steps = 0
        self._learnt = 0
        self.schema = schema  # last, because metrics are read on another thread and check it

    def _new_tables(
        self, columns: Sequence[Sequence[str]], *, are_plain: bool = False
    ) -> tuple[SeriesTable, SeriesTable]:
        window, warm_up = self.settings.window_size, self.settings.warm_up
        nodes, edges = (SeriesTable(each, window, warm_up, are_plain=are_plain) for each in columns)
        return nodes, edges

    # Keeping

    def export(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state with which `restore` continues at the next interval.

        Slots are those of the roster, which must be saved as well.

        Returns: a JSON object, and arrays by name.
        """
        meta: dict[str, Any] = {"format": _FORMAT, "settings": asdict(self.settings)}
        if self.schema is None:
            return meta, {}
        meta |= {
            "node_features": list(self.schema.node_features),
            "edge_features": list(self.schema.edge_features),
            "interval_s": self.interval_s,
            "steps": self.steps,
            "learnt": self._learnt,
            "fitted": self._fitted,
            "last_s": self._last_s,
            "excused": sorted([slot, *astuple(excuse)] for slot, excuse in self._excused.items()),
            "tracker": self._tracker.export(),
            "neighbours": self._regression is not None,
        }
        arrays: dict[str, NDArray[Any]] = {"absent": self._absence.intervals.copy()}
        arrays |= {"pairs.src": self._pairs.src.copy(), "pairs.dst": self._pairs.dst.copy()}
        for name, table in zip(_NAMES, self._all_tables, strict=False):
            arrays |= prefixed(name, table.export())
        if self._regression is not None:
            arrays |= prefixed("left.weights.", self._regression.export())
        return meta, arrays

    @classmethod
    def restore(
        cls,
        meta: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
    ) -> MeshDetector:
        """Restore a detector from the state of `export`.

        Raises:
            StateDamaged: the state is incomplete, inconsistent, or of another version.
        """
        if meta.get("format") != _FORMAT:
            raise StateDamaged(f"the detector's state is of format {meta.get('format')!r}, not {_FORMAT!r}")

        try:
            self = cls(DetectorSettings(**meta["settings"]))
            if "steps" not in meta:
                return self
            schema = Schema(tuple(meta["node_features"]), tuple(meta["edge_features"]))
            self._begin(schema)
            self.interval_s, self.steps = float(meta["interval_s"]), int(meta["steps"])
            self._learnt, self._last_s = int(meta["learnt"]), float(meta["last_s"])
            self._fitted = bool(meta["fitted"])
            self._gaps = [self.interval_s] * self.settings.warm_up if self.interval_s > 0 else []
            excused = msgspec.convert(meta["excused"], list[tuple[int, int | None, int | None, bool]])
            self._excused = {
                slot: expected.Excuse(fewest, most, is_new) for slot, fewest, most, is_new in excused
            }
            self._tracker = Tracker.restore(meta["tracker"])
            self._absence.intervals = np.array(arrays["absent"], np.int32)
            self._pairs.restore(arrays["pairs.src"], arrays["pairs.dst"])
            if meta["neighbours"]:
                self._regression = NeighbourRegression(self._nodes, self._edges)
                self._regression.restore(part("left.weights.", arrays))
                self._left = self._new_tables([table.columns for table in self._tables], are_plain=True)
            for name, table in zip(_NAMES, self._all_tables, strict=False):
                table.restore(part(name, arrays))
        except (KeyError, TypeError, ValueError, AttributeError, msgspec.ValidationError) as error:
            raise StateDamaged(f"the detector's state is damaged: {error!r}") from error
        sizes = [table.size for table in self._all_tables]
        if sizes != [len(self._absence.intervals), len(self._pairs)] * (len(sizes) // 2):
            raise StateDamaged("the detector's state is damaged: its parts are of different sizes")
        return self

    def scale_thresholds(self, times: float) -> None:
        """Multiply all thresholds, to compare detectors at equal false alarms."""
        for table in self._all_tables:
            table.threshold *= np.float32(times)

    def adopt(self, before: MeshDetector) -> None:
        """Continue the open incidents of the detector that this one replaces; their identities stay."""
        self._tracker.adopt(before._tracker.open)

    # Judging

    def step(self, snapshot: Snapshot, context: Context) -> Verdict:
        """Judge the next interval; see `Detector.step`."""
        if self.schema is None:
            self._begin(snapshot.schema)
        ended = self._check_time(snapshot.time_s)
        changes = expected.under_way(context, snapshot.time_s, self.interval_s)
        learn = kernels.NOTHING if self._tracker.open or changes else kernels.USUAL
        measured, known = self._observe(snapshot)
        self._excuse(changes, snapshot)
        troubles = expected.troubles(context, snapshot.time_s, self.interval_s)
        found, score = self._judge(learn)
        self.steps += 1
        self._last_s = snapshot.time_s
        is_young = max(int(table.seen.max(initial=0)) for table in self._tables) <= self.settings.warm_up
        self._learnt += learn == kernels.USUAL and measured > 0 and not is_young
        if not self._fitted and self.steps % self.settings.window_size == 0:
            self._set_thresholds()
        if not measured or measured < _BLIND * known:
            few = f"only {measured} of {known} previously measured series are present"
            gap = Gap("mesh", few if known else "nothing is measured")
            return Verdict(snapshot.time_s, "blind", score, gaps=(*snapshot.gaps, gap))
        if is_young:
            return Verdict(snapshot.time_s, "learning", score, gaps=snapshot.gaps)
        direct = self._direct(snapshot, troubles, context)
        if len(found) or direct or self._tracker.open:
            ended += self._follow(snapshot, found, direct)
        # One of a trouble that continues after a pause in the data begins again under its identity.
        going_on = {tracked.id for tracked in self._tracker.open}
        ended = [tracked for tracked in ended if tracked.id not in going_on]
        incidents = [tracked.named(snapshot.roster) for tracked in (*self._tracker.open, *ended)]
        state: Literal["anomalous", "normal"] = "anomalous" if self._tracker.open else "normal"
        suppressed = tuple(sorted({each.service for each in changes if each.service in snapshot.roster}))
        gaps = (*snapshot.gaps, *expected.unmatched(troubles, snapshot))
        return Verdict(snapshot.time_s, state, score, tuple(incidents), suppressed, gaps)

    def scores(self, snapshot: Snapshot) -> NDArray[np.float32]:
        """Return anomaly scores of the services in the newest interval, each that of its worst column.

        Args:
            snapshot: that interval.

        Returns: float32 [nodes]; 1.0 is the threshold.
        """
        worst: NDArray[np.float32] = self._nodes.score[snapshot.nodes].max(axis=1, initial=0.0)
        return worst

    def live(self, snapshot: Snapshot) -> LiveState:
        """Return deviations that follow events from now on; they do not change the detector.

        Args:
            snapshot: the newest judged interval.
        """
        paths = self._pairs.slots(snapshot.edge_src, snapshot.edge_dst)
        return LiveState(snapshot, paths, self._nodes, self._edges, self.interval_s)

    def _check_time(self, time_s: float) -> list[TrackedIncident]:
        """Learn the interval, and start a new window after a jump in time; returns incidents that end."""
        if not self.steps:
            return []
        gone = time_s - self._last_s
        if not self._fitted and gone > 0 and len(self._gaps) < self.settings.warm_up:
            self._gaps.append(gone)
            self.interval_s = float(np.median(self._gaps))
        if abs(gone) <= max(20 * self.interval_s, 900.0):
            return []
        for table in self._all_tables:
            table.forget_window()
        for table in self._tables:
            table.level[:, table.still] = np.nan  # set again from the next measured value
        return self._tracker.close_all()

    @property
    def _all_tables(self) -> tuple[SeriesTable, ...]:
        """Tables of services and call paths, then those of what neighbours leave of them."""
        return (*self._tables, *self._left)

    def _observe(self, snapshot: Snapshot, weights: Weights | None = None) -> tuple[int, int]:
        """Observe an interval; see `NeighbourRegression.left`.

        Returns: how many values were measured, and how many there should have been.
        """
        paths = self._observe_series(snapshot)
        if self._regression is not None:
            left = self._regression.left(snapshot, paths, weights)
            for table, of, values, slots in zip(
                self._left, self._tables, left, (snapshot.nodes, paths), strict=True
            ):
                table.grow(of.size)
                self._observe_table(table, values, slots)
        return self._taken

    def _observe_series(self, snapshot: Snapshot) -> SlotArray:
        """Observe the series of an interval; returns the slots of its call paths."""
        paths = self._pairs.slots(snapshot.edge_src, snapshot.edge_dst)
        self._edges.grow(len(self._pairs))
        self._nodes.grow(len(snapshot.roster))
        self._absence.observe(snapshot)
        nodes = self._observe_table(self._nodes, snapshot.node_features, snapshot.nodes)
        edges = self._observe_table(self._edges, self._calls.of(snapshot), paths)
        self._taken = nodes[0] + edges[0], nodes[1] + edges[1]
        return paths

    def _observe_table(self, table: SeriesTable, values: FloatArray, slots: SlotArray) -> tuple[int, int]:
        return table.observe(values, slots, self.steps, interval_s=self.interval_s, hold=self._hold)

    def _judge(self, learn: int) -> tuple[Places, float]:
        """Return series out of bounds in the newest observed interval, and the largest anomaly score."""
        self._found, most = [], 0.0
        for table, left in zip(self._tables, self._left, strict=False):
            left.quiet[: table.size] = table.quiet[: table.size]
        for number, table in enumerate(self._all_tables):
            found, lasting, largest = table.judge(self.steps, hold=self._hold, learn=learn)
            self._found.append((np.insert(found, 0, number % 2, axis=1), lasting))
            most = max(most, largest)
        for table, left in zip(self._tables, self._left, strict=False):
            table.show(left)
        return np.unique(np.concatenate([places for places, _ in self._found]), axis=0), most

    @property
    def _hold(self) -> int:
        if self.interval_s <= 0:
            return 2
        return min(max(2, math.ceil(self.settings.min_duration_s / self.interval_s)), HOLD)

    @property
    def _patience(self) -> int:
        if self.interval_s <= 0:
            return 2
        return max(2, math.ceil(self.settings.clean_s / self.interval_s))

    # Following

    def _factors(self, changed: Sequence[tuple[int, Change]]) -> list[NDArray[np.float32]]:
        """Return factors on deviations during planned changes by table, float32 [slots, columns]."""
        nodes, of_ends = (expected.shares(changed, table.roles, self._nodes.size) for table in self._tables)
        return [nodes, np.minimum(of_ends[self._pairs.src], of_ends[self._pairs.dst])]

    def _excuse(self, changes: Sequence[Change], snapshot: Snapshot) -> None:
        """Reduce deviations during planned changes; afterwards the new values become the baseline."""
        changed = expected.with_slots(changes, snapshot)
        if not changed and not self._excused:
            return
        slots = {slot for slot, _ in changed}
        for slot in self._excused.keys() - slots:
            is_troubled = any(slot in trouble.services for trouble in self._tracker.open)
            usual = expected.usual_now(self._nodes, slot, self._excused[slot], is_troubled=is_troubled)
            self._nodes.level[slot, usual] = np.nan
            if self._left:
                nodes, edges = self._left
                nodes.level[slot, usual] = np.nan
                edges.level[self._pairs.at(slot)] = np.nan
        for table, factors in zip(self._tables, self._factors(changed), strict=True):
            table.quiet[: table.size] = factors
        self._excused = {slot: self._excused.get(slot, expected.Excuse()) for slot in slots}
        for slot, change in changed:
            self._excused[slot] = self._excused[slot].also(change)

    def _direct(
        self, snapshot: Snapshot, troubles: Sequence[KubernetesTrouble], context: Context
    ) -> list[Clue]:
        """Return clues that need no measurement: troubles, and missing services."""
        found = ((snapshot.roster.find(trouble.service), trouble) for trouble in troubles)
        known: dict[tuple[int, str], KubernetesTrouble | None] = {
            (slot, trouble.kind): trouble for slot, trouble in found if slot is not None
        }
        if self._absence.intervals.any():
            self._absence.forget_planned(expected.with_slots(context.changes, snapshot))
            known |= {(slot, "gone"): None for slot in self._absence.gone(snapshot, self._hold)}
        self._reported = {(-1, slot, kind): _REPORTED for slot, kind in known}
        return [
            Clue(slot, -1, kind, role, _REPORTED, role == "trouble", True, None, None, trouble)
            for (slot, kind), trouble in known.items()
            for role in ["gone" if trouble is None else "trouble"]
        ]

    def _follow(self, snapshot: Snapshot, found: Places, direct: Sequence[Clue]) -> list[TrackedIncident]:
        clues = [*direct, *self._witness.firm(snapshot, found)]
        if not clues and not self._tracker.open:
            return []
        clues += self._witness.supporting(snapshot, found, [clue.service for clue in direct])
        services = services_of(clues)
        for trouble in self._tracker.open:
            services |= trouble.services
        paths = self._witness.paths(snapshot, services)
        groups = together(clues, paths)
        first_s = snapshot.time_s - (self._hold - 1) * self.interval_s
        return self._tracker.update(
            snapshot.time_s, first_s, groups, paths, self._present, self._patience, snapshot.roster.name
        )

    def _present(self, keys: Sequence[Key]) -> list[float | None]:
        """Return the present anomaly scores of clues' series; None for one that was not measured."""
        measured = self._witness.scores(keys)
        return [self._reported.get(key, score) for key, score in zip(keys, measured, strict=True)]
