"""Predicts the deviation of each series from its neighbours and its load.

One ridge regression for each series, on a constant and few predictors that its role suggests:
`_OF_SERVICES` and `_OF_PATHS`. Means over call paths are weighted by usual traffic. Nothing is predicted
from neighbours that are not measured. What a service uses (CPU, memory, connections) follows no law that
would hold for other loads than those that were seen, and is not predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.detect.series import SeriesTable
from hopline_mesh.errors import StateDamaged
from hopline_mesh.roles import Role
from hopline_mesh.roster import SlotArray
from hopline_mesh.snapshot import Snapshot

FloatArray = NDArray[np.float32]
#: By table and target: float32 [slots, predictors]; NaN where nothing was learned.
Weights = list[dict[int, FloatArray]]
#: A predictor: its source, and a column of that.
_Predictor = tuple[str, int]
#: Role of a target -> its predictors: source (see `NeighbourRegression.predictors`), and roles of columns.
_Rules = Mapping[Role, Sequence[tuple[str, ...]]]
_LATENCY = [("own", "load"), ("callees", "latency", "outgoing"), ("calls", "latency", "outgoing")]
_OF_SERVICES: _Rules = {
    "load": [("calls to it", "load"), ("calls", "load"), ("callers", "load"), ("callees", "load")],
    "latency": _LATENCY,
    "outgoing": _LATENCY,
    "errors": [("own", "load"), ("callees", "errors"), ("calls", "errors")],
}
_OF_PATHS: _Rules = {
    "load": [("caller", "load"), ("callee", "load")],
    "latency": [("callee", "load"), ("callee", "latency")],
    "outgoing": [("path", "latency")],  # as "latency", if the callee's view is not measured
    "errors": [("callee", "errors")],
    "calls": [("caller", "load")],
}
#: Sources that are columns of call paths; the others are columns of services.
_READ_PATHS = ("calls to it", "calls", "path")
#: Deviations are clipped to it, as inputs and as targets.
_MOST = np.float32(12.0)
#: Weight of the prior, in intervals: that a standardised predictor has no effect.
_RIDGE = 20.0
#: Fewest intervals with a value for a series to be predicted.
_FEWEST = 60
#: Folds: deviations of a fold are predicted by what was learned from the others.
FOLDS = 3


class _Plan(NamedTuple):
    """Predictors of one table.

    Attributes:
        all: the columns of the matrix of predictors.
        of: target column -> its columns of that matrix.
    """

    all: list[_Predictor]
    of: dict[int, NDArray[np.int64]]


class NeighbourRegression:
    """The regressions of one mesh. Reads tables after an interval was observed; changes none.

    Args:
        nodes, edges: series of services and of call paths.
    """

    def __init__(self, nodes: SeriesTable, edges: SeriesTable) -> None:
        self._tables = (nodes, edges)
        self._plans = (
            _plan(nodes, _OF_SERVICES, self._tables),
            _plan(edges, _OF_PATHS, self._tables),
        )
        self.weights: Weights = [{}, {}]

    def predictors(self, snapshot: Snapshot, paths: SlotArray) -> tuple[FloatArray, FloatArray]:
        """Return the predictors of an interval, float32 [n, predictors] and [e, predictors].

        NaN = not measured, and a mean over call paths of which none is.

        Args:
            snapshot: the interval that the tables observed last.
            paths: int32 [e], slots of its call paths.
        """
        nodes, edges = self._tables
        slots, size = snapshot.nodes, nodes.size
        own = _moved(nodes, slice(size))
        path_own = _moved(edges, paths)
        traffic = np.ones(len(paths))
        if edges.load >= 0:
            level, offset = edges.level[paths, edges.load], edges.offset[paths, edges.load]
            usual = np.maximum(np.nan_to_num(np.exp(np.minimum(level, 80.0)) - offset), 0.0)
            traffic = np.where(offset < 0, 0.0, usual)  # below 0: never measured
        src, dst = snapshot.edge_src, snapshot.edge_dst

        def mean_at(end: SlotArray, values: FloatArray) -> NDArray[np.float64]:
            weight = np.where(np.isnan(values), 0.0, traffic)
            total = np.bincount(end, weight, size).astype(float)  # without any call path it is of integers
            total[total <= 0] = np.nan
            mean: NDArray[np.float64] = np.bincount(end, weight * np.nan_to_num(values), size) / total
            return mean

        def over_calls(values: FloatArray) -> NDArray[np.float64]:
            return mean_at(src, values)

        def over_callers(values: FloatArray) -> NDArray[np.float64]:
            return mean_at(dst, values)

        of_source: dict[str, Callable[[int], Any]] = {
            "one": lambda f: 1.0,
            "own": lambda f: own[slots, f],
            "callers": lambda f: over_callers(own[src, f])[slots],
            "callees": lambda f: over_calls(own[dst, f])[slots],
            "calls": lambda f: over_calls(path_own[:, f])[slots],
            "calls to it": lambda f: over_callers(path_own[:, f])[slots],
            "path": lambda f: path_own[:, f],
            "caller": lambda f: own[src, f],
            "callee": lambda f: own[dst, f],
        }
        sides: list[FloatArray] = []
        for plan, number in zip(self._plans, (len(slots), len(paths)), strict=True):
            matrix = np.empty((number, len(plan.all)), np.float32)
            for at, (source, f) in enumerate(plan.all):
                matrix[:, at] = of_source[source](f)
            sides.append(matrix)
        return sides[0], sides[1]

    def left(
        self, snapshot: Snapshot, paths: SlotArray, weights: Weights | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return what the regressions leave of the present deviations, in spreads; NaN = not predicted.

        Args:
            snapshot, paths: see `predictors`.
            weights: instead of the learned ones.

        Returns: float32 [n, F], and [e, Fe].
        """
        sides = []
        slots, predictors = (snapshot.nodes, paths), self.predictors(snapshot, paths)
        for number, table in enumerate(self._tables):
            mine, matrix = slots[number], predictors[number]
            left = np.full((len(mine), len(table.columns)), np.nan, np.float32)
            for f, weight in (weights or self.weights)[number].items():
                known = mine < len(weight)
                expected = np.full(len(mine), np.nan, np.float32)
                x, w = matrix[known][:, self._plans[number].of[f]], weight[mine[known]]
                lacking = np.isnan(x)
                # A predictor that was never measured has no weight.
                w = np.where((lacking & (w != 0)).any(axis=1)[:, None], np.nan, w)
                expected[known] = np.einsum("np,np->n", np.where(lacking, np.float32(0), x), w)
                left[:, f] = np.clip(table.slow[mine, f], -_MOST, _MOST) - expected
            sides.append(left)
        return sides[0], sides[1]

    def fit(self, intervals: Iterable[tuple[Snapshot, SlotArray, int]]) -> list[Weights]:
        """Learn the weights, in one pass over intervals.

        Args:
            intervals: arguments of `predictors`, and number of a fold. The tables have just observed each
                when it is taken.

        Returns: for each fold, weights that were learned from the others.
        """
        #: by table and target: products of predictors, and of predictors with the target, of each fold
        sums: list[dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]]] = [{}, {}]
        for number, plan in enumerate(self._plans):
            for f, places in plan.of.items():
                shape = (FOLDS, self._tables[number].size, len(places))
                sums[number][f] = np.zeros((*shape, len(places))), np.zeros(shape)
        for snapshot, paths, fold in intervals:
            predictors = self.predictors(snapshot, paths)
            for number, mine in enumerate((snapshot.nodes, paths)):
                for f, places in self._plans[number].of.items():
                    target = np.clip(self._tables[number].slow[mine, f], -_MOST, _MOST)
                    there = np.flatnonzero(~np.isnan(target))
                    x = np.nan_to_num(predictors[number][there][:, places].astype(np.float64))
                    products, with_target = sums[number][f]
                    products[fold, mine[there]] += x[:, :, None] * x[:, None, :]
                    with_target[fold, mine[there]] += x * target[there, None]
        folds: list[Weights] = [[{}, {}] for _ in range(FOLDS)]
        for number, side in enumerate(sums):
            for f, (products, with_target) in side.items():
                total, total_with = products.sum(axis=0), with_target.sum(axis=0)
                self.weights[number][f] = _solved(total, total_with)
                for fold in range(FOLDS):
                    folds[fold][number][f] = _solved(total - products[fold], total_with - with_target[fold])
        return folds

    def export(self) -> dict[str, FloatArray]:
        """Return the learned weights."""
        return {
            f"{number}.{f}": weight.copy()
            for number, side in enumerate(self.weights)
            for f, weight in side.items()
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the weights of `export`.

        Raises:
            StateDamaged: one is missing, or does not match the columns.
        """
        for number, plan in enumerate(self._plans):
            for f, places in plan.of.items():
                weight = arrays.get(f"{number}.{f}")
                if weight is None or weight.ndim != 2 or weight.shape[1] != len(places):
                    raise StateDamaged(
                        f"the neighbour regression lacks weights [slots, {len(places)}] of column "
                        f"{self._tables[number].columns[f]!r}"
                    )
                self.weights[number][f] = np.array(weight, np.float32)


def _solved(products: NDArray[np.float64], with_target: NDArray[np.float64]) -> FloatArray:
    """Return the weights of series, float32 [slots, P], from sums [slots, P, P] and [slots, P].

    The first predictor is the constant, so its sum of squares is the number of intervals.
    """
    count = products[:, 0, 0]
    scale = np.sqrt(np.diagonal(products, axis1=1, axis2=2) / np.maximum(count, 1.0)[:, None]) + 1e-4
    a = products / (scale[:, :, None] * scale[:, None, :]) + _RIDGE * np.eye(products.shape[1])
    weights = np.linalg.solve(a, (with_target / scale)[:, :, None])[:, :, 0] / scale
    weights[count < _FEWEST] = np.nan
    return weights.astype(np.float32)


def _moved(table: SeriesTable, slots: Any) -> FloatArray:
    """Return deviations on the scale of the values, so that those of several series can be added.

    During a planned change deviations count less.
    """
    away = np.clip(table.slow[slots], -_MOST, _MOST)
    moved: FloatArray = away * table.spread[slots] * table.quiet[slots]
    return moved


def _plan(table: SeriesTable, rules: _Rules, tables: tuple[SeriesTable, SeriesTable]) -> _Plan:
    """Return the predictors of each column of a table; a column without any neighbour or load has none."""

    def wanted(role: Role) -> list[_Predictor]:
        return [
            (source, f)
            for source, *roles in rules[role]
            for f in _columns(tables[source in _READ_PATHS], *roles)
        ]

    numbers: dict[_Predictor, int] = {}
    of = {}
    for f in _columns(table, *rules):
        some = wanted(table.roles[f])
        if not some and table.roles[f] == "outgoing":
            some = wanted("latency")
        if some:
            each = [("one", 0), *some]
            of[f] = np.array([numbers.setdefault(one, len(numbers)) for one in each], np.int64)
    return _Plan(list(numbers), of)


def _columns(table: SeriesTable, *roles: str) -> list[int]:
    """Return the columns with one of the roles; of loads the one that others follow."""
    return [
        f for f, role in enumerate(table.roles) if role in roles and (role != "load" or f == table.load)
    ]
