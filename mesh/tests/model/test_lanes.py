"""Vector code gives what NumPy gives in the layout of every processor, not only of this one."""

import numpy as np
import pytest
from numba import njit

from hopline_mesh.model.buffers import aligned, packed
from hopline_mesh.model.emit import LANES
from hopline_mesh.model.lanes import PANEL, make_tile

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
