"""What may be committed."""

from hypothesis import given
from hypothesis import strategies as st

from hopline_brokers.kafka_queue import Settled


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
    st.integers(0, 30),
)
def test_a_commit_covers_exactly_the_settled_beginning(gaps, random, count):
    """Offsets may have holes; whatever the order, nothing before the commit is open."""
    offsets = [sum(gaps[: index + 1]) for index in range(len(gaps))]
    settled = Settled()
    for offset in offsets:
        settled.delivered(offset)
    order = random.sample(offsets, len(offsets))[:count]
    committed = 0
    for index, offset in enumerate(order):
        settled.settle(offset)
        taken = settled.take()
        if taken is not None:
            assert taken > committed
            committed = taken
        still_open = set(offsets) - set(order[: index + 1])
        assert all(one >= committed for one in still_open)
        done = [one for one in offsets if one < min(still_open, default=10**9)]
        assert committed == (done[-1] + 1 if done else 0)


def test_what_was_never_delivered_here_changes_nothing():
    settled = Settled()
    settled.settle(5)
    assert settled.take() is None
    settled.delivered(7)
    settled.settle(6)
    assert settled.take() is None
    settled.delivered(7)
    settled.settle(7)
    settled.settle(7)
    assert settled.take() == 8
    assert settled.take() is None
