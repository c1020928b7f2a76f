"""States under an overlay: those that differ from the graph's are computed, and cached nowhere.

All others come through the ordinary plan and its caches, at every level. A state is *changed* if the
overlay has the node's row or one of its lists, or if its own state or a sampled neighbour's one level below
is changed.

    down   sample what the seeds read, level by level, with the replaced lists in place of the graph's
    up     mark the changed rows of each level, and compute only them
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from hopline.engine.guard import EDGE_BYTES, Guard
from hopline.engine.interner import Interner
from hopline.engine.kernels import gather
from hopline.engine.overlay import ADDED, NO_IDS, NODE, Lists, Overlay, edge_data, find
from hopline.engine.stage import Given
from hopline.engine.view import NO_FLOATS, EdgeView
from hopline.graph.extent import NO_RECORDS
from hopline.kernels.jit import njit
from hopline.sampling import Block, BlockBuffers
from hopline.sampling.keyed import ALWAYS, FEW, GOLDEN, NO_CUT, U64, sample
from hopline.types import FloatArray, IdArray, StampArray

if TYPE_CHECKING:
    from hopline.engine.level import Level, Relation
    from hopline.engine.narrow_kernels import Matrix
    from hopline.graph.live.view import Histories

#: Level, node type, int64 [n] distinct global ids -> their states float32 [n, d] in the graph alone.
States: TypeAlias = Callable[[int, str, IdArray], FloatArray]
#: Node type -> sorted ids, and their states.
_Changed: TypeAlias = dict[str, tuple[IdArray, FloatArray]]
#: Node type -> ids, and the edges that they read along each relation.
_Reads: TypeAlias = dict[str, tuple[IdArray, "list[tuple[Relation, Block]]"]]

_NO_ROWS: FloatArray = np.empty((0, 0), np.float32)
_NO_SUMS: StampArray = np.empty(0)
_NO_LISTS = Lists(NO_IDS, np.zeros(1, np.int64), NO_IDS, NO_IDS, NO_FLOATS, NO_FLOATS)


@dataclass(slots=True)
class OverlayStates:
    """Computes the final states of ids of `overlay.py`.

    Attributes:
        levels: of the model.
        features, past: as of `execute`.
        as_of: the time cut of lists of the graph. Those of the overlay are cut already.
        states: of the graph alone.
        guard: called before edges are sampled.
        seed_time: as of `Plan`.
        changed: by level.
    """

    levels: list[dict[str, Level]]
    features: Mapping[str, Matrix]
    past: Histories
    overlay: Overlay
    as_of: int
    states: States
    guard: Guard
    seed_time: int = 0
    changed: list[_Changed] = field(default_factory=list)
    interner: Interner = field(default_factory=Interner)

    def read(self, types: Sequence[str], wanted: Sequence[IdArray]) -> list[FloatArray]:
        """The final states of int64 [n] ids of each of `types`, float32 [n, d]."""
        walked = [*self._walk(types, wanted)] if self.overlay.edits_known else []
        for number, stages in enumerate(self.levels):
            # Added nodes are changed. No others are, unless known nodes have edits.
            found = {name: ids for name, (ids, _) in self.overlay.rows.items() if name in stages}
            if walked:
                found = self._marked(number, walked.pop())
            states = {name: (ids, self._compute(number, name, ids)) for name, ids in found.items()}
            self.changed.append(states)
        top = len(self.levels) - 1
        seeds = [self._read(top, name, [ids]) for name, ids in zip(types, wanted, strict=True)]
        return [states[rows] for states, (rows,) in seeds]

    def _walk(self, types: Sequence[str], wanted: Sequence[IdArray]) -> Iterator[_Reads]:
        """By level, from the top: distinct ids that may be changed, and the edges that they read."""
        needed = defaultdict[str, list[IdArray]](list)
        for name, ids in zip(types, wanted, strict=True):
            needed[name].append(ids)
        for stages in reversed(self.levels):
            found, below = {}, defaultdict[str, list[IdArray]](list)
            for name, parts in needed.items():
                level, (ids, _) = stages[name], self._numbered(np.concatenate(parts))
                reads = []
                for relation in level.relations.values():
                    reads.append((relation, self._sample(relation, ids)))
                    below[relation.source].append(reads[-1][1].neighbors)
                if level.reads_self:
                    below[name].append(ids)
                found[name] = ids, reads
            yield found
            needed = below

    def _marked(self, number: int, found: _Reads) -> dict[str, IdArray]:
        """The changed ids of a level."""
        below = self.changed[-1] if number else {}
        changed = {}
        for name, (ids, reads) in found.items():
            flags = np.zeros(ids.shape[0], np.bool_)
            if name in self.overlay.rows:
                mark(ids, self.overlay.rows[name][0], NO_IDS, flags)
            if self.levels[number][name].reads_self and name in below:
                mark(ids, below[name][0], NO_IDS, flags)
            for relation, edges in reads:
                if relation.source in below:
                    mark(edges.neighbors, below[relation.source][0], edges.offsets, flags)
                lists = self.overlay.lists.get(relation.key)
                if lists is not None:
                    mark(ids, lists.nodes, NO_IDS, flags)
                    if relation.gcn:  # reads the degrees of neighbours
                        mark(edges.neighbors, lists.nodes, edges.offsets, flags)
            if flags.any():
                changed[name] = np.sort(ids[flags])
        return changed

    def _compute(self, number: int, name: str, ids: IdArray) -> FloatArray:
        """States of changed ids at a level."""
        level, everyone = self.levels[number][name], np.arange(ids.shape[0])
        is_read = level.runner is None or not number or level.stage.reads_features or level.structure
        raw = self._raw(level, ids) if is_read else _NO_ROWS
        if level.runner is None:
            return raw
        edges = {key: self._sample(relation, ids) for key, relation in level.relations.items()}
        parts: dict[str, list[IdArray]] = {name: [ids]} if number and level.reads_self else {}
        for key, relation in level.relations.items():
            parts.setdefault(relation.source, []).append(edges[key].neighbors)
        # Own rows and neighbours are read together: attention compares rows to find self-loops.
        read = {source: self._read(number - 1, source, every) for source, every in parts.items()}
        own, own_rows = raw, everyone
        if number and level.reads_self:
            own, own_rows = read[name][0], read[name][1].pop(0)
        views: dict[str, EdgeView] = {}
        for key, relation in level.relations.items():
            base, rows = read[relation.source]
            lists, nodes = self.overlay.lists.get(key), ids
            if lists is None:  # global ids then
                nodes, edges[key].neighbors[:] = ids & NODE, edges[key].neighbors & NODE
            views[key] = relation.view(base, rows.pop(0), nodes, edges[key], self.as_of, lists)
        structure = None
        if level.structure is not None:
            structure = level.structure.described(ids, raw, self.overlay.lists)
        given = Given(own, own_rows, raw, everyone, views, structure, self.seed_time)
        out = np.empty((ids.shape[0], level.stage.state_dim), np.float32)
        return level.runner.run(given, out, self.guard.look)

    def _raw(self, level: Level, ids: IdArray) -> FloatArray:
        """Raw features of ids, float32 [n, d]."""
        edited, rows = self.overlay.rows.get(level.node_type, (NO_IDS, _NO_ROWS))
        if not self.overlay.edits_known:
            return rows
        at, is_edited = find(edited, ids)
        if is_edited.all():
            return rows[at]
        found = self._graph_rows(level, np.where(is_edited, 0, ids & NODE))
        found[is_edited] = rows[at[is_edited]] if len(rows) else 0
        return found

    def _graph_rows(self, level: Level, ids: IdArray) -> FloatArray:
        base = self.features[level.node_type]
        found = np.empty((ids.shape[0], base.shape[1]), np.float32)
        slots = ids
        if level.node_type in self.past:
            slots = self.past[level.node_type].rows(ids, self.as_of)
        elif level.own_slots is not None:
            slots = level.own_slots.slots(ids)
        gather(base, slots, 0, found.shape[1], found, 0)
        return found

    def _read(self, number: int, name: str, parts: list[IdArray]) -> tuple[FloatArray, list[IdArray]]:
        """States at a level: base [m, d], and the rows in it of each array of ids."""
        level = self.levels[number][name]
        changed, states = self.changed[number].get(name, (NO_IDS, None))
        ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
        bases = [] if states is None else [states]
        if states is None:
            known, rows = self._numbered(ids & NODE)
        else:
            rows, is_changed = find(changed, ids)
            known, rows[~is_changed] = self._numbered(ids[~is_changed] & NODE, len(changed))
        if known.shape[0]:
            is_raw = level.runner is None and level.source is None
            bases.append(self._graph_rows(level, known) if is_raw else self.states(number, name, known))
        ends = accumulate(map(len, parts), initial=0)
        split = [rows[begin:end] for begin, end in pairwise(ends)]
        # A copy of states of the graph: the next plan reuses their memory.
        return np.concatenate(bases or [np.empty((0, level.stage.state_dim), np.float32)]), split

    def _numbered(self, ids: IdArray, first: int = 0) -> tuple[IdArray, IdArray]:
        """Distinct ids, and the place of each id among them, after `first` others."""
        self.interner.start(ids.shape[0])
        numbers = self.interner.add(ids)
        return self.interner.distinct.copy(), numbers + first

    def _sample(self, relation: Relation, ids: IdArray) -> Block:
        """The edges that a relation reads of ids."""
        lists = self.overlay.lists.get(relation.key, _NO_LISTS)
        sampler, num_ids, buffers = relation.sampler, ids.shape[0], BlockBuffers()
        weight, sums = NO_FLOATS, _NO_SUMS
        if sampler.mode == "weighted":
            weight = edge_data(relation.adjacency.weight, lists.weight, lists.positions)
            sums = np.concatenate([np.cumsum(own, dtype=float) for own in np.split(weight, lists.offsets)])
        own = lists.offsets, lists.neighbors, lists.positions, sums, weight
        *graph, fanout, mode = sampler.arrays
        if not self.overlay.edits_known:
            # `ids` have lists; without the graph's arrays, a call takes 1 µs and not 5
            buffers.reserve(num_ids, lists.neighbors.shape[0])
            found = buffers.offsets, buffers.positions, buffers.neighbors
            return Block(buffers, num_ids, sample_lists(*own, fanout, mode, sampler.key, *found))
        bound = fanout * num_ids
        if not 0 <= fanout <= FEW:
            at, is_listed = find(lists.nodes, ids)
            bound = sampler.bound(ids[~is_listed] & NODE) + int(lists.counts[at[is_listed]].sum())
        self.guard.look_at(bound)
        self.guard.reserve(EDGE_BYTES * bound, bound)
        buffers.reserve(num_ids, bound)
        found = buffers.offsets, buffers.positions, buffers.neighbors
        how = fanout, mode, sampler.clock.version, self.as_of, sampler.key
        total = sample_overlaid(*graph, *how, ids, lists.nodes, *own, *found)
        self.guard.rows += total
        return Block(buffers, num_ids, total)


@njit(nogil=True, cache=True)
def _sample_list(at, starts, listed, places, sums, weight, node, fanout, mode, key, own, left, right):  # type: ignore[no-untyped-def]
    """`sample` of list `at` as that of `node`, with its places as positions."""
    lists_of_one = starts[at : at + 2], NO_RECORDS, listed, np.empty(0, np.int64), sums, weight
    # Node 0 with this key has the draws of `node` with the sampler's: both enter as node * GOLDEN + key.
    key = key + U64(node) * GOLDEN
    count = sample(
        *lists_of_one, np.zeros(1, np.int64), fanout, mode, 0, NO_CUT, ALWAYS, key, own, left, right
    )
    for e in range(count):
        left[e] = places[left[e]]
    return count


@njit(nogil=True, cache=True)
def sample_lists(starts, listed, places, sums, weight, fanout, mode, key, offsets, positions, neighbors):  # type: ignore[no-untyped-def]
    """`sample` of each list as that of node 0, so that no answer depends on a place in the request.

    Args:
        starts, listed, places: offsets, neighbours and positions of `Lists`. The last of a list count as
            the most recent ones.
        sums: running sums of `weight` in each list; [0] where nothing reads them.
    """
    own, total, offsets[0] = np.empty(2, np.int64), 0, 0
    for i in range(starts.shape[0] - 1):
        if starts[i] < starts[i + 1]:  # nearly all nodes have no list of most edge types
            out = own, positions[total:], neighbors[total:]
            total += _sample_list(i, starts, listed, places, sums, weight, 0, fanout, mode, key, *out)
        offsets[i + 1] = total
    return total


@njit(nogil=True, cache=True)
def sample_overlaid(  # type: ignore[no-untyped-def]
    indptr, records, indices, time, cumweight, weight, fanout, mode, version, as_of, key, ids,
    nodes, starts, listed, places, sums, listed_weight, offsets, positions, neighbors,
):  # fmt: skip
    """`sample` of ids of `overlay.py`: of a list of the overlay where there is one, as `sample_lists`.

    The draws are those of a graph that has the list.

    Args:
        nodes: sorted, whose lists these are.
    """
    node, own, total = np.zeros(1, np.int64), np.empty(2, np.int64), 0
    offsets[0] = 0
    for i in range(ids.shape[0]):
        at, out = np.searchsorted(nodes, ids[i]), (own, positions[total:], neighbors[total:])
        if at < nodes.shape[0] and nodes[at] == ids[i]:
            v = 0 if ids[i] & ADDED else ids[i] & NODE
            lists = at, starts, listed, places, sums, listed_weight
            count = _sample_list(*lists, v, fanout, mode, key, *out)
        else:
            node[0] = ids[i] & NODE
            own_graph = indptr, records, indices, time, cumweight, weight
            count = sample(*own_graph, node, fanout, mode, version, as_of, ALWAYS, key, *out)
            for e in range(count):
                neighbors[total + e] |= ids[i] - node[0]
        total += count
        offsets[i + 1] = total
    return total


@njit(nogil=True, cache=True)
def mark(values, changed, offsets, flags):  # type: ignore[no-untyped-def]
    """Set flags[i] if one of values[offsets[i]:offsets[i + 1]] is in sorted `changed`.

    Args:
        offsets: int64 [n + 1], or [0]: then flags[i] is of values[i].
    """
    for i in range(flags.shape[0]):
        first, last = (offsets[i], offsets[i + 1]) if offsets.shape[0] else (i, i + 1)
        for e in range(first, last):
            at = np.searchsorted(changed, values[e])
            flags[i] |= at < changed.shape[0] and changed[at] == values[e]
