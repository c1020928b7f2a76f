"""Steps that compute: columns from expressions, and decisions from rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.types import AnyArray
from hopline_pipelines.compile import Expression
from hopline_pipelines.run import Run, Step, StepHead
from hopline_pipelines.values import Values, ValueType, type_of_array


class TransformStep(Step):
    """Computes columns.

    Args:
        head: see `Step`.
        columns: output name -> what it is.
    """

    kind = "transform"

    def __init__(self, head: StepHead, columns: Mapping[str, Expression]) -> None:
        types = {name: ValueType(each.type.datatype, each.type.dims) for name, each in columns.items()}
        super().__init__(head.with_outputs(types))
        self._columns = dict(columns)

    def begin(self, run: Run) -> None:
        """Compute all of them."""
        with np.errstate(all="ignore"):
            found = {name: each.rows(run.values) for name, each in self._columns.items()}
        run.finish(self.index, found)


class Decider:
    """Index of the first rule that holds.

    Args:
        rules: conditions, in order.
    """

    def __init__(self, rules: Sequence[Expression]) -> None:
        self._rules = tuple(rules)
        #: Whether rows may differ.
        self.by_row = any(rule.type.by_row for rule in rules)

    def first(self, values: Values) -> int:
        """Number of the first rule that holds for the request, or how many there are where none does."""
        for number, rule in enumerate(self._rules):
            if rule.of(values):
                return number
        return len(self._rules)

    def first_of_rows(self, values: Values) -> NDArray[np.intp]:
        """The same for each row, [n]. NaN fulfils nothing."""
        with np.errstate(all="ignore"):
            if values.num_rows == 1:  # most requests: the rules after the first that holds are not computed
                holds = (number for number, rule in enumerate(self._rules) if rule.rows(values)[0])
                return np.array([next(holds, len(self._rules))], np.intp)
            found = np.full(values.num_rows, len(self._rules), np.intp)
            for number in range(len(self._rules) - 1, -1, -1):
                found[self._rules[number].rows(values)] = number
        return found


class RulesStep(Step):
    """Decides each row.

    Args:
        head: see `Step`.
        rules: conditions, in order.
        results: the result of each; one more for rows where none holds.
        output: name of the decision.
    """

    kind = "rules"

    def __init__(
        self,
        head: StepHead,
        rules: Sequence[Expression],
        results: Sequence[Any],
        output: str,
    ) -> None:
        self._results: AnyArray = np.array(results, object if isinstance(results[0], str) else None)
        super().__init__(head.with_outputs({output: type_of_array(self._results)}))
        self._decider = Decider(rules)
        self._output = output

    def begin(self, run: Run) -> None:
        """Decide."""
        run.finish(self.index, {self._output: self._results[self._decider.first_of_rows(run.values)]})
