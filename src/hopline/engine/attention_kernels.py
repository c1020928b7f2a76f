"""Attention of each node over its sampled in-neighbours: scores, softmax, weighted sum.

`artifact.py` has the formulas. Rows are read from memory for the scores, and from the CPU's cache for the
sum. A row's bits depend on its own neighbours only: nothing is summed over the nodes of a call.
`tests/engine/attention_reference.py` states the same in NumPy.
"""

from __future__ import annotations

import numpy as np

from hopline.kernels.intrinsics import LINE_BYTES, prefetch
from hopline.kernels.jit import njit

GAT, GATV2, TRANSFORMER = 0, 1, 2
KINDS = {"gat": GAT, "gatv2": GATV2, "transformer": TRANSFORMER}
FILLS = {"row": 0, "mean": 1, "sum": 2}
#: Lines of neighbours' rows in flight, as in `kernels.py`.
_LINES_AHEAD = 48


def scratch_size(heads: int, channels: int, num_attr: int) -> int:
    """Entries of the `scratch` array of `attend`."""
    return heads + num_attr + heads * channels


# Indices are unsigned. Numba adds a check for negative values to signed ones, with which LLVM uses no
# vectors, and slices of a head's columns cost 30 ns for each edge of four heads. Dot products may be summed
# in any order (`reassoc`), so that the compiler uses vectors. Each is one function, compiled once: a row's
# bits do not depend on the call that it is part of.
@njit(nogil=True, cache=True, fastmath={"reassoc"})
def _leaky_dot(keys, query, vector, first, channels, slope):  # type: ignore[no-untyped-def]
    total = np.float32(0.0)
    for c in range(first, first + channels):
        z = keys[c] + query[c]
        total += (z if z > np.float32(0.0) else slope * z) * vector[c]
    return total


@njit(nogil=True, cache=True, fastmath={"reassoc"})
def _dot(left, first_left, right, first_right, count):  # type: ignore[no-untyped-def]
    total = np.float32(0.0)
    for c in range(count):
        total += left[first_left + c] * right[first_right + c]
    return total


