"""Numbers of call paths."""

from __future__ import annotations

import numpy as np

from hopline_mesh.detect.paths import Pairs


def test_call_paths_keep_their_slots_while_others_come_and_go():
    rng = np.random.default_rng(0)
    pairs, slot_of = Pairs(), {}
    src, dst = rng.integers(0, 30, (2, 40)).astype(np.int32)
    for step in range(60):
        if step % 3:
            some = rng.integers(0, len(src), 3)
            src, dst = src.copy(), dst.copy()
            dst[some] = rng.integers(0, 30, 3)
        elif step % 2:
            src, dst = np.append(src, src[:2]), np.append(dst, rng.integers(0, 30, 2).astype(np.int32))
        for path, slot in zip(
            zip(src.tolist(), dst.tolist(), strict=True), pairs.slots(src, dst), strict=True
        ):
            assert slot_of.setdefault(path, int(slot)) == slot
            assert (pairs.src[slot], pairs.dst[slot]) == path
    assert sorted(slot_of.values()) == list(range(len(pairs)))
    again = Pairs()
    again.restore(pairs.src, pairs.dst)
    np.testing.assert_array_equal(again.slots(src, dst), pairs.slots(src, dst))


def test_slots_are_given_in_the_order_of_first_sight():
    rng = np.random.default_rng(1)
    pairs, slot_of = Pairs(), {}
    for _ in range(20):
        keys = rng.permutation(np.unique(rng.integers(0, 70 * 70, int(rng.integers(0, 600)))))
        src, dst = (keys // 70).astype(np.int32), (keys % 70).astype(np.int32)
        paths = list(zip(src.tolist(), dst.tolist(), strict=True))
        assert pairs.slots(src, dst).tolist() == [slot_of.setdefault(path, len(slot_of)) for path in paths]
        assert list(zip(pairs.src.tolist(), pairs.dst.tolist(), strict=True)) == list(slot_of)
