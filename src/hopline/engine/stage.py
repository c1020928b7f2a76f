"""Runs one stage: fills its declared inputs from rows and edges, calls ONNX Runtime.

Knows artifact.py's input kinds; knows nothing of plans, caches or requests.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from hopline.artifact import Stage, StageInput
from hopline.engine.attention import AttentionInput
from hopline.engine.interner import Interner
from hopline.engine.kernels import add_scaled, gather, gather_reduce, pad, pad_rows, reduce_max, reduce_sum
from hopline.engine.narrow_kernels import Matrix
from hopline.engine.view import NO_FLOATS, EdgeView
from hopline.runtimes.onnx import CHUNK_ROWS, ROW_KINDS, ROW_STEP, BlockStage, RowStage, chunk_rows
from hopline.types import AnyArray, FloatArray, IdArray

#: Padded entries (destinations x width) of one call of a block stage.
_BLOCK_ENTRIES = 16_384
#: Larger fanouts are no widths: few nodes have so many neighbours.
_WIDEST = 256


_NO_QUERY: FloatArray = np.empty((1, 0), np.float32)

#: (edge type, (own column, width, place), mean, column, width, place); see `gather_reduce`.
_Pair = tuple[str, tuple[int, int, int], bool, int, int, int]


class StageRunner:
    """One stage, loaded.

    Args:
        folder: the artifact.
        stage: with a file.
        widths: node type or edge type key -> columns of the previous level's state of its source (for
            `self` the key is ""), for inputs without explicit columns.
        feature_dim: columns of the destination's raw features.
        fanouts: edge type key -> neighbours that this layer samples, -1 for all.
        threads: of the runtime.

    Attributes:
        chunk_rows: destinations of one call of the runtime, at most.
        row_stage: the runtime, if every input has one row for each destination.
        block_stage: the runtime otherwise; one of the two is None.
        pair: set if the stage reads only own rows and an unweighted sum or mean of neighbours, next to
            each other in one input: then `gather_reduce` fills it in one call.
    """

    def __init__(
        self,
        folder: Path,
        stage: Stage,
        widths: dict[str, int],
        feature_dim: int,
        fanouts: dict[str, int],
        threads: int = 1,
    ) -> None:
        assert stage.file is not None
        self.stage = stage
        self._fanouts = fanouts
        self._interner = Interner()

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
        self._chunk = np.arange(self.chunk_rows)
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
        self.block_stage: BlockStage | None = None
        #: For row stages, the place of each input: (index of the buffer, first column in it).
        self._places: list[tuple[int, int]] = []
        if all(entry.kind in ROW_KINDS for entry in stage.inputs):
            widths_in = [
                0
                if entry.kind in ("degree", "count")
                else b - a
                if entry.attention is None
                else entry.attention.width
                for entry, (a, b) in zip(stage.inputs, self._columns, strict=True)
            ]
            names = [entry.name for entry in stage.inputs]
            self._places = [(k, 0) for k in range(len(names))]
            if stage.packed:
                self._places = [(0, sum(widths_in[:k])) for k in range(len(names))]
                names, widths_in = ["x"], [sum(widths_in)]
            self.row_stage = RowStage(folder / stage.file, names, widths_in, "h", stage.state_dim, threads)
        else:
            self.block_stage = BlockStage(
                folder / stage.file, [entry.name for entry in stage.inputs], stage.state_dim, threads
            )
        self.pair = self._find_pair() if stage.packed else None

    def run(
        self,
        num_rows: int,
        own: Matrix,
        own_rows: IdArray,
        features: Matrix,
        feature_rows: IdArray,
        views: dict[str, EdgeView],
        out: FloatArray,
        structure: FloatArray | None = None,
        look: Callable[[], object] = bool,
    ) -> FloatArray:
        """Compute the state of `num_rows` destinations, float32 [num_rows, state_dim].

        Args:
            own, own_rows: previous-level states [m, d] and the destinations' rows in it, for `self`.
            features, feature_rows: raw features and the destinations' rows in them, for `features`.
            views: edge type key -> the destinations' edges of this type.
            out: float32 [num_rows, state_dim], filled and returned.
            structure: float32 [num_rows, s], for `structure`.
            look: called before each chunk; an exception that it raises ends the run.
        """
        if self.row_stage is None:
            self._run_block(num_rows, own, own_rows, features, feature_rows, views, out, look)
        elif self.pair is None:
            self._run_rows(
                self.row_stage, num_rows, own, own_rows, features, feature_rows, views, out, structure, look
            )
        else:
            view = views[self.pair[0]]
            for a in range(0, num_rows, self.chunk_rows):
                look()
                b = min(a + self.chunk_rows, num_rows)
                offsets = view.offsets[a : b + 1]
                out[a:b] = self.run_pair(b - a, own, own_rows[a:b], view.base, view.rows, offsets)
        return out

    def _find_pair(self) -> _Pair | None:
        """The arguments of `gather_reduce`, if the stage reads only the inputs that it fills."""
        kinds = {entry.kind: k for k, entry in enumerate(self.stage.inputs)}
        if len(self.stage.inputs) != 2 or kinds.keys() != {"self", "reduce"}:
            return None
        k, j = kinds["self"], kinds["reduce"]
        entry = self.stage.inputs[j]
        if entry.reduce not in ("mean", "sum") or entry.weighted:
            return None
        (own_first, own_last), (first, last) = self._columns[k], self._columns[j]
        own_args = (own_first, own_last - own_first, self._places[k][1])
        mean = entry.reduce == "mean"
        return entry.edge_type, own_args, mean, first, last - first, self._places[j][1]

    def run_pair(
        self, num_rows: int, own: Matrix, own_rows: IdArray, base: Matrix, rows: IdArray, offsets: IdArray
    ) -> FloatArray:
        """`run` for a stage with a `pair` and at most `chunk_rows` destinations.

        Args:
            base, rows, offsets: as in `EdgeView`.

        Returns: float32 [num_rows, state_dim], the runtime's own buffer until the stage's next run.
        """
        assert self.row_stage is not None
        assert self.pair is not None
        _, (own_column, own_width, own_place), mean, column, width, place = self.pair
        gather_reduce(
            own,
            own_rows,
            own_column,
            own_width,
            own_place,
            base,
            rows,
            offsets,
            mean,
            column,
            width,
            self.row_stage.inputs[0],
            place,
        )
        return self.row_stage.run(num_rows)

    def _run_rows(
        self,
        runtime: RowStage,
        num_rows: int,
        own: Matrix,
        own_rows: IdArray,
        features: Matrix,
        feature_rows: IdArray,
        views: dict[str, EdgeView],
        out: FloatArray,
        structure: FloatArray | None,
        look: Callable[[], object],
    ) -> None:
        inputs = self.stage.inputs
        query, query_rows = _NO_QUERY, self._chunk
        for a in range(0, num_rows, self.chunk_rows):
            look()
            b = min(a + self.chunk_rows, num_rows)
            if self.query_stage is not None:
                query = self._run_query(self.query_stage, own, own_rows[a:b], features, feature_rows[a:b])
                query_rows = self._chunk[: b - a]
            for k, entry in enumerate(inputs):
                buffer, place = self._places[k]
                target = runtime.inputs[buffer]
                first, last = self._columns[k]
                width = last - first
                if entry.kind == "reduce":
                    view = views[entry.edge_type]
                    _reduce(entry, view, a, b, own, own_rows, first, width, target, place)
                elif entry.kind == "attend":
                    self.attention[k].run(
                        views[entry.edge_type], a, b, own, own_rows[a:b], query, query_rows, target, place
                    )
                elif entry.kind == "self":
                    gather(own, own_rows[a:b], first, width, target, place)
                elif entry.kind == "features":
                    gather(features, feature_rows[a:b], first, width, target, place)
                elif entry.kind == "structure":
                    assert structure is not None
                    target[: b - a, place : place + width] = structure[a:b, first:last]
                else:
                    target[: b - a] = _per_row(entry, views[entry.edge_type], a, b)
            out[a:b] = runtime.run(b - a)

    def _run_query(
        self, runtime: RowStage, own: Matrix, own_rows: IdArray, features: Matrix, feature_rows: IdArray
    ) -> FloatArray:
        """The query rows of at most `chunk_rows` destinations; valid until the next call."""
        for target, entry, (first, last) in zip(
            runtime.inputs, self.stage.query_inputs, self._query_columns, strict=True
        ):
            base, rows = (own, own_rows) if entry.kind == "self" else (features, feature_rows)
            gather(base, rows, first, last - first, target, 0)
        return runtime.run(own_rows.shape[0])

    def _run_block(
        self,
        num_rows: int,
        own: Matrix,
        own_rows: IdArray,
        features: Matrix,
        feature_rows: IdArray,
        views: dict[str, EdgeView],
        out: FloatArray,
        look: Callable[[], object],
    ) -> None:
        assert self.block_stage is not None
        padded = list(dict.fromkeys(e.edge_type for e in self.stage.inputs if e.kind not in ROW_KINDS))
        for chunk, widths in self._chunks(num_rows, [views[key] for key in padded], padded):
            look()
            blocks = {
                key: self._pad(views[key], chunk, width) for key, width in zip(padded, widths, strict=True)
            }
            feeds: dict[str, AnyArray] = {}
            query = _NO_QUERY
            if self.query_stage is not None:
                query = self._run_query(
                    self.query_stage, own, own_rows[chunk], features, feature_rows[chunk]
                )
            for k, entry in enumerate(self.stage.inputs):
                a, b = self._columns[k]
                if entry.kind in ("self", "features"):
                    base, rows = (own, own_rows) if entry.kind == "self" else (features, feature_rows)
                    array: AnyArray = np.empty((chunk.shape[0], b - a), np.float32)
                    gather(base, rows[chunk], a, b - a, array, 0)
                elif entry.kind == "reduce":
                    array = np.empty((chunk.shape[0], b - a), np.float32)
                    view = _select(views[entry.edge_type], chunk)
                    _reduce(entry, view, 0, chunk.shape[0], own, own_rows[chunk], a, b - a, array, 0)
                elif entry.attention is not None:
                    array = np.empty((chunk.shape[0], entry.attention.width), np.float32)
                    view, count = _select(views[entry.edge_type], chunk), chunk.shape[0]
                    self.attention[k].run(
                        view, 0, count, own, own_rows[chunk], query, self._chunk[:count], array, 0
                    )
                elif entry.kind in ("degree", "count"):
                    array = _per_row(entry, views[entry.edge_type], 0, num_rows)[chunk]
                else:
                    array = self._block_input(entry, views[entry.edge_type], chunk, blocks, a, b)
                feeds[entry.name] = array
            out[chunk] = self.block_stage.run(feeds)

    def _chunks(
        self, num_rows: int, views: list[EdgeView], keys: list[str]
    ) -> list[tuple[IdArray, tuple[int, ...]]]:
        """Split destinations into calls of equal padded width; some may repeat, to fill a call's last step.

        The width is the fanout, or for fanout -1 and large ones the power of two above the list's own
        length. It never depends on other requests of the batch: the order of a padded sum depends on it.
        """
        widths = np.ones((num_rows, len(views)), np.int64)
        for k, (view, key) in enumerate(zip(views, keys, strict=True)):
            fanout = self._fanouts[key]
            if 0 <= fanout <= _WIDEST:
                widths[:, k] = max(fanout, 1)
            else:
                counts = np.maximum(np.diff(view.offsets), 1)
                widths[:, k] = 1 << np.ceil(np.log2(counts)).astype(np.int64)
        if num_rows == 0:
            return []
        if (widths == widths[0]).all():
            groups = [(np.arange(num_rows), tuple(int(w) for w in widths[0]))]
        else:
            distinct, inverse = np.unique(widths, axis=0, return_inverse=True)
            groups = [
                (np.flatnonzero(inverse.reshape(-1) == g), tuple(int(w) for w in row))
                for g, row in enumerate(distinct)
            ]
        chunks = []
        entries = _BLOCK_ENTRIES * (self.chunk_rows // CHUNK_ROWS)
        for members, width in groups:
            size = min(self.chunk_rows, entries // max(width, default=1)) // ROW_STEP * ROW_STEP
            size = max(size, ROW_STEP)
            chunks += [
                (_full_steps(members[a : a + size]), width) for a in range(0, members.shape[0], size)
            ]
        return chunks

    def _pad(self, view: EdgeView, chunk: IdArray, width: int) -> tuple[IdArray, IdArray, np.ndarray]:
        """(source rows [m], positions [n, width], mask [n, width]) of some destinations."""
        rows = np.empty((chunk.shape[0], width), np.int64)
        mask = np.empty((chunk.shape[0], width), np.bool_)
        pad(view.offsets, view.rows, chunk, rows, mask)
        flat = rows[mask]
        self._interner.start(max(1, flat.shape[0]))
        numbers = self._interner.add(flat)
        positions = np.zeros_like(rows)
        positions[mask] = numbers
        distinct = _full_steps(self._interner.distinct)
        return (distinct if distinct.shape[0] else np.zeros(ROW_STEP, np.int64)), positions, mask

    def _block_input(
        self,
        entry: StageInput,
        view: EdgeView,
        chunk: IdArray,
        blocks: dict[str, tuple[IdArray, IdArray, np.ndarray]],
        a: int,
        b: int,
    ) -> AnyArray:
        distinct, positions, mask = blocks[entry.edge_type]
        if entry.kind == "positions":
            return positions
        if entry.kind == "mask":
            return mask
        if entry.kind == "sources":
            sources = np.zeros((distinct.shape[0], b - a), np.float32)
            if view.base.shape[0]:
                gather(view.base, distinct, a, b - a, sources, 0)
            return sources
        scratch = np.empty(mask.shape, np.bool_)
        if entry.kind == "edge_attr":
            assert view.attr is not None
            attr = np.empty((*mask.shape, view.attr.shape[1]), np.float32)
            pad_rows(view.offsets, view.attr, chunk, attr)
            return attr
        if entry.kind == "edge_weight":
            weight = np.zeros(mask.shape, np.float32)
            if view.weight.shape[0]:
                pad(view.offsets, view.weight, chunk, weight, scratch)
            else:
                weight[mask] = 1.0
            return weight
        assert entry.kind == "is_self"
        assert view.is_self is not None
        is_self = np.empty(mask.shape, np.bool_)
        pad(view.offsets, view.is_self, chunk, is_self, scratch)
        return is_self


def _full_steps(ids: IdArray) -> IdArray:
    """A copy with the last id repeated up to a multiple of `ROW_STEP` (see there)."""
    more = -ids.shape[0] % ROW_STEP
    return np.concatenate([ids, np.repeat(ids[-1:], more)])


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


def _select(view: EdgeView, chunk: IdArray) -> EdgeView:
    """The view of some destinations only."""
    counts = np.diff(view.offsets)[chunk]
    offsets = np.zeros(chunk.shape[0] + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    edges = np.repeat(view.offsets[chunk] - offsets[:-1], counts) + np.arange(offsets[-1])
    weight = view.weight[edges] if view.weight.shape[0] else NO_FLOATS
    selected = EdgeView(view.base, view.rows[edges], offsets, weight)
    if view.attr is not None:
        selected.attr = view.attr[edges]
    if view.is_self is not None:
        selected.is_self = view.is_self[edges]
    if view.coefficients.shape[0]:
        selected.coefficients = view.coefficients[edges]
    if view.self_coefficients.shape[0]:
        selected.self_coefficients = view.self_coefficients[chunk]
    return selected
