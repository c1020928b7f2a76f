"""A step that has one of several others answer, by rules on the request or on each of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopline.errors import HoplineError
from hopline.types import AnyArray
from hopline_pipelines.compute import Decider
from hopline_pipelines.run import Run, Step, StepHead
from hopline_pipelines.values import DTYPES, ValueType

#: Output that says which step answered a row.
CHOSEN = "chosen"


class _Chosen(NamedTuple):
    """Places of the steps that were chosen, and which of them each row gets (None: the only one)."""

    steps: tuple[int, ...]
    rows: NDArray[np.intp] | None


class RouteStep(Step):
    """A step that sends rows to one of several steps.

    Args:
        head: see `Step`; the candidates are not among the deps. Its outputs are those of all candidates.
        decider: the rules.
        targets: place of the step that each rule selects; one more for the default.
        names: id of each of those.
        apart: places of steps that only this route reads and that can compute some rows alone.

    Where rows of one request go different ways, every chosen candidate is run, for its own rows if it is
    `apart`, and the answers are put together.
    """

    kind = "route"

    def __init__(
        self,
        head: StepHead,
        decider: Decider,
        targets: Sequence[int],
        names: Sequence[str],
        apart: frozenset[int],
    ) -> None:
        super().__init__(head.with_outputs({**head.outputs, CHOSEN: ValueType("BYTES")}))
        self._shared = tuple(head.outputs)
        self._decider = decider
        self.targets = np.array(targets, np.intp)
        self._name_of = dict(zip(targets, names, strict=True))
        self._apart = apart

    def begin(self, run: Run) -> None:
        """Choose, and have the chosen begin."""
        values = run.values
        rows: NDArray[np.intp] | None = None
        if self._decider.by_row:
            rows = self.targets[self._decider.first_of_rows(values)]
            steps = tuple(np.unique(rows).tolist())
            if len(steps) == 1:
                rows = None
        else:
            steps = (int(self.targets[self._decider.first(values)]),)
        run.notes[self.index] = _Chosen(steps, rows)
        run.pending[self.index] = len(steps)
        for step in steps:
            if not run.is_running(self.index):
                return
            if rows is not None and step in self._apart:
                run.rows[step] = np.flatnonzero(rows == step)
            run.want(step, self.index)

    def receive(self, run: Run, dep: int, error: HoplineError | None) -> None:
        """Something that the rules read has ended, or one of the chosen."""
        if run.is_waiting(self.index):
            super().receive(run, dep, error)
        elif run.is_running(self.index):
            if error is not None:
                run.fail(self.index, error)
                return
            run.pending[self.index] -= 1
            if not run.pending[self.index]:
                run.finish(self.index, self._together(run))

    def _together(self, run: Run) -> dict[str, AnyArray]:
        chosen: _Chosen = run.notes[self.index]
        values = run.values
        if chosen.rows is None:
            only = values.of[chosen.steps[0]]
            found = {name: only[name] for name in self._shared if name in only}
            found[CHOSEN] = np.full(values.num_rows, self._name_of[chosen.steps[0]], object)
            return found
        found = {CHOSEN: np.empty(values.num_rows, object)}
        for step in chosen.steps:
            mask = chosen.rows == step
            found[CHOSEN][mask] = self._name_of[step]
            for name, array in values.of[step].items():
                if name not in self._shared:
                    continue
                if name not in found:
                    dtype = DTYPES[self.outputs[name].datatype]
                    found[name] = np.empty((values.num_rows, *array.shape[1:]), dtype)
                found[name][mask] = array if run.rows[step] is not None else array[mask]
        return found
