"""The clocks that a module is tried with."""

import datetime

import pytest

from hopline.packaging.moved import SHIFTS

#: One moment of each hour of a week.
MOMENTS = [datetime.datetime(2026, 11, 23) + datetime.timedelta(hours=hour) for hour in range(7 * 24)]


@pytest.mark.parametrize(
    "part",
    [
        lambda moment: moment.weekday() >= 5,
        lambda moment: 9 <= moment.hour < 17,
        lambda moment: moment.hour >= 12,
        lambda moment: moment.weekday(),
        lambda moment: moment.month,
        lambda moment: moment.year,
    ],
    ids=["weekend", "working hours", "afternoon", "weekday", "month", "year"],
)
def test_from_any_hour_a_moved_clock_shows_another_value(part):
    same = [
        moment
        for moment in MOMENTS
        if {part(moment + datetime.timedelta(seconds=shift)) for shift in SHIFTS} == {part(moment)}
    ]
    assert same == []
