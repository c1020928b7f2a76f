"""One step over all series of both tables, with the model's pass between: one call of compiled code.

    take_in:  observe ─► gather              services and call paths, in pieces, by two threads
    judge:    [model's phases] ─► judge      in the same call, or in another one where something has to be
                                             done between

It uses two threads for larger meshes; results are the same with one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.model import plan as model_at
from hopline_mesh.model.passes import note_address
from hopline_mesh.model.second import SecondThread, has_second
from hopline_mesh.model.threads import PHASE_WORDS, PHASES
from hopline_mesh.roster import SlotArray
from hopline_mesh.tagae import kernels
from hopline_mesh.tagae import plan as at
from hopline_mesh.tagae.calls import Pending
from hopline_mesh.tagae.series import SeriesTable
from hopline_mesh.tagae.sweep_kernels import Outcome, judge_all, scratch_bytes, serve, take_in

#: Services plus call paths from which a second thread is faster.
SHARED_FROM = 1000
#: Slots of a piece of work: whole blocks, at most so many, and so many pieces where there are enough.
_BLOCK, _LARGEST, _PIECES = 64, 512, 8

FloatArray = NDArray[np.float32]
#: A model's inputs of a table: float32 [n, 2 F] of now, [n, F] of the window; written by the sweep.
Rows = tuple[FloatArray, FloatArray]
#: What a model expects of services and of call paths: rows float32 [n, F], which may lie apart.
Expected = tuple[FloatArray, FloatArray]
#: Seconds for which the second thread surely stays awake once it is roused.
_AWAKE_S = 0.003
#: Placeholder if nothing is pending.
_NO_ROWS: FloatArray = np.zeros((0, 0), np.float32)
_NO_SLOTS: SlotArray = np.zeros(0, np.int32)
_NOTHING_FOUND: NDArray[np.int64] = np.zeros((0, 3), np.int64)


@dataclass(frozen=True, slots=True)
class Taken:
    """Counts of an interval.

    Attributes:
        measured, known: values that there are, and that there should have been.
        young: services without a window; only where inputs were asked for.
    """

    measured: int
    known: int
    young: int


class Order(NamedTuple):
    """How to judge an interval in the same call.

    Attributes:
        hold, learn: see `kernels.judge`.
        model: the plan of the model's pass, which comes first; None where there is none.
    """

    hold: int
    learn: int
    model: NDArray[np.int64] | None


class _Side:
    """One table's plan, and what it points at."""

    def __init__(self, table: SeriesTable) -> None:
        self.table = table
        self.numbers = np.zeros(2, np.float64)
        self.plan = np.zeros(at.NUM_PLACES, np.int64)
        self.counts = np.zeros((2, at.LINE), np.int64)
        self.largest = np.zeros((2, at.LINE), np.float64)
        self.found = np.zeros((2, at.MOST_FOUND, 2), np.int32)
        self.histogram = np.zeros_like(table.histogram)  # of the second thread
        each = scratch_bytes(len(table.columns))
        self.scratch = np.zeros((2, each), np.int8)
        self._moves = -1
        self._size = -1
        self._rows: SlotArray = np.zeros(0, np.int32)
        self._slots: SlotArray = np.zeros(0, np.int32)
        self._absent: SlotArray | None = None
        self._inputs: Rows | None = None
        plan, width = self.plan, len(table.columns)
        plan[at.WIDTH], plan[at.WINDOW], plan[at.LOAD] = width, table.window, table.load
        plan[at.MODELLED] = table.modelled
        plan[at.HELD_ROWS], plan[at.BINS] = kernels.HOLD, kernels.BINS
        plan[at.SENT], plan[at.SCRATCH_BYTES] = -1, each
        for place, array in (
            (at.NUMBERS, self.numbers),
            (at.COUNTS, self.counts),
            (at.LARGEST, self.largest),
            (at.SECOND_HISTOGRAM, self.histogram),
            (at.FOUND, self.found),
            (at.SCRATCH, self.scratch),
        ):
            plan[place] = array.ctypes.data

    def is_pointed(self, slots: SlotArray, inputs: Rows | None, absent: SlotArray | None) -> bool:
        """Whether `point` has nothing to do."""
        table = self.table
        return (
            slots is self._slots
            and self._moves == table.moves
            and self._size == table.size
            and absent is self._absent
            and (inputs is None or inputs is self._inputs)
        )

    def point(self, slots: SlotArray, inputs: Rows | None, absent: SlotArray | None) -> None:
        """Write the addresses that do not change in each interval to the plan."""
        table, plan = self.table, self.plan
        if self._moves != table.moves:
            self._moves = table.moves
            plan[at.ROOM] = table.room
            for place, name in enumerate(at.ARRAYS):
                plan[place] = getattr(table, name).ctypes.data
        if self._size != table.size or slots is not self._slots:
            self._size = table.size
            self._slots = slots
            self._rows = np.full(table.size, -1, np.int32)
            self._rows[slots] = np.arange(len(slots), dtype=np.int32)
            plan[at.SIZE], plan[at.NUM_ROWS] = table.size, len(slots)
            plan[at.ROWS], plan[at.SLOTS] = self._rows.ctypes.data, slots.ctypes.data
            blocks = -(-table.size // (_BLOCK * _PIECES))
            plan[at.PIECE] = min(_LARGEST, max(1, blocks) * _BLOCK)
        if absent is not self._absent:
            self._absent = absent
            plan[at.ABSENT] = 0 if absent is None else absent.ctypes.data
        if inputs is not None and inputs is not self._inputs:
            self._inputs = inputs
            note_address(plan, at.INPUTS, inputs[0])
            note_address(plan, at.TEMPORAL, inputs[1])

    def out(self) -> NDArray[np.int32]:
        """int32 [found, 2], slots and columns out of bounds, in their order."""
        numbers = np.minimum(self.counts[:, at.OUT], at.MOST_FOUND)
        found = np.concatenate([self.found[thread, :number] for thread, number in enumerate(numbers)])
        return found[np.lexsort((found[:, 1], found[:, 0]))]


class Sweep:
    """The passes over both tables in each step. Not thread-safe.

    Args:
        nodes, edges: of services, and of call paths.
        threads: more than one lets a second one help.
    """

    def __init__(self, nodes: SeriesTable, edges: SeriesTable, threads: int | None = None) -> None:
        self._sides = (_Side(nodes), _Side(edges))
        self._step = np.zeros(at.STEP_PLACES, np.int64)
        self._model: NDArray[np.int64] | None = None
        self._counters: NDArray[np.int64] = np.zeros(0, np.int64)
        self._kept: tuple[object, ...] = ()
        self._judged: tuple[int, float] | None = None
        self._expected: Expected | None = None  # as long as its addresses are used
        self._roused_s = -math.inf
        plans = (self._step, self._sides[0].plan, self._sides[1].plan)
        self._plans = plans
        self._second = SecondThread(serve, plans, at.NUM_PHASES) if has_second(threads) else None
        self._alone = np.zeros(PHASES + PHASE_WORDS * at.NUM_PHASES, np.int64)

    def rouse(self) -> None:
        """An interval comes within the next milliseconds. Nothing happens where they are not shared."""
        if self._second is not None and self._is_large:
            now_s = time.perf_counter()
            if now_s - self._roused_s > _AWAKE_S:
                self._roused_s = now_s
                self._second.rouse()

    def take_in(
        self,
        values: Sequence[FloatArray],
        slots: Sequence[SlotArray],
        step: int,
        *,
        interval_s: float,
        warm_up: int,
        drift: float,
        ago: int,
        recent: int,
        inputs: Sequence[Rows] | None = None,
        pending: Pending | None = None,
        absent: SlotArray | None = None,
        then: Order | None = None,
    ) -> Taken:
        """Take one interval in; see `kernels.observe`.

        Args:
            values: float32 [n, F], of services and of call paths.
            slots: int32 [n], whose they are, each once; other arrays where these change.
            inputs: room for what the model reads, filled: see `rows.gather`.
            pending: what the call paths' values are to be made of; they are its `out`, then.
            absent: int32, intervals since each service was there last: one more, or 0.
            then: judge it in the same call, if no service is young; `judge` returns the result.
        """
        nodes, edges = self._sides
        node_inputs, edge_inputs = inputs or (None, None)
        if not (
            nodes.is_pointed(slots[0], node_inputs, absent)
            and edges.is_pointed(slots[1], edge_inputs, None)
        ):
            self._idle()
            nodes.point(slots[0], node_inputs, absent)
            edges.point(slots[1], edge_inputs, None)
        if nodes.table.is_looking:
            nodes.table.look(values[0])
        if edges.table.is_looking:
            edges.table.look(values[1])
        window = nodes.table.window
        _, measured, callers, sent = pending or (None, _NO_ROWS, _NO_SLOTS, -1)
        self._kept = kept = (  # as long as their addresses are used
            np.ascontiguousarray(values[0], np.float32),
            np.ascontiguousarray(values[1], np.float32),
            measured,
            callers,
        )
        self._roused_s = -math.inf
        bits = 1 << at.OBSERVE | (1 << at.GATHER if inputs else 0)
        hold, learn = 0, kernels.NOTHING
        if then is not None:
            hold, learn = then.hold, then.learn
            bits |= self._bits(then.model, None)
        outcome = take_in(
            *self._plans, *self._threads, *kept, sent, bits, warm_up, step % window,
            min(ago, window - 1), min(recent, window - 1), interval_s, drift, step % kernels.HOLD,
            min(hold, kernels.HOLD), learn,
        )  # fmt: skip
        measured_now, known, young, out, largest = cast(Outcome, outcome)
        self._judged = None if then is None or young else (out, largest)
        return Taken(measured_now, known, young)

    @property
    def is_judged(self) -> bool:
        """Whether the interval was judged when it was taken in, as `then` had it."""
        return self._judged is not None

    def _bits(self, model: NDArray[np.int64] | None, expected: Expected | None) -> int:
        """Phases of judging, of which the plans say where all lies; see `judge`."""
        if model is None:
            self._expect(expected)
            return 1 << at.JUDGE
        self._point_at(model)
        return 1 << at.MODEL | 1 << at.JUDGE

    def _expect(self, expected: Expected | None) -> None:
        """Have the plans say what is expected, where the model is not run here."""
        if expected is None and not self._sides[0].plan[at.EXPECTED]:
            return
        self._idle()
        self._expected = expected
        for number, side in enumerate(self._sides):
            side.plan[at.EXPECTED] = 0
            if expected is not None:
                note_address(side.plan, at.EXPECTED, expected[number])
                side.plan[at.EXPECTED_BYTES] = expected[number].strides[0]

    def judge(
        self,
        step: int,
        *,
        warm_up: int,
        hold: int,
        learn: int,
        model: NDArray[np.int64] | None = None,
        expected: Expected | None = None,
    ) -> tuple[NDArray[np.int64], float]:
        """Compare the interval that was taken in with what was expected; see `kernels.judge`.

        Nothing is left to do where it was judged when it was taken in.

        Args:
            learn: what is counted as normal time; see `kernels.judge`.
            model: the plan of the model's pass, which comes first; None where `expected` is known already.
            expected: what the model expects of the interval's services and call paths; None where there is
                no model.

        Returns: table (0 = services), slot and column of each series that was out of bounds for long
            enough, int64 [n, 3], and the largest score.
        """
        if self._judged is None:
            bits, held_at = self._bits(model, expected), step % kernels.HOLD
            outcome = judge_all(
                *self._plans, *self._threads, bits, warm_up, held_at, min(hold, kernels.HOLD), learn
            )
            *_, out, largest = cast(Outcome, outcome)
        else:
            (out, largest), self._judged = self._judged, None
        if not out:
            return _NOTHING_FOUND, largest
        rows = [side.out() for side in self._sides]
        found = np.zeros((sum(map(len, rows)), 3), np.int64)
        found[len(rows[0]) :, 0] = 1
        found[:, 1:] = np.concatenate(rows)
        return found, largest

    @property
    def _is_large(self) -> bool:
        nodes, edges = self._sides
        return nodes.table.size + edges.table.size >= SHARED_FROM

    def _idle(self) -> None:
        if self._second is not None:
            self._second.idle()

    def _point_at(self, model: NDArray[np.int64]) -> None:
        if model is self._model:
            return
        self._idle()
        self._model = model
        step = self._step
        words = PHASES + PHASE_WORDS * (int(model[model_at.NUM_LAYERS]) + model_at.PHASES_BESIDE)
        if len(self._counters) != words:
            self._counters = np.zeros(words, np.int64)
            step[at.MODEL_CONTROL], step[at.MODEL_WORDS] = self._counters.ctypes.data, words
        step[at.MODEL_PLAN], step[at.MODEL_PLACES] = model.ctypes.data, len(model)

    @property
    def _threads(self) -> tuple[NDArray[np.int64], bool]:
        """By what threads agree, and whether there are two."""
        if self._second is None or not self._is_large:
            return self._alone, False
        self._second.start()
        return self._second.control, True
