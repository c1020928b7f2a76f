"""Training, test, and the order in which a recording is played."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from hopline_mesh.changes import Change, Context
from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.evaluate import Period
from hopline_mesh.evaluate.recording import complete, without
from packages.mesh.tests.evaluate.drawn import START, event, recording

DAY = 86_400.0


def flat(count, train=3, **more):
    return recording({"p99_ms": [10.0] * count}, train=train, **more)


def test_training_and_test_are_what_lies_in_their_periods():
    one = flat(10, train=4, events=(event(1), event(6)))
    assert [len(part) for part in one.training()] == [4, 4]
    assert [snapshot.time_s for snapshot in one.testing()[0]] == [START + 60 * k for k in range(4, 10)]
    assert one.test_events() == [event(6)]


def test_what_was_recorded_before_the_training_is_played_a_day_later():
    change = Change("rollout", "a", START + 30, START + 90)
    one = flat(10, events=(event(1), event(8)))
    one = replace(
        one,
        contexts=[Context((change,))] + [Context()] * 9,
        train=(Period(START + 240, START + 420),),
        test=(Period(START, START + 240), Period(START + 420, START + 600)),
    )
    played = one.in_playing_order()
    times = [snapshot.time_s - START for snapshot in played.snapshots]
    assert times == [240, 300, 360, 420, 480, 540, DAY, DAY + 60, DAY + 120, DAY + 180]
    assert [item.start_s - START for item in played.events] == [480, DAY + 60]
    assert played.events[1].end_s - played.events[1].start_s == 240
    assert [(part.start_s - START, part.end_s - START) for part in played.test] == [
        (420, 600),
        (DAY, DAY + 240),
    ]
    moved = played.contexts[6].changes[0]
    assert (moved.start_s, moved.end_s) == (change.start_s + DAY, change.end_s + DAY)
    assert len(played.testing()[0]) == len(one.testing()[0])
    assert len(played.test_events()) == 2


def test_a_recording_that_begins_with_its_training_is_played_as_it_is():
    one = flat(10)
    assert one.in_playing_order() is one


def test_a_recording_longer_than_a_day_is_moved_by_as_many_as_it_needs():
    one = flat(50, interval_s=3600.0)
    one = replace(
        one, train=(Period(START + 40 * 3600, START + 45 * 3600),), test=(Period(START, START + 9e4),)
    )
    played = one.in_playing_order()
    times = [snapshot.time_s for snapshot in played.snapshots]
    assert all(before < after for before, after in itertools.pairwise(times))
    assert times[10] == START + 3 * DAY


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: replace(one, contexts=one.contexts[1:]), "10 snapshots with 9 contexts"),
        (lambda one: replace(one, snapshots=one.snapshots[::-1]), "must be in order"),
        (lambda one: replace(one, train=one.test), "overlaps the test"),
    ],
)
def test_what_makes_no_recording_is_refused(change, said):
    with pytest.raises(SnapshotInvalid, match=said):
        change(flat(10))


def periods(found):
    return [[(part.start_s, part.end_s) for part in side] for side in found]


WHOLE = Period(0.0, 100.0)


@pytest.mark.parametrize(
    ("events", "train", "test", "chosen"),
    [
        ([(10, 20)], None, None, [[(20, 60)], [(0, 20), (60, 100)]]),
        ([], None, None, [[(0, 50)], [(50, 100)]]),
        ([(10, 20)], None, [(0, 40)], [[(40, 100)], [(0, 40)]]),
        ([(10, 20), (90, 95)], [(20, 50)], None, [[(20, 50)], [(0, 20), (50, 100)]]),
        ([(0, 100)], None, None, [[], [(0, 100)]]),
        ([(10, 20)], [(30, 40)], [(60, 70)], [[(30, 40)], [(60, 70)]]),
    ],
)
def test_periods_that_are_not_given_follow_the_stated_rule(events, train, test, chosen):
    known = [event(0) for _ in events]
    known = [type(one)(start, end, "a") for one, (start, end) in zip(known, events, strict=True)]

    def given(pairs):
        return None if pairs is None else tuple(Period(*pair) for pair in pairs)

    assert periods(complete(WHOLE, known, given(train), given(test))) == chosen


def test_what_is_taken_may_overlap_and_reach_beyond():
    taken = [Period(-5, 10), Period(5, 30), Period(90, 200)]
    assert without(WHOLE, taken) == (Period(30, 90),)


def test_averages_are_means_of_what_was_measured_and_know_no_future():
    values = [1.0, 3.0, math.nan, 5.0, 7.0, math.nan, math.nan, math.nan, 2.0, 9.0]
    one = recording({"p99_ms": values}, train=4, edge=[*range(10)], interval_s=1.0)
    first, *others = one.snapshots
    alone = replace(  # b and the path have no row in the first second of the second interval
        one.snapshots[4],
        nodes=first.nodes[:1],
        node_features=first.node_features[:1] * 7,
        edge_src=first.edge_src[:0],
        edge_dst=first.edge_dst[:0],
        edge_features=first.edge_features[:0],
    )
    later = Context((Change("rollout", "a", START + 2.0),))
    contexts = [*one.contexts[:2], *[later] * 8]
    one = replace(one, snapshots=[first, *others[:3], alone, *others[4:]], contexts=contexts)
    coarse = one.averaged(4.0)
    assert [each.time_s - START for each in coarse.snapshots] == [3.0, 7.0, 11.0]  # ends of the intervals
    assert [each.node_features[0, 0] for each in coarse.snapshots] == [3.0, 7.0, 5.5]
    assert [each.node_features[1, 0] for each in coarse.snapshots] == [1.0, 1.0, 1.0]
    assert [each.edge_features[0, 0] for each in coarse.snapshots] == [1.5, 6.0, 8.5]
    assert coarse.contexts == [later] * 3
    assert (coarse.interval_s, coarse.train, coarse.test) == (4.0, one.train, one.test)
    for each in coarse.snapshots:
        each.check()
    assert one.averaged(1.0) is one


def test_no_average_is_earlier_than_its_values():
    rng = np.random.default_rng(0)
    one = recording({"p99_ms": [1.0] * 200}, train=4, interval_s=1.0)
    times = START + np.sort(rng.uniform(0, 200, 200))
    one = replace(
        one, snapshots=[replace(each, time_s=t) for each, t in zip(one.snapshots, times, strict=True)]
    )
    ends = np.array([each.time_s for each in one.averaged(15.0).snapshots])
    at = np.searchsorted(ends, times)
    assert (ends[at] - times < 15.0).all()
    assert {*at.tolist()} == {*range(len(ends))}
