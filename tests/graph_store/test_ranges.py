"""Ranges cover exactly the wanted entries, whatever the chunks and their sizes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hopline.graph_store.ranges import MAX_RANGE_BYTES, entries, ranges_of

positions = st.lists(st.integers(0, 5000), min_size=0, max_size=60, unique=True).map(sorted)


@given(positions, st.sampled_from([1, 7, 64, 1000]), st.integers(1, 4))
def test_entries_come_back_from_the_bytes_of_their_ranges(wanted, chunk_entries, entry_bytes):
    wanted = np.array(wanted, np.int64)
    values = np.random.default_rng(0).integers(0, 256**entry_bytes, 5001).astype("<i8")
    raw = values.view(np.uint8).reshape(-1, 8)[:, :entry_bytes]
    ranges = ranges_of(wanted, chunk_entries, entry_bytes)
    sizes = ranges.lasts - ranges.firsts + 1
    assert (sizes <= MAX_RANGE_BYTES).all()
    rows = np.zeros((len(sizes), max(1, int(sizes.max(initial=0)))), np.uint8)
    for row, (chunk, first, last) in enumerate(
        zip(ranges.chunks, ranges.firsts, ranges.lasts, strict=True)
    ):
        content = raw[chunk * chunk_entries : (chunk + 1) * chunk_entries].reshape(-1)
        assert last < len(content)
        rows[row, : last - first + 1] = content[first : last + 1]
    out = np.empty(len(wanted), np.int64)
    entries(rows, ranges, entry_bytes, out)
    assert np.array_equal(out, values[wanted])


def test_close_positions_share_a_range_and_far_ones_do_not():
    ranges = ranges_of(np.array([0, 1, 2, 10, 500, 501]), 1000, 4)
    assert ranges.firsts.tolist() == [0, 2000]
    assert ranges.lasts.tolist() == [43, 2007]
