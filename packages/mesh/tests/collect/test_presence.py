"""What is gone, and what was only not seen."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hopline_mesh.collect.presence import Presence

intervals = st.lists(
    st.tuples(st.sets(st.integers(0, 30)), st.booleans(), st.floats(1.0, 60.0)), min_size=1, max_size=12
)


def ids(found):
    return np.array(sorted(found), np.int64)


@given(intervals)
def test_it_is_as_said(history):
    """Against the rule in sets."""
    presence = Presence(keep_missing_s=100.0)
    last_seen: dict[int, float] = {}
    now = 0.0
    for seen, whole, elapsed in history:
        now += elapsed
        lost = set(last_seen) - seen
        many = len(lost) >= 3 and len(lost) >= 0.3 * max(1, len(last_seen))
        keep = {one for one in lost if now - last_seen[one] <= 100.0} if many or not whole else set()
        last_seen = {one: last_seen[one] for one in keep} | dict.fromkeys(seen, now)
        there, held = presence.settle(now, ids(seen), whole=whole)
        assert set(there.tolist()) == seen | keep
        assert set(held.tolist()) == keep
        assert there.tolist() == sorted(there.tolist())
        assert presence.ids.tolist() == there.tolist()


def test_what_is_left_out_is_forgotten():
    presence = Presence(keep_missing_s=100.0)
    presence.settle(0.0, ids(range(10)), whole=True)
    presence.keep_only(ids([1, 2, 3]))
    there, held = presence.settle(1.0, ids([]), whole=False)
    assert there.tolist() == held.tolist() == [1, 2, 3]
