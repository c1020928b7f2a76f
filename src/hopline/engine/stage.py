"""Runs one stage: fills its declared inputs from rows and edges, calls ONNX Runtime.

Knows artifact.py's input kinds; knows nothing of plans, caches or requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hopline.artifact import Stage, StageInput
from hopline.engine.attention import AttentionInput
from hopline.engine.kernels import add_scaled, gather, gather_reduce, list_owners, reduce_max, reduce_sum
from hopline.engine.narrow_kernels import Matrix
from hopline.engine.view import NO_FLOATS, EdgeView
from hopline.runtimes.onnx import CHUNK_ROWS, ROW_KINDS, ROW_STEP, EdgeStage, RowStage, chunk_rows
from hopline.types import AnyArray, FloatArray, IdArray

#: Edges of one call of an edge stage, if no node has more: their rows stay in the CPU's cache.
_MOST_EDGES = 2048


_NO_QUERY: FloatArray = np.empty((1, 0), np.float32)
_FIRST_ROW: IdArray = np.zeros(1, np.int64)

#: (edge type, (own column, width, input, place), (mean, column, width, input, place)); see `gather_reduce`.
_Pair = tuple[str, tuple[int, int, FloatArray, int], tuple[bool, int, int, FloatArray, int]]


class Given(NamedTuple):
    """The data that a stage reads of n destinations.

    Attributes:
        own, own_rows: previous-level states [m, d] and the destinations' rows in it, for `self`.
        features, feature_rows: raw features and the destinations' rows in them, for `features`.
        views: edge type key -> the destinations' edges of this type.
        structure: float32 [n, s], for `structure`.
        seed_time: for `seed_time`.
    """

    own: Matrix
    own_rows: IdArray
    features: Matrix
    feature_rows: IdArray
    views: dict[str, EdgeView]
    structure: FloatArray | None = None
    seed_time: int = 0


class StageRunner:
    """One stage, loaded.

    Args:
        folder: the artifact.
        stage: with a file.
        widths: node type or edge type key -> columns of the previous level's state of its source (for
            `self` the key is ""), for inputs without explicit columns.
        feature_dim: columns of the destination's raw features.
        threads: of the runtime.

    Attributes:
        chunk_rows: destinations of one call of the runtime, at most.
        row_stage: the runtime, if every input has one row for each destination.
        edge_stage: the runtime otherwise; one of the two is None.
        pair: set if the stage reads only own rows and an unweighted sum or mean of neighbours: then
            `gather_reduce` fills both in one call.
    """

    def __init__(
        self, folder: Path, stage: Stage, widths: dict[str, int], feature_dim: int, threads: int = 1
    ) -> None:
        assert stage.file is not None
        self.stage = stage

        def columns_of(entry: StageInput) -> tuple[int, int]:
            if entry.columns is not None:
                return entry.columns
            return (0, feature_dim if entry.kind == "features" else widths.get(entry.edge_type, 0))

        self._columns = [columns_of(entry) for entry in stage.inputs]
        self.attention = {
            k: AttentionInput(
                entry.attention, self._columns[k][0], self._columns[k][1] - self._columns[k][0]
            )
            for k, entry in enumerate(stage.inputs)
            if entry.attention is not None
        }
        self.chunk_rows = chunk_rows()
        self._chunk = np.arange(self.chunk_rows + ROW_STEP)
        of_edges = [entry for entry in stage.inputs if entry.kind not in ROW_KINDS and entry.edge_type]
        self._edge_types = list(dict.fromkeys(entry.edge_type for entry in of_edges))
        self.query_stage: RowStage | None = None
        self._query_columns = [columns_of(entry) for entry in stage.query_inputs]
        if stage.query:
            self.query_stage = RowStage(
                folder / stage.query,
                [entry.name for entry in stage.query_inputs],
                [b - a for a, b in self._query_columns],
                "h",
                stage.query_dim,
                threads,
            )
        self.row_stage: RowStage | None = None
        self.edge_stage: EdgeStage | None = None
        #: For row stages, the place of each input: (index of the buffer, first column in it).
        self._places: list[tuple[int, int]] = []
        if all(entry.kind in ROW_KINDS for entry in stage.inputs):
            widths_in = [self._width(k) for k in range(len(stage.inputs))]
            names = [entry.name for entry in stage.inputs]
            self._places = [(k, 0) for k in range(len(names))]
            if stage.packed:
                self._places = [(0, sum(widths_in[:k])) for k in range(len(names))]
                names, widths_in = ["x"], [sum(widths_in)]
            self.row_stage = RowStage(folder / stage.file, names, widths_in, "h", stage.state_dim, threads)
        else:
            names = [entry.name for entry in stage.inputs]
            self.edge_stage = EdgeStage(folder / stage.file, names, stage.state_dim)
        self.pair = self._find_pair()

    def run(self, given: Given, out: FloatArray, look: Callable[[], object] = bool) -> FloatArray:
        """Compute the state of n destinations.

        Args:
            out: float32 [n, state_dim], filled and returned.
            look: called before each chunk; an exception that it raises ends the run.
        """
        num_rows = out.shape[0]
        if self.edge_stage is not None:
            for a, b in self._spans(num_rows, [given.views[key].offsets for key in self._edge_types]):
                look()
                out[a:b] = self.edge_stage.run(self._feeds(given, a, b))[: b - a]
            return out
        assert self.row_stage is not None
        for a in range(0, num_rows, self.chunk_rows):
            look()
            b = min(a + self.chunk_rows, num_rows)
            if self.pair is not None:
                key, own_part, part = self.pair
                own_rows, edges = given.own_rows[a:b], given.views[key]
                offsets = edges.offsets[a : b + 1]
                gather_reduce(given.own, own_rows, *own_part, edges.base, edges.rows, offsets, *part)
            else:
                query = self._run_query(given, a, b)
                for k, (buffer, place) in enumerate(self._places):
                    self._fill(k, given, a, b, query, self.row_stage.inputs[buffer], place)
            out[a:b] = self.row_stage.run(b - a)
        return out

    def _find_pair(self) -> _Pair | None:
        """The arguments of `gather_reduce`, if the stage reads only the inputs that it fills."""
        if self.row_stage is None or sorted(each.kind for each in self.stage.inputs) != ["reduce", "self"]:
            return None
        kinds = {entry.kind: k for k, entry in enumerate(self.stage.inputs)}
        k, j = kinds["self"], kinds["reduce"]
        entry = self.stage.inputs[j]
        if entry.reduce not in ("mean", "sum") or entry.weighted:
            return None
        (own_first, own_last), (first, last) = self._columns[k], self._columns[j]
        (own_buffer, own_place), (buffer, place) = self._places[k], self._places[j]
        own_part = own_first, own_last - own_first, self.row_stage.inputs[own_buffer], own_place
        part = entry.reduce == "mean", first, last - first, self.row_stage.inputs[buffer], place
        return entry.edge_type, own_part, part

    def _width(self, k: int) -> int:
        """Columns of an input with one row for each destination; 0 if it has one number."""
        entry, (first, last) = self.stage.inputs[k], self._columns[k]
        if entry.kind in ("degree", "count"):
            return 0
        return last - first if entry.attention is None else entry.attention.width

    def _fill(
        self, k: int, given: Given, a: int, b: int, query: FloatArray, target: FloatArray, place: int
    ) -> None:
        """Write an input of destinations [a, b) into target[: b - a, place:]."""
        entry, (first, last) = self.stage.inputs[k], self._columns[k]
        width = last - first
        if entry.kind == "reduce":
            view = given.views[entry.edge_type]
            _reduce(entry, view, a, b, given.own, given.own_rows, first, width, target, place)
        elif entry.kind == "attend":
            view, rows = given.views[entry.edge_type], self._chunk[: b - a]
            own_rows = given.own_rows[a:b]
            self.attention[k].run(view, a, b, given.own, own_rows, query, rows, target, place)
        elif entry.kind == "self":
            gather(given.own, given.own_rows[a:b], first, width, target, place)
        elif entry.kind == "features":
            gather(given.features, given.feature_rows[a:b], first, width, target, place)
        elif entry.kind == "structure":
            assert given.structure is not None
            target[: b - a, place : place + width] = given.structure[a:b, first:last]
        else:
            target[: b - a] = _per_row(entry, given.views[entry.edge_type], a, b)

    def _run_query(self, given: Given, a: int, b: int) -> FloatArray:
        """The query rows of destinations [a, b), at most `chunk_rows`; valid until the next call."""
        runtime = self.query_stage
        if runtime is None:
            return _NO_QUERY
        for target, entry, (first, last) in zip(
            runtime.inputs, self.stage.query_inputs, self._query_columns, strict=True
        ):
            base, rows = given[:2] if entry.kind == "self" else given[2:4]
            gather(base, rows[a:b], first, last - first, target, 0)
        return runtime.run(b - a)

    def _spans(self, num_rows: int, offsets: list[IdArray]) -> Iterator[tuple[int, int]]:
        """Cut destinations into calls of few rows and edges; a node with more edges has a call alone."""
        running = sum(offsets, start=np.zeros(num_rows + 1, np.int64))
        most = _MOST_EDGES * (self.chunk_rows // CHUNK_ROWS)
        if num_rows <= self.chunk_rows and running[num_rows] - running[0] <= most:
            yield 0, num_rows
            return
        a = 0
        while a < num_rows:
            b = int(running.searchsorted(running[a] + most, "right")) - 1
            b = min(max(b, a + 1), a + self.chunk_rows, num_rows)
            yield a, b
            a = b

    def _feeds(self, given: Given, a: int, b: int) -> dict[str, AnyArray]:
        """The inputs of an edge stage for destinations [a, b), filled up to whole steps of rows."""
        count = b - a
        nodes = np.minimum(self._chunk[: _full_steps(count + 1)], count - 1)
        ends = {
            key: (given.views[key].offsets.item(a), given.views[key].offsets.item(b))
            for key in self._edge_types
        }
        query = self._run_query(given, a, b)
        feeds: dict[str, AnyArray] = {}
        for k, entry in enumerate(self.stage.inputs):
            if entry.kind in ROW_KINDS:
                width = self._width(k)
                array: AnyArray = np.empty((nodes.shape[0], width) if width else nodes.shape, np.float32)
                self._fill(k, given, a, b, query, array, 0)
                array[count:] = array[count - 1]
            elif entry.kind == "nodes":
                array = nodes
            elif entry.kind == "seed_time":
                array = np.array([given.seed_time])
            elif entry.kind == "owners":
                first, last = ends[entry.edge_type]
                array = np.empty(_full_steps(max(1, last - first)), np.int64)
                list_owners(given.views[entry.edge_type].offsets[a : b + 1], nodes.shape[0] - 1, array)
            else:
                first, last = ends[entry.edge_type]
                array = self._of_edges(k, given.views[entry.edge_type], first, last)
                if entry.kind == "edge_time" and first == last:
                    array[:] = given.seed_time  # an age of 0, which may be a code
            feeds[entry.name] = array
        return feeds

    def _of_edges(self, k: int, view: EdgeView, first: int, last: int) -> AnyArray:
        """Rows of edges [first, last) of a view, and the last one again; of none, any source or zeros."""
        entry, (column, end) = self.stage.inputs[k], self._columns[k]
        count = last - first
        size = _full_steps(max(1, count))
        if entry.kind == "edge_weight" and not view.weight.shape[0]:
            return np.ones(size, np.float32)
        array: AnyArray
        if entry.kind == "sources":
            array = np.empty((size, end - column), np.float32)
            if not count and view.base.shape[0]:
                count = 1
            rows = view.rows[first:last] if last > first else _FIRST_ROW[:count]
            gather(view.base, rows, column, end - column, array, 0)
        else:
            values = {
                "edge_weight": view.weight, "edge_attr": view.attr, "is_self": view.is_self,
                "edge_time": view.time,
            }[entry.kind]  # fmt: skip
            assert values is not None
            array = np.empty((size, *values.shape[1:]), values.dtype)
            array[:count] = values[first:last]
        array[count:] = array[count - 1] if count else 0
        return array


def _full_steps(count: int) -> int:
    """The next multiple of `ROW_STEP` (see there)."""
    return -(-count // ROW_STEP) * ROW_STEP


def _reduce(
    entry: StageInput,
    view: EdgeView,
    a: int,
    b: int,
    own: Matrix,
    own_rows: IdArray,
    column: int,
    width: int,
    out: FloatArray,
    place: int,
) -> None:
    """Reduce the edges of destinations [a, b) into out[:b - a, place:place + width]."""
    offsets = view.offsets[a : b + 1]
    if entry.reduce == "max":
        reduce_max(view.base, view.rows, offsets, column, width, out, place)
    elif entry.reduce in ("gcn", "gcn_noself"):
        reduce_sum(view.base, view.rows, offsets, view.coefficients, False, column, width, out, place)
        if entry.reduce == "gcn":
            scale = view.self_coefficients[a:b]
            add_scaled(own, own_rows[a:b], scale, column, width, out, place)
    else:
        assert entry.reduce in ("mean", "sum")
        weight = view.weight if entry.weighted else NO_FLOATS
        mean = entry.reduce == "mean"
        reduce_sum(view.base, view.rows, offsets, weight, mean, column, width, out, place)


def _per_row(entry: StageInput, view: EdgeView, a: int, b: int) -> FloatArray:
    if entry.kind == "count":
        offsets = view.offsets[a : b + 1]
        counts: IdArray = offsets[1:] - offsets[:-1]  # for few rows np.diff takes 3 µs more
        return counts.astype(np.float32)
    assert view.num_eligible is not None
    return view.num_eligible[a:b].astype(np.float32)
