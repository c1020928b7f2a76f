"""The keyed sampler: which in-neighbours a node sees at one layer.

The choice is a pure function of (adjacency of the snapshot, node, layer key, fanout). A counter-based
hash provides the randomness: draw j of node v is `mix(node_key + (j+1) * GOLDEN)` with
`node_key = mix(v * GOLDEN + layer_key)`, where `mix` is SplitMix64's finaliser (Steele, Lea & Flood,
OOPSLA 2014). Bounded integers come by multiply-shift from the upper 32 bits.

- *uniform*: Floyd's algorithm for sampling without replacement (Bentley & Floyd, CACM 30(9), 1987):
  k draws for k of n, however large n is.
- *recent*: the last k of the list, which is sorted by time.
- *weighted*: successive draws proportional to weight, repeats rejected, which equals weighted
  sampling without replacement. Each draw is a binary search in the list's running weights. When one
  edge outweighs the other edges so much that repeats dominate, the remaining draws scan the list exactly.

A time cut (`as_of`) selects a prefix of the list, since lists are sorted by time. A window selects what is
left of it from a moment on (`since`).

`tests/sampling/reference.py` states the same in plain NumPy; the two are equal bit for bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hopline.errors import ArtifactError, BadRequest
from hopline.graph.edge_data import finish, first_beyond, follow, touch, weight_at, weight_up_to
from hopline.graph.extent import NUM_COLUMNS, extent, newest, prefetch_bounds
from hopline.graph.store_columns import StoreIds
from hopline.kernels.intrinsics import prefetch
from hopline.kernels.jit import njit
from hopline.types import AnyArray, IdArray

if TYPE_CHECKING:
    from hopline.graph import Adjacency
    from hopline.graph.live.view import LiveAdjacency

U64 = np.uint64
GOLDEN = U64(0x9E3779B97F4A7C15)
_M1 = U64(0xBF58476D1CE4E5B9)
_M2 = U64(0x94D049BB133111EB)
_S27, _S30, _S31, _S32, _S11 = U64(27), U64(30), U64(31), U64(32), U64(11)
_ONE = U64(1)
_TO_UNIT = 1.0 / (1 << 53)

#: Nodes between prefetching a list's bounds and reading them.
_AHEAD = 16
#: Rejected weighted draws before the exact scan, for k draws: 4 k + 16.
_TRIES_PER_DRAW, _TRIES = 4, 16

#: Why a request with a time cut is refused.
TIMES_IN_STORE = "as_of: the edge times of this graph lie in a graph store; leave as_of out"

MODES: dict[str, int] = {"uniform": 0, "recent": 1, "weighted": 2}
#: `as_of` of a request without a time cut, and `since` without a window.
NO_CUT, ALWAYS = int(np.iinfo(np.int64).max), int(np.iinfo(np.int64).min)


def layer_key(salt: int, layer: int, edge_type: str) -> np.uint64:
    """The sampler's key for one layer and edge type of one model.

    Args:
        salt: the model's salt.
        layer: 1-based, input-most layer first.
        edge_type: "src__rel__dst".
    """
    text = f"{salt}/{layer}/{edge_type}".encode()
    return U64(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))


@njit(inline="always")
def mix(x: np.uint64) -> np.uint64:
    """SplitMix64's finaliser: a bijection of 64 bits that looks random."""
    x ^= x >> _S30
    x *= _M1
    x ^= x >> _S27
    x *= _M2
    return x ^ (x >> _S31)


@njit(nogil=True, cache=True)
def _sample_weighted(cumweight, weight, start, n, k, node_key, positions, at):  # type: ignore[no-untyped-def]
    """Fill positions[at:at+k] with up to k distinct list positions; return how many."""
    total = weight_up_to(cumweight, start, start + n - 1)
    taken = 0
    draw = U64(0)
    tries = _TRIES_PER_DRAW * k + _TRIES
    if not total > 0.0:
        return 0
    while taken < k and tries > 0:
        tries -= 1
        draw += _ONE
        # The first position whose running weight exceeds a uniform draw from [0, total).
        bound = np.float64(mix(node_key + draw * GOLDEN) >> _S11) * _TO_UNIT * total
        t = first_beyond(cumweight, start, n, bound)
        if t >= n:  # the draw rounded up to the total
            continue
        repeated = False
        for q in range(taken):
            if positions[at + q] == start + t:
                repeated = True
                break
        if not repeated:
            positions[at + taken] = start + t
            taken += 1
    while taken < k:
        # Exact scan: the remaining weights, in list order, without those already taken.
        left: float = 0.0
        for e in range(n):
            w = np.float64(weight_at(weight, start + e))
            for q in range(taken):
                if positions[at + q] == start + e:
                    w = np.float64(0.0)
                    break
            left += float(w)
        if not left > 0.0:
            break
        draw += _ONE
        u = np.float64(mix(node_key + draw * GOLDEN) >> _S11) * _TO_UNIT * left
        chosen = -1
        running: float = 0.0
        for e in range(n):
            w = np.float64(weight_at(weight, start + e))
            for q in range(taken):
                if positions[at + q] == start + e:
                    w = np.float64(0.0)
                    break
            if w > 0.0:
                chosen = e
                running += float(w)
                if running > u:
                    break
        positions[at + taken] = start + chosen
        taken += 1
    return taken


