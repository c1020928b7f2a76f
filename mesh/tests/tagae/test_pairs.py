"""Numbers of call paths, and who is there in an interval."""

from __future__ import annotations

import numpy as np

from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Snapshot
from hopline_mesh.tagae.pairs import Lineup, Pairs


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


def test_who_is_there_is_the_same_array_while_it_is_the_same():
    schema, roster = Schema(), Roster(f"space/service{i}" for i in range(6))

    def interval(nodes, src, dst):
        nodes, src, dst = (np.array(each, np.int32) for each in (nodes, src, dst))
        values = np.zeros((len(nodes), len(schema.node_features)), np.float32)
        edges = np.zeros((len(src), len(schema.edge_features)), np.float32)
        return Snapshot(0.0, schema, roster, nodes, values, src, dst, edges)

    lineup = Lineup(Pairs())
    lineup.take(interval([0, 1, 2], [0, 1], [1, 2]))
    nodes, paths = lineup.nodes, lineup.paths
    lineup.take(interval([0, 1, 2], [0, 1], [1, 2]))
    assert (lineup.nodes is nodes, lineup.paths is paths) == (True, True)
    lineup.take(interval([0, 1, 2], [0, 0], [1, 2]))
    assert (lineup.nodes is nodes, lineup.paths.tolist()) == (True, [0, 2])
    lineup.take(interval([0, 2, 1], [0, 0], [1, 2]))
    assert lineup.nodes.tolist() == [0, 2, 1]
    lineup.take(interval([0, 2], [0], [2]))
    assert (lineup.nodes.tolist(), lineup.paths.tolist()) == ([0, 2], [2])
