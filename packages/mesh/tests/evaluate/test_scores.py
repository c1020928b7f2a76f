"""Scores against cases counted by hand.

A character is a minute; the window of an event is from its start to two minutes after its end.
"""

import pytest

from hopline_mesh.evaluate import score
from hopline_mesh.evaluate.scores import episodes
from packages.mesh.tests.evaluate.drawn import START, event, verdicts


def scored(drawing, *events, suspects=None, **more):
    return score(verdicts(drawing, suspects=suspects), events, interval_s=60.0, **more)


def counts(scores):
    return scores.found, scores.false_episodes, scores.under_way


def test_an_incident_inside_the_window_finds_the_event():
    scores = scored("....aaa...", event(3))
    assert counts(scores) == (1, 0, 1)
    assert scores.minutes_to_detect == 1.0
    assert scores.hours == pytest.approx(10 / 60)


@pytest.mark.parametrize(
    ("begins", "found"), [(2, False), (3, True), (7, True), (9, True), (10, False), (11, False)]
)
def test_the_window_is_from_the_start_to_the_end_and_grace_both_included(begins, found):
    drawing = "." * begins + "a" + "." * (14 - begins)
    assert counts(scored(drawing, event(3)))[:2] == ((1, 0) if found else (0, 1))


def test_an_episode_that_is_under_way_when_the_event_begins_does_not_find_it_and_is_false():
    assert counts(scored(".aaaaaaaa...", event(3))) == (0, 1, 1)


def test_an_incident_that_was_backdated_counts_from_its_first_report():
    """`Incident.start_s` of all drawn ones is the start of the recording."""
    scores = scored("....aaa...", event(3))
    assert scores.outcomes[0].episode.start_s == START + 240


def test_one_episode_over_two_events_counts_for_the_first_alone():
    assert counts(scored("...aaaaaaaaaaaaaa..", event(2), event(9))) == (1, 0, 2)


def test_two_episodes_in_one_window_are_one_found_event_and_none_is_false():
    assert counts(scored("...aa.bb.......", event(2))) == (1, 0, 1)


def test_of_two_windows_that_overlap_each_episode_takes_one():
    first, second = event(2), event(5)
    assert counts(scored(".....a.b.....", first, second)) == (2, 0, 2)
    only = scored(".....a.......", first, second)
    assert [outcome.episode is not None for outcome in only.outcomes] == [True, False]


def test_an_episode_takes_the_event_that_is_still_free():
    scores = scored("...a.b.......", event(2), event(4))
    assert [outcome.episode.id for outcome in scores.outcomes] == ["a", "b"]


def test_events_may_come_in_any_order():
    assert counts(scored("...a......b...", event(9), event(2))) == (2, 0, 2)


def test_grace_is_an_argument():
    drawing = ".........a..."
    assert scored(drawing, event(3), grace_s=60.0).found == 0
    assert scored(drawing, event(3), grace_s=120.0).found == 1


def test_false_episodes_are_counted_by_the_hour():
    scores = scored("a.b.c." + "." * 54)
    assert scores.false_episodes == 3
    assert scores.false_per_hour == pytest.approx(3.0)
    assert (scores.minutes_to_detect, scores.root_cause_top1) == (None, None)


def test_no_verdicts_are_no_hours_and_find_nothing():
    scores = score([], [event(3)], interval_s=60.0)
    assert (scores.found, scores.events, scores.false_per_hour, scores.hours) == (0, 1, None, 0.0)


def test_minutes_to_detect_are_the_median_over_found_events():
    scores = scored("...a.........b......c....", event(2), event(9), event(17), event(30))
    assert [outcome.minutes for outcome in scores.outcomes] == [1.0, 4.0, 3.0, None]
    assert scores.minutes_to_detect == 3.0


@pytest.mark.parametrize(
    ("named", "rank"), [("a b", 1), ("b a", 2), ("b c d a", 4), ("b c", None), ("", None), ("b>a c", 1)]
)
def test_the_rank_is_the_place_of_the_service_among_the_suspects(named, rank):
    scores = scored("...xx...", event(2), suspects={"x": named})
    assert scores.outcomes[0].rank == rank
    assert scores.root_cause_top1 == float(rank == 1)
    assert scores.root_cause_top3 == float(rank is not None and rank <= 3)


@pytest.mark.parametrize(
    ("named", "blamed", "rank"),
    [
        ("b", "b", 1),  # the callee itself
        ("a>b", "b", 1),  # the call path
        ("a", "b", None),  # the caller alone is not enough
        ("b>a b", "b", 2),  # nor is the way back
        ("a>b", "a", 1),  # the caller is to blame, and the path is named
        ("a", "a", 1),
        ("b", "a", None),
        ("c>b", "b", None),  # calls of another service into the callee
        ("c>b b", "b", 2),
        ("c>a", "a", None),
    ],
)
def test_of_a_call_path_the_end_to_blame_or_the_path_counts(named, blamed, rank):
    of_path = event(2, service=blamed, caller="a", callee="b")
    assert scored("...xx...", of_path, suspects={"x": named}).outcomes[0].rank == rank


def test_the_rank_is_of_the_first_report_and_the_last_is_shown_next_to_it():
    scores = scored("...xxx..", event(2), suspects={"x": "b a|a b"})
    assert (scores.root_cause_top1, scores.root_cause_top1_at_end) == (0.0, 1.0)


def test_kinds_are_scored_apart():
    events = (event(2, kind="cpu"), event(9, kind="cpu"), event(17, kind="delay"))
    scores = scored("...x..............y......", *events, suspects={"x": "a", "y": "b"})
    found = {kind.kind: (kind.found, kind.events, kind.root_cause_top1) for kind in scores.by_kind}
    assert found == {"cpu": (1, 2, 1.0), "delay": (1, 1, 0.0)}


def test_incidents_of_one_verdict_are_episodes_of_their_own():
    one = verdicts("..a..")[2]
    both = [type(one)(one.time_s, "anomalous", 2.0, (one.incidents[0], verdicts("..b..")[2].incidents[0]))]
    assert [episode.id for episode in episodes(both)] == ["a", "b"]


def test_a_detector_that_never_stops_finds_one_event_at_most():
    assert scored("x" * 100, *(event(2 + 10 * k) for k in range(9))).found == 0
