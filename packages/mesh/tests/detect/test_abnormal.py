"""What is not learned from, among what is taken as normal time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline_mesh.changes import Change, Context
from hopline_mesh.detect import MeshDetector
from hopline_mesh.detect.abnormal import stretches
from hopline_mesh.detect.clues import Clue
from packages.mesh.tests.detect.meshes import CALLS, INTERVAL_S, START_S, edge, incidents, node, play, watch

COUNT = 600
STORE = 2
ERRORS = node("error_share")


def clues(service: int) -> list[Clue]:
    """Failures of a service, as it sees them and as a caller does."""
    return [Clue(service, caller, "error_share", "errors", 2.0, True, True, 0.0, 1.0) for caller in (-1, 9)]


def learned(edit=None, context=None, count: int = COUNT) -> MeshDetector:
    detector = MeshDetector(neighbours=False)
    detector.fit(list(play(count, edit)), [context or Context()] * count)
    return detector


def failing(*begins: int, lasts: int = 20):
    """A service of which half of the requests fail, from each of these intervals on."""

    def edit(number, nodes, edges):
        if any(begin <= number < begin + lasts for begin in begins):
            nodes[STORE, ERRORS] = 0.5
            edges[1, edge("error_share")] = 0.5

    return edit


def busy(begin: int, lasts: int = 40, times: float = 3.0):
    """More load from outside, and all that rises with it."""

    def edit(number, nodes, edges):
        if begin <= number < begin + lasts:
            nodes[:, node("request_rate")] *= times
            edges[:, edge("request_rate")] *= times
            nodes[:, [node("p50_ms"), node("p99_ms"), node("cpu_cores")]] *= times**0.7

    return edit


def test_what_lasted_once_is_left_out_from_its_beginning_to_its_end():
    beyond = [clues(1) if number in (50, 51, 53) else [] for number in range(200)]
    (out,) = stretches(list(range(200)), beyond, before=5, apart=6)
    assert (out.since_s, out.until_s) == (45, 59)
    assert out.series == {(-1, 1, "error_share"), (9, 1, "error_share")}
    assert [time for time in (44, 45, 59, 60) if time in out] == [45, 59]


@pytest.mark.parametrize(
    ("places", "services", "left"),
    [((), (), 0), ((50, 120), (1, 2), 2), ((50, 120), (1, 1), 0), ((0, 199), (1, 2), 2)],
)
def test_what_a_series_did_twice_is_how_it_is(places, services, left):
    beyond: list[list[Clue]] = [[] for _ in range(200)]
    for place, service in zip(places, services, strict=True):
        beyond[place] += clues(service)
    assert len(stretches(list(range(200)), beyond, before=2, apart=3)) == left


def test_what_takes_up_much_of_the_time_is_how_the_mesh_is():
    beyond = [clues(1) if 50 <= number < 80 else [] for number in range(200)]
    assert stretches(list(range(200)), beyond, before=2, apart=3) == []


def test_what_one_series_alone_shows_is_not_left_out():
    beyond = [clues(1)[:1] if 50 <= number < 55 else [] for number in range(200)]
    assert stretches(list(range(200)), beyond, before=2, apart=3) == []


@given(st.lists(st.sets(st.integers(0, 4), max_size=2), max_size=120), st.integers(0, 5), st.integers(1, 5))
def test_at_most_a_tenth_is_left_out_and_no_series_twice(services, before, apart):
    beyond = [[one for service in sorted(some) for one in clues(service)] for some in services]
    times_s = [START_S + INTERVAL_S * number for number in range(len(beyond))]
    out = stretches(times_s, beyond, before=before, apart=apart)
    assert 10 * sum(any(time_s in one for one in out) for time_s in times_s) <= len(times_s)
    assert all(one.since_s <= one.until_s for one in out)
    assert all(one.series.isdisjoint(other.series) for one, other in itertools.combinations(out, 2))


def test_an_incident_in_it_changes_no_threshold_and_hides_no_later_one():
    calm, other = learned(), learned(failing(300))
    (out,) = other.left_out
    assert not calm.left_out
    assert START_S + 294 * INTERVAL_S <= out.since_s <= START_S + 300 * INTERVAL_S
    assert START_S + 319 * INTERVAL_S <= out.until_s <= START_S + 330 * INTERVAL_S
    assert other.thresholds == pytest.approx(calm.thresholds, rel=0.1)
    later = play(80, failing(20), seed=1, start_s=START_S + COUNT * INTERVAL_S)
    (incident,) = incidents(watch(other, later))
    assert incident.suspects[0].service == "store"


def test_what_comes_again_and_again_is_learned_as_normal():
    detector = learned(failing(150, 300, 450))
    assert not detector.left_out
    later = play(80, failing(20), seed=1, start_s=START_S + COUNT * INTERVAL_S)
    assert not incidents(watch(detector, later))


def test_what_was_planned_is_no_incident_that_would_be_left_out():
    begin_s = START_S + 295 * INTERVAL_S

    def uses_more(number, nodes, edges):
        if 300 <= number < 320:
            nodes[STORE, [node("cpu_cores"), node("connections")]] *= 8.0

    change = Change("scale", "store", begin_s, begin_s + 25 * INTERVAL_S)
    assert learned(uses_more).left_out
    assert not learned(uses_more, Context(changes=(change,))).left_out


def test_thresholds_are_not_raised_by_what_more_load_explains():
    calm, other = learned(), learned(busy(300))
    assert not other.left_out
    for column in ("node.p99_ms", "node.cpu_cores", "node.request_rate", "edge.request_rate"):
        assert other.thresholds[column] <= 1.35 * calm.thresholds[column], column


@pytest.mark.release
def test_thresholds_are_not_raised_by_what_was_planned():
    begin_s = START_S + 295 * INTERVAL_S

    def uses_more(number, nodes, edges):
        if 300 <= number < 310:  # of so many, that spreads stay what they are
            nodes[STORE, node("cpu_cores")] *= 3.0

    planned = Context(changes=(Change("scale", "store", begin_s, begin_s + 15 * INTERVAL_S),))
    calm = learned(count=1200).thresholds
    assert learned(uses_more, planned, count=1200).thresholds == pytest.approx(calm, rel=0.05)
    raised = learned(uses_more, count=1200)
    assert not raised.left_out  # of one series alone
    assert raised.thresholds["node.cpu_cores"] > 1.5 * calm["node.cpu_cores"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("edit", [None, failing(150, 300, 450), busy(300)])
def test_each_series_of_each_interval_is_counted_once(edit):
    detector = learned(edit)
    for table, series in zip(detector._tables, (4, len(CALLS)), strict=True):
        assert (table.histogram >= 0).all()
        assert (table.histogram.sum(axis=1) == COUNT * series).all()
        assert np.isfinite(table.peak).all()
