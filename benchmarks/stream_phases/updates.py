"""Updates at random: edges that come by the law that the graph was drawn by, edges of it that go, and more.

Keeps a plain list of all that happened, from which the final graph can be built afresh: the oracle.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.stream_phases.place import EDGE, FIRST_NEW, NODE, Place, draw_edges
from benchmarks.workload import NUM_FEATURES, draw_ends
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.graph.live.changes import Changes, EdgeChanges, NodeChanges
from hopline.types import IdArray

#: Share of edge updates that remove one.
REMOVALS = 0.3
#: Of a mixed batch: edges that are added, that are removed, features that are set; the rest are nodes.
_ADD, _REMOVE, _SET = 0.6, 0.25, 0.12
_BITS = 32


class Updates:
    """Draws batches of updates and notes what they leave.

    Args:
        graph: what it begins with.
        seed: of everything that is drawn.

    Attributes:
        num_added: nodes.
    """

    def __init__(self, place: Place, graph: Graph, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._ranks = place.ranks()
        self._plain = Plain(graph)
        # A removal takes parallel edges as well, so each pair is removed once.
        self._pairs = self._rng.permutation(np.unique(self._plain.pairs[0]))
        self._new: list[IdArray] = []
        self._gone: list[IdArray] = []
        self._num_ids = 0
        self.num_added = 0

    def edges(self, size: int, *, ids: bool = True) -> Changes:
        """A batch in which 70 % add an edge and 30 % remove an existing one."""
        rng = self._rng
        remove = rng.random(size) < REMOVALS
        src, dst = draw_edges(rng, self._ranks, size)
        gone = self._taken(int(remove.sum()))
        self._new.append((src[~remove] << _BITS) | dst[~remove])
        src[remove], dst[remove] = _ends(gone)
        return Changes(
            {EDGE: EdgeChanges(src, dst, remove, np.arange(size))}, {}, size, self._names(size, ids)
        )

    def mixed(self, size: int) -> Changes:
        """A batch of everything: edges of new nodes, removals of what was added or is missing, features,
        new nodes. What it leaves is noted for `final`.
        """
        rng, plain = self._rng, self._plain
        kind = rng.random(size)
        of_edges = kind < _ADD + _REMOVE
        order = np.flatnonzero(of_edges)
        remove = kind[order] >= _ADD
        src, dst = draw_edges(rng, self._ranks, len(order))
        if self.num_added:
            for ends in (src, dst):
                at = rng.random(len(order)) < 0.05
                ends[at] = FIRST_NEW + rng.integers(0, self.num_added, int(at.sum()))
        known = np.flatnonzero(
            remove & (rng.random(len(order)) < 0.9)
        )  # the others find nothing, or by chance
        recent = rng.random(len(known)) < (0.3 if len(plain.pairs[-1]) else 0.0)
        pairs = np.empty(len(known), np.int64)
        pairs[~recent] = self._taken(int((~recent).sum()))
        if recent.any():
            pairs[recent] = rng.choice(plain.pairs[-1], int(recent.sum()))
        src[known], dst[known] = _ends(pairs)
        edges = EdgeChanges(src, dst, remove, order)
        nodes = self._node_changes(np.flatnonzero(~of_edges), kind)
        plain.note(edges, nodes)
        return Changes({EDGE: edges}, {NODE: nodes}, size, self._names(size, True))

    def final(self) -> Graph:
        """A fresh build from the plain list."""
        return self._plain.graph()

    def _node_changes(self, order: IdArray, kind: NDArray[np.float64]) -> NodeChanges:
        rng = self._rng
        add = kind[order] >= _ADD + _REMOVE + _SET
        ids = draw_ends(rng, self._ranks[0], len(order))
        count = int(add.sum())
        ids[add] = FIRST_NEW + self.num_added + np.arange(count)
        if self.num_added:
            at = ~add & (rng.random(len(order)) < 0.1)
            ids[at] = FIRST_NEW + rng.integers(0, self.num_added, int(at.sum()))
        self.num_added += count
        return NodeChanges(ids, add, rng.standard_normal((len(order), NUM_FEATURES), np.float32), order)

    def _taken(self, num_pairs: int) -> IdArray:
        """Distinct pairs that exist."""
        if len(self._pairs) < num_pairs:  # those that were added, and never named by a removal
            new = np.setdiff1d(np.concatenate(self._new), np.concatenate([*self._gone, self._pairs]))
            self._pairs = np.concatenate([self._pairs, self._rng.permutation(new)])
            self._new.clear()
        gone, self._pairs = self._pairs[:num_pairs], self._pairs[num_pairs:]
        self._gone.append(gone)
        return gone

    def _names(self, size: int, wanted: bool) -> list[str]:
        if not wanted:
            return []
        self._num_ids += size
        return [f"e-{number}" for number in range(self._num_ids - size, self._num_ids)]


class Plain:
    """Events as lists; an edge exists if it came after the last removal of its pair.

    Attributes:
        pairs: of the edges that it began with, then of each batch's added ones: src · 2^32 + dst.
    """

    def __init__(self, graph: Graph) -> None:
        edges = graph.edges[EDGE]
        dst = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
        self.pairs: list[IdArray] = [np.asarray(edges.indices, np.int64) << _BITS | dst]
        self._when: list[IdArray] = [np.full(len(dst), -1)]
        self._gone: list[tuple[IdArray, IdArray]] = []
        self._features: dict[int, NDArray[np.float32]] = {}
        self._base = graph
        self._num_events = 0

    def note(self, edges: EdgeChanges, nodes: NodeChanges) -> None:
        """One batch happened."""
        pairs = np.asarray(edges.src) << _BITS | np.asarray(edges.dst)
        when = self._num_events + edges.order
        self.pairs.append(pairs[~edges.remove])
        self._when.append(when[~edges.remove])
        self._gone.append((pairs[edges.remove], when[edges.remove]))
        self._features |= zip(np.asarray(nodes.ids).tolist(), nodes.features, strict=True)
        self._num_events += len(edges) + len(nodes)

    def graph(self) -> Graph:
        """Built from what is left."""
        pairs, when = np.concatenate(self.pairs), np.concatenate(self._when)
        last: dict[int, int] = {}
        for gone, at in self._gone:
            last |= zip(
                gone.tolist(), at.tolist(), strict=True
            )  # later ones take the place of earlier ones
        keys = np.sort(np.fromiter(last, np.int64, len(last)))
        removed = np.array([last[key] for key in keys.tolist()], np.int64)
        at = np.minimum(np.searchsorted(keys, pairs), len(keys) - 1)
        left = (keys[at] != pairs) | (when > removed[at])
        new = sorted(key for key in self._features if key >= FIRST_NEW)
        base = np.asarray(self._base.nodes[NODE].features)
        features = np.concatenate([base, np.empty((len(new), base.shape[1]), np.float32)])
        for key, row in self._features.items():
            features[key if key < FIRST_NEW else len(base) + key - FIRST_NEW] = row
        ids = np.concatenate([np.arange(len(base)), np.array(new, np.int64)])
        src, dst = _ends(pairs[left])
        kind = self._base.schema.edge_types[EDGE]
        return Graph.from_tables(
            {NODE: NodeTable(features, ids=ids)}, {(NODE, kind.relation, NODE): EdgeTable((src, dst))}
        )


def _ends(pairs: IdArray) -> tuple[IdArray, IdArray]:
    return pairs >> _BITS, pairs & (2**_BITS - 1)
