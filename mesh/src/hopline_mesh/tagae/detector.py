"""TAGAE as one object: learns what is normal, then judges intervals in order.

A step: observe the interval (`series`), compute expected values (`expect`), judge (`series`). Only if
something is out of bounds: collect clues, group them and track them as incidents.

The file is long because learning, saving and judging share all of its state.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hopline.errors import ModelNotReady
from hopline_mesh.changes import Change, Context, KubernetesTrouble
from hopline_mesh.errors import SnapshotInvalid, StateDamaged
from hopline_mesh.incident import Verdict
from hopline_mesh.model.partition import WHOLE_UP_TO, part_scores
from hopline_mesh.model.weights import Weights
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Gap, Snapshot
from hopline_mesh.tagae import calibrate, expect, expected, kernels
from hopline_mesh.tagae.abnormal import MAX_ABNORMAL_SHARE, Stretch, stretches
from hopline_mesh.tagae.calls import CallsPerRequest
from hopline_mesh.tagae.clues import Clue, Key, together
from hopline_mesh.tagae.cut import Cut
from hopline_mesh.tagae.live import LiveState
from hopline_mesh.tagae.overall import Overall
from hopline_mesh.tagae.pairs import Lineup, Pairs
from hopline_mesh.tagae.roles import role_of
from hopline_mesh.tagae.series import SeriesTable
from hopline_mesh.tagae.sweep import Order, Sweep, Taken
from hopline_mesh.tagae.telling import named
from hopline_mesh.tagae.tracker import TrackedIncident, Tracker
from hopline_mesh.tagae.witness import Place, Places, Witness


@dataclass(frozen=True, slots=True)
class TagaeSettings:
    """Settings of the detector.

    Attributes:
        window_size: number of intervals in the window.
        anomaly_percentile: of the deviations in normal time, above which their tail is fitted.
        false_alarms_per_day: expected number for which thresholds are calibrated.
        warm_up: intervals before the first verdict, and before a new service is judged.
        min_duration_s: seconds that a deviation must last, and at least two intervals.
        model: "none" leaves the graph model out, "untrained" uses initial weights; for comparisons.
        clean_s: seconds without a deviation after which an incident ends, and at least two intervals.
        threads: of the graph model; more than two help only for parts.
        device: of the graph model.
        partition_above: number of services above which a mesh is split by namespace.
    """

    window_size: int = 120
    anomaly_percentile: float = 99.0
    false_alarms_per_day: float = 1.0
    warm_up: int = 10
    min_duration_s: float = 80.0
    clean_s: float = 90.0
    model: Literal["trained", "untrained", "none"] = "trained"
    threads: int = 2
    device: Literal["cpu", "cuda"] = "cpu"
    partition_above: int = WHOLE_UP_TO


#: Anomaly score of a trouble, and of a missing service.
_REPORTED = 2.0
#: Absent intervals of a service that was removed as planned; largest plausible share of services that
#: disappear together; logarithm of the requests per second that a missing service must have had.
_FORGOTTEN, _MANY, _BUSY = 1_000_000, 0.2, -2.0
#: Number of windows in which a baseline moves to the mean of its window.
_DRIFT_WINDOWS = 10.0
#: Maximum number of values to learn baselines from, 200 MB; of more intervals every second, third … is
#: used.
_LEARN_VALUES = 50_000_000
#: Maximum of services times intervals to train a model on.
_LEARN_NODES = 100_000
_FORMAT = "hopline-mesh-tagae-1"
#: An interval with less than this share of the known series is blind.
_BLIND = 0.5


class Tagae:
    """Watches one mesh; implements `hopline_mesh.detector.Detector`.

    Attributes:
        left_out: times that the last `fit` left out as abnormal.
    """

    def __init__(self, settings: TagaeSettings | None = None) -> None:
        self.settings = settings or TagaeSettings()
        self.schema: Schema | None = None
        self.interval_s = 0.0
        self.steps = 0
        self._last_s = 0.0
        self._tracker = Tracker()
        self._expectation: expect.Expectation | None = None
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
        self._learn_scales(snapshots, calibrate.TAIL)
        if self.settings.model != "none":
            self._learn_model(snapshots)
        self._count(snapshots, contexts)
        self._learnt = len(snapshots)
        self._fitted = True
        self._set_thresholds()
        self._last_s = snapshots[-1].time_s

    def _abnormal(self, snapshots: Sequence[Snapshot], contexts: Sequence[Context]) -> list[Stretch]:
        """Return times that would be an incident for any threshold.

        Uses only baselines of series, because the graph model is trained later, on the other times.
        """
        scout = Tagae(replace(self.settings, model="none"))
        scout._prepare(snapshots)
        scout._learn_scales(snapshots, MAX_ABNORMAL_SHARE)
        for table in scout._tables:
            table.threshold[:] = calibrate.HIGHEST
        beyond: list[list[Clue]] = []
        for snapshot, context in zip(snapshots, contexts, strict=True):
            scout._observe(snapshot)
            scout._excuse(expected.under_way(context, snapshot.time_s, scout.interval_s), snapshot)
            found, _ = scout._judge(snapshot, kernels.NOTHING)
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

    def _learn_scales(self, snapshots: Sequence[Snapshot], tail: float) -> None:
        for number, table in enumerate(self._tables):
            width = len(table.columns)
            every = max(1, -(-len(snapshots) * table.size * width // _LEARN_VALUES))
            some = snapshots[::every]
            history = np.full((len(some), table.size, width), np.nan, np.float32)
            for t, snapshot in enumerate(some):
                if number == 0:
                    history[t, snapshot.nodes] = snapshot.node_features
                else:
                    slots = self._pairs.slots(snapshot.edge_src, snapshot.edge_dst)
                    history[t, slots] = self._edge_numbers(snapshot)
            calibrate.learn_scales(table, history, tail)

    def _count(self, snapshots: Sequence[Snapshot], contexts: Sequence[Context]) -> None:
        """Replay normal time, and count deviations that nothing explains."""
        for table in self._tables:
            table.threshold[:] = calibrate.LEAST_COUNTED
        peaks = [np.zeros_like(table.peak) for table in self._tables]
        for snapshot, context in zip(snapshots, contexts, strict=True):
            self._observe(snapshot)
            self._forget_planned(snapshot, context)
            found, _ = self._judge(snapshot, kernels.ALL)
            left = self._unexplained(snapshot, context, found)
            for number, table in enumerate(self._tables):
                mine = [(slot, column, share) for (of, slot, column), share in left if of == number]
                calibrate.discount(table, mine, peaks[number], self.steps, self._hold)
            self.steps += 1
        for table, peak in zip(self._tables, peaks, strict=True):
            table.peak[:] = peak

    def _unexplained(
        self, snapshot: Snapshot, context: Context, found: Places
    ) -> list[tuple[Place, float]]:
        """Return the found series with the share that neither load nor a planned change explains."""
        if not len(found):
            return []
        changes = expected.under_way(context, snapshot.time_s, self.interval_s)
        quiet = [expected.shares(changes, snapshot.roster, roles) for roles in self._roles]
        left = []
        shares = self._witness.shares(snapshot, found).tolist()
        for (number, slot, column), share in zip(found.tolist(), shares, strict=True):
            ends = (slot,) if number == 0 else (int(self._pairs.src[slot]), int(self._pairs.dst[slot]))
            excused = min((quiet[number][end][column] for end in ends if end in quiet[number]), default=1.0)
            left.append(((number, slot, column), share * float(excused)))
        return left

    def _learn_model(self, snapshots: Sequence[Snapshot]) -> None:
        """Replay the intervals for the inputs of the model, and train it; windows are empty afterwards."""
        sizes = sum(len(snapshot.nodes) for snapshot in snapshots)
        every = max(1, -(-sizes // _LEARN_NODES))
        frames, slots = [], []
        for number, snapshot in enumerate(snapshots):
            self._observe(snapshot)
            self.steps += 1
            if number % every == 0 and number >= self.settings.warm_up:
                paths = self._pairs.slots(snapshot.edge_src, snapshot.edge_dst)
                frames.append(expect.frame(snapshot, paths, self._nodes, self._edges))
                slots.append((snapshot.nodes, paths))
        held = max(1, len(frames) // 5)
        shape = expect.shape_for(self._nodes, self._edges)
        if self.settings.model == "trained" and len(frames) - held >= 2:
            weights = expect.learn(frames[:-held], shape)
        else:
            weights = Weights.initial(shape)
        self._expectation = expect.Expectation(weights, self.settings.threads, self.settings.device)
        if frames:
            expect.trust(self._expectation, frames[-held:], slots[-held:], self._nodes, self._edges)
        for table in self._tables:
            table.forget_window()
        self.steps = 0

    def _set_thresholds(self) -> None:
        for table in self._tables:
            calibrate.set_thresholds(
                table,
                self._learnt,
                self.interval_s,
                self.settings.false_alarms_per_day / 2,
                self.settings.anomaly_percentile,
                calibrate.LOWEST if self._fitted else calibrate.LOWEST_UNFITTED,
                calibrate.HIGHEST if self._fitted else calibrate.UNKNOWN,
                hold=self._hold if self._fitted else 0,
            )
        self._overall.forget()  # scores depend on the thresholds

    def _begin(self, schema: Schema, *, with_calls: bool = True) -> None:
        window = self.settings.window_size
        self._calls = CallsPerRequest(schema) if with_calls else None
        self._nodes = SeriesTable(schema.node_features, window, calibrate.UNKNOWN)
        measured, more = schema.edge_features, self._calls.columns if self._calls else ()
        self._edges = SeriesTable((*measured, *more), window, calibrate.UNKNOWN, len(measured))
        self._tables = (self._nodes, self._edges)
        self._roles = [[role_of(column) for column in table.columns] for table in self._tables]
        self._pairs = Pairs()
        self._lineup = Lineup(self._pairs)
        self._sweep = Sweep(self._nodes, self._edges, self.settings.threads)
        self._witness = Witness(self._nodes, self._edges, self._pairs)
        self._expectation = None
        self._cut = Cut(self.settings.partition_above)
        self._parts: NDArray[np.int32] | None = None
        self._overall = Overall(window, self.settings.anomaly_percentile)
        self._fitted = False
        self._gaps: list[float] = []  # between the first intervals, to learn the interval
        self._excused: dict[int, expected.Excuse] = {}
        self._excused_for: list[tuple[str, str, int, int]] = []
        self._excused_at = 0
        self._reported: dict[Key, float] = {}
        self._absent = np.zeros(0, np.int32)
        self.left_out = []
        self.steps = 0
        self._learnt = 0
        self.schema = schema  # last, because metrics are read on another thread and check it

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
            "with_calls": self._calls is not None,
            "interval_s": self.interval_s,
            "steps": self.steps,
            "learnt": self._learnt,
            "fitted": self._fitted,
            "last_s": self._last_s,
            "excused": sorted([slot, *astuple(excuse)] for slot, excuse in self._excused.items()),
            "tracker": self._tracker.export(),
            "model": None,
            "cut": self._cut.export(),
        }
        arrays: dict[str, NDArray[Any]] = {"absent": self._absent.copy()}
        arrays |= {"pairs.src": self._pairs.src.copy(), "pairs.dst": self._pairs.dst.copy()}
        for name, table in (("nodes", self._nodes), ("edges", self._edges)):
            arrays |= {f"{name}.{key}": array for key, array in table.export().items()}
        meta["overall"], overall = self._overall.export()
        arrays |= {f"overall.{key}": array for key, array in overall.items()}
        if self._expectation is not None:
            weights = self._expectation.weights
            meta["model"] = weights.shape.to_meta()
            arrays |= {f"model.{key}": array for key, array in weights.arrays.items()}
        return meta, arrays

    @classmethod
    def restore(
        cls,
        meta: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
        machine: TagaeSettings | None = None,
    ) -> Tagae:
        """Restore a detector from the state of `export`.

        Args:
            machine: settings with the threads, device and size of parts of this machine.

        Raises:
            StateDamaged: the state is incomplete, inconsistent, or of another version.
        """
        if meta.get("format") != _FORMAT:
            raise StateDamaged(f"the detector's state is of format {meta.get('format')!r}, not {_FORMAT!r}")

        def part(name: str) -> dict[str, NDArray[Any]]:
            return {k.removeprefix(name): array for k, array in arrays.items() if k.startswith(name)}

        try:
            settings = TagaeSettings(**meta["settings"])
            if machine is not None:
                here = {name: getattr(machine, name) for name in ("threads", "device", "partition_above")}
                settings = replace(settings, **here)
            self = cls(settings)
            if "steps" not in meta:
                return self
            schema = Schema(tuple(meta["node_features"]), tuple(meta["edge_features"]))
            # State of earlier versions has no calls per request; it continues without until the next
            # training.
            self._begin(schema, with_calls=bool(meta.get("with_calls", False)))
            self.interval_s, self.steps = float(meta["interval_s"]), int(meta["steps"])
            self._learnt, self._last_s = int(meta["learnt"]), float(meta["last_s"])
            self._fitted = bool(meta["fitted"])
            self._excused = dict(map(expected.restored, meta["excused"]))
            self._tracker = Tracker.restore(meta["tracker"])
            self._absent = np.array(arrays["absent"], np.int32)
            self._pairs.restore(arrays["pairs.src"], arrays["pairs.dst"])
            self._nodes.restore(part("nodes."))
            self._edges.restore(part("edges."))
            if meta["model"] is not None:
                weights = expect.restore(meta["model"], part("model."))
                self._expectation = expect.Expectation(weights, self.settings.threads, self.settings.device)
            # Earlier versions never split a mesh.
            if "cut" in meta and self._cut.restore(meta["cut"]):
                self._overall.restore(meta["overall"], part("overall."))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateDamaged(f"the detector's state is damaged: {error!r}") from error
        if self._nodes.size != len(self._absent) or self._edges.size != len(self._pairs):
            raise StateDamaged("the detector's state is damaged: its parts are of different sizes")
        return self

    def scale_thresholds(self, times: float) -> None:
        """Multiply all thresholds, to compare detectors at equal false alarms."""
        for table in self._tables:
            table.threshold *= np.float32(times)

    def adopt(self, before: Tagae) -> None:
        """Continue the open incidents of the detector that this one replaces; their identities stay."""
        self._tracker.adopt(before._tracker.open)

    # Judging

    def rouse(self) -> None:
        """Wake helper threads about a millisecond before the next interval. `step` also does, but later."""
        if self.schema is not None:
            self._sweep.rouse()

    def step(self, snapshot: Snapshot, context: Context) -> Verdict:
        """Judge the next interval; see `Detector.step`."""
        if self.schema is None:
            self._begin(snapshot.schema)
        self._sweep.rouse()
        ended = self._check_time(snapshot.time_s)
        changes = expected.under_way(context, snapshot.time_s, self.interval_s) if context.changes else []
        learn = kernels.NOTHING if self._tracker.open or changes else kernels.USUAL
        is_plain = not changes and not self._excused
        taken = self._observe(snapshot, learn if is_plain else None)
        self._excuse(changes, snapshot)
        troubles = expected.troubles(context, snapshot.time_s, self.interval_s) if context.troubles else []
        found, score = self._judge(snapshot, learn)
        if self._parts is not None:
            score = max(score, self._together(snapshot, self._parts, learn == kernels.USUAL))
        self.steps += 1
        self._last_s = snapshot.time_s
        self._learnt += learn == kernels.USUAL and self.steps > self.settings.warm_up
        if not self._fitted and self.steps % self.settings.window_size == 0:
            self._set_thresholds()
        if self.steps <= self.settings.warm_up:
            return Verdict(snapshot.time_s, "learning", score, gaps=snapshot.gaps)
        if taken.known and taken.measured < _BLIND * taken.known:
            gap = Gap(
                "mesh", f"only {taken.measured} of {taken.known} previously measured series are present"
            )
            return Verdict(snapshot.time_s, "blind", score, gaps=(*snapshot.gaps, gap))
        direct = self._direct(snapshot, troubles, context)
        if len(found) or direct or self._tracker.open:
            ended += self._follow(snapshot, found, direct)
        incidents = [named(tracked, snapshot.roster) for tracked in (*self._tracker.open, *ended)]
        state: Literal["anomalous", "normal"] = "anomalous" if self._tracker.open else "normal"
        known = snapshot.roster.find
        suppressed = tuple(sorted({each.service for each in changes if known(each.service) is not None}))
        gaps = (*snapshot.gaps, *_unmatched(troubles, snapshot)) if troubles else snapshot.gaps
        return Verdict(snapshot.time_s, state, score, tuple(incidents), suppressed, gaps)

    def _together(self, snapshot: Snapshot, parts: NDArray[np.int32], is_normal: bool) -> float:
        """Return the combined score of the parts of a mesh."""
        paths = self._lineup.paths
        place = np.empty(self._nodes.size, np.int32)
        place[snapshot.nodes] = np.arange(len(snapshot.nodes), dtype=np.int32)
        worst = self._edges.score[paths].max(axis=1, initial=0.0)
        each = part_scores(
            parts, self._cut.num_parts, self.scores(snapshot), place[snapshot.edge_dst], worst
        )
        learn = is_normal and self.steps > self.settings.warm_up
        return self._overall.judge(each, self._cut.version, hold=self._hold, learn=learn)

    def scores(self, snapshot: Snapshot) -> NDArray[np.float32]:
        """Return anomaly scores of the services in the newest interval, each that of its worst column.

        Args:
            snapshot: that interval.

        Returns: float32 [nodes]; 1.0 is the threshold.
        """
        worst: NDArray[np.float32] = self._nodes.score[snapshot.nodes].max(axis=1, initial=0.0)
        return worst

    def live(self, snapshot: Snapshot) -> LiveState:
        """Return embeddings that follow events from now on; they do not change the detector.

        Args:
            snapshot: the newest judged interval.

        Raises:
            ModelNotReady: there is no model, because none was trained yet or it is disabled.
        """
        if self._expectation is None:
            raise ModelNotReady(
                "there are no embeddings yet: the model is trained once there are enough intervals "
                "(HOPLINE_MESH__DETECTOR__TRAIN_AT)",
                retry_after_s=60.0,
            )
        paths = self._pairs.slots(snapshot.edge_src, snapshot.edge_dst)
        weights = self._expectation.weights
        return LiveState(weights, snapshot, paths, self._nodes, self._edges, self.interval_s)

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
        for number, table in enumerate(self._tables):
            still = [f for f, role in enumerate(self._roles[number]) if role == "memory"]
            table.forget_window(also_levels_of=still)
        return self._tracker.close_all()

    def _observe(self, snapshot: Snapshot, learn: int | None = None) -> Taken:
        """Observe an interval.

        Args:
            learn: how it is judged, if it can be judged in the same pass because nothing is excused.
        """
        self._lineup.take(snapshot)
        nodes, paths, hold = self._lineup.nodes, self._lineup.paths, self._hold
        self._edges.grow(len(self._pairs))
        if len(snapshot.roster) > len(self._absent):
            self._nodes.grow(len(snapshot.roster))
            new = self._nodes.size - len(self._absent)
            self._absent = np.concatenate([self._absent, np.full(new, _FORGOTTEN, np.int32)])
        self._parts = self._cut.parts(snapshot)
        inputs = None
        if self._expectation is not None:
            inputs = self._expectation.rooms(len(nodes), len(paths), *self._tables)
        pending = None
        # The typical value of a column needs all of its numbers, before the sweep.
        if self._calls is not None and self._calls.columns and not self._edges.is_looking:
            pending = self._calls.begin(snapshot)
        edge_numbers = self._edge_numbers(snapshot) if pending is None else pending.out
        taken = self._taken = self._sweep.take_in(
            (snapshot.node_features, edge_numbers),
            (nodes, paths),
            self.steps,
            interval_s=self.interval_s,
            warm_up=self.settings.warm_up,
            ago=2 * hold,
            recent=max(1, hold - 2),
            drift=1.0 / (_DRIFT_WINDOWS * self.settings.window_size),
            inputs=inputs,
            pending=pending,
            absent=self._absent,
            then=None if learn is None else self._order(snapshot, hold, learn),
        )
        return taken

    def _order(self, snapshot: Snapshot, hold: int, learn: int) -> Order | None:
        """Return how to judge an interval in the same pass; None if the model's pass is not ready."""
        if self._expectation is None:
            return Order(hold, learn, None)
        model = self._expectation.ahead(snapshot, self._lineup, *self._tables, self._parts)
        return None if model is None else Order(hold, learn, model)

    def _edge_numbers(self, snapshot: Snapshot) -> NDArray[np.float32]:
        """Return the columns of the call paths, float32 [e, columns]."""
        return snapshot.edge_features if self._calls is None else self._calls.of(snapshot)

    def _judge(self, snapshot: Snapshot, learn: int) -> tuple[Places, float]:
        """Return series out of bounds in the newest observed interval, and the largest anomaly score."""
        model = done = None
        if self._expectation is not None and not self._sweep.is_judged:
            ready = self._expectation.ready(
                snapshot, self._lineup, self._taken.young, *self._tables, self._parts
            )
            if isinstance(ready, tuple):
                done = ready
            else:
                model = ready
        return self._sweep.judge(
            self.steps,
            warm_up=self.settings.warm_up,
            hold=self._hold,
            learn=learn,
            model=model,
            expected=done,
        )

    @property
    def _hold(self) -> int:
        if self.interval_s <= 0:
            return 2
        return min(max(2, math.ceil(self.settings.min_duration_s / self.interval_s)), kernels.HOLD)

    @property
    def _patience(self) -> int:
        if self.interval_s <= 0:
            return 2
        return max(2, math.ceil(self.settings.clean_s / self.interval_s))

    # Following

    def _excuse(self, changes: Sequence[Change], snapshot: Snapshot) -> None:
        """Reduce deviations during planned changes; afterwards the new values become the baseline."""
        shares = expected.shares(changes, snapshot.roster, self._roles[0]) if changes else {}
        if not shares and not self._excused:
            return
        known = sorted(
            (change.service, str(change.kind), change.before or 0, change.after or 0) for change in changes
        )
        if known == self._excused_for and len(self._pairs) == self._excused_at:
            return
        self._excused_for, self._excused_at = known, len(self._pairs)
        over_edges = expected.shares(changes, snapshot.roster, self._roles[1]) if changes else {}
        for slot in self._excused.keys() - shares.keys():
            is_troubled = any(slot in trouble.services for trouble in self._tracker.open)
            usual = expected.usual_now(
                self._nodes, slot, self._roles[0], self._excused[slot], is_troubled=is_troubled
            )
            self._nodes.level[slot, usual] = np.nan
        for table in self._tables:
            table.quiet[:] = 1.0
        for slot, row in shares.items():
            self._nodes.quiet[slot] = row
            touched = np.flatnonzero((self._pairs.src == slot) | (self._pairs.dst == slot))
            self._edges.quiet[touched] = np.minimum(self._edges.quiet[touched], over_edges[slot])
        self._excused = {slot: self._excused.get(slot, expected.Excuse()) for slot in shares}
        for change in changes:
            found = snapshot.roster.find(change.service)
            if found is not None:
                self._excused[found] = self._excused[found].also(change)

    def _direct(
        self, snapshot: Snapshot, troubles: Sequence[KubernetesTrouble], context: Context
    ) -> list[Clue]:
        """Return clues that need no measurement: troubles, and missing services."""
        self._reported = {}
        for trouble in troubles:
            slot = snapshot.roster.find(trouble.service)
            if slot is not None:
                self._reported[(-1, slot, trouble.kind)] = _REPORTED
        clues = [
            Clue(slot, -1, kind, "trouble", score, True, True, None, None)
            for (_, slot, kind), score in self._reported.items()
        ]
        size = self._nodes.size
        if len(snapshot.nodes) == size:
            return clues
        self._forget_planned(snapshot, context)
        gone = np.flatnonzero((self._absent >= self._hold) & (self._absent < _FORGOTTEN))
        known = self._nodes.seen[gone].max(axis=1, initial=0) >= self.settings.window_size // 2
        if self._nodes.load >= 0:
            known &= self._nodes.level[gone, self._nodes.load] > _BUSY
        gone = gone[known & (self._absent[gone] < self.settings.window_size)]
        gone = gone[self._would_be_seen(gone, snapshot.gaps)]
        if len(gone) > max(1, _MANY * len(snapshot.nodes)):
            return clues
        for slot in gone.tolist():
            self._reported[(-1, slot, "gone")] = _REPORTED
            clues.append(Clue(slot, -1, "gone", "gone", _REPORTED, False, True, None, None))
        return clues

    def _would_be_seen(self, slots: NDArray[np.int64], gaps: Sequence[Gap]) -> NDArray[np.bool_]:
        """Return which services would be measured in spite of the gaps, bool [slots].

        A query without a response hides a service only if no other query ever found the service. So a
        query that never has one, such as that for connections on a mesh without TCP metrics, hides none.
        """
        lacking = {gap.what for gap in gaps}
        if "prometheus" in lacking:
            return np.zeros(len(slots), bool)
        present = [f for f, name in enumerate(self._nodes.columns) if f"node.{name}" not in lacking]
        seen = self._nodes.seen[slots][:, present].max(axis=1, initial=0) > 0
        return np.asarray(seen, bool)

    def _forget_planned(self, snapshot: Snapshot, context: Context) -> None:
        """Do not report services as missing that disappear during their own planned change."""
        for change in context.changes:
            slot = snapshot.roster.find(change.service)
            if slot is not None and change.kind != "added" and self._absent[slot]:
                self._absent[slot] = _FORGOTTEN

    def _follow(self, snapshot: Snapshot, found: Places, direct: Sequence[Clue]) -> list[TrackedIncident]:
        clues = [*direct, *self._witness.firm(snapshot, found)]
        if not clues and not self._tracker.open:
            return []
        clues += self._witness.supporting(snapshot, found, [clue.service for clue in direct])
        services = {clue.service for clue in clues} | {clue.caller for clue in clues if clue.caller >= 0}
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


def _unmatched(troubles: Sequence[KubernetesTrouble], snapshot: Snapshot) -> list[Gap]:
    """Return gaps for troubles that cannot become incidents, because no measurement has their names.

    A trouble is listed once for each name of its workload; one that the mesh knows is enough.
    """
    names: dict[tuple[str, str], list[str]] = {}
    for each in troubles:
        names.setdefault((each.kind, each.detail), []).append(each.service)
    return [
        Gap(f"kubernetes.{kind}", f"{', '.join(some)}: {detail or kind}; no measurement has this name")
        for (kind, detail), some in names.items()
        if all(snapshot.roster.find(name) is None for name in some)
    ]
