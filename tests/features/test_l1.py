"""The shared row cache in one process: what it keeps, what expires, what it evicts, who may fetch."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.errors import ConfigError
from hopline.features.l1 import COUNTS, CachePlan, L1FeatureCache
from hopline.memory.arena import Arena
from tests.shared_memory import create_shared
from tests.thorough import thorough

N, DIM, TTL = 60, 5, 10.0


def cache(*slots: int, writer: int = 0, fd: int | None = None, ttl_s: float = TTL) -> L1FeatureCache:
    plan = CachePlan(N, DIM, slots)
    return L1FeatureCache(Arena(plan.num_bytes, fd), plan, ttl_s, writer)


def row(v: int, version: int) -> np.ndarray:
    return np.arange(DIM, dtype=np.float32) + 1000 * version + 10 * v


def keep(c: L1FeatureCache, ids, version: int = 1, stamp: float = 0.0) -> None:
    c.write(np.asarray(ids, np.int64), np.array([row(v, version) for v in ids]), stamp)


def read(c: L1FeatureCache, ids, now: float = 0.0, allow_expired: bool = False) -> dict[int, int]:
    """id -> version of the rows that are there, each checked to be whole."""
    ids = np.asarray(ids, np.int64)
    out = np.full((len(ids), DIM), np.nan, np.float32)
    missing, _ = c.read(ids, out, now, allow_expired)
    assert missing.dtype == np.int64
    assert (np.diff(missing) > 0).all()
    found = {}
    for i in np.setdiff1d(np.arange(len(ids)), missing):
        version = int(out[i, 0] - 10 * ids[i]) // 1000
        assert (out[i] == row(int(ids[i]), version)).all()
        found[int(ids[i])] = version
    return found


def array(*ids: int) -> np.ndarray:
    return np.array(ids, np.int64)


class Model:
    """The cache of one process in plain Python: a list for SIEVE's order, oldest first."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.rows: dict[int, tuple[int, float]] = {}  # id -> version, stamp
        self.line: list[int] = []
        self.visited: set[int] = set()
        self.hand = 0
        self.evictions = 0

    def read(self, ids, now: float, allow_expired: bool) -> dict[int, int]:
        found = {
            v: self.rows[v][0]
            for v in ids
            if v in self.rows and (allow_expired or now - self.rows[v][1] < TTL)
        }
        self.visited |= set(found)
        return found

    def write(self, v: int, version: int, stamp: float) -> None:
        if v in self.rows:
            if not 0 < self.rows[v][1] - stamp < TTL:
                self.rows[v] = version, stamp
                self.visited.add(v)
            return
        if len(self.line) == self.slots:
            self._evict()
        self.line.append(v)
        self.visited.discard(v)
        self.rows[v] = version, stamp

    def _evict(self) -> None:
        while True:
            self.hand %= len(self.line)
            v = self.line[self.hand]
            if v not in self.visited:
                break
            self.visited.discard(v)
            self.hand += 1
        del self.line[self.hand], self.rows[v]
        if self.hand == len(self.line):
            self.hand = 0  # past the head: again from the tail, whatever enters at the head now
        self.evictions += 1


IDS = st.lists(st.integers(0, N - 1), min_size=1, max_size=20)
STEPS = st.one_of(
    st.tuples(st.just("write"), IDS, st.sampled_from([0.0, 0.0, 0.5, 12.0])),
    st.tuples(st.just("read"), IDS, st.booleans()),
    st.tuples(st.just("probe"), IDS, st.none()),
    st.tuples(st.just("wait"), st.just([]), st.sampled_from([0.25, 3.0, TTL, 25.0])),
)


