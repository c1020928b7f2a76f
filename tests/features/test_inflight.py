"""The map of rows in flight equals a dict, whatever is put in and taken out."""

import random

import numpy as np
import pytest

from hopline.features.inflight import InFlight


def ids(*values):
    return np.array(values, np.int64)


def test_new_rows_follow_each_other_and_known_rows_are_found():
    rows = InFlight()
    entries, fresh = rows.claim(ids(5, 7, 5, 9), flight=3, first_row=10)
    assert fresh.tolist() == [0, 1, 3]
    numbers, of = rows.split(entries)
    assert numbers.tolist() == [3, 3, 3, 3]
    assert of.tolist() == [10, 11, 10, 12]
    entries, fresh = rows.claim(ids(9, 8), flight=4, first_row=0)
    assert fresh.tolist() == [1]
    assert [part.tolist() for part in rows.split(entries)] == [[3, 4], [12, 0]]


def test_a_flight_releases_only_its_own_rows():
    rows = InFlight()
    rows.claim(ids(1, 2), flight=1, first_row=0)
    rows.claim(ids(3), flight=2, first_row=0)
    rows.release(ids(1, 3), flight=1)
    assert len(rows) == 2
    assert rows.claim(ids(1, 2, 3), flight=9, first_row=0)[1].tolist() == [0]


def test_a_negative_id_is_refused_and_nothing_is_claimed():
    rows = InFlight()
    with pytest.raises(ValueError, match="negative"):
        rows.claim(ids(4, -1), flight=1, first_row=0)
    assert len(rows) == 0
    assert rows.claim(ids(4), flight=2, first_row=0)[1].tolist() == [0]


@pytest.mark.parametrize("spread", [40, 3000, 2**62])
def test_it_equals_a_dict(spread):
    rng = random.Random(spread)
    rows, oracle, flights = InFlight(), {}, {}
    for number in range(1, 300):
        asked = [rng.randrange(spread) for _ in range(rng.randrange(1, 60))]
        first = rng.randrange(5)
        known, expected, fresh = dict(oracle), [], []
        for at, id in enumerate(asked):
            if id not in known:
                known[id] = (number, first + len(fresh))
                fresh.append(at)
            expected.append(known[id])
        oracle = known
        entries, positions = rows.claim(ids(*asked), number, first)
        numbers, of = rows.split(entries)
        assert list(zip(numbers.tolist(), of.tolist(), strict=True)) == expected
        assert positions.tolist() == fresh
        if fresh:
            flights[number] = [asked[at] for at in fresh]
        while flights and rng.random() < 0.6:
            gone = rng.choice(list(flights))
            rows.release(ids(*flights[gone]), gone)
            for id in flights.pop(gone):
                del oracle[id]
        assert len(rows) == len(oracle)
