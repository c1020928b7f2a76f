"""Computes rows of one (level, node type) from rows of the level below."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np

from hopline.artifact import ModelSpec, Stage
from hopline.engine.interner import Interner
from hopline.engine.level import Level
from hopline.engine.stage import Given
from hopline.engine.view import EdgeView
from hopline.graph import Graph
from hopline.jobs.batch.states import MemoryRows, RowFile
from hopline.sampling import Block
from hopline.sampling.keyed import NO_CUT, frozen
from hopline.types import FloatArray, IdArray

#: Destinations, and sampled edges (unless one row alone has more), that are computed in one step.
PIECE_ROWS, PIECE_EDGES = 1024, 1 << 18
#: Bytes that numbering and sampling use for an edge, without its source's row.
EDGE_BYTES = 160

_NO_ROWS: FloatArray = np.empty((0, 0), np.float32)


def with_all_neighbors(spec: ModelSpec) -> ModelSpec:
    """The model for exact rows: every neighbour at every layer."""
    fanouts = {key: (-1,) * len(hops) for key, hops in spec.fanouts.items()}
    return msgspec.structs.replace(spec, fanouts=fanouts, max_degree=None)


def below_of(stage: Stage, graph: Graph, node_type: str) -> set[str]:
    """Node types whose rows one level below a stage reads."""
    if stage.file is None:
        return set()
    types = {graph.edges[entry.edge_type].src for entry in stage.inputs if entry.edge_type}
    if stage.reads_own_state:
        types.add(node_type)
    return types


class RowComputer:
    """Computes rows of one (level, node type); for one thread.

    Args:
        folder, spec, graph: the model (for exact rows, `with_all_neighbors`) and its graph.
        level, node_type: a stage with a file.
        below: node type -> rows one level below (raw features where that level has no file).
        raw: this node type's raw features, float32 [N, d], for stages that read them.
        compact_edges: 0 reads rows below in place; otherwise the rows of that many edges are copied
            together for every piece of work, each once and in file order.
    """

    def __init__(
        self,
        folder: Path,
        spec: ModelSpec,
        graph: Graph,
        level: int,
        node_type: str,
        below: Mapping[str, RowFile | MemoryRows],
        raw: FloatArray = _NO_ROWS,
        compact_edges: int = 0,
    ) -> None:
        self._node_type = node_type
        self._below = below
        self._raw = frozen(raw)
        self._compact_edges = compact_edges
        self._interners = {name: Interner() for name in below}
        self._buffers: dict[str, FloatArray] = {}
        self._level = Level(folder, spec, graph, level, node_type, None, 1)
        self._relations = list(self._level.relations.values())
        self._clock = (graph.clock or 0) if spec.reads_times else 0

    def compute(self, ids: IdArray, out: FloatArray) -> int:
        """Fill `out` float32 [n, state_dim] with the states of ids (int64 [n], distinct).

        Returns: sampled edges.
        """
        num_edges = 0
        for a, b in self._pieces(ids):
            num_edges += self._piece(ids[a:b], out[a:b])
        return num_edges

    def _pieces(self, ids: IdArray) -> Iterator[tuple[int, int]]:
        most = self._compact_edges or PIECE_EDGES
        bound = np.ones(ids.shape[0], np.int64)  # the row's own state
        for relation in self._relations:
            degrees = relation.adjacency.degree(ids)
            fanout = relation.sampler.fanout
            bound += degrees if fanout < 0 else np.minimum(degrees, fanout)
        running = np.cumsum(bound)
        a = 0
        while a < ids.shape[0]:
            before = int(running[a - 1]) if a else 0
            b = int(np.searchsorted(running, before + most, side="right"))
            b = min(max(b, a + 1), a + PIECE_ROWS if not self._compact_edges else ids.shape[0])
            yield a, b
            a = b

    def _piece(self, ids: IdArray, out: FloatArray) -> int:
        runner = self._level.runner
        assert runner is not None
        blocks = [relation.sampler.sample(ids, relation.buffers) for relation in self._relations]
        if self._compact_edges:
            bases, own_rows, rows = self._compact(ids, blocks)
        else:
            bases = {name: base.array for name, base in self._below.items()}
            own_rows, rows = ids, [block.neighbors for block in blocks]
        views: dict[str, EdgeView] = {}
        for relation, block, sources in zip(self._relations, blocks, rows, strict=True):
            base = bases.get(relation.source, _NO_ROWS)
            views[relation.key] = relation.view(base, sources, ids, block, NO_CUT)
        own = bases.get(self._node_type, _NO_ROWS)
        structure = None
        if self._level.structure is not None:
            structure = self._level.structure.rows(ids, self._raw, ids)
        runner.run(Given(own, own_rows, self._raw, ids, views, structure, self._clock), out)
        return sum(block.num_edges for block in blocks)

    def _compact(
        self, ids: IdArray, blocks: list[Block]
    ) -> tuple[dict[str, FloatArray], IdArray, list[IdArray]]:
        """Copy the rows that a piece reads into one buffer; ids become rows of the buffer."""
        own = self._node_type if self._node_type in self._below else None
        counts = dict.fromkeys(self._below, 0)
        for relation, block in zip(self._relations, blocks, strict=True):
            counts[relation.source] += block.num_edges
        if own is not None:
            counts[own] += ids.shape[0]
        for name, interner in self._interners.items():
            interner.start(max(1, counts[name]))
        own_rows = self._interners[own].add(ids) if own is not None else ids
        rows = [
            self._interners[relation.source].add(block.neighbors)
            for relation, block in zip(self._relations, blocks, strict=True)
        ]
        bases = {}
        for name, base in self._below.items():
            distinct = self._interners[name].distinct
            buffer = self._buffers.get(name)
            if buffer is None or buffer.shape[0] < distinct.shape[0]:
                most = min(self._compact_edges, base.array.shape[0])
                shape = (max(most, distinct.shape[0]), base.array.shape[1])
                buffer = self._buffers[name] = np.empty(shape, np.float32)
            base.read(distinct, buffer)
            bases[name] = frozen(buffer)
        return bases, own_rows, rows