@settings(max_examples=thorough(37, 150), deadline=None)
@given(slots=st.sampled_from([1, 2, 7, 20, N]), steps=st.lists(STEPS, max_size=40))
def test_any_sequence_agrees_with_the_model_in_plain_python(slots, steps):
    """Writes may come late (a stamp before now); every row, expiry and eviction is the model's."""
    c, model, now = cache(slots), Model(slots), 100.0
    for version, (what, ids, how) in enumerate(steps):
        if what == "wait":
            now += how
        elif what == "write":
            keep(c, ids, version, now - how)
            for v in ids:
                model.write(v, version, now - how)
        elif what == "read":
            assert read(c, ids, now, how) == model.read(ids, now, how)
        else:
            missing = c.probe(np.array(ids), now)
            found = model.read(ids, now, False)
            assert missing.tolist() == [i for i, v in enumerate(ids) if v not in found]
        there = ~np.isnan(c.ages(np.arange(N), now))
        assert set(np.flatnonzero(there)) == set(model.rows)
        assert there.sum() <= slots
    assert c.counts["evictions"] == model.evictions
    assert c.num_rows == len(model.line)


def test_a_new_cache_is_empty():
    c = cache(10)
    assert read(c, [0, 5, N - 1]) == {}
    assert np.isnan(c.ages(array(0, 5), 0.0)).all()


def test_a_row_expires_at_its_ttl_and_is_served_after_only_where_allowed():
    c = cache(10)
    keep(c, [3], version=2, stamp=100.0)
    assert read(c, [3], now=109.999) == {3: 2}
    assert read(c, [3], now=110.0) == {}
    assert c.probe(array(3), 110.0).tolist() == [0]
    assert read(c, [3], now=110.0, allow_expired=True) == {3: 2}


def test_rows_without_ttl_never_expire():
    c = cache(10, ttl_s=math.inf)
    keep(c, [3])
    assert read(c, [3], now=1e9) == {3: 1}


def test_a_row_of_the_future_expires_too():
    """A clock that was set back must not keep rows for ever."""
    c = cache(10)
    keep(c, [3], stamp=1000.0)
    assert read(c, [3], now=500.0) == {}
    keep(c, [3], version=2, stamp=500.0)
    assert read(c, [3], now=500.0) == {3: 2}


def test_a_slow_answer_does_not_replace_a_row_fetched_later():
    c = cache(10)
    keep(c, [3], version=2, stamp=5.0)
    keep(c, [3], version=1, stamp=4.0)
    assert read(c, [3], now=5.0) == {3: 2}


def test_ages_are_those_of_the_rows():
    c = cache(10)
    keep(c, [3], stamp=100.0)
    keep(c, [4], stamp=107.5)
    assert c.ages(array(4, 3, 5), 120.0) == pytest.approx([12.5, 20.0, math.nan], nan_ok=True)


def test_the_same_id_may_be_requested_and_written_twice():
    c = cache(10)
    c.write(array(3, 3), np.array([row(3, 1), row(3, 2)]), 0.0)
    assert read(c, [3, 3]) == {3: 2}
    assert c.num_rows == 1


def test_counts_add_up_to_the_rows_requested():
    c = cache(2)
    keep(c, [0, 1], stamp=0.0)
    keep(c, [1], stamp=8.0)
    read(c, [0, 1, 2, 3], now=12.0)
    read(c, [0, 1, 2, 3], now=12.0, allow_expired=True)
    c.probe(array(0, 1, 2), 12.0)
    keep(c, [2, 3], stamp=12.0)
    assert c.counts == dict(zip(COUNTS, (2, 4, 2, 1, 1, 1, 5, 2), strict=True))


@pytest.fixture
def pair():
    """Two processes' views of one cache with 4 slots each; what they are in one test process."""
    fd = create_shared(CachePlan(N, DIM, (4, 4)).num_bytes)
    yield cache(4, 4, fd=fd), cache(4, 4, writer=1, fd=fd)
    os.close(fd)


def test_writers_read_each_others_rows_and_evict_only_their_own(pair):
    first, second = pair
    keep(first, [0, 1, 2, 3])
    keep(second, range(10, 30))
    assert read(second, range(N)).keys() == {0, 1, 2, 3, 26, 27, 28, 29}
    assert (first.counts["evictions"], second.counts["evictions"]) == (0, 16)


def test_a_row_written_by_another_process_replaces_the_old_one(pair):
    first, second = pair
    keep(first, [0, 1, 2, 3], version=1, stamp=0.0)
    keep(second, [2], version=2, stamp=20.0)
    assert read(first, range(4), now=20.0) == {2: 2}
    assert read(first, range(4), now=20.0, allow_expired=True) == {0: 1, 1: 1, 2: 2, 3: 1}


