"""One eviction policy for all caches: SIEVE as its paper has it, and nowhere else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.answering.response_cache import CachedAnswers
from hopline.engine import state_cache
from hopline.features import l1
from hopline.kernels.jit import njit
from hopline.memory import sieve
from hopline.memory.arena import Arena
from hopline.types import ScoreResult
from tests.thorough import thorough

N, DIM = 40, 3


class Reference:
    """Algorithm 1 of Zhang et al. (NSDI 2024) over a Python list, newest first."""

    def __init__(self, size: int) -> None:
        self.size, self.queue, self.visited, self.hand = size, [], set(), None

    def hit(self, key: int) -> None:
        self.visited.add(key)

    def miss(self, key: int) -> None:
        if len(self.queue) == self.size:
            at = self.queue[-1] if self.hand is None else self.hand
            while at in self.visited:
                self.visited.discard(at)
                at = self.newer(at) or self.queue[-1]
            self.hand = self.newer(at)
            self.queue.remove(at)
        self.queue.insert(0, key)

    def newer(self, key: int) -> int | None:
        place = self.queue.index(key)
        return self.queue[place - 1] if place else None


class States:
    """The state cache."""

    def __init__(self, size: int) -> None:
        self.cache = state_cache.StateCache(
            Arena(state_cache.StateCache.num_bytes(N, DIM, size, 1)), N, DIM, size
        )
        self.out = np.empty((1, DIM), np.float32)

    def access(self, key: int) -> bool:
        ids = np.array([key])
        if self.cache.read(ids, self.out).size:
            self.cache.write(ids, self.out)
            return False
        return True

    def keys(self) -> set[int]:
        index, tags = self.cache.arrays[:2]
        return {v for v in range(N) if index[v] and (tags[index[v] - 1] & ((1 << 40) - 1)) == v + 1}


class Features:
    """The L1 feature cache."""

    def __init__(self, size: int) -> None:
        plan = l1.CachePlan(N, DIM, (size,))
        self.cache = l1.L1FeatureCache(Arena(plan.num_bytes), plan)
        self.out = np.empty((1, DIM), np.float32)

    def access(self, key: int) -> bool:
        ids = np.array([key])
        if self.cache.read(ids, self.out, 0.0)[0].size:
            self.cache.write(ids, self.out, 0.0)
            return False
        return True

    def keys(self) -> set[int]:
        return set(np.flatnonzero(~np.isnan(self.cache.ages(np.arange(N), 0.0))).tolist())


class Answers:
    """The response cache, with answers of one size."""

    def __init__(self, size: int) -> None:
        self.answer = ScoreResult("m", "1", "g", {"logits": np.zeros((1, 2), np.float32)})
        probe = CachedAnswers(10**6, 60)
        probe.keep(b"00", self.answer, 0, 0)
        self.cache = CachedAnswers(size * probe.num_bytes, 60)

    def access(self, key: int) -> bool:
        entry = self.cache.entries.get(b"%02d" % key)
        if entry is None:
            self.cache.keep(b"%02d" % key, self.answer, 0, 0)
            return False
        entry.is_visited = True
        return True

    def keys(self) -> set[int]:
        return {int(key) for key in self.cache.entries}


USERS = [States, Features, Answers]


@pytest.mark.parametrize("user", USERS)
@settings(max_examples=thorough(15, 60), deadline=None)
@given(size=st.integers(1, 12), keys=st.lists(st.integers(1, N - 1), max_size=120))
def test_every_cache_evicts_as_the_paper_does(user, size, keys):
    cache, reference = user(size), Reference(size)
    for key in keys:
        is_there = cache.access(key)
        assert is_there == (key in reference.queue)
        reference.hit(key) if is_there else reference.miss(key)
        assert cache.keys() == set(reference.queue)


def newest(queue, newer, visited, first):  # type: ignore[no-untyped-def]
    """Another policy: evict the newest row."""
    return queue[sieve.HEAD]


@pytest.mark.sample(1)
@pytest.mark.parametrize("user", USERS)
def test_another_policy_in_one_place_is_another_policy_in_every_cache(user, monkeypatch):
    monkeypatch.setattr(sieve, "victim", newest)
    # Kernels are compiled once: this compiles them again, as a changed file would.
    monkeypatch.setattr(sieve, "_victim", njit(inline="always")(newest))
    monkeypatch.setattr(sieve, "place", njit(inline="always")(sieve.place.py_func))
    for module in (state_cache, l1):
        monkeypatch.setattr(module, "_write", njit(module._write.py_func))
    cache = user(3)
    for key in (1, 2, 3, 4, 5):
        cache.access(key)
    assert cache.keys() == {1, 2, 5}
