"""Ticks stay on the grid of the wall clock, and always go forward."""

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from hopline_mesh.watch.ticks import Ticks


class Clocks:
    """A wall clock that can be set, beside one that cannot."""

    def __init__(self, wall=1000.0):
        self.wall_s, self.monotonic_s = wall, 50.0

    def wall(self):
        return self.wall_s

    def monotonic(self):
        return self.monotonic_s

    def pass_s(self, seconds):
        self.wall_s += seconds
        self.monotonic_s += seconds


def start(clocks, interval=15.0, **given):
    return Ticks(interval, wall=clocks.wall, monotonic=clocks.monotonic, **given)


def next_tick(ticks, clocks, late=0.0):
    clocks.pass_s(ticks.wait_s() + late)
    assert ticks.wait_s() == 0
    return ticks.take()


def test_ticks_are_on_the_grid_and_do_not_drift():
    clocks = Clocks(1003.0)
    ticks = start(clocks)
    found = []
    for _ in range(200):
        found.append(next_tick(ticks, clocks, late=0.02))
        clocks.pass_s(3.7)
    assert [tick.time_s for tick in found] == [1005.0 + 15 * i for i in range(200)]
    assert all(tick.skipped == 0 and tick.jump_s == 0 and tick.wall_s == tick.time_s for tick in found)


def test_a_clock_that_is_trimmed_gives_no_tick_twice():
    clocks = Clocks()
    ticks = start(clocks)
    first = next_tick(ticks, clocks, late=0.001)
    clocks.wall_s -= 0.3
    second = next_tick(ticks, clocks)
    assert second.time_s == first.time_s + 15
    assert (second.skipped, second.jump_s) == (0, 0.0)


def test_a_restart_goes_on_on_the_same_grid():
    clocks = Clocks(1003.0)
    first = next_tick(start(clocks), clocks)
    clocks.pass_s(40)
    second = next_tick(start(clocks, last_s=first.time_s), clocks)
    assert (second.time_s - first.time_s) % 15 == 0


def test_ticks_that_were_missed_are_counted_and_not_made_up_for():
    clocks = Clocks()
    ticks = start(clocks)
    first = next_tick(ticks, clocks)
    clocks.pass_s(50)  # a step that took 50 s: ticks at 15, 30 and 45 are over
    second = ticks.take()
    assert second.time_s == first.time_s + 45
    assert second.skipped == 2
    assert ticks.wait_s() == 10


def test_a_clock_set_forward_leaves_intervals_out():
    clocks = Clocks()
    ticks = start(clocks)
    first = next_tick(ticks, clocks)
    clocks.wall_s += 3600
    clocks.pass_s(ticks.wait_s())
    second = ticks.take()
    assert second.time_s == first.time_s + 3600
    assert second.jump_s == 3600
    assert second.skipped == 0
    assert next_tick(ticks, clocks).jump_s == 0


def test_a_clock_set_back_does_not_repeat_time_or_wait_for_it():
    clocks = Clocks()
    ticks = start(clocks)
    first = next_tick(ticks, clocks)
    clocks.wall_s -= 60
    assert ticks.wait_s() <= 15
    found = [next_tick(ticks, clocks) for _ in range(12)]
    assert found[0].jump_s == -60
    assert found[0].wall_s == first.wall_s - 45
    times = [first.time_s, *(tick.time_s for tick in found)]
    assert all(a < b for a, b in itertools.pairwise(times))
    assert found[-1].time_s == found[-1].wall_s  # has caught up


def test_state_of_the_future_is_treated_as_a_clock_that_was_set_back():
    clocks = Clocks()
    ticks = start(clocks, last_s=1100.0)
    tick = next_tick(ticks, clocks)
    assert tick.wall_s == 1005.0
    assert tick.time_s == 1107.5


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(-1e5, 1e5) | st.just(0.0)), max_size=30),
    st.sampled_from([0.1, 1.0, 15.0]),
)
@example([(1.5, -2.0)], 1.0)  # half an interval back: the grid goes on, its next tick is as much later
def test_time_always_rises_and_a_tick_is_never_far(steps, interval):
    clocks = Clocks(1e9)
    ticks = start(clocks, interval)
    last = float("-inf")
    for passed, jump in steps:
        clocks.pass_s(passed)
        clocks.wall_s += jump
        assert ticks.wait_s() <= interval * 1.501
        tick = next_tick(ticks, clocks)
        assert tick.time_s > last
        assert tick.skipped >= 0
        last = tick.time_s