def test_the_slot_of_a_replaced_row_is_taken_back_first_though_it_was_visited(pair):
    first, second = pair
    keep(first, [0, 1, 2, 3])
    read(first, range(4))
    keep(second, [2], version=2)
    keep(first, [5])
    assert read(first, range(N)) == {0: 1, 1: 1, 2: 2, 3: 1, 5: 1}
    assert first.counts["evictions"] == 0  # nothing that could still be read


def test_a_restarted_writer_goes_on_with_the_rows_it_left():
    fd = create_shared(CachePlan(N, DIM, (4, 4)).num_bytes)
    try:
        before = cache(4, 4, writer=1, fd=fd)
        for v in (7, 8, 9):
            keep(before, [v], stamp=float(v))
        other = cache(4, 4, writer=0, fd=fd)
        keep(other, [8], version=2, stamp=9.0)  # its old slot can no longer be reached
        after = cache(4, 4, writer=1, fd=fd)
        assert read(after, range(N)) == {7: 1, 8: 2, 9: 1}
        after._visited[:] = 0
        keep(after, [20], stamp=9.5)  # the slot never used
        keep(after, [21], stamp=9.5)  # the one that 8 left
        assert read(after, range(N)).keys() == {7, 8, 9, 20, 21}
        after._visited[:] = 0
        keep(after, [22], stamp=9.5)  # the oldest row's
        assert read(after, range(N)).keys() == {8, 9, 20, 21, 22}
    finally:
        os.close(fd)


def test_a_row_that_is_being_written_is_a_miss_until_it_is_written_again():
    c = cache(10)
    keep(c, range(5))
    c._heads[c._index[3] - 1, 0] &= ~((1 << 40) - 1)  # what a process killed in the middle leaves
    assert read(c, range(5)).keys() == {0, 1, 2, 4}
    assert np.isnan(c.ages(array(3), 0.0)).all()
    keep(c, [3], version=2)
    assert read(c, range(5)) == {0: 1, 1: 1, 2: 1, 3: 2, 4: 1}


def test_of_two_processes_one_may_fetch_a_row(pair):
    first, second = pair
    assert first.claim(array(1, 2), 0.0, 0.5).tolist() == [True, True]
    assert second.claim(array(2, 3), 0.0, 0.5).tolist() == [False, True]
    assert second.pending(array(1, 2, 3, 4), 0.1).tolist() == [True, True, False, False]
    assert first.pending(array(1, 2, 3, 4), 0.1).tolist() == [False, False, True, False]


def test_a_process_is_not_in_its_own_way(pair):
    first, second = pair
    first.claim(array(1), 0.0, 0.5)
    assert first.claim(array(1, 1), 0.4, 0.5).tolist() == [True, True]
    assert second.claim(array(1), 0.8, 0.5).tolist() == [False]  # it was renewed


def test_a_claim_ends_when_it_is_released(pair):
    first, second = pair
    first.claim(array(1, 2), 0.0, 0.5)
    second.release(array(1, 2))  # not theirs: nothing happens
    first.release(array(1))
    assert second.claim(array(1, 2), 0.0, 0.5).tolist() == [True, False]


def test_a_claim_ends_when_the_row_is_written(pair):
    first, second = pair
    first.claim(array(1, 2), 0.0, 0.5)
    keep(first, [1])
    assert second.pending(array(1, 2), 0.0).tolist() == [False, True]
    assert first.claim(array(2), 0.0, 0.5).tolist() == [True]


def test_a_claim_ends_at_its_deadline(pair):
    """A dead process is in nobody's way for longer than that."""
    first, second = pair
    first.claim(array(1), 100.0, 0.5)
    assert second.claim(array(1), 100.499, 0.5).tolist() == [False]
    assert second.pending(array(1), 100.5).tolist() == [False]
    assert second.claim(array(1), 100.5, 0.5).tolist() == [True]
    first.release(array(1))  # too late: the claim is the other's by now
    assert first.claim(array(1), 100.5, 0.5).tolist() == [False]