@njit(nogil=True, cache=True)
def attend(  # type: ignore[no-untyped-def]
    kind, shared, heads, channels, slope, loops, fill, vector, own_vector, edge, fill_row,
    base, rows, offsets, column, own, own_rows, query, query_rows, query_column, query_width,
    is_self, attr, scratch, out, place,
):  # fmt: skip
    """out[i, place:] = attention of destination i over the edges e in [offsets[i], offsets[i+1]).

    Args:
        kind: of `KINDS`. fill: of `FILLS`. The other parameters are those of `artifact.Attention`: vector
            float32 [H C] or [0], own_vector float32 [H, q] or [0, 0], edge float32 [d_e, H] or [d_e, H C]
            or [0, 0], fill_row float32 [d_e].
        base: float32 [N, d]; row rows[e], from `column` on, is what edge e reads.
        rows: int64 [E]. offsets: int64 [n+1].
        own: float32 [M, d]; row own_rows[i] is that of destination i itself. Read with `loops` only.
        query: float32 [K, q]; row query_rows[i], columns [query_column, query_column + query_width).
        is_self: bool [E], or [0]: an edge whose row is own_rows[i] is then a self-loop.
        attr: float32 [E, d_e] or [0, 0].
        scratch: float32 [scratch_size(...)]. out: float32 [>= n, D].
    """
    unsigned, none = np.uint64, np.uint64(0)
    n = offsets.shape[0] - 1
    width = heads * channels
    num_attr = attr.shape[1]
    # Head h reads a row's columns from h * step on.
    step, reads, first_value, num_extra = channels, width, 0, 0
    if kind == 0:
        reads += heads
    elif kind == 2:
        reads, first_value, num_extra = 2 * width, width, num_attr
    if shared:
        step, reads, first_value = 0, channels, 0
    total = width + heads * num_extra
    of_own, of_loop = scratch[:heads], scratch[heads : heads + num_attr]
    scratch_keys = scratch[heads + num_attr : heads + num_attr + width]
    flagged = is_self.shape[0] > 0
    dim = base.shape[1]
    flat = base.reshape(-1)
    per_line = LINE_BYTES // 4
    lines = (reads + per_line - 1) // per_line + 1
    ahead = max(2, _LINES_AHEAD // lines)
    end, most = offsets[n], 0
    for i in range(n):
        most = max(most, offsets[i + 1] - offsets[i])
    weights, kept = np.empty((most + 1, heads), np.float32), np.empty(most + 1, np.int64)
    for e in range(offsets[0], min(end, offsets[0] + ahead)):
        for line in range(lines):
            prefetch(flat, rows[e] * dim + column + line * per_line)
    for i in range(n):
        target = out[i, place : place + total]
        for c in range(total):
            target[c] = np.float32(0.0)
        for k in range(num_attr):
            of_loop[k] = np.float32(0.0)
        mine = query[query_rows[i], query_column : query_column + query_width]
        if kind == 0:
            for h in range(heads):
                if shared and query_width > 0:
                    of_own[h] = _dot(mine, none, own_vector[h], none, unsigned(query_width))
                else:
                    of_own[h] = mine[h] if query_width > 0 else np.float32(0.0)
        me, last = own_rows[i], offsets[i + 1]
        count = 0
        for e in range(offsets[i], last + 1 if loops else last):
            if e < last:
                r = rows[e]
                if e + ahead < end:
                    for line in range(lines):
                        prefetch(flat, rows[e + ahead] * dim + column + line * per_line)
                if loops and (is_self[e] if flagged else r == me):
                    continue
                row, data = base[r, column : column + reads], attr[e]
                if loops:
                    for k in range(num_attr):
                        of_loop[k] += data[k]
            else:  # the added self-loop
                row, data = own[me, column : column + reads], of_loop
                if fill == 0:
                    for k in range(num_attr):
                        of_loop[k] = fill_row[k]
                elif fill == 1 and count > 1:
                    for k in range(num_attr):
                        of_loop[k] /= np.float32(count)
            kept[count], scores = e, weights[count]
            count += 1
            # One branch for each kind: a function of so many arrays costs more than the sums.
            if kind == 0:
                for h in range(heads):
                    if shared:
                        score = _dot(row, none, vector, unsigned(h * channels), unsigned(channels))
                    else:
                        score = row[width + h]
                    score += of_own[h]
                    for k in range(num_attr):
                        score += data[k] * edge[k, h]
                    scores[h] = score if score > np.float32(0.0) else slope * score
            elif kind == 1:
                keys = row
                if num_attr > 0:
                    keys = scratch_keys
                    for c in range(width):
                        scratch_keys[c] = row[c]
                    for k in range(num_attr):
                        weight = data[k]
                        for c in range(unsigned(width)):
                            scratch_keys[c] += weight * edge[k, c]
                for h in range(heads):
                    scores[h] = _leaky_dot(
                        keys, mine, vector, unsigned(h * channels), unsigned(channels), slope
                    )
            else:
                for h in range(heads):
                    a, b = unsigned(h * step), unsigned(h * channels)
                    scores[h] = _dot(row, a, mine, b, unsigned(channels))
                    if num_attr > 0:
                        a = unsigned(width + h * num_attr)
                        scores[h] += _dot(data, none, mine, a, unsigned(num_attr))
        for h in range(heads):
            top, norm = np.float32(-np.inf), np.float32(0.0)
            for j in range(count):
                top = max(top, weights[j, h])
            for j in range(count):
                weights[j, h] = np.exp(weights[j, h] - top)
                norm += weights[j, h]
            for j in range(count):
                weights[j, h] /= norm
        for j in range(count):
            e = kept[j]
            if e < last:
                row, data = base[rows[e], column : column + reads], attr[e]
            else:
                row, data = own[me, column : column + reads], of_loop
            for h in range(heads):
                a, b = unsigned(h * channels), unsigned(first_value + h * step)
                weight = weights[j, h]
                for c in range(unsigned(channels)):
                    target[a + c] += weight * row[b + c]
                if num_extra > 0:
                    a = unsigned(width + h * num_extra)
                    for c in range(unsigned(num_extra)):
                        target[a + c] += weight * data[c]
