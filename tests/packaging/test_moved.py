"""The clocks and places that a module is tried with."""

import datetime

import pytest

from hopline.packaging.moved import PLACES, SHIFTS

#: Moments of a week, in all hours, minutes and seconds.
MOMENTS = [datetime.datetime(2026, 11, 23) + datetime.timedelta(seconds=at) for at in range(0, 604_800, 61)]


@pytest.mark.parametrize(
    "part",
    [
        lambda moment: moment.weekday() >= 5,
        lambda moment: 9 <= moment.hour < 17,
        lambda moment: moment.hour >= 12,
        lambda moment: moment.minute < 30,
        lambda moment: moment.second < 30,
        lambda moment: moment.minute % 2,
        lambda moment: moment.weekday(),
        lambda moment: moment.month,
        lambda moment: moment.year,
    ],
    ids=[
        "weekend",
        "working hours",
        "afternoon",
        "half an hour",
        "half a minute",
        "minutes",
        "weekday",
        "month",
        "year",
    ],
)  # fmt: skip
def test_from_any_moment_a_moved_clock_shows_another_value(part):
    same = [
        moment
        for moment in MOMENTS
        if {part(moment + datetime.timedelta(seconds=shift)) for shift in SHIFTS} == {part(moment)}
    ]
    assert same == []


@pytest.mark.parametrize("divisor", [2, 3, 7, 10, 97, 100, 1000, 1024])
def test_from_any_process_an_id_has_another_remainder(divisor):
    same = [
        pid for pid in range(1, 5000) if all(place.pid(pid) % divisor == pid % divisor for place in PLACES)
    ]
    assert same == []


@pytest.mark.parametrize("bit", range(22))
def test_from_any_process_each_bit_of_an_id_is_another(bit):
    for pid in (1, 7, 100, 4711, 32768, 2**22 - 1):
        assert any((place.pid(pid) ^ pid) >> bit & 1 for place in PLACES)


@pytest.mark.parametrize("part", ["folder", "host"])
def test_names_of_places_have_different_lengths(part):
    assert len({len(getattr(place, part)) for place in PLACES}) == len(PLACES)
