"""States of nodes that requests add to the graph; cached nowhere.

States of known nodes come through the ordinary plan and its caches, at every level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from hopline.engine.guard import Guard
from hopline.engine.interner import Interner
from hopline.engine.kernels import gather
from hopline.engine.overlay import NO_IDS, NODE, Overlay, find
from hopline.engine.stage import Given
from hopline.engine.view import EdgeView
from hopline.graph.extent import NO_RECORDS
from hopline.kernels.jit import njit
from hopline.sampling import Block, BlockBuffers
from hopline.sampling.keyed import NO_CUT, sample
from hopline.types import FloatArray, IdArray, StampArray

if TYPE_CHECKING:
    from hopline.engine.level import Level, Relation
    from hopline.engine.narrow_kernels import Matrix

#: Level, node type, int64 [n] distinct global ids -> their states float32 [n, d] in the graph alone.
States: TypeAlias = Callable[[int, str, IdArray], FloatArray]
#: Node type -> sorted ids, and their states.
_Changed: TypeAlias = dict[str, tuple[IdArray, FloatArray]]

_NO_SUMS: StampArray = np.empty(0)


@dataclass(slots=True)
class OverlayStates:
    """Computes the final states of ids of `overlay.py`.

    Attributes:
        levels: of the model.
        features: node type -> [N, d], for those in the process.
        as_of: the time cut of lists of the graph. Those of the overlay are cut already.
        states: of the graph alone.
        guard: called before edges are sampled.
        changed: by level.
    """

    levels: list[dict[str, Level]]
    features: Mapping[str, Matrix]
    overlay: Overlay
    as_of: int
    states: States
    guard: Guard
    changed: list[_Changed] = field(default_factory=list)
    interner: Interner = field(default_factory=Interner)

    def read(self, types: Sequence[str], wanted: Sequence[IdArray]) -> list[FloatArray]:
        """The final states of int64 [n] ids of each of `types`, float32 [n, d]."""
        for number, stages in enumerate(self.levels):
            added = {name: ids for name, (ids, _) in self.overlay.rows.items() if name in stages}
            found = {name: (ids, self._compute(number, name, ids)) for name, ids in added.items()}
            self.changed.append(found)
        top = len(self.levels) - 1
        seeds = [self._read(top, name, [ids]) for name, ids in zip(types, wanted, strict=True)]
        return [states[rows] for states, (rows,) in seeds]

    def _compute(self, number: int, name: str, ids: IdArray) -> FloatArray:
        """States of changed ids at a level."""
        level, everyone = self.levels[number][name], np.arange(ids.shape[0])
        raw = self.overlay.rows[name][1]
        if level.runner is None:
            return raw
        edges = {key: self._sample(relation) for key, relation in level.relations.items()}
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
            lists = self.overlay.lists[key]
            views[key] = relation.view(base, rows.pop(0), ids, edges[key], self.as_of, lists)
        structure = None
        if level.structure is not None:
            structure = level.structure.described(ids, raw, self.overlay.lists)
        given = Given(own, own_rows, raw, everyone, views, structure)
        out = np.empty((ids.shape[0], level.stage.state_dim), np.float32)
        return level.runner.run(given, out, self.guard.look)

    def _graph_rows(self, level: Level, ids: IdArray) -> FloatArray:
        base = self.features[level.node_type]
        found = np.empty((ids.shape[0], base.shape[1]), np.float32)
        slots = ids if level.own_slots is None else level.own_slots.slots(ids)
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

    def _sample(self, relation: Relation) -> Block:
        """The edges that a relation reads of added nodes, with positions in their lists."""
        lists, sampler = self.overlay.lists[relation.key], relation.sampler
        bound, num_lists = lists.neighbors.shape[0], lists.nodes.shape[0]
        sums = _NO_SUMS
        if sampler.mode == "weighted":
            parts = np.split(lists.weight, lists.offsets)
            sums = np.concatenate([np.cumsum(own, dtype=float) for own in parts])
        buffers = BlockBuffers()
        buffers.reserve(num_lists, bound)
        found = buffers.offsets, buffers.positions, buffers.neighbors
        *_, fanout, mode = sampler.arrays
        own = lists.offsets, lists.neighbors, sums, lists.weight
        total = sample_lists(*own, fanout, mode, sampler.key, *found)
        return Block(buffers, num_lists, total)


@njit(nogil=True, cache=True)
def sample_lists(starts, listed, sums, weight, fanout, mode, key, offsets, positions, neighbors):  # type: ignore[no-untyped-def]
    """`sample` of each list as that of node 0, so that no answer depends on a place in the request.

    Args:
        starts, listed: offsets and neighbours. The last of a list count as the most recent ones.
        sums: running sums of `weight` in each list; [0] where nothing reads them.
    """
    node, own, no_time = np.zeros(1, np.int64), np.empty(2, np.int64), np.empty(0, np.int64)
    total = 0
    offsets[0] = 0
    for i in range(starts.shape[0] - 1):
        lists_of_one = starts[i : i + 2], NO_RECORDS, listed, no_time, sums, weight
        how = node, fanout, mode, 0, NO_CUT, key, own
        total += sample(*lists_of_one, *how, positions[total:], neighbors[total:])
        offsets[i + 1] = total
    return total
