"""A mesh's call paths as lists: for each node its callers, and its callees.

Rebuilt only if call paths differ from those of the previous step, in reused memory. Knows positions of
nodes (0 to n - 1); `at_slots` creates them from a snapshot's slots.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopline.kernels.jit import njit
from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.model.lanes import AHEAD

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]


class Lists(NamedTuple):
    """Neighbours by node; arrays may be longer than what is used of them.

    Attributes:
        indptr: int32 [n + 1]; node i has entries indptr[i] to indptr[i + 1].
        others: int32 [e], the neighbour of each entry; of one node in the order of its edges.
        edges: int32 [e], the edge of each entry: its place among the edges as they were given.
    """

    indptr: IntArray
    others: IntArray
    edges: IntArray


class MeshGraph:
    """Call paths of one step; the next `update` replaces them. Not thread-safe.

    Attributes:
        num_nodes: nodes of this step.
        num_edges: edges of this step.
        callers: callers of each node: CSC by destination.
        callees: callees of each node.
        version: counts how often the lists changed.
    """

    def __init__(self) -> None:
        self.num_nodes = 0
        self.num_edges = 0
        self.version = 0
        self._sources = np.zeros(0, np.int32)
        self._targets = np.zeros(0, np.int32)
        self._mask = np.zeros(0, np.bool_)
        self._is_masked = False
        self._positions = np.zeros(0, np.int32)
        self.callers = _lists(0, 0)
        self.callees = _lists(0, 0)

    @property
    def sources(self) -> IntArray:
        """int32 [e]: the caller of each edge, by position."""
        return self._sources[: self.num_edges]

    @property
    def targets(self) -> IntArray:
        """int32 [e]: the callee of each edge, by position."""
        return self._targets[: self.num_edges]

    def update(
        self, num_nodes: int, sources: IntArray, targets: IntArray, node_mask: BoolArray | None = None
    ) -> bool:
        """Take the edges of the next step.

        Args:
            num_nodes: n.
            sources: int32 [e], callers by position, below n.
            targets: int32 [e], callees.
            node_mask: bool [n], False for padding rows; their edges are left out of the lists.

        Returns: whether anything differs from the step before.

        Raises:
            SnapshotInvalid: lengths differ, or a position is out of range.
        """
        num_edges = len(sources)
        if len(targets) != num_edges or (node_mask is not None and len(node_mask) != num_nodes):
            raise SnapshotInvalid(
                f"{num_edges} callers, {len(targets)} callees, {num_nodes} nodes: lengths must agree"
            )
        if node_mask is None:
            is_masked_as_before = not self._is_masked
        else:
            is_masked_as_before = bool(np.array_equal(self._mask[: self.num_nodes], node_mask))
        if (
            num_nodes == self.num_nodes
            and num_edges == self.num_edges
            and is_masked_as_before
            and same(self._sources, self._targets, sources, targets)
        ):
            return False
        if num_edges and not in_range(sources, targets, num_nodes):
            raise SnapshotInvalid(f"an edge's end is not among positions 0 to {num_nodes - 1}")
        if num_nodes > len(self._mask) or num_edges > len(self._sources):
            self._grow(num_nodes, num_edges)
        self.num_nodes, self.num_edges = num_nodes, num_edges
        self._mask[:num_nodes] = True if node_mask is None else node_mask
        self._is_masked = node_mask is not None
        self._sources[:num_edges] = sources
        self._targets[:num_edges] = targets
        count_sort(self.sources, self.targets, self._mask, num_nodes, *self.callers)
        count_sort(self.targets, self.sources, self._mask, num_nodes, *self.callees)
        self.version += 1
        return True

    @property
    def room(self) -> int:
        """Edges for which there is memory."""
        return len(self._sources)

    def reserve(self, num_nodes: int, num_edges: int) -> None:
        """Allocate memory for more edges; its content is lost."""
        self._grow(num_nodes, num_edges)
        self.num_nodes = self.num_edges = 0

    def append(self, source: int, target: int) -> None:
        """Add an edge to the edges, not to the lists; there is room for it."""
        self._sources[self.num_edges], self._targets[self.num_edges] = source, target
        self.num_edges += 1
        self.version += 1

    def take_out(self, edge: int) -> None:
        """Take an edge out of the edges, not out of the lists; the last one takes its number."""
        self.num_edges -= 1
        self._sources[edge] = self._sources[self.num_edges]
        self._targets[edge] = self._targets[self.num_edges]
        self.version += 1

    def at_slots(self, nodes: IntArray, edge_src: IntArray, edge_dst: IntArray, num_slots: int) -> bool:
        """Take the edges of a snapshot, whose ends are slots; node i is the one of slot `nodes[i]`.

        Returns: whether anything differs from the step before.

        Raises:
            SnapshotInvalid: an edge of a service that is not among `nodes`.
        """
        if num_slots > len(self._positions):
            self._positions = np.full(max(64, num_slots * 3 // 2), -1, np.int32)
        sources = np.empty(len(edge_src), np.int32)
        targets = np.empty(len(edge_dst), np.int32)
        if not to_positions(nodes, edge_src, edge_dst, self._positions, sources, targets):
            raise SnapshotInvalid("an edge's end is not a node of the snapshot")
        return self.update(len(nodes), sources, targets)

    def _grow(self, num_nodes: int, num_edges: int) -> None:
        nodes = max(len(self._mask), num_nodes * 5 // 4 + 8)
        edges = max(len(self._sources), num_edges * 5 // 4 + 8)
        self._mask = np.zeros(nodes, np.bool_)
        self._sources, self._targets = np.zeros(edges, np.int32), np.zeros(edges, np.int32)
        self.callers, self.callees = _lists(nodes, edges), _lists(nodes, edges)


def _lists(nodes: int, edges: int) -> Lists:
    # Some room at the end: the encoder asks for rows ahead of those that it reads.
    return Lists(*(np.zeros(size, np.int32) for size in (nodes + 1, edges + AHEAD, edges + AHEAD)))


def outgoing_shares(sources: IntArray, amounts: FloatArray, num_nodes: int) -> FloatArray:
    """Each edge's share of all that its caller sends: the weight of the edge.

    Unlike an amount it does not change with the load of the whole mesh.

    Args:
        sources: int32 [e], callers by position.
        amounts: float32 [e], such as requests per second; NaN = not measured.

    Returns: float32 [e] within 0 to 1; NaN where the amount is, 0 where the caller sends nothing.
    """
    shares = np.empty(len(sources), np.float32)
    share_kernel(sources, amounts, np.zeros(num_nodes, np.float64), shares)
    return shares


@njit(nogil=True, cache=True)
def share_kernel(
    sources: IntArray, amounts: FloatArray, totals: NDArray[np.float64], shares: FloatArray
) -> None:
    """`outgoing_shares` into `shares`; `totals` is zero."""
    for k in range(len(sources)):
        if amounts[k] > 0:  # not so for NaN
            totals[sources[k]] += amounts[k]
    for k in range(len(sources)):
        total = totals[sources[k]]
        shares[k] = amounts[k] / total if total > 0 else amounts[k] * 0


@njit(nogil=True, cache=True)
def same(sources: IntArray, targets: IntArray, new_sources: IntArray, new_targets: IntArray) -> bool:
    """Whether the first `len(new_sources)` edges are these."""
    differing = 0
    for k in range(len(new_sources)):
        differing += (sources[k] != new_sources[k]) | (targets[k] != new_targets[k])
    return differing == 0


@njit(nogil=True, cache=True)
def in_range(sources: IntArray, targets: IntArray, num_nodes: int) -> bool:
    """Whether all positions are within 0 to num_nodes - 1."""
    outside = 0
    for k in range(len(sources)):
        outside += (
            (sources[k] < 0) | (sources[k] >= num_nodes) | (targets[k] < 0) | (targets[k] >= num_nodes)
        )
    return outside == 0


@njit(nogil=True, cache=True)
def count_sort(
    others: IntArray, owners: IntArray, mask: BoolArray, num_nodes: int, indptr: IntArray,
    sorted_others: IntArray, sorted_edges: IntArray,
) -> None:  # fmt: skip
    """Lists by owner, each in the order of its edges; edges at masked nodes are left out."""
    for i in range(num_nodes + 1):
        indptr[i] = 0
    for k in range(len(owners)):
        if mask[owners[k]] and mask[others[k]]:
            indptr[owners[k]] += 1
    begin = 0
    for i in range(num_nodes):
        begin, indptr[i] = begin + indptr[i], begin
    for k in range(len(owners)):
        if mask[owners[k]] and mask[others[k]]:
            at = indptr[owners[k]]
            sorted_others[at] = others[k]
            sorted_edges[at] = k
            indptr[owners[k]] = at + 1
    for i in range(num_nodes, 0, -1):
        indptr[i] = indptr[i - 1]
    indptr[0] = 0


@njit(nogil=True, cache=True)
def to_positions(
    nodes: IntArray, edge_src: IntArray, edge_dst: IntArray, positions: IntArray, sources: IntArray,
    targets: IntArray,
) -> bool:  # fmt: skip
    """Convert slots to positions; False if an end is not a node. `positions` stays -1 everywhere."""
    for i in range(len(nodes)):
        positions[nodes[i]] = i
    lowest = np.int32(0)
    for k in range(len(edge_src)):
        sources[k] = positions[edge_src[k]]
        targets[k] = positions[edge_dst[k]]
        lowest = min(lowest, sources[k], targets[k])
    for i in range(len(nodes)):
        positions[nodes[i]] = -1
    return bool(lowest >= 0)
