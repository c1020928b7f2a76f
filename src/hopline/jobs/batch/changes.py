"""Finds the rows that a new snapshot changes: differences of the graphs, carried up level by level.

A state at level l changes where the node's own features or list changed, or where a state that it reads
changed. Nodes are matched by external id. Row numbers may differ. Since the sampler's key is the row
number, a node with another number draws other neighbours, if its neighbours are sampled at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.artifact import ModelSpec
from hopline.graph import Adjacency, Graph
from hopline.graph.parts import Nodes
from hopline.jobs.batch.needed_rows import samplers_of
from hopline.kernels.jit import njit
from hopline.sampling import BlockBuffers, Sampler
from hopline.sampling.keyed import frozen
from hopline.types import AnyArray, IdArray

_Mask = NDArray[np.bool_]
_ROWS = 1 << 16


@dataclass(frozen=True)
class Matched:
    """Nodes of one type in both snapshots.

    Attributes:
        old_row: int64 [N new], the row of the node before; -1 for a new node.
        new_row: int64 [N old], the row of the node now; -1 for a deleted node.
        is_prefix: no row number has changed.
    """

    old_row: IdArray
    new_row: IdArray
    is_prefix: bool


def match(old: Nodes, new: Nodes) -> Matched:
    """Match nodes by external id."""
    old_row = np.empty(new.num_nodes, np.int64)
    rows = np.arange(new.num_nodes)
    if old.ids.kind == new.ids.kind == "range":
        old_row[:] = np.where(rows < old.num_nodes, rows, -1)
    elif (old.ids.kind == "string") != (new.ids.kind == "string"):
        old_row[:] = -1
    else:
        for a in range(0, new.num_nodes, _ROWS):
            chunk = rows[a : a + _ROWS]
            old_row[chunk] = old.ids.lookup(new.ids.external(chunk))
    new_row = np.full(old.num_nodes, -1, np.int64)
    known = old_row >= 0
    new_row[old_row[known]] = rows[known]
    same = min(old.num_nodes, new.num_nodes)
    is_prefix = bool((old_row[:same] == rows[:same]).all() and (old_row[same:] < 0).all())
    return Matched(old_row, new_row, is_prefix)


def changed_features(old: Nodes, new: Nodes, matched: Matched) -> _Mask:
    """Nodes that are new or whose features have other bits: bool [N new]."""
    changed = matched.old_row < 0
    if old.features.shape[1:] != new.features.shape[1:] or old.features.dtype != new.features.dtype:
        changed[:] = True
        return changed
    bits = np.dtype(f"u{new.features.dtype.itemsize}")
    for a in range(0, new.num_nodes, _ROWS):
        rows = np.flatnonzero(~changed[a : a + _ROWS]) + a
        if rows.shape[0] and new.features.shape[1]:
            was = np.asarray(old.features[matched.old_row[rows]]).view(bits)
            changed[rows] = (was != np.asarray(new.features[rows]).view(bits)).any(axis=1)
    return changed


def changed_lists(old: Adjacency, new: Adjacency, destinations: Matched, sources: Matched) -> _Mask:
    """Nodes whose list has other neighbours, order, times, weights or attributes: bool [N new]."""
    changed: _Mask = destinations.old_row < 0
    columns: list[AnyArray] = []
    for name, dtype in (("time", np.int64), ("weight", np.float32)):
        pair = [getattr(old, name), getattr(new, name)]
        if (pair[0] is None) != (pair[1] is None):
            changed[:] = True
            return changed
        # Compressed lists are unpacked: every edge is read once.
        columns += [frozen(np.empty(0, dtype) if a is None else np.asarray(a)) for a in pair]
    attrs = [np.empty((0, 0), np.float32) if a.attr is None else a.attr for a in (old, new)]
    if attrs[0].shape[1] != attrs[1].shape[1]:
        changed[:] = True
        return changed
    _compare(
        frozen(np.asarray(old.indptr)),
        frozen(np.asarray(old.indices)),
        frozen(np.asarray(new.indptr)),
        frozen(np.asarray(new.indices)),
        destinations.old_row,
        sources.new_row,
        *columns,
        *(frozen(a) for a in attrs),
        changed,
    )
    return changed


@njit(nogil=True, cache=True)
def _compare(  # type: ignore[no-untyped-def]
    old_indptr,
    old_indices,
    indptr,
    indices,
    old_row,
    new_row,
    old_time,
    time,
    old_weight,
    weight,
    old_attr,
    attr,
    changed,
):
    """Mark the destinations whose two lists differ; `changed` may be set already."""
    for v in range(changed.shape[0]):
        if changed[v]:
            continue
        was, now = old_indptr[old_row[v]], indptr[v]
        count = indptr[v + 1] - now
        if old_indptr[old_row[v] + 1] - was != count:
            changed[v] = True
            continue
        for e in range(count):
            if new_row[old_indices[was + e]] != indices[now + e]:
                changed[v] = True
                break
            if time.shape[0] > 0 and old_time[was + e] != time[now + e]:
                changed[v] = True
                break
            if weight.shape[0] > 0 and old_weight[was + e] != weight[now + e]:
                changed[v] = True
                break
            for c in range(attr.shape[1]):
                if old_attr[was + e, c] != attr[now + e, c]:
                    changed[v] = True
                    break
            if changed[v]:
                break


@njit(nogil=True, cache=True)
def _any_of(offsets, neighbors, marked, first, changed):  # type: ignore[no-untyped-def]
    """changed[first + i] |= marked[any neighbour of destination i]."""
    for i in range(offsets.shape[0] - 1):
        if not changed[first + i]:
            for e in range(offsets[i], offsets[i + 1]):
                if marked[neighbors[e]]:
                    changed[first + i] = True
                    break


class SnapshotChanges:
    """The differences between two snapshots, for one model.

    Args:
        spec: the model (for exact rows, `with_all_neighbors`).
        old, new: snapshots of one schema.

    Attributes:
        matched: node type -> its nodes in both.
    """

    def __init__(self, spec: ModelSpec, old: Graph, new: Graph) -> None:
        self._spec = spec
        self._graph = new
        self.matched = {name: match(old.nodes[name], part) for name, part in new.nodes.items()}
        self._features = {
            name: changed_features(old.nodes[name], part, self.matched[name])
            for name, part in new.nodes.items()
        }
        self._lists: dict[str, _Mask] = {}
        for key, part in new.edges.items():
            destinations, sources = self.matched[part.dst], self.matched[part.src]
            self._lists[key] = changed_lists(old.edges[key], part, destinations, sources)

    def rows(self, needed: list[list[str]]) -> dict[tuple[int, str], IdArray]:
        """The rows to compute again, of `needed_levels`: (level, node type) -> int64 ids, ascending."""
        found: dict[tuple[int, str], IdArray] = {}
        below = dict(self._features)
        for level, types in enumerate(needed):
            marked = dict(self._features)
            for name in types:
                marked[name] = self._level(level, name, below)
                found[level, name] = np.flatnonzero(marked[name])
            below = marked
        return found

    def _level(self, level: int, node_type: str, below: dict[str, _Mask]) -> _Mask:
        stage = self._spec.levels[level][node_type]
        inputs = stage.inputs
        changed: _Mask = self.matched[node_type].old_row < 0
        if stage.reads_features or any(entry.kind == "structure" for entry in inputs):
            changed |= self._features[node_type]
        if any(entry.kind == "structure" for entry in inputs):
            for key, edges in self._graph.edges.items():
                if edges.src == edges.dst == node_type:
                    changed |= self._lists[key]
        if self._spec.windows or any(entry.kind == "seed_time" for entry in inputs):  # the graph's clock
            changed |= True
        if stage.reads_own_state:
            changed |= below[node_type]
        for sampler in samplers_of(self._spec, self._graph, level, node_type):
            key = sampler.adjacency.key
            changed |= self._lists[key]
            changed |= self._draws_again(sampler)
            marked = below[sampler.adjacency.src]
            if any(e.reduce in ("gcn", "gcn_noself") for e in inputs if e.edge_type == key):
                marked = marked | self._lists[key]  # the coefficients contain their degrees
            if marked.any():
                self._carry(sampler, marked, changed)
        return changed

    def _draws_again(self, sampler: Sampler) -> _Mask:
        """Nodes whose new row number means another choice of neighbours."""
        adjacency = sampler.adjacency
        matched = self.matched[adjacency.dst]
        moved = matched.old_row != np.arange(matched.old_row.shape[0])
        if sampler.fanout < 0 or sampler.mode == "recent":
            return np.zeros_like(moved)
        mask: _Mask = moved & (np.diff(adjacency.indptr) > sampler.fanout)
        return mask

    def _carry(self, sampler: Sampler, marked: _Mask, changed: _Mask) -> None:
        buffers: Any = BlockBuffers()
        step = 1024 if sampler.fanout < 0 else 4096
        for a in range(0, changed.shape[0], step):
            block = sampler.sample(np.arange(a, min(a + step, changed.shape[0])), buffers)
            _any_of(block.offsets, block.neighbors, marked, a, changed)