@njit(inline="always")
def count_until(time, start, count, moment):  # type: ignore[no-untyped-def]
    """The number of the `count` edges from `start` on, sorted by time, that are not after a moment."""
    low, high = np.int64(0), count
    while low < high:
        middle = (low + high) >> 1
        if time[start + middle] <= moment:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def sample(  # type: ignore[no-untyped-def]
    indptr,
    records,
    indices,
    time,
    cumweight,
    weight,
    nodes,
    fanout,
    mode,
    version,
    as_of,
    since,
    key,
    offsets,
    positions,
    neighbors,
):
    """Sample every node's in-neighbours.

    Args:
        indptr, records, version: see `extent`.
        indices: int32 or int64 [E]; time: int64 [E] or [0]; cumweight: float64 [E] or [0]; weight:
            float32 [E] or [0]; or indices, cumweight and weight packed, see `edge_data.py`.
        nodes: int64 [n] destination global ids.
        fanout: neighbours to take; -1 means all.
        mode: value of MODES. as_of: NO_CUT for none. key: layer_key(...).
        since: only later edges than this; not with weights. ALWAYS for none.
        offsets: int64 [n+1], filled. positions: int64 [>= total], filled with positions in
            `indices`. neighbors: int64 [>= total], filled with source global ids.

    Returns:
        total, the number of sampled edges.
    """
    n = nodes.shape[0]
    cut = time.shape[0] > 0 and as_of != NO_CUT
    late = time.shape[0] > 0 and since != ALWAYS
    live = records.shape[0] > 0
    for i in range(min(n, _AHEAD)):
        prefetch_bounds(indptr, nodes[i])
    total, prefetched, done = 0, 0, 0
    offsets[0] = 0
    for i in range(n):
        if i + _AHEAD < n:
            prefetch_bounds(indptr, nodes[i + _AHEAD])
        v = nodes[i]
        if live and i + _AHEAD // 2 < n:
            ahead = newest(indptr, nodes[i + _AHEAD // 2])
            if ahead >= 0:
                prefetch(records, ahead * NUM_COLUMNS)
        start, end = extent(indptr, records, version, v)
        degree = end - start
        if cut:
            degree = count_until(time, start, degree, as_of)
        if late:
            early = count_until(time, start, degree, since)
            start, degree = start + early, degree - early
        if fanout < 0 or degree <= fanout:
            for j in range(degree):
                positions[total + j] = start + j
            if degree > 0:
                touch(indices, start)
            total += degree
        elif mode == 0:
            node_key = mix(U64(v) * GOLDEN + key)
            for j in range(fanout):
                last = degree - fanout + j
                h = mix(node_key + U64(j + 1) * GOLDEN) >> _S32
                t = start + np.int64((h * U64(last + 1)) >> _S32)
                for q in range(total, total + j):
                    if positions[q] == t:
                        t = start + last
                        break
                positions[total + j] = t
                touch(indices, t)
            total += fanout
        elif mode == 1:
            for j in range(fanout):
                positions[total + j] = start + degree - fanout + j
            if fanout > 0:
                touch(indices, start + degree - fanout)
            total += fanout
        else:
            node_key = mix(U64(v) * GOLDEN + key)
            total += _sample_weighted(cumweight, weight, start, degree, fanout, node_key, positions, total)
        offsets[i + 1] = total
        prefetched, done = follow(indices, positions, total, prefetched, done, neighbors)
    finish(indices, positions, total, prefetched, done, neighbors)
    return total


@njit(nogil=True, cache=True)
def count_edges(indptr, records, version, nodes, cap):  # type: ignore[no-untyped-def]
    """Upper bound of the edges that `sample` returns for these nodes; cap -1 means no cap."""
    total = 0
    for node in nodes:
        start, end = extent(indptr, records, version, node)
        total += end - start if cap < 0 else min(end - start, cap)
    return total


#: Of fanouts above this, the degrees are counted: room for all of a large fanout may not exist.
FEW = 64
#: Of a block whose edges lie in the process.
NO_COLUMNS: Mapping[str, AnyArray] = MappingProxyType({})
#: Entries that a reused array retains after a large batch: 8 MiB of ids.
KEPT_ROWS = 1 << 20


def roomy(count: int) -> int:
    """Entries of a new array that must hold `count`: with spare room for a larger batch, unless huge."""
    return 2 * count if 2 * count <= KEPT_ROWS else count


class BlockBuffers:
    """Reusable arrays for one block; grown on demand, and shrunk by `shrink`."""

    __slots__ = ("neighbors", "offsets", "positions")

    def __init__(self) -> None:
        self.offsets = np.empty(65, np.int64)
        self.neighbors = np.empty(1024, np.int64)
        self.positions = np.empty(1024, np.int64)

    def reserve(self, num_nodes: int, num_edges: int) -> None:
        """Make room for `num_nodes` destinations and `num_edges` edges."""
        if num_nodes + 1 > self.offsets.shape[0]:
            self.offsets = np.empty(2 * num_nodes + 1, np.int64)
        if num_edges > self.neighbors.shape[0]:
            room = roomy(num_edges)
            self.neighbors = np.empty(room, np.int64)
            self.positions = np.empty(room, np.int64)

    def shrink(self) -> None:
        """Release memory that only the largest batches need."""
        if max(self.neighbors.shape[0], self.offsets.shape[0]) > KEPT_ROWS:
            self.__init__()  # type: ignore[misc]


class Block:
    """One layer's sampled edges of one edge type, destinations in the order requested.

    Attributes:
        offsets: int64 [n+1]; edges of destination i are [offsets[i], offsets[i+1]).
        num_edges: sampled edges.
        neighbors: int64 [num_edges] source global ids.
        positions: int64 [num_edges] positions in the snapshot's edge arrays.
        columns: edge data that were read from a graph store, by name; {} where they lie in the process.
    """

    __slots__ = ("_buffers", "columns", "num_edges", "offsets")

    def __init__(self, buffers: BlockBuffers, num_nodes: int, num_edges: int) -> None:
        self._buffers = buffers
        self.columns: Mapping[str, AnyArray] = NO_COLUMNS
        self.num_edges = num_edges
        self.offsets = buffers.offsets[: num_nodes + 1]

    @property
    def neighbors(self) -> IdArray:
        """A view, created on demand."""
        return self._buffers.neighbors[: self.num_edges]

    @property
    def positions(self) -> IdArray:
        """A view, created on demand: most stages read no edge data."""
        return self._buffers.positions[: self.num_edges]


class Sampler:
    """Samples one edge type at one layer.

    Args:
        adjacency: the edge type's in-neighbour lists.
        fanout: neighbours for each node; -1 means all.
        mode: "uniform", "recent" (needs edge times) or "weighted" (needs edge weights, all >= 0).
        key: from `layer_key`.
        max_degree: hard cap for fanout -1 and above; None means no cap.
        window: only edges whose time is less than this before that of the cut; None means no window.
        now: the time of samples without a cut.

    Attributes:
        packed: the lists are compressed.
        starts: int64 [N + 1], where each node's list begins; None if no plain array holds these offsets.
        is_stored: the edges lie in a graph store: `sample` chooses positions and leaves neighbours unset.

    Raises:
        ArtifactError: the mode needs times or weights that the adjacency lacks, or weights that cannot be
            negative.
    """

    def __init__(
        self,
        adjacency: Adjacency | LiveAdjacency,
        fanout: int,
        mode: str,
        key: np.uint64,
        max_degree: int | None = None,
        window: int | None = None,
        now: int = 0,
    ) -> None:
        if mode not in MODES:
            raise ArtifactError(f"sampling mode is {mode!r}; it must be one of {', '.join(MODES)}")
        if mode == "recent" and adjacency.time is None:
            raise ArtifactError(f"sampling 'recent' needs edge times, which {adjacency.key} lacks")
        if mode == "weighted" and adjacency.cumweight is None:
            raise ArtifactError(f"sampling 'weighted' needs edge weights, which {adjacency.key} lacks")
        self.is_stored = isinstance(adjacency.indices, StoreIds)
        if self.is_stored and mode == "weighted":
            raise ArtifactError(
                f"sampling 'weighted' needs the running sums of {adjacency.key} in memory, and its edges "
                "lie in a graph store; package the model with sampling 'uniform' or 'recent'"
            )
        if mode == "weighted" and adjacency.signed_weight:
            raise ArtifactError(
                f"sampling 'weighted' needs weights >= 0; those of {adjacency.key} may be negative"
            )
        if window is not None and (adjacency.time is None or mode == "weighted" or self.is_stored):
            raise ArtifactError(f"a window of {adjacency.key} needs times in memory, and no weights")
        self.window, self._now = window, now
        if max_degree is not None:
            fanout = max_degree if fanout < 0 else min(fanout, max_degree)
        self.adjacency = adjacency
        self.fanout = fanout
        self.mode = mode
        self.key = key
        self._mode = MODES[mode]
        self._indptr = frozen(adjacency.indptr)
        self._records = frozen(adjacency.records)
        self.clock = adjacency.clock
        self.packed = not isinstance(adjacency.indices, np.ndarray)
        has_starts = isinstance(self._indptr, np.ndarray) and not self._records.shape[0]
        self.starts: IdArray | None = self._indptr if has_starts else None
        # Without weights, packed arrays have the same types as with weights: fewer variants to compile.
        no_weight = _NO_PACKED_WEIGHTS if self.packed else np.empty(0, np.float32)
        no_sums = _NO_PACKED_WEIGHTS if self.packed else np.empty(0, np.float64)
        self._arrays = (
            self._indptr,
            self._records,
            frozen(adjacency.indices),
            frozen(np.empty(0, np.int64) if self.is_stored or adjacency.time is None else adjacency.time),
            no_sums if adjacency.cumweight is None or self.is_stored else frozen(adjacency.cumweight),
            no_weight if adjacency.weight is None or self.is_stored else frozen(adjacency.weight),
        )

    @property
    def arrays(self) -> tuple[Any, ...]:
        """(indptr, records, indices, time, cumweight, weight, fanout, mode): arguments of `sample`."""
        return (*self._arrays, self.fanout, self._mode)

    def bound(self, nodes: IdArray) -> int:
        """Upper bound of the edges that sampling `nodes` (int64 [n]) returns."""
        if 0 <= self.fanout <= FEW:
            return int(nodes.shape[0]) * self.fanout
        if (
            self.fanout < 0 and self.starts is not None and nodes.shape[0] == 1
        ):  # half the time of the kernel
            node = nodes.item()
            return int(self.starts.item(node + 1) - self.starts.item(node))
        return int(count_edges(self._indptr, self._records, self.clock.version, nodes, self.fanout))

    def sample(
        self, nodes: IdArray, buffers: BlockBuffers, as_of: int = NO_CUT, bound: int | None = None
    ) -> Block:
        """Sample the in-neighbours of `nodes`.

        Args:
            nodes: int64 [n], each in [0, number of destination nodes); not checked.
            buffers: where the block's arrays live; valid until their next use.
            as_of: only edges with time <= as_of; no effect on edge types without times.
            bound: result of `bound`, if the caller has it.

        Raises: BadRequest: a time cut, where the edges lie in a graph store.
        """
        if self.is_stored and as_of != NO_CUT and self.adjacency.time is not None:
            raise BadRequest(TIMES_IN_STORE)
        num_nodes = nodes.shape[0]
        num_edges = self.bound(nodes) if bound is None else bound
        if num_nodes >= buffers.offsets.shape[0] or num_edges > buffers.neighbors.shape[0]:
            buffers.reserve(num_nodes, num_edges)
        now = self._now if as_of == NO_CUT else as_of
        since = ALWAYS if self.window is None else max(now - self.window, ALWAYS)
        how = self.fanout, self._mode, self.clock.version, as_of, since, self.key
        out = buffers.offsets, buffers.positions, buffers.neighbors
        total = sample(*self._arrays, nodes, *how, *out)
        return Block(buffers, num_nodes, total)


#: Packed weights in the form that kernels read, see `edge_data.py`.
_NO_PACKED_WEIGHTS = (0, 0, 0.0, 0)


def frozen(array: Any) -> Any:
    """A read-only base-class view; for packed edges, the form that kernels read.

    Numba compiles separately for writable arrays and leaves its fast dispatch path for np.memmap. One
    form for arrays in memory and mapped arrays avoids both.
    """
    if hasattr(array, "kernel"):
        return array.kernel
    view: NDArray[np.generic] = np.asarray(array).view()
    view.flags.writeable = False
    return view
