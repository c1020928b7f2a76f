"""Which events were seen before, against a window made of a dict."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.graph.live.seen import SeenWindow, hashed
from tests.thorough import thorough


class Naive:
    """The ids themselves, in the order in which they first came."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._ids: dict[str, None] = {}

    def which_are_new(self, ids: list[str]) -> list[bool]:
        return [not each or (each not in self._ids and each not in ids[:i]) for i, each in enumerate(ids)]

    def add(self, ids: list[str]) -> None:
        for each in ids:
            if each and each not in self._ids:
                self._ids[each] = None
                if len(self._ids) > self._capacity:
                    del self._ids[next(iter(self._ids))]

    def __len__(self) -> int:
        return len(self._ids)


IDS = st.lists(
    st.integers(0, 60).map(lambda i: f"event-{i}" if i else "") | st.text(max_size=3), max_size=30
)


@given(st.integers(1, 20), st.lists(st.tuples(IDS, st.booleans()), max_size=12), st.booleans())
@settings(max_examples=thorough(50, 200), deadline=None)
def test_as_a_dict_would_say(capacity: int, steps: list[tuple[list[str], bool]], restore: bool) -> None:
    window, naive = SeenWindow(capacity), Naive(capacity)
    for ids, durable in steps:
        keys = hashed(ids)
        new = window.which_are_new(keys)
        assert new.tolist() == naive.which_are_new(ids)
        if durable:
            window.add(keys[new])
            naive.add([each for each, is_new in zip(ids, new, strict=True) if is_new])
        if restore:
            stored, window = window.to_array(), SeenWindow(capacity)
            window.add(stored)
        assert len(window) == len(naive)


def test_many_ids_go_round_the_window_many_times() -> None:
    window = SeenWindow(1000)
    for i in range(200):
        keys = hashed([f"{j}" for j in range(i * 77, i * 77 + 177)])  # 100 of them came in the last batch
        assert window.which_are_new(keys).tolist() == [i == 0] * 100 + [True] * 77
        window.add(keys)
    last = 199 * 77 + 177
    kept = [f"{j}" for j in range(last - 1000, last)]
    assert not window.which_are_new(hashed(kept)).any()
    assert window.which_are_new(hashed([f"{j}" for j in range(last - 1000)])).all()
    assert (window.to_array() == hashed(kept)).all()


def test_ids_that_are_alike_have_other_hashes() -> None:
    ids = [f"{prefix}{i}" for prefix in ("", "a", "kafka/edges/0:", "0" * 16) for i in range(50_000)]
    keys = hashed(ids)
    for half in range(2):
        assert len(np.unique(keys[:, half])) == len(ids)
    bits = np.unpackbits(keys.view(np.uint8), axis=1).mean(axis=0)
    assert np.abs(np.delete(bits, 7) - 0.5).max() < 0.01  # the lowest bit of the first half is always 1
