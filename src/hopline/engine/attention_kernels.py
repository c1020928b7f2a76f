"""Attention of each node over its sampled in-neighbours, in one pass: scores, softmax, weighted sum.

`artifact.py` has the formulas. The softmax is the online one (Milakov & Gimelshein, arXiv 1805.02867): each
row is read once, and a new highest score rescales what has been summed so far. All sums have a fixed order
in the source (keys elementwise, then eight running sums), so that no compiler reorders them: a row's
bits depend on its own neighbours only. `tests/engine/attention_reference.py` states the same in NumPy.
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
    return 3 * heads + heads * channels + num_attr


# Dot keys may be summed in any order (`reassoc`), so that the compiler uses vectors. Each is one function
# of its two or three arrays, compiled once: a row's bits do not depend on the call that it is part of.
@njit(nogil=True, cache=True, fastmath={"reassoc"})
def _leaky_dot(keys, query, vector, slope):  # type: ignore[no-untyped-def]
    total = np.float32(0.0)
    for c in range(keys.shape[0]):
        z = keys[c] + query[c]
        total += (z if z > np.float32(0.0) else slope * z) * vector[c]
    return total


@njit(nogil=True, cache=True, fastmath={"reassoc"})
def _dot(left, right):  # type: ignore[no-untyped-def]
    total = np.float32(0.0)
    for c in range(left.shape[0]):
        total += left[c] * right[c]
    return total


@njit(nogil=True, cache=True)
def _add_scaled(target, values, scale, weight):  # type: ignore[no-untyped-def]
    """target = target * scale + weight * values; most often, scale is 1."""
    if scale == np.float32(1.0):
        for c in range(target.shape[0]):
            target[c] += weight * values[c]
    else:
        for c in range(target.shape[0]):
            target[c] = target[c] * scale + weight * values[c]


@njit(nogil=True, cache=True)
def attend(  # type: ignore[no-untyped-def]
    kind, heads, channels, slope, loops, fill, vector, edge, fill_row,
    base, rows, offsets, column, own, own_rows, query, query_rows, query_column, query_width,
    is_self, attr, scratch, out, place,
):  # fmt: skip
    """out[i, place:] = attention of destination i over the edges e in [offsets[i], offsets[i+1]).

    Args:
        kind: of `KINDS`. fill: of `FILLS`. The other parameters are those of `artifact.Attention`: vector
            float32 [H C] or [0], edge float32 [d_e, H] or [d_e, H C] or [0, 0], fill_row float32 [d_e].
        base: float32 [N, d]; row rows[e], from `column` on, is what edge e reads.
        rows: int64 [E]. offsets: int64 [n+1].
        own: float32 [M, d]; row own_rows[i] is that of destination i itself. Read with `loops` only.
        query: float32 [K, q]; row query_rows[i], columns [query_column, query_column + query_width).
        is_self: bool [E], or [0]: an edge whose row is own_rows[i] is then a self-loop.
        attr: float32 [E, d_e] or [0, 0].
        scratch: float32 [scratch_size(...)]. out: float32 [>= n, D].
    """
    n = offsets.shape[0] - 1
    width = heads * channels
    num_attr = attr.shape[1]
    reads, first_value, num_extra = width, 0, 0
    if kind == 0:
        reads += heads
    elif kind == 2:
        reads, first_value, num_extra = 2 * width, width, num_attr
    total = width + heads * num_extra
    top, norm, scores = scratch[:heads], scratch[heads : 2 * heads], scratch[2 * heads : 3 * heads]
    scratch_keys = scratch[3 * heads : 3 * heads + width]
    of_loop = scratch[3 * heads + width : 3 * heads + width + num_attr]
    flagged = is_self.shape[0] > 0
    dim = base.shape[1]
    flat = base.reshape(-1)
    per_line = LINE_BYTES // 4
    lines = (reads + per_line - 1) // per_line + 1
    ahead = max(2, _LINES_AHEAD // lines)
    end = offsets[n]
    for e in range(offsets[0], min(end, offsets[0] + ahead)):
        for line in range(lines):
            prefetch(flat, rows[e] * dim + column + line * per_line)
    for i in range(n):
        target = out[i, place : place + total]
        for c in range(total):
            target[c] = np.float32(0.0)
        for h in range(heads):
            top[h] = -np.inf
            norm[h] = np.float32(0.0)
        for k in range(num_attr):
            of_loop[k] = np.float32(0.0)
        mine = query[query_rows[i], query_column : query_column + query_width]
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
                count += 1
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
            # One branch for each kind, not a function: passing so many arrays costs more than the sums.
            if kind == 0:
                for h in range(heads):
                    score = row[width + h]
                    if query_width > 0:
                        score += mine[h]
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
                        _add_scaled(scratch_keys, edge[k], np.float32(1.0), data[k])
                for h in range(heads):
                    a, b = h * channels, (h + 1) * channels
                    scores[h] = _leaky_dot(keys[a:b], mine[a:b], vector[a:b], slope)
            else:
                for h in range(heads):
                    a, b = h * channels, (h + 1) * channels
                    scores[h] = _dot(row[a:b], mine[a:b])
                    if num_attr > 0:
                        a, b = width + h * num_attr, width + (h + 1) * num_attr
                        scores[h] += _dot(data, mine[a:b])
            for h in range(heads):
                score = scores[h]
                if score > top[h]:
                    scale, weight = np.exp(top[h] - score), np.float32(1.0)
                    top[h] = score
                else:
                    scale, weight = np.float32(1.0), np.exp(score - top[h])
                norm[h] = norm[h] * scale + weight
                a, b = h * channels, (h + 1) * channels
                _add_scaled(target[a:b], row[first_value + a : first_value + b], scale, weight)
                if num_extra > 0:
                    a, b = width + h * num_extra, width + (h + 1) * num_extra
                    _add_scaled(target[a:b], data, scale, weight)
        for h in range(heads):
            # The highest score has weight 1: only a node without neighbours has a sum of 0.
            if norm[h] != np.float32(0.0):
                k = np.float32(1.0) / norm[h]
                part = target[h * channels : (h + 1) * channels]
                for c in range(channels):
                    part[c] *= k
                if num_extra > 0:
                    extra = target[width + h * num_extra : width + (h + 1) * num_extra]
                    for c in range(num_extra):
                        extra[c] *= k
