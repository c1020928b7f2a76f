"""Reads sampled requests, answers and neighbourhoods into values by quantity."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hopline.errors import NodeNotFound
from hopline.types import ScoreResult
from hopline_drift.answers import chosen_rows, num_rows, read_columns, read_result
from hopline_drift.observed import Observed
from hopline_drift.reservoir import Sampled
from hopline_drift.structure import GraphModel, Structure


class SampleReader:
    """Reads sampled requests; see the module.

    Args:
        max_columns, columns: columns to watch of a tabular model or node type; see the settings.
        random: chooses rows and neighbours.
        rest: called between pieces of work.
    """

    def __init__(
        self,
        max_columns: int,
        columns: Sequence[str],
        random: np.random.Generator,
        rest: Callable[[], object],
    ) -> None:
        self._max_columns = max_columns
        self._columns = columns
        self._random = random
        self._rest = rest

    def read(self, sampled: Sequence[Sampled], model: GraphModel | None) -> Observed:
        """Read the quantities of requests and their outcomes.

        Args:
            model: model of the requests; None if it reads no graph, or its graph is not in this process.
        """
        observed = Observed()
        # Answers, and unknown nodes; other errors are ignored.
        answered = [each for each in sampled if isinstance(each[1], ScoreResult | NodeNotFound)]
        tables = []
        for request, outcome in answered:
            self._rest()
            observed.num_requests += 1
            if isinstance(outcome, ScoreResult):
                rows = chosen_rows(num_rows(outcome.outputs), self._random)
                observed.num_rows += rows.shape[0]
                read_result(outcome, rows, observed)
                if request.columns is not None:
                    tables.append((request, rows))
        read_columns(tables, self._columns, self._max_columns, observed, self._rest)
        if model is not None and answered:
            requests, outcomes = zip(*answered, strict=True)
            self.structure(model).read(requests, outcomes, observed)
        return observed

    def structure(self, model: GraphModel) -> Structure:
        """The reader of a model's neighbourhoods."""
        return Structure(model, self._max_columns, self._columns, self._random, self._rest)
