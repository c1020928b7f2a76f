"""A request's own view of the graph: nodes that it adds, their rows and their lists.

An id has three parts: `REQUEST` (bits 40 and above) separates the overlays of a batch, so that equal nodes
of two requests are two rows; `ADDED` (bit 39) marks a node that the graph does not have; the rest is a
global id, or the number of the added node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from hopline.engine.inline_features import INLINE_ROWS, LISTED_PER_ROW
from hopline.types import AnyArray, FloatArray, IdArray

REQUEST = 40
ADDED = 1 << 39
#: The last two parts of an id.
NODE = (1 << REQUEST) - 1
NO_IDS: IdArray = np.empty(0, np.int64)


@dataclass(slots=True)
class Lists:
    """In-neighbour lists of added nodes along one edge type.

    Attributes:
        nodes: int64 [n] destinations, sorted.
        offsets: int64 [n + 1]; neighbors: int64 [E].
        weight, attr: float32 [E] and [E, d_e]; [0] and [0, 0] where the graph has none.
    """

    nodes: IdArray
    offsets: IdArray
    neighbors: IdArray
    weight: FloatArray
    attr: FloatArray

    @property
    def counts(self) -> IdArray:
        """Lengths of the lists."""
        return np.diff(self.offsets)

    def degrees(self, is_weighted: bool, add_loops: bool) -> tuple[FloatArray, FloatArray]:
        """The `gcn` degrees of the destinations, and the weights of their self-loops; see artifact.py."""
        num_nodes = self.nodes.shape[0]
        owner = np.repeat(np.arange(num_nodes), self.counts)
        each = self.weight if is_weighted else np.ones(owner.shape[0], np.float32)
        loop_weight = np.ones(num_nodes, np.float32)
        if not add_loops:
            return np.bincount(owner, each, num_nodes).astype(np.float32), loop_weight
        loops = self.neighbors == self.nodes[owner]
        loop_weight[owner[loops]] = each[loops]  # of the last one
        others = np.bincount(owner, np.where(loops, 0.0, each), num_nodes).astype(np.float32)
        return others + loop_weight, loop_weight

    def merged(
        self,
        nodes: IdArray,
        as_of: int,
        listed: AnyArray,
        of_graph: Callable[[IdArray, int], FloatArray],
    ) -> FloatArray:
        """A value for each of `nodes`, float32 [n]; `listed` has those of the destinations of the lists."""
        at, is_listed = find(self.nodes, nodes)
        if is_listed.all():
            return listed[at].astype(np.float32)
        out = of_graph(np.where(is_listed, 0, nodes & NODE), as_of)
        out[is_listed] = listed[at[is_listed]]
        return out


@dataclass(slots=True)
class Overlay:
    """Nodes that a request, or a batch of them, adds to the graph. Known nodes do not read them.

    Attributes:
        rows: node type -> (int64 [n] sorted ids, float32 [n, d] raw features).
        lists: edge type -> lists. An added node has one for each edge type into its type.
    """

    rows: dict[str, tuple[IdArray, FloatArray]]
    lists: dict[str, Lists]

    @property
    def num_rows(self) -> int:
        """Rows that cost as much as reading it."""
        listed = sum(len(each.neighbors) for each in self.lists.values())
        return INLINE_ROWS * sum(len(ids) for ids, _ in self.rows.values()) + listed // LISTED_PER_ROW

    @classmethod
    def joined(cls, parts: Sequence[Overlay]) -> Overlay:
        """Overlays of requests 0, 1, ... as one."""
        if len(parts) == 1:
            return parts[0]
        found = cls({}, {})
        for name in dict.fromkeys(chain.from_iterable(each.rows for each in parts)):
            rows = [(k << REQUEST, *each.rows[name]) for k, each in enumerate(parts) if name in each.rows]
            ids = np.concatenate([tag | own for tag, own, _ in rows])
            found.rows[name] = ids, np.concatenate([features for *_, features in rows])
        for key in dict.fromkeys(chain.from_iterable(each.lists for each in parts)):
            own = [(k << REQUEST, each.lists[key]) for k, each in enumerate(parts) if key in each.lists]
            found.lists[key] = Lists(
                np.concatenate([tag | each.nodes for tag, each in own]),
                offsets_of(np.concatenate([each.counts for _, each in own])),
                np.concatenate([tag | each.neighbors for tag, each in own]),
                np.concatenate([each.weight for _, each in own]),
                np.concatenate([each.attr for _, each in own]),
            )
        return found


def find(ids: IdArray, wanted: IdArray) -> tuple[IdArray, NDArray[np.bool_]]:
    """Place of each wanted id in sorted `ids`, and whether `ids` has it."""
    if not ids.shape[0]:
        return np.zeros(wanted.shape[0], np.int64), np.zeros(wanted.shape[0], np.bool_)
    at = np.minimum(ids.searchsorted(wanted), ids.shape[0] - 1)
    return at, ids[at] == wanted


def offsets_of(counts: IdArray) -> IdArray:
    """Offsets of lists of these lengths, int64 [n + 1]."""
    return np.concatenate([[0], np.cumsum(counts)])
