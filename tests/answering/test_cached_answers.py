import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hopline.answering.response_cache import FROM_CACHE, CachedAnswers
from hopline.types import ScoreResult


def answer(rows=1, value=0.0):
    return ScoreResult("m", "1", "g", {"logits": np.full((rows, 2), value, np.float32)})


def size_of(result, key=b"a"):
    kept = CachedAnswers(10**9, 60)
    kept.keep(key, result, 0, 0)
    return kept.num_bytes


def test_answers_are_copies_that_nobody_can_change():
    batch = np.arange(8, dtype=np.float32).reshape(4, 2)
    kept = CachedAnswers(10**6, 60)
    missing = np.array([True])
    kept.keep(b"a", ScoreResult("m", "1", "g", {"logits": batch[1:2]}, missing), 0, 0)
    batch[:] = -1
    found = kept.entries[b"a"].result
    assert found.outputs["logits"].tolist() == [[2, 3]]
    assert found.outputs["logits"].base is None  # the batch is not held
    assert not found.outputs["logits"].flags.writeable
    assert found.missing.tolist() == [True]
    assert found.timings_ms is FROM_CACHE


def test_strings_count_with_what_they_point_to():
    short, long = (
        ScoreResult("m", "1", "", {"label": np.array([text], object)}) for text in ("a", "a" * 5000)
    )
    assert size_of(long) - size_of(short) == 4999


def test_an_answer_too_large_is_not_kept_and_replaces_its_old_one():
    kept = CachedAnswers(2 * size_of(answer()), 60)
    kept.keep(b"a", answer(), 0, 0)
    kept.keep(b"a", answer(10_000), 0, 0)
    assert kept.entries == {}
    assert kept.num_bytes == 0


def test_what_was_visited_is_spared_once():
    kept = CachedAnswers(3 * size_of(answer()), 60)
    for key in (b"a", b"b", b"c"):
        kept.keep(key, answer(), 0, 0)
    kept.entries[b"a"].is_visited = True
    kept.keep(b"d", answer(), 0, 0)
    assert set(kept.entries) == {b"a", b"c", b"d"}
    kept.keep(b"e", answer(), 0, 0)  # the hand goes on from where it was
    assert set(kept.entries) == {b"a", b"d", b"e"}
    kept.keep(b"f", answer(), 0, 0)
    kept.keep(b"g", answer(), 0, 0)
    assert set(kept.entries) == {b"a", b"f", b"g"}


def test_old_answers_are_not_spared():
    kept = CachedAnswers(2 * size_of(answer()), 10)
    kept.keep(b"a", answer(), 0, 0)
    kept.keep(b"b", answer(), 5, 5)
    kept.entries[b"a"].is_visited = kept.entries[b"b"].is_visited = True
    kept.keep(b"c", answer(), 12, 12)
    assert set(kept.entries) == {b"b", b"c"}


def test_age_counts_from_when_the_answer_was_begun():
    kept = CachedAnswers(10**6, 10)
    kept.keep(b"a", answer(), 3, 8)
    assert kept.entries[b"a"].expires == 13
    kept.keep(b"b", answer(), 3, 13)
    assert b"b" not in kept.entries


class Model:
    """SIEVE as its paper draws it: a list, newest first, and a hand."""

    def __init__(self, max_bytes):
        self.line, self.sizes, self.visited, self.hand, self.max_bytes = [], {}, set(), None, max_bytes

    def keep(self, key, size):
        if key in self.sizes:
            self.remove(key)
        if size > self.max_bytes:
            return
        while sum(self.sizes.values()) + size > self.max_bytes:
            at = self.hand or self.line[-1]
            while at in self.visited:
                self.visited.discard(at)
                at = self.newer(at) or self.line[-1]
            self.hand = at
            self.remove(at)
        self.line.insert(0, key)
        self.sizes[key] = size

    def newer(self, key):
        place = self.line.index(key)
        return self.line[place - 1] if place else None

    def remove(self, key):
        if self.hand == key:
            self.hand = self.newer(key)
        self.line.remove(key)
        self.visited.discard(key)
        del self.sizes[key]


@given(
    st.integers(1, 8_000),
    st.lists(st.tuples(st.booleans(), st.integers(0, 8), st.integers(0, 200)), max_size=60),
)
def test_it_evicts_as_the_paper_does_and_never_exceeds_its_bound(max_bytes, actions):
    kept, model = CachedAnswers(max_bytes, 1e9), Model(max_bytes)
    for is_read, number, rows in actions:
        key = b"%d" % number
        if is_read:
            if key in kept.entries:
                kept.entries[key].is_visited = True
                model.visited.add(key)
        else:
            kept.keep(key, answer(rows), 0, 0)
            model.keep(key, size_of(answer(rows), key))
        assert set(kept.entries) == set(model.line)
        assert kept.num_bytes == sum(model.sizes.values()) <= max_bytes
