"""Attention of each node over its sampled in-neighbours, in one pass: scores, softmax, weighted sum.

`artifact.py` has the formulas. The softmax is the online one (Milakov & Gimelshein, arXiv 1805.02867): each
row is read once, and a new highest score rescales what has been summed so far. All sums have a fixed order
in the source (products elementwise, then eight running sums), so that no compiler reorders them: a row's
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


@njit(nogil=True, cache=True)
def _sum(values):  # type: ignore[no-untyped-def]
    """Sum of float32 [n] in eight running sums, which do not wait for each other."""
    n = values.shape[0]
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = np.float32(0.0)
    for c in range(0, n - n % 8, 8):
        s0 += values[c]
        s1 += values[c + 1]
        s2 += values[c + 2]
        s3 += values[c + 3]
        s4 += values[c + 4]
        s5 += values[c + 5]
        s6 += values[c + 6]
        s7 += values[c + 7]
    for c in range(n - n % 8, n):
        s0 += values[c]
    return ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))


@njit(nogil=True, cache=True)
def _scores(kind, heads, channels, slope, vector, edge, row, query, attr, products, scores):  # type: ignore[no-untyped-def]
    """Scores float32 [heads] of one edge."""
    width = heads * channels
    num_attr = attr.shape[0]
    if kind == 0:  # GAT
        own = row[width : width + heads]
        for h in range(heads):
            scores[h] = own[h]
        if query.shape[0] > 0:
            for h in range(heads):
                scores[h] += query[h]
        for k in range(num_attr):
            for h in range(heads):
                scores[h] += attr[k] * edge[k, h]
        for h in range(heads):
            scores[h] = max(scores[h], np.float32(0.0)) + slope * min(scores[h], np.float32(0.0))
        return
    keys = row[:width]
    own = query[:width]
    if kind == 1:  # GATv2
        for c in range(width):
            products[c] = keys[c] + own[c]
        for k in range(num_attr):
            factor, line = attr[k], edge[k]
            for c in range(width):
                products[c] += factor * line[c]
        for c in range(width):
            z = products[c]
            products[c] = (max(z, np.float32(0.0)) + slope * min(z, np.float32(0.0))) * vector[c]
    else:  # Transformer
        for c in range(width):
            products[c] = keys[c] * own[c]
    for h in range(heads):
        scores[h] = _sum(products[h * channels : (h + 1) * channels])
    if kind == 2:
        for h in range(heads):
            of_edges = query[width + h * num_attr : width + (h + 1) * num_attr]
            for k in range(num_attr):
                scores[h] += attr[k] * of_edges[k]


@njit(nogil=True, cache=True)
def _add(kind, heads, channels, row, attr, scores, top, norm, out):  # type: ignore[no-untyped-def]
    """Add one edge's value to the running weighted sums `out`, with `top` and `norm` of each head."""
    width = heads * channels
    first = width if kind == 2 else 0
    num_attr = attr.shape[0] if kind == 2 else 0
    for h in range(heads):
        score = scores[h]
        values = row[first + h * channels : first + (h + 1) * channels]
        target = out[h * channels : (h + 1) * channels]
        extra = out[width + h * num_attr : width + (h + 1) * num_attr]
        if score > top[h]:
            k = np.exp(top[h] - score)
            top[h] = score
            norm[h] = norm[h] * k + np.float32(1.0)
            for c in range(channels):
                target[c] = target[c] * k + values[c]
            for c in range(num_attr):
                extra[c] = extra[c] * k + attr[c]
        else:
            k = np.exp(score - top[h])
            norm[h] += k
            for c in range(channels):
                target[c] += k * values[c]
            for c in range(num_attr):
                extra[c] += k * attr[c]


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
    reads = width
    if kind == 0:
        reads += heads
    elif kind == 2:
        reads += width
    total = width + (heads * num_attr if kind == 2 else 0)
    top, norm, scores = scratch[:heads], scratch[heads : 2 * heads], scratch[2 * heads : 3 * heads]
    products = scratch[3 * heads : 3 * heads + width]
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
        me = own_rows[i]
        count = 0
        for e in range(offsets[i], offsets[i + 1]):
            r = rows[e]
            if e + ahead < end:
                for line in range(lines):
                    prefetch(flat, rows[e + ahead] * dim + column + line * per_line)
            if loops and (is_self[e] if flagged else r == me):
                continue
            row, data = base[r, column : column + reads], attr[e]
            _scores(kind, heads, channels, slope, vector, edge, row, mine, data, products, scores)
            _add(kind, heads, channels, row, data, scores, top, norm, target)
            count += 1
            for k in range(num_attr):
                of_loop[k] += data[k]
        if loops:
            row = own[me, column : column + reads]
            if fill == 0:
                for k in range(num_attr):
                    of_loop[k] = fill_row[k]
            elif fill == 1 and count > 1:
                for k in range(num_attr):
                    of_loop[k] /= np.float32(count)
            _scores(kind, heads, channels, slope, vector, edge, row, mine, of_loop, products, scores)
            _add(kind, heads, channels, row, of_loop, scores, top, norm, target)
        for h in range(heads):
            # The highest score has weight 1: only a node without neighbours has a sum of 0.
            if norm[h] != np.float32(0.0):
                k = np.float32(1.0) / norm[h]
                part = target[h * channels : (h + 1) * channels]
                for c in range(channels):
                    part[c] *= k
                if kind == 2:
                    extra = target[width + h * num_attr : width + (h + 1) * num_attr]
                    for c in range(num_attr):
                        extra[c] *= k
