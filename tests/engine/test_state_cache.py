"""The state cache: never a wrong row, whatever is evicted, shared or torn."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.artifact import read_spec
from hopline.engine.model import StateCachePlan
from hopline.engine.state_cache import StateCache
from hopline.memory.arena import Arena
from tests.shared_memory import create_shared
from tests.thorough import thorough

N, DIM = 200, 6
TRUTH = np.random.default_rng(0).standard_normal((N, DIM)).astype(np.float32)


def state_cache(slots: int, worker: int = 0, workers: int = 1, fd: int | None = None) -> StateCache:
    return StateCache(
        Arena(StateCache.num_bytes(N, DIM, slots, workers), fd), N, DIM, slots, worker, workers
    )


def read(t: StateCache, ids) -> tuple[set[int], np.ndarray]:
    ids = np.asarray(ids, np.int64)
    out = np.full((len(ids), DIM), np.nan, np.float32)
    missing = t.read(ids, out).copy()
    kept = np.setdiff1d(np.arange(len(ids)), missing)
    assert (out[kept] == TRUTH[ids[kept]]).all()
    return set(ids[missing].tolist()), out


def keep(t: StateCache, ids) -> None:
    ids = np.asarray(ids, np.int64)
    t.write(ids, TRUTH[ids])


def test_a_new_state_cache_is_empty():
    assert read(state_cache(10), [0, 5, N - 1])[0] == {0, 5, N - 1}


def test_rows_that_fit_are_all_kept():
    t = state_cache(N)
    keep(t, np.arange(N))
    assert read(t, np.arange(N))[0] == set()


@settings(max_examples=thorough(15, 60), deadline=None)
@given(
    slots=st.sampled_from([1, 2, 7, 50, N]),
    steps=st.lists(st.lists(st.integers(0, N - 1), min_size=1, max_size=30, unique=True), max_size=40),
)
def test_a_row_is_right_or_missing_after_any_evictions(slots, steps):
    t = state_cache(slots)
    for ids in steps:
        missing, _ = read(t, ids)
        keep(t, sorted(missing))
        assert t.num_rows <= slots
    assert len(set(range(N)) - read(t, np.arange(N))[0]) <= slots


def test_visited_rows_outlive_rows_that_nobody_requested():
    t = state_cache(10)
    keep(t, np.arange(10))
    read(t, [3, 4])
    keep(t, np.arange(50, 58))
    missing, _ = read(t, np.arange(10))
    assert missing == set(range(10)) - {3, 4}


def test_rows_expire_and_are_replaced_by_younger_ones():
    t = StateCache(Arena(StateCache.num_bytes(N, DIM, N, 1, ages=True)), N, DIM, N, ages=True)
    ids, out, stamps = np.array([3, 7]), np.empty((2, DIM), np.float32), np.empty(2)
    t.write(ids, TRUTH[ids], np.array([10.0, 20.0]))
    assert t.read(ids, out, 9.9, stamps).tolist() == []
    assert stamps.tolist() == [10.0, 20.0]
    assert t.read(ids, out, 10.0, stamps).tolist() == [0]
    assert (out[1] == TRUTH[7]).all()
    t.write(ids, TRUTH[ids + 1], np.array([30.0, 15.0]))  # the second was computed from older rows
    assert t.read(ids, out, 0.0, stamps).tolist() == []
    assert stamps.tolist() == [30.0, 20.0]
    assert (out == TRUTH[[4, 7]]).all()
    assert t.num_rows == 2


def test_forgotten_rows_are_missing():
    t = state_cache(N)
    keep(t, np.arange(N))
    t.forget(np.array([7, 9]))
    assert read(t, np.arange(N))[0] == {7, 9}
    keep(t, [7])
    assert read(t, np.arange(N))[0] == {9}
    t.clear()
    assert len(read(t, np.arange(N))[0]) == N


def test_workers_read_each_others_rows_and_evict_only_their_own():
    fd = create_shared(StateCache.num_bytes(N, DIM, 20, 2))
    try:
        first, second = state_cache(20, 0, 2, fd), state_cache(20, 1, 2, fd)
        keep(first, np.arange(20))
        assert read(second, np.arange(20))[0] == set()
        keep(second, np.arange(20, 120))
        assert read(first, np.arange(20))[0] == set()
        assert len(read(first, np.arange(20, 120))[0]) == 80
    finally:
        os.close(fd)


def test_a_row_that_is_being_written_is_a_miss():
    t = state_cache(N)
    keep(t, np.arange(N))
    t._tags[t._index[5] - 1] &= ~((1 << 40) - 1)  # what a worker killed in the middle of a write leaves
    assert read(t, np.arange(N))[0] == {5}
    keep(t, [5])
    assert read(t, np.arange(N))[0] == set()


def test_a_reader_never_sees_a_torn_row_while_another_process_evicts():
    """A writer process churns a tiny partition while this one reads it."""
    slots = 4
    fd = create_shared(StateCache.num_bytes(N, DIM, slots, 2))
    pid = os.fork()
    if pid == 0:
        writer = state_cache(slots, 1, 2, fd)
        rng = np.random.default_rng(1)
        for _ in range(20_000):
            keep(writer, rng.integers(0, N, 3))
        os._exit(0)
    reader = state_cache(slots, 0, 2, fd)
    hits = 0
    try:
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            missing, _ = read(reader, np.arange(N))
            hits += N - len(missing)
    finally:
        os.close(fd)
    assert hits > 0


def test_an_arena_that_is_too_small_says_so():
    with pytest.raises(MemoryError, match="arena of"):
        StateCache(Arena(4096), N, DIM, 1000)


def test_level_0_gets_the_memory_that_the_levels_above_leave(cases):
    case = cases["link"]  # a linear map before two convolutions
    spec, num_nodes = read_spec(case.folder), case.graph.num_nodes
    upper = num_nodes * (4 + StateCache.row_bytes(spec.levels[1]["node"].state_dim))
    lower = num_nodes * (4 + StateCache.row_bytes(spec.levels[0]["node"].state_dim))

    def slots(memory_bytes):
        caches = StateCachePlan(spec, case.graph, memory_bytes).caches
        return {level: each[2] for (level, _), each in caches.items()}

    assert slots(upper + lower) == {0: num_nodes, 1: num_nodes}
    assert slots(upper) == {1: num_nodes}
    assert slots(upper + lower // 2)[1] == num_nodes > slots(upper + lower // 2)[0] > 0
    assert slots(upper // 2).keys() == {1}
