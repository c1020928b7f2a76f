"""A layer's attention is what NumPy says, in the layout of every processor, not only of this one."""

import math

import numpy as np
import pytest
from numba import njit

from hopline_mesh.model.attention import LINE, halve_edges, make_attend, make_linear
from hopline_mesh.model.buffers import aligned, pairs_of, rows_of, two_pairs_of
from hopline_mesh.model.lanes import HAS_BFLOAT16
from hopline_mesh.model.reference import bfloat16, exact

SIZES = [(4, 32), (4, 16), (2, 32), (2, 16)]


def address(array):
    return array.ctypes.data


def expected_rows(given, counts, rounded, slope):
    """NumPy's, in float64."""
    source, target, attention, own, bias, others, edges, e, edge_weight, usual = given
    heads, channels = attention.shape
    first, results = 0, []
    for i, count in enumerate(counts):
        entries = slice(first, first + count)
        first += count
        rows = source[others[entries]].astype(np.float64)
        apart = rounded((e[edges[entries]] - usual).astype(np.float32)).astype(np.float64)
        mixed = rows + target[i] + (apart + usual) @ rounded(edge_weight).astype(np.float64)
        mixed = np.maximum(mixed, 0.2 * mixed)
        value = own[i].astype(np.float64) + bias
        for head in range(heads):
            columns = slice(head * channels, (head + 1) * channels)
            logits = mixed[:, columns] @ attention[head]
            shares = np.exp(logits - logits.max(initial=-math.inf)) if count else logits
            value[columns] += (shares / max(shares.sum(), 1e-30)) @ rows[:, columns]
        results.append(np.maximum(value, slope * value))
    return np.stack(results)


@pytest.mark.parametrize("all_at_once", [True, False])
@pytest.mark.parametrize(("heads", "channels"), SIZES)
@pytest.mark.parametrize("halves", [False, pytest.param(True, marks=pytest.mark.skipif(
    not HAS_BFLOAT16, reason="the processor has no bfloat16"))])  # fmt: skip
def test_attention_is_what_numpy_says(all_at_once, heads, channels, halves):
    attend = make_attend(heads, channels, all_at_once=all_at_once)
    linear = make_linear(heads, channels)

    @njit
    def run(where, begin, end, d_edge, halves, slope, num_rows):
        linear(where[3], where[6], 0, num_rows, where[4])
        if halves:
            halve_edges(where[7], d_edge, where[10], 0, 60, where[16])
        attend(
            where[0], where[1], where[2], begin, end, where[3], where[4], where[5], where[6], where[7],
            d_edge, where[8], where[9], where[10], where[11], where[16] if halves else 0, where[12],
            where[13], where[14], slope, where[15],
        )  # fmt: skip

    rng = np.random.default_rng(heads * channels)
    width, slope = heads * channels, 0.2

    def floats(*shape):
        return rng.normal(size=shape).astype(np.float32)

    # Lists of no entry, of less and of more than a vector's, and scores too large for float32.
    counts = np.array([0, 1, 5, 0, 40, 3])
    for d_edge, size in ((6, 1.0), (0, 1.0), (8, 1.0), (6, 60.0)):
        n = len(counts)
        source, target, own = floats(50, width), floats(n, width), floats(n, width)
        attention, bias = size * floats(heads, channels), floats(width)
        e, edge_weight = floats(60, d_edge), floats(d_edge, width)
        usual = (rng.random(d_edge) < 0.5).astype(np.float32)
        e[::2] = usual  # half of the edges are as usual
        rounded = bfloat16 if halves else exact
        fours = -(-d_edge // 4) * 4
        weight = rounded(edge_weight).T
        edge_linear = (weight.reshape(heads, channels, d_edge) * attention[:, :, None]).sum(axis=1)
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        others, edges = (np.zeros(indptr[-1] + 8, np.int32) for _ in range(2))
        others[: indptr[-1]] = rng.integers(0, 50, indptr[-1])
        edges[: indptr[-1]] = rng.integers(0, 60, indptr[-1])
        wide_usual = np.zeros(max(4, fours), np.float32)
        wide_usual[:d_edge] = usual
        out = np.full((n, width), 77, np.float32)
        kept = [
            indptr, others, edges, source, aligned((50, 4)), target, attention, e,
            (pairs_of if halves else rows_of)(weight, width, fours),
            (two_pairs_of if halves else rows_of)((LINE * edge_linear).astype(np.float32), 4, fours),
            wide_usual, (usual @ weight.T).astype(np.float32), aligned((4 * (indptr[-1] + 8),)), own, bias,
            out, aligned((61, max(1, fours // 2))),
        ]  # fmt: skip
        where = np.array([address(array) for array in kept])
        run(where, 1, n - 1, d_edge, int(halves), np.float32(slope), 50)
        given = (source, target, attention, own, bias, others, edges, e, edge_weight, usual)
        wanted = expected_rows(given, counts, rounded, slope)
        # Of scores of thousands, float32 knows the third digit behind the point.
        close = {"rtol": 1e-3, "atol": 1e-4} if size == 1.0 else {"rtol": 0.05, "atol": 0.05}
        np.testing.assert_allclose(out[1:-1], wanted[1:-1], **close)
        assert (out[[0, -1]] == 77).all()  # no other row


@pytest.mark.parametrize(("heads", "channels"), SIZES)
def test_the_linear_part_of_scores(heads, channels):
    linear = make_linear(heads, channels)

    @njit
    def run(rows, attention, begin, end, out):
        linear(rows, attention, begin, end, out)

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(9, heads * channels)).astype(np.float32)
    attention = rng.normal(size=(heads, channels)).astype(np.float32)
    out = np.full((9, 4), 77, np.float32)
    run(address(rows), address(attention), 2, 8, address(out))
    wanted = LINE * (rows.reshape(9, heads, channels) * attention).sum(axis=2)
    np.testing.assert_allclose(out[2:8, :heads], wanted[2:8], rtol=1e-4, atol=1e-4)
    assert (out[2:8, heads:] == 0).all()
    assert (np.delete(out, slice(2, 8), axis=0) == 77).all()
