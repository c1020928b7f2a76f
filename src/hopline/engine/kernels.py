"""Row kernels of the engine: gather, gather-and-reduce, dedupe, number edges.

All release the GIL, allocate nothing and write into the caller's buffers. Inner loops run over slices
(not computed indices): Numba's check for negative indices would keep LLVM from vectorising them.
Input is float32, or narrow rows (`narrow_kernels.Narrow`), which are decoded as they are read.
"""

from __future__ import annotations

import numpy as np

from hopline.engine.narrow_kernels import decoder_of, stored_in, value_at
from hopline.graph.edge_data import has_weights, id_at, weight_at, weight_up_to
from hopline.graph.extent import extent
from hopline.kernels.intrinsics import LINE_BYTES, prefetch
from hopline.kernels.jit import njit
from hopline.sampling.keyed import count_until

#: Minimum number of rows between prefetching a row and reading it; measured flat from 4 to 16 for rows of 8
#: cache lines (log/). Of shorter rows more are prefetched, so that as many lines are in flight.
_AHEAD = 6
_LINES_AHEAD = 48


@njit(inline="always")
def _in_lines(matrix):  # type: ignore[no-untyped-def]
    """The matrix [N, d] as [N d], d, lines of the cache in a row, columns in a line, rows to prefetch."""
    width = matrix.shape[1]
    per_line = LINE_BYTES // matrix.itemsize
    lines = (width + per_line - 1) // per_line
    ahead = max(_AHEAD, _LINES_AHEAD // max(lines, 1))
    return matrix.reshape(-1), width, lines, per_line, ahead


@njit(inline="always")
def _prefetch_row(flat, row, width, lines, per_line):  # type: ignore[no-untyped-def]
    first = row * width
    for line in range(lines):
        prefetch(flat, first + line * per_line)


@njit(nogil=True, cache=True)
def gather(base, rows, column, w, out, out_column):  # type: ignore[no-untyped-def]
    """Copy rows: out[i, out_column:][:w] = base[rows[i], column:][:w].

    Args:
        base: float32 or narrow [N, d]. rows: int64 [n]. out: float32 [>= n, D]. Both C-contiguous.
    """
    n = rows.shape[0]
    matrix, decoder = stored_in(base), decoder_of(base, column, w)
    flat, width, lines, per_line, ahead = _in_lines(matrix)
    for i in range(min(n, ahead)):
        _prefetch_row(flat, rows[i], width, lines, per_line)
    for i in range(n):
        if i + ahead < n:
            _prefetch_row(flat, rows[i + ahead], width, lines, per_line)
        source = matrix[rows[i], column : column + w]
        target = out[i, out_column : out_column + w]
        for c in range(w):
            target[c] = value_at(source, decoder, c)


@njit(nogil=True, cache=True)
def reduce_sum(base, rows, offsets, coefficients, mean, column, w, out, out_column):  # type: ignore[no-untyped-def]
    """Sum rows: out[i, out_column:][:w] = sum of coefficient_e * base[rows[e], column:][:w] over the
    edges e in [offsets[i], offsets[i+1]).

    Args:
        base: float32 or narrow [N, d]. rows: int64 [E], indexed by e. offsets: int64 [n+1].
        coefficients: float32 [>= last offset], or [0] for all ones.
        mean: divide by the number of rows (at least 1).
        out: float32 [>= n, D].
    """
    n = offsets.shape[0] - 1
    matrix, decoder = stored_in(base), decoder_of(base, column, w)
    flat, width, lines, per_line, ahead = _in_lines(matrix)
    end = offsets[n]
    weighted = coefficients.shape[0] > 0
    for e in range(offsets[0], min(end, offsets[0] + ahead)):
        _prefetch_row(flat, rows[e], width, lines, per_line)
    for i in range(n):
        target = out[i, out_column : out_column + w]
        for c in range(w):
            target[c] = np.float32(0.0)
        for e in range(offsets[i], offsets[i + 1]):
            if e + ahead < end:
                _prefetch_row(flat, rows[e + ahead], width, lines, per_line)
            source = matrix[rows[e], column : column + w]
            if weighted:
                k = coefficients[e]
                for c in range(w):
                    target[c] += k * value_at(source, decoder, c)
            else:
                for c in range(w):
                    target[c] += value_at(source, decoder, c)
        if mean:
            count = offsets[i + 1] - offsets[i]
            if count > 1:
                k = np.float32(1.0) / np.float32(count)
                for c in range(w):
                    target[c] *= k


@njit(nogil=True, cache=True)
def gather_reduce(  # type: ignore[no-untyped-def]
    own, own_rows, own_column, own_w, own_out, own_place, base, rows, offsets, mean, column, w, out, place
):
    """`gather` of own rows and unweighted `reduce_sum` of neighbours in one call.

    Arguments as in those functions. Most stages read exactly these two. For a single request, calling a
    kernel costs as much as its work.
    """
    gather(own, own_rows[: offsets.shape[0] - 1], own_column, own_w, own_out, own_place)
    reduce_sum(base, rows, offsets, np.empty(0, np.float32), mean, column, w, out, place)


@njit(nogil=True, cache=True)
def reduce_max(base, rows, offsets, column, w, out, out_column):  # type: ignore[no-untyped-def]
    """Elementwise maximum instead of `reduce_sum`'s sum; NaN is the maximum, 0 that of no neighbour."""
    n = offsets.shape[0] - 1
    matrix, decoder = stored_in(base), decoder_of(base, column, w)
    flat, width, lines, per_line, ahead = _in_lines(matrix)
    end = offsets[n]
    for i in range(n):
        target = out[i, out_column : out_column + w]
        first = offsets[i]
        if first == offsets[i + 1]:
            for c in range(w):
                target[c] = np.float32(0.0)
            continue
        source = matrix[rows[first], column : column + w]
        for c in range(w):
            target[c] = value_at(source, decoder, c)
        for e in range(first + 1, offsets[i + 1]):
            if e + ahead < end:
                _prefetch_row(flat, rows[e + ahead], width, lines, per_line)
            source = matrix[rows[e], column : column + w]
            for c in range(w):
                value = value_at(source, decoder, c)
                target[c] = value if value > target[c] or value != value else target[c]


@njit(nogil=True, cache=True)
def add_scaled(base, rows, scale, column, w, out, out_column):  # type: ignore[no-untyped-def]
    """out[i, out_column:][:w] += scale[i] * base[rows[i], column:][:w]; scale: float32 [n]."""
    matrix, decoder = stored_in(base), decoder_of(base, column, w)
    for i in range(rows.shape[0]):
        source = matrix[rows[i], column : column + w]
        target = out[i, out_column : out_column + w]
        k = scale[i]
        for c in range(w):
            target[c] += k * value_at(source, decoder, c)


@njit(nogil=True, cache=True)
def reduce_oldest(raw, own, own_rows, base, rows, offsets, out):  # type: ignore[no-untyped-def]
    """out[i] = the oldest of raw[i], own[own_rows[i]], and base[rows[e]] of its edges e; inf for none.

    Float64 stamps; raw, own and base may be [0].
    """
    for i in range(out.shape[0]):
        oldest = raw[i] if raw.shape[0] else np.inf
        if own.shape[0]:
            oldest = min(oldest, own[own_rows[i]])
        for e in range(offsets[i], offsets[i + 1] if base.shape[0] else offsets[i]):
            oldest = min(oldest, base[rows[e]])
        out[i] = oldest


@njit(nogil=True, cache=True)
def take(values, rows, out):  # type: ignore[no-untyped-def]
    """out[i] = values[rows[i]], for one-dimensional arrays."""
    for i in range(rows.shape[0]):
        out[i] = values[rows[i]]


@njit(nogil=True, cache=True)
def weighted_degrees(  # type: ignore[no-untyped-def]
    indptr,
    records,
    indices,
    version,
    time,
    nodes,
    as_of,
    cumweight,
    weight,
    skip_loops,
    add_loops,
    known,
    out,
):
    """Sum of the weights (1 without weights) of each node's in-edges no later than `as_of`.

    Args:
        indptr, records, version: see `extent`.
        time: int64 [E] or [0]; cumweight: float64 [E] or [0]; weight: float32 [E] or [0].
        skip_loops: leave self-loops out, which costs a scan of the whole list.
        add_loops: add one self-loop, of the weight of the last one that was left out, else of 1.
        known: float32 [N], results of earlier calls with these arguments, 0 where there is none; or [0].
        out: float32 [n].
    """
    for i in range(nodes.shape[0]):
        v = nodes[i]
        if known.shape[0] > 0 and known[v] != 0:
            out[i] = known[v]
            continue
        start, end = extent(indptr, records, version, v)
        if time.shape[0] > 0:
            end = start + count_until(time, start, end - start, as_of)
        loop = np.float32(1.0)
        if skip_loops:
            total = 0.0
            for e in range(start, end):
                if id_at(indices, e) != v:
                    total += weight_at(weight, e) if has_weights(weight) else 1.0
                elif has_weights(weight):
                    loop = np.float32(weight_at(weight, e))
        elif end == start:
            total = 0.0
        elif has_weights(cumweight):
            total = weight_up_to(cumweight, start, end - 1)
        else:
            total = np.float64(end - start)
        degree = np.float32(total)
        if add_loops:
            degree = np.float32(degree + loop)
        out[i] = degree
        if known.shape[0] > 0:
            known[v] = degree


@njit(nogil=True, cache=True)
def self_loops(neighbors, nodes, offsets, out):  # type: ignore[no-untyped-def]
    """out[e] = whether the neighbour of edge e is its own destination.

    Args:
        neighbors: int64 [E] ids. nodes: int64 [n] ids of destinations. offsets: int64 [n + 1].
        out: bool [E].
    """
    for i in range(nodes.shape[0]):
        for e in range(offsets[i], offsets[i + 1]):
            out[e] = neighbors[e] == nodes[i]


@njit(nogil=True, cache=True)
def loop_weights(indptr, records, indices, version, time, nodes, as_of, weight, out):  # type: ignore[no-untyped-def]
    """out[i] = weight of the last self-loop of nodes[i] no later than `as_of`, 1 for nodes without one.

    Scans the lists. Arguments as for `weighted_degrees`.
    """
    for i in range(nodes.shape[0]):
        v = nodes[i]
        out[i] = np.float32(1.0)
        start, end = extent(indptr, records, version, v)
        for e in range(start, end):
            if id_at(indices, e) == v and (time.shape[0] == 0 or time[e] <= as_of):
                out[i] = weight_at(weight, e)


@njit(nogil=True, cache=True)
def gcn_coefficients(  # type: ignore[no-untyped-def]
    add_loops, is_self, offsets, weight, degree, degree_neighbor, num_eligible, loop_weight, out, out_self
):
    """Coefficients of Kipf & Welling's normalised adjacency for sampled edges.

    Args:
        add_loops: every node gets a self-loop, which replaces its existing ones.
        is_self: bool [E], true for self-loops; read only with `add_loops`.
        offsets: int64 [n+1]. weight: float32 [E] or [0].
        degree: float32 [n] and degree_neighbor: float32 [E], with the added self-loop's weight.
        num_eligible: int64 [n], in-edges before sampling. loop_weight: float32 [n] or [0] for ones.
        out: float32 [E]. out_self: float32 [n].
    """
    for i in range(offsets.shape[0] - 1):
        count = offsets[i + 1] - offsets[i]
        # Unbiased under sampling: each sampled edge represents num_eligible / count edges.
        scale = np.float32(num_eligible[i]) / np.float32(count) if count > 0 else np.float32(0.0)
        # NaN for a negative degree, as in PyG: it has no real root.
        own = np.float32(1.0) / np.sqrt(degree[i]) if degree[i] != 0 else np.float32(0.0)
        for e in range(offsets[i], offsets[i + 1]):
            other = degree_neighbor[e]
            k = scale * own / np.sqrt(other) if other != 0 else own * np.float32(0.0)
            if weight.shape[0] > 0:
                k *= weight[e]
            if add_loops and is_self[e]:
                k = np.float32(0.0)
            out[e] = k
        if add_loops:
            out_self[i] = own * own * (loop_weight[i] if loop_weight.shape[0] > 0 else np.float32(1.0))
        else:
            out_self[i] = np.float32(0.0)


@njit(nogil=True, cache=True)
def gcn_edges(  # type: ignore[no-untyped-def]
    indptr, records, indices, version, time, as_of, cumweight, weight, skip_loops, add_loops, known,
    no_cumweight, no_weight, nodes, neighbors, offsets, edge_weight, loop_weight,
    is_self, num_eligible, out, out_self,
):  # fmt: skip
    """`self_loops`, `weighted_degrees` of both ends, and `gcn_coefficients` of sampled edges, in one call.

    Args:
        no_cumweight, no_weight: as cumweight and weight, for no weights.
        is_self: bool [E] and num_eligible: int64 [n], filled too. The others are those of the functions.
    """
    n = nodes.shape[0]
    count, degree = np.empty(n, np.float32), np.empty(n, np.float32)
    others = np.empty(neighbors.shape[0], np.float32)
    lists = indptr, records, indices, version, time
    weighted_degrees(*lists, nodes, as_of, no_cumweight, no_weight, False, False, known[:0], count)
    for i in range(n):
        num_eligible[i] = np.int64(count[i])
    how = as_of, cumweight, weight, skip_loops, add_loops, known
    weighted_degrees(*lists, nodes, *how, degree)
    weighted_degrees(*lists, neighbors, *how, others)
    self_loops(neighbors, nodes, offsets, is_self)
    gcn_coefficients(
        add_loops, is_self, offsets, edge_weight, degree, others, num_eligible, loop_weight, out, out_self
    )


_HASH = np.uint64(0x9E3779B97F4A7C15)


@njit(nogil=True, cache=True)
def intern(first, second, clear, shift, keys, values, distinct, count, rows):  # type: ignore[no-untyped-def]
    """Number distinct ids in order of first occurrence.

    Args:
        first, second: int64 [a] and [n - a], >= 0, numbered in this order. (Two arrays, since the usual
            call has two and each call of a kernel costs as much as numbering a hundred ids.)
        clear: forget ids from earlier calls.
        shift: 64 - log2 of the hash capacity, which must exceed the number of distinct ids.
        keys: int64 [>= capacity]; values: int32 [>= capacity]: the hash, open addressing.
        distinct: int64 [>= total distinct], appended to from `count` on.
        rows: int64 [n], filled: distinct[rows[i]] is the i-th id.

    Returns: the new number of distinct ids.
    """
    capacity = np.int64(1) << (np.int64(64) - np.int64(shift))
    mask = capacity - 1
    if clear:
        for s in range(capacity):
            keys[s] = -1
    split = first.shape[0]
    for i in range(split + second.shape[0]):
        v = first[i] if i < split else second[i - split]
        slot = np.int64((np.uint64(v) * _HASH) >> np.uint64(shift))
        while True:
            k = keys[slot]
            if k == v:
                rows[i] = values[slot]
                break
            if k == -1:
                keys[slot] = v
                values[slot] = count
                distinct[count] = v
                rows[i] = count
                count += 1
                break
            slot = (slot + 1) & mask
    return count


@njit(nogil=True, cache=True)
def list_owners(offsets, beyond, owners):  # type: ignore[no-untyped-def]
    """Fill owners, int64 [>= edges], with the number of each edge's destination, from 0 on; then `beyond`.

    Args:
        offsets: int64 [n+1] of the edges.
    """
    count = 0
    for i in range(offsets.shape[0] - 1):
        for _ in range(offsets[i], offsets[i + 1]):
            owners[count] = i
            count += 1
    for k in range(count, owners.shape[0]):
        owners[k] = beyond
