"""Keeps all rows of a model on a live graph up to date: recomputes immediately what a change affects.

Rows of each level lie in one array, by node. A change affects at most the rows that `changed_at` names,
level by level (graph/live/changed_at.py). Most of these are in fact unchanged and need not be computed: a
row is a function of its node's list, of the node's row one level below, and of the rows of the neighbours
that the sampler draws. If none of these has changed, the row has not changed either. A row that is computed
and stays the same also ends the propagation.

The result is exact: the rows equal, bit for bit, those computed from the final graph from scratch.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

from hopline.artifact import ModelSpec
from hopline.engine.level import Level
from hopline.engine.view import EdgeView
from hopline.graph.extent import SINCE
from hopline.graph.live.view import LiveView
from hopline.kernels.jit import njit
from hopline.sampling import Block
from hopline.sampling.keyed import NO_CUT, frozen
from hopline.types import FloatArray, IdArray

#: Nodes whose neighbours are sampled in one call.
_PIECE = 2048
_NO_ROWS: FloatArray = np.empty((0, 0), np.float32)


@njit(nogil=True, cache=True)
def _keep_touched(  # type: ignore[no-untyped-def]
    ids, offsets, neighbors, heads, records, version, own_touched, base_touched, now
):
    """Move the nodes that must be computed, and their edges, to the front; returns the number of nodes.

    Args:
        ids: int64 [n]. offsets, neighbors: their sampled edges.
        heads, records: of the edge type; lists newer than `version` count as changed.
        own_touched, base_touched: int64 [capacity], `now` where a row one level below has changed.
    """
    kept = 0
    end = np.int64(0)
    start = offsets[0]
    for i in range(ids.shape[0]):
        v = ids[i]
        stop = offsets[i + 1]
        touched = own_touched[v] == now
        if not touched:
            head = heads[v]
            touched = head >= 0 and records[head, SINCE] > version
        if not touched:
            for e in range(start, stop):
                if base_touched[neighbors[e]] == now:
                    touched = True
                    break
        if touched:
            ids[kept] = v
            for e in range(start, stop):
                neighbors[end] = neighbors[e]
                end += 1
            kept += 1
            offsets[kept] = end
        start = stop
    return kept


@njit(nogil=True, cache=True)
def _put(rows, ids, values, touched, now):  # type: ignore[no-untyped-def]
    """rows[ids[i]] = values[i]; records in `touched` which rows have changed."""
    for i in range(ids.shape[0]):
        v = ids[i]
        target, source = rows[v], values[i]
        same = True
        for c in range(source.shape[0]):
            # Compare bits: NaN must equal NaN.
            same = same and (target[c] == source[c] or (target[c] != target[c] and source[c] != source[c]))
        if not same:
            for c in range(source.shape[0]):
                target[c] = source[c]
            touched[v] = now


class Refresher:
    """Holds all rows of a model on a live graph, and updates them.

    Args:
        folder: `<repository>/<model>/<version>`.
        spec: its model.json.
        graph: a view that has no other user.

    Attributes:
        version: of the graph that all rows are about.
        num_computed: rows that were computed, in all.
    """

    def __init__(self, folder: Path, spec: ModelSpec, graph: LiveView) -> None:
        self._graph = graph
        self._spec = spec
        self._features = {name: frozen(nodes.features.array) for name, nodes in graph.nodes.items()}
        self._levels = [
            {name: Level(folder, spec, graph, number, name, None) for name in stages}
            for number, stages in enumerate(spec.levels)
        ]
        for below, above in pairwise(self._levels):
            for level in above.values():
                level.link(below)
        self._rows: list[dict[str, FloatArray]] = []
        self._touched: list[dict[str, IdArray]] = []
        for number, stages in enumerate(spec.levels):
            sizes = {name: graph.nodes[name].capacity for name in stages}
            self._rows.append(
                {
                    name: np.zeros((sizes[name], stage.state_dim), np.float32)
                    for name, stage in stages.items()
                    if stage.file is not None
                }
            )
            self._touched.append(
                {name: np.zeros(graph.nodes[name].capacity, np.int64) for name in graph.nodes}
                if number == 0
                else {name: np.zeros(size, np.int64) for name, size in sizes.items()}
            )
        self._now = 0
        self.version = -1
        self.num_computed = 0

    def build(self) -> None:
        """Compute all rows for the newest version."""
        with self._graph as graph:
            everyone: dict[str, IdArray] = {
                name: np.arange(nodes.num_nodes) for name, nodes in graph.nodes.items()
            }
            self._compute(dict.fromkeys(range(len(self._levels)), everyone))
            self.version = graph.clock.version

    def refresh(self, affected: Mapping[int, Mapping[str, IdArray]]) -> dict[str, IdArray]:
        """Update all rows to the newest version.

        Args:
            affected: level -> node type -> nodes whose changed_at was set since the last call of this
                method or of `build`.

        Returns: node type -> nodes whose final rows have changed, int64.
        """
        with self._graph as graph:
            self._compute(affected)
            self.version = graph.clock.version
        found = {}
        top = len(self._levels) - 1
        for name, ids in affected.get(top, {}).items():
            if name in self._touched[top]:
                found[name] = ids[self._touched[top][name][ids] == self._now]
        return found

    def rows(self, node_type: str, ids: IdArray, level: int = -1) -> FloatArray:
        """States of nodes, by default final ones: float32 [n, state_dim] of int64 [n] global ids."""
        return self._rows[level][node_type][ids]

    def _compute(self, affected: Mapping[int, Mapping[str, IdArray]]) -> None:
        self._now += 1
        for name, ids in affected.get(0, {}).items():
            if name not in self._rows[0]:  # raw features exist already
                self._touched[0][name][ids] = self._now
        for number, stages in enumerate(self._levels):
            for name, level in stages.items():
                if level.runner is None or name not in affected.get(number, {}):
                    continue
                ids = affected[number][name]
                for a in range(0, ids.shape[0], _PIECE):
                    if level.is_simple and level.runner.pair is not None:
                        self._compute_pair(number, level, ids[a : a + _PIECE])
                    else:
                        self._compute_any(number, level, ids[a : a + _PIECE])

    def _compute_pair(self, number: int, level: Level, ids: IdArray) -> None:
        """The usual stage: own rows, and the sum or mean of one edge type's neighbours."""
        assert level.runner is not None
        relation, below = level.links[0]
        block = relation.sampler.sample(ids, relation.buffers)
        ids, offsets, neighbors = ids.copy(), relation.buffers.offsets, relation.buffers.neighbors
        below_number = number - 1
        kept = _keep_touched(
            ids,
            offsets[: ids.shape[0] + 1],
            neighbors[: block.num_edges],
            relation.adjacency.indptr,
            relation.adjacency.records,
            self.version,
            self._touched[below_number][level.node_type],
            self._touched[below_number][relation.source],
            self._now,
        )
        ids, offsets = ids[:kept], offsets[: kept + 1]
        neighbors = neighbors[: offsets[kept]]
        if below is None:
            assert relation.source_slots is not None
            assert level.own_slots is not None
            own, own_rows = self._features[level.node_type], level.own_slots.slots(ids)
            base, rows = self._features[relation.source], relation.source_slots.slots(neighbors)
        else:
            own = base = self._rows[below_number][below.node_type]
            own_rows, rows = ids, neighbors
        target, touched = self._rows[number][level.node_type], self._touched[number][level.node_type]
        for a in range(0, kept, level.runner.chunk_rows):
            b = min(a + level.runner.chunk_rows, kept)
            values = level.runner.run_pair(b - a, own, own_rows[a:b], base, rows, offsets[a : b + 1])
            _put(target, ids[a:b], values, touched, self._now)
        self.num_computed += kept

    def _compute_any(self, number: int, level: Level, ids: IdArray) -> None:
        assert level.runner is not None
        views: dict[str, EdgeView] = {}
        for relation, below in level.links:
            block: Block = relation.sampler.sample(ids, relation.buffers)
            neighbors = block.neighbors
            if below is None:
                assert relation.source_slots is not None
                base, rows = self._features[relation.source], relation.source_slots.slots(neighbors)
            else:
                base, rows = self._rows[number - 1][relation.source], neighbors
            views[relation.key] = relation.view(base, rows, ids, block, NO_CUT)
        assert level.own_slots is not None
        slots = level.own_slots.slots(ids)
        raw = self._features[level.node_type]
        own, own_rows = raw, slots
        if level.own_below is not None:
            own, own_rows = self._rows[number - 1][level.node_type], ids
        out = np.empty((ids.shape[0], level.stage.state_dim), np.float32)
        level.runner.run(ids.shape[0], own, own_rows, raw, slots, views, out)
        _put(
            self._rows[number][level.node_type], ids, out, self._touched[number][level.node_type], self._now
        )
        self.num_computed += ids.shape[0]
