"""Vector code gives what NumPy gives in the layout of every processor, not only of this one."""

import math

import numpy as np
import pytest
from numba import njit

from hopline.mesh.model.buffers import aligned, packed
from hopline.mesh.model.emit import LANES
from hopline.mesh.model.lanes import PANEL, make_attend, make_tile

TILES = {"AVX-512": (12, PANEL), "AVX2": (6, LANES), "one row": (1, PANEL)}


def address(array):
    return array.ctypes.data


@pytest.mark.parametrize("layout", TILES)
@pytest.mark.parametrize("depth", [0, 1, 7, 128])
def test_a_tile_is_a_block_of_a_product(layout, depth):
    rows, columns = TILES[layout]
    rng = np.random.default_rng(depth)
    tile = make_tile(rows, columns)

    @njit
    def run(a, a_step, depth, b, start, start_step, c, c_step, slope):
        tile(a, a_step, depth, b, start, start_step, c, c_step, slope)

    a = rng.normal(size=(rows, depth + 3)).astype(np.float32)
    weight = rng.normal(size=(PANEL, depth)).astype(np.float32)
    b = packed(weight) if depth else aligned((1,))
    start = rng.normal(size=(rows, PANEL)).astype(np.float32)
    for part in range(0, PANEL, columns):
        for start_step in (0, 4 * PANEL):  # a bias, or rows to be added to
            c = np.full((rows + 1, PANEL), 77, np.float32)
            run(
                address(a), 4 * a.shape[1], depth, address(b) + 4 * part, address(start) + 4 * part,
                start_step, address(c) + 4 * part, 4 * PANEL, np.float32(0.2),
            )  # fmt: skip
            y = a[:, :depth] @ weight.T + (start if start_step else start[0])
            inside = slice(part, part + columns)
            np.testing.assert_allclose(
                c[:rows, inside], np.maximum(y, 0.2 * y)[:, inside], rtol=1e-4, atol=1e-5
            )
            c[:rows, inside] = 77
            assert (c == 77).all()  # nothing beside it


@pytest.mark.parametrize("all_at_once", [True, False])
@pytest.mark.parametrize(("heads", "channels"), [(4, 32), (4, 16), (2, 32), (2, 16)])
@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_attention_of_a_node_is_what_numpy_says(all_at_once, heads, channels, count):
    width, d_edge, slope = heads * channels, 6, 0.2
    rng = np.random.default_rng(count)
    attend = make_attend(heads, channels, all_at_once=all_at_once)

    @njit
    def run(where, count, d_edge, slope):
        attend(
            where[0], where[1], where[2], where[3], where[4], count, where[5], d_edge, where[6], where[7],
            where[8], where[9], where[10], where[11], slope, where[12],
        )  # fmt: skip

    def floats(*shape):
        return rng.normal(size=shape).astype(np.float32)

    source, target, attention, own, bias = floats(50, width), *floats(4, width)
    e, edge_weight, usual = (
        floats(60, d_edge),
        floats(d_edge, width),
        np.array([0, 0, 1, 0, 0, 1], np.float32),
    )
    e[::2] = usual  # half of the edges are as usual
    edge_start = (usual @ edge_weight).astype(np.float32)
    others = np.zeros(count + 8, np.int32)
    edges = np.zeros(count + 8, np.int32)
    others[:count], edges[:count] = rng.integers(0, 50, count), rng.integers(0, 60, count)
    scores, out = aligned((4 * (count + 8),)), np.zeros(width, np.float32)
    kept = [
        source,
        target,
        attention,
        others,
        edges,
        e,
        edge_weight,
        usual,
        edge_start,
        scores,
        own,
        bias,
        out,
    ]
    run(np.array([address(array) for array in kept]), count, d_edge, np.float32(slope))

    rows = source[others[:count]].astype(np.float64)
    mixed = rows + target + e[edges[:count]] @ edge_weight.astype(np.float64)
    mixed = np.maximum(mixed, 0.2 * mixed)
    value = own.astype(np.float64) + bias
    for head in range(heads):
        columns = slice(head * channels, (head + 1) * channels)
        logits = mixed[:, columns] @ attention[columns]
        shares = np.exp(logits - logits.max(initial=-math.inf)) if count else logits
        value[columns] += (shares / max(shares.sum(), 1e-30)) @ rows[:, columns]
    np.testing.assert_allclose(out, np.maximum(value, slope * value), rtol=1e-3, atol=1e-4)
