"""A request's own view of the graph: nodes that it adds, rows that it sets, lists that it replaces.

An id has three parts: `REQUEST` (bits 40 and above) separates the overlays of a batch, so that equal nodes
of two requests are two rows; `ADDED` (bit 39) marks a node that the graph does not have; the rest is a
global id, or the number of the added node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

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
    """In-neighbour lists along one edge type that replace those of the graph, in canonical order.

    Attributes:
        nodes: int64 [n] destinations, sorted.
        offsets: int64 [n + 1]; neighbors: int64 [E].
        positions: int64 [E], of edges of the graph, or -1 - k for added edge k.
        weight, attr: of added edges, float32 [A] and [A, d_e]; empty where the graph or the model has none.
    """

    nodes: IdArray
    offsets: IdArray
    neighbors: IdArray
    positions: IdArray
    weight: FloatArray
    attr: FloatArray

    @property
    def counts(self) -> IdArray:
        """Lengths of the lists."""
        return np.diff(self.offsets)

    def degrees(self, known: Any, add_loops: bool) -> tuple[FloatArray, FloatArray]:
        """The `gcn` degrees of the destinations, and the weights of their self-loops; see artifact.py.

        Args:
            known: weights of the graph's edges, or None for ones.
        """
        num_nodes = self.nodes.shape[0]
        owner = np.repeat(np.arange(num_nodes), self.counts)
        each = np.ones(owner.shape[0], np.float32)
        if known is not None:
            each = edge_data(known, self.weight, self.positions)
        loop_weight = np.ones(num_nodes, np.float32)
        if not add_loops:
            return np.bincount(owner, each, num_nodes).astype(np.float32), loop_weight
        loops = self.neighbors == self.nodes[owner]
        loop_weight[owner[loops]] = each[loops]  # of the last one
        others = np.bincount(owner, np.where(loops, 0.0, each), num_nodes).astype(np.float32)
        return others + loop_weight, loop_weight

    def merged(
        self, nodes: IdArray, as_of: int, listed: AnyArray, of_graph: Callable[[IdArray, int], FloatArray]
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
    """Parts of the graph as one request, or a batch of them, has them.

    Attributes:
        rows: node type -> (int64 [n] sorted ids, float32 [n, d] raw features).
        lists: edge type -> lists. An added node has one for each edge type into its type.
        edits_known: a known node has another row or list. Otherwise no known node's state is changed.
    """

    rows: dict[str, tuple[IdArray, FloatArray]]
    lists: dict[str, Lists]
    edits_known: bool = False

    @property
    def num_rows(self) -> int:
        """Rows that cost as much as reading it."""
        listed = sum(len(each.neighbors) for each in self.lists.values())
        return INLINE_ROWS * sum(len(ids) for ids, _ in self.rows.values()) + listed // LISTED_PER_ROW

    @classmethod
    def joined(cls, parts: Sequence[tuple[int, Overlay]]) -> Overlay:
        """Overlays of requests 0, 1, ... as one.

        Args:
            parts: (request, overlay); of one request, edits of known nodes come before added nodes.
        """
        if len(parts) == 1 and parts[0][0] == 0:
            return parts[0][1]
        found = cls({}, {}, any(each.edits_known for _, each in parts))
        for name in dict.fromkeys(chain.from_iterable(each.rows for _, each in parts)):
            rows = [(k << REQUEST, *each.rows[name]) for k, each in parts if name in each.rows]
            ids = np.concatenate([tag | own for tag, own, _ in rows])
            found.rows[name] = ids, np.concatenate([features for *_, features in rows])
        for key in dict.fromkeys(chain.from_iterable(each.lists for _, each in parts)):
            own = [(k << REQUEST, each.lists[key]) for k, each in parts if key in each.lists]
            before = accumulate((max(len(each.weight), len(each.attr)) for _, each in own), initial=0)
            positions = [
                np.where(each.positions < 0, each.positions - shift, each.positions)
                for shift, (_, each) in zip(before, own, strict=False)
            ]
            found.lists[key] = Lists(
                np.concatenate([tag | each.nodes for tag, each in own]),
                offsets_of(np.concatenate([each.counts for _, each in own])),
                np.concatenate([tag | each.neighbors for tag, each in own]),
                np.concatenate(positions),
                np.concatenate([each.weight for _, each in own]),
                np.concatenate([each.attr for _, each in own]),
            )
        return found


def edge_data(known: Any, added: FloatArray, positions: IdArray) -> FloatArray:
    """Weights or attributes of edges by `Lists.positions`: `known` of the graph, `added` of the overlay."""
    is_added = positions < 0
    out = np.empty((positions.shape[0], *added.shape[1:]), np.float32)
    out[is_added] = added[-1 - positions[is_added]]
    if not is_added.all():
        out[~is_added] = known[positions[~is_added]]
    return out


def find(ids: IdArray, wanted: IdArray) -> tuple[IdArray, NDArray[np.bool_]]:
    """Place of each wanted id in sorted `ids`, and whether `ids` has it."""
    if not ids.shape[0]:
        return np.zeros(wanted.shape[0], np.int64), np.zeros(wanted.shape[0], np.bool_)
    at = np.minimum(ids.searchsorted(wanted), ids.shape[0] - 1)
    return at, ids[at] == wanted


def offsets_of(counts: IdArray) -> IdArray:
    """Offsets of lists of these lengths, int64 [n + 1]."""
    return np.concatenate([[0], np.cumsum(counts)])