def test_a_row_that_has_arrived_is_not_fetched_again(pair):
    """Between the probe that missed and the claim, another process wrote the row."""
    first, second = pair
    assert second.probe(array(1, 2), 0.0).tolist() == [0, 1]
    keep(first, [1])
    assert second.claim(array(1, 2), 0.0, 0.5).tolist() == [False, True]
    assert first.pending(array(1, 2), 0.0).tolist() == [False, True]


def test_an_expired_row_may_be_fetched_again(pair):
    first, second = pair
    keep(first, [1], stamp=0.0)
    assert second.claim(array(1), 10.0, 0.5).tolist() == [True]


@given(
    num_nodes=st.integers(1, 10**6),
    dim=st.integers(1, 600),
    memory_bytes=st.integers(0, 2**34),
    num_writers=st.integers(1, 9),
)
def test_a_plan_stays_within_its_memory(num_nodes, dim, memory_bytes, num_writers):
    try:
        plan = CachePlan.within(num_nodes, dim, memory_bytes, num_writers)
    except ConfigError as error:
        needed = int(str(error).split("at least ")[1].split()[0])
        assert memory_bytes < needed
        assert CachePlan.within(num_nodes, dim, needed, num_writers).num_bytes <= needed
        return
    assert plan.num_bytes <= memory_bytes
    assert len(plan.slots) == num_writers
    more = plan.num_bytes + 2 * num_writers * CachePlan.slot_bytes(dim) + 3 * 4096
    assert plan.slots[0] == num_nodes or more > memory_bytes - sum(plan.slots) * 8


def test_a_plan_gives_slots_by_share():
    plan = CachePlan.within(10**6, 64, 2**24, 3, shares=(1, 1, 6))
    assert plan.slots[0] == plan.slots[1]
    assert plan.slots[2] == pytest.approx(6 * plan.slots[0], abs=6)
    assert plan.num_bytes <= 2**24


def test_a_plan_for_too_little_memory_says_how_much_is_needed():
    with pytest.raises(
        ConfigError, match=r"features.memory_bytes: 4096 bytes .* at least \d+ are required"
    ):
        CachePlan.within(10**6, 64, 4096, 2)


def test_an_arena_holds_caches_of_several_node_types():
    plans = [CachePlan(N, DIM, (3, 3)), CachePlan(0, 2, (1, 1)), CachePlan(9, 1, (2, 2))]
    arena = Arena(sum(plan.num_bytes for plan in plans))
    first, _, last = (L1FeatureCache(arena, plan) for plan in plans)
    keep(first, [3])
    last.write(array(8), np.array([[4.0]], np.float32), 0.0)
    assert read(first, range(9)) == {3: 1}
    assert last.probe(np.arange(9), 0.0).tolist() == list(range(8))


_USES = """
import numpy as np
from hopline.features import claims, l1
from hopline.memory.arena import Arena

plan = l1.CachePlan(60, 5, (10, 10))
cache = l1.L1FeatureCache(Arena(plan.num_bytes), plan, 10.0)
kernels = [each for module in (l1, claims) for each in vars(module).values() if hasattr(each, "signatures")]
before = [list(kernel.signatures) for kernel in kernels]
ids, rows = np.arange(4), np.zeros((4, 5), np.float32)
assert cache.claim(ids, 1.0, 1.0).all() and not cache.pending(ids, 1.0).any()
cache.write(ids[:2], rows[:2], 1.0)
cache.write(ids[:2], rows[:2], np.ones(2))
cache.release(ids)
assert cache.read(ids, rows, 1.0)[0].tolist() == cache.probe(ids, 1.0).tolist() == [2, 3]
assert np.isnan(cache.ages(ids, 1.0)).tolist() == [False, False, True, True]
assert cache.counts["writes"] == 4
print(len(kernels), [a.__name__ for a, b in zip(kernels, before) if list(a.signatures) != b])
"""


def test_nothing_is_compiled_after_the_cache_is_made():
    """In a new process: a kernel that is compiled for a request stops the loop."""
    done = subprocess.run([sys.executable, "-c", _USES], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout == "9 []\n"
