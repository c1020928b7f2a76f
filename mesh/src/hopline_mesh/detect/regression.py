"""Predicts the deviation of each series from its neighbours, its load and its own past.

One ridge regression for each series, on few predictors that its role suggests:

    load of a service       calls that it gets and makes, load of its callers and callees
    latency of a service    its load, latencies of its callees and of its calls
    errors of a service     its load, errors of its callees and of its calls
    load of a call path     load of its caller and of its callee
    latency of a call path  of the caller's view: the callee's view; else load and latency of the callee
    errors of a call path   errors of its callee
    calls per request       load of the caller

and for each a constant and the mean of its window. Means over call paths are weighted by traffic. What
a service uses (CPU, memory, connections) follows no law that would hold for other loads than those that
were seen, and is not predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.detect.roles import role_of
from hopline_mesh.detect.series import SeriesTable
from hopline_mesh.errors import StateDamaged
from hopline_mesh.roster import SlotArray
from hopline_mesh.snapshot import Snapshot

FloatArray = NDArray[np.float32]
#: A predictor: its source, and a column of that.
_Predictor = tuple[str, int]
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
        self._plans = (_plan_of_services(nodes, edges), _plan_of_paths(nodes, edges))
        #: by table and target: float32 [slots, predictors]; NaN where nothing was learned
        self.weights: list[dict[int, FloatArray]] = [{}, {}]

    @property
    def targets(self) -> tuple[list[int], list[int]]:
        """Predicted columns of services, and of call paths."""
        return list(self._plans[0].of), list(self._plans[1].of)

    def predictors(self, snapshot: Snapshot, paths: SlotArray) -> tuple[FloatArray, FloatArray]:
        """Return the predictors of an interval, float32 [n, predictors] and [e, predictors].

        Args:
            snapshot: the interval that the tables observed last.
            paths: int32 [e], slots of its call paths.
        """
        nodes, edges = self._tables
        slots, size = snapshot.nodes, nodes.size
        own = _moved(nodes, nodes.slow, slice(size))
        past = _moved(nodes, nodes.slow[:size] - nodes.near[:size], slice(size))
        path_own = _moved(edges, edges.slow, paths)
        path_past = _moved(edges, edges.slow - edges.near, paths)
        traffic = np.ones(len(paths))
        if edges.load >= 0:
            rates = snapshot.edge_features[:, edges.load]
            traffic = np.where((rates > 0) & (rates < 1e30), rates, 0.0)
        src, dst = snapshot.edge_src, snapshot.edge_dst
        sent, got = (np.maximum(np.bincount(end, traffic, size), 1e-9) for end in (src, dst))

        def over_calls(values: FloatArray) -> NDArray[np.float64]:
            return np.bincount(src, traffic * values, size) / sent

        def over_callers(values: FloatArray) -> NDArray[np.float64]:
            return np.bincount(dst, traffic * values, size) / got

        of_source: dict[str, Callable[[int], Any]] = {
            "one": lambda f: 1.0,
            "own": lambda f: own[slots, f],
            "past": lambda f: past[slots, f],
            "callers": lambda f: over_callers(own[src, f])[slots],
            "callees": lambda f: over_calls(own[dst, f])[slots],
            "calls": lambda f: over_calls(path_own[:, f])[slots],
            "calls to it": lambda f: over_callers(path_own[:, f])[slots],
            "path": lambda f: path_own[:, f],
            "path's past": lambda f: path_past[:, f],
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
        self,
        predictors: tuple[FloatArray, FloatArray],
        slots: tuple[SlotArray, SlotArray],
        weights: Sequence[Mapping[int, FloatArray]] | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """Return what the regressions leave of the present deviations, in spreads; NaN = not predicted.

        Args:
            predictors: of `predictors`.
            slots: of services and of call paths.
            weights: instead of the learned ones.

        Returns: float32 [n, F], and [e, Fe].
        """
        sides = []
        for number, table in enumerate(self._tables):
            mine, matrix = slots[number], predictors[number]
            left = np.full((len(mine), len(table.columns)), np.nan, np.float32)
            for f, weight in (weights or self.weights)[number].items():
                known = mine < len(weight)
                expected = np.full(len(mine), np.nan, np.float32)
                places = self._plans[number].of[f]
                expected[known] = np.einsum("np,np->n", matrix[known][:, places], weight[mine[known]])
                left[:, f] = np.clip(table.slow[mine, f], -_MOST, _MOST) - expected
            sides.append(left)
        return sides[0], sides[1]

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


class Fit:
    """Learns the weights of a regression from intervals, in one pass.

    Args:
        regression: gets the weights.
        sizes: numbers of services and of call paths.
    """

    def __init__(self, regression: NeighbourRegression, sizes: tuple[int, int]) -> None:
        self._regression = regression
        self._sums: list[dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]]] = [{}, {}]
        for number, plan in enumerate(regression._plans):
            for f, places in plan.of.items():
                shape = (FOLDS, sizes[number], len(places))
                self._sums[number][f] = np.zeros((*shape, len(places))), np.zeros(shape)

    def take(
        self, predictors: tuple[FloatArray, FloatArray], slots: tuple[SlotArray, SlotArray], fold: int
    ) -> None:
        """Add an interval, which the tables observed last, to a fold."""
        for number, table in enumerate(self._regression._tables):
            mine = slots[number]
            for f, places in self._regression._plans[number].of.items():
                target = np.clip(table.slow[mine, f], -_MOST, _MOST)
                there = np.flatnonzero(~np.isnan(target))
                x = predictors[number][there][:, places].astype(np.float64)
                products, with_target = self._sums[number][f]
                products[fold, mine[there]] += x[:, :, None] * x[:, None, :]
                with_target[fold, mine[there]] += x * target[there, None]

    def solve(self) -> list[list[dict[int, FloatArray]]]:
        """Set the weights from all folds; returns for each fold those of the others, as `weights`."""
        apart: list[list[dict[int, FloatArray]]] = [[{}, {}] for _ in range(FOLDS)]
        for number, side in enumerate(self._sums):
            for f, (products, with_target) in side.items():
                total, total_with = products.sum(axis=0), with_target.sum(axis=0)
                self._regression.weights[number][f] = _solved(total, total_with)
                for fold in range(FOLDS):
                    apart[fold][number][f] = _solved(total - products[fold], total_with - with_target[fold])
        return apart


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


def _moved(table: SeriesTable, deviations: FloatArray, slots: Any) -> FloatArray:
    """Return deviations on the scale of the values, so that those of several series can be added.

    0 is not measured; during a planned change deviations count less.
    """
    away = np.clip(deviations[slots], -_MOST, _MOST)
    away[np.isnan(away)] = 0.0
    moved: FloatArray = away * table.spread[slots] * table.quiet[slots]
    return moved


def _columns(table: SeriesTable, *roles: str) -> list[int]:
    """Return the columns with one of the roles; of loads the one that others follow."""
    return [
        f
        for f, name in enumerate(table.columns)
        if role_of(name) in roles and (role_of(name) != "load" or f == table.load)
    ]


def _plan_of_services(nodes: SeriesTable, edges: SeriesTable) -> _Plan:
    wanted: dict[int, list[_Predictor]] = {}
    load = _columns(nodes, "load")
    path_load = _columns(edges, "load")
    slow, slow_paths = _columns(nodes, "latency", "outgoing"), _columns(edges, "latency", "outgoing")
    errors, failed_paths = _columns(nodes, "errors"), _columns(edges, "errors")
    for f in load:
        wanted[f] = [("calls to it", k) for k in path_load] + [("calls", k) for k in path_load]
        wanted[f] += [("callers", f), ("callees", f)]
    for f in slow:
        wanted[f] = [("own", k) for k in load] + [("callees", k) for k in slow]
        wanted[f] += [("calls", k) for k in slow_paths]
    for f in errors:
        wanted[f] = [("own", k) for k in load] + [("callees", k) for k in errors]
        wanted[f] += [("calls", k) for k in failed_paths]
    return _plan(wanted, "past")


def _plan_of_paths(nodes: SeriesTable, edges: SeriesTable) -> _Plan:
    wanted: dict[int, list[_Predictor]] = {}
    load, slow, errors = (_columns(nodes, role) for role in ("load", "latency", "errors"))
    own = _columns(edges, "latency")
    for f in _columns(edges, "load"):
        wanted[f] = [("caller", k) for k in load] + [("callee", k) for k in load]
    for f in _columns(edges, "outgoing"):
        wanted[f] = [("path", k) for k in own] or [("callee", k) for k in load + slow]
    for f in own:
        wanted[f] = [("callee", k) for k in load + slow]
    for f in _columns(edges, "errors"):
        wanted[f] = [("callee", k) for k in errors]
    for f in _columns(edges, "calls"):
        wanted[f] = [("caller", k) for k in load]
    return _plan(wanted, "path's past")


def _plan(wanted: Mapping[int, Sequence[_Predictor]], past: str) -> _Plan:
    """Number the predictors; those without any neighbour or load are left out."""
    each = {f: [("one", 0), (past, f), *some] for f, some in wanted.items() if some}
    numbers: dict[_Predictor, int] = {}
    of = {
        f: np.array([numbers.setdefault(one, len(numbers)) for one in some], np.int64)
        for f, some in sorted(each.items())
    }
    return _Plan(list(numbers), of)
