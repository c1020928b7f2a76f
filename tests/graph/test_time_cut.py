"""Time cuts in another unit than the graph's, and as moments."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.errors import BadRequest
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.graph.edge_times import UNITS
from hopline.graph.time_cut import rough_range, time_cut

SECONDS = (1_000_000_000, 1_500_000_000)
MOMENT = datetime(2011, 3, 13, 7, 6, 40, 500_000, UTC)


def in_unit(seconds: int, unit: str) -> int:
    return seconds * 1000 ** UNITS.index(unit)


def of_unit(unit: str) -> tuple[int, int]:
    return in_unit(SECONDS[0], unit), in_unit(SECONDS[1], unit)


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("sent", UNITS)
def test_a_number_of_another_unit_is_refused_with_what_it_would_be(
    unit: str, sent: str, stated: bool
) -> None:
    as_of = in_unit(1_300_000_000, sent)
    known = unit if stated else ""
    if sent == unit:
        assert time_cut(as_of, known, of_unit(unit)) == as_of
        return
    with pytest.raises(BadRequest) as error:
        time_cut(as_of, known, of_unit(unit))
    first, last = of_unit(unit)
    text = str(error.value)
    assert f"about {first} to {last} {unit} (2001-09-09T01:46:40" in text
    assert f"send {in_unit(1_300_000_000, unit)}, which is 2011-03-13T07:06:40" in text
    assert {"s": " seconds", "ms": "milli", "us": "micro", "ns": "nano"}[sent] in text


@pytest.mark.parametrize(
    "as_of", [999_999_999, 10_000_000, 0, -1, -(2**63), 1_500_000_001, 150_000_000_000]
)
def test_a_moment_before_or_after_all_edges_is_legal(as_of: int) -> None:
    assert time_cut(as_of, "", SECONDS) == as_of


@pytest.mark.parametrize("as_of", [1, 9_999_999, 150_000_000_001, 2**63 - 1])
def test_a_number_a_hundred_times_away_is_refused(as_of: int) -> None:
    with pytest.raises(BadRequest, match=f"as_of {as_of} is far from the graph's edge times"):
        time_cut(as_of, "", SECONDS)


def test_times_that_are_no_times_since_1970_have_their_own_scale() -> None:
    days = (0, 364)
    for as_of in (0, 1, 180, 364, 400, 36_400, -5):
        assert time_cut(as_of, "", days) == as_of
    with pytest.raises(BadRequest, match="0 to 364 in an unknown unit; send a number in their unit"):
        time_cut(1_300_000_000, "", days)
    assert time_cut(5, "", (-9, -3)) == 5
    assert time_cut(5, "", (0, 0)) == 5


def test_edge_times_of_zero_hide_no_other_unit_where_the_unit_is_stated() -> None:
    times = (0, in_unit(1_500_000_000, "ms"))
    with pytest.raises(BadRequest, match="looks like seconds; send 1300000000000"):
        time_cut(1_300_000_000, "ms", times)
    assert time_cut(in_unit(1_300_000_000, "ms"), "ms", times) == in_unit(1_300_000_000, "ms")
    early = (in_unit(1_000_000, "ms"), in_unit(1_500_000_000, "ms"))  # edges of January 1970
    assert time_cut(1_300_000_000, "ms", early) == 1_300_000_000


def test_without_edges_every_number_is_legal() -> None:
    assert time_cut(1_300_000_000, "ns", None) == 1_300_000_000


@pytest.mark.parametrize(
    ("unit", "want"),
    [
        ("s", 1_300_000_000),
        ("ms", 1_300_000_000_500),
        ("us", 1_300_000_000_500_000),
        ("ns", 1_300_000_000_500_000_000),
    ],
)
def test_a_moment_is_brought_to_the_graphs_unit(unit: str, want: int) -> None:
    for times, known in ((None, unit), (of_unit(unit), unit), (of_unit(unit), ""), ((0, 5), unit)):
        assert time_cut(MOMENT, known, times) == want
    elsewhere = MOMENT.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert time_cut(elsewhere, unit, None) == want
    assert time_cut(MOMENT.replace(tzinfo=None), unit, None) == want


@given(
    st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)),
    st.integers(0, 999_999),
    st.sampled_from(UNITS),
)
def test_an_edge_counts_if_it_is_not_later_than_the_moment(
    moment: datetime, micros: int, unit: str
) -> None:
    moment = moment.replace(microsecond=micros)
    cut = time_cut(moment, unit, None)
    at, after = np.array([cut, cut + 1]).astype(f"M8[{unit}]").astype("M8[ns]")
    assert at <= np.datetime64(moment, "ns") < after


def test_a_moment_needs_a_unit() -> None:
    with pytest.raises(BadRequest, match=r"has times 0 to 364; send .*\(--time-unit"):
        time_cut(MOMENT, "", (0, 364))
    with pytest.raises(BadRequest, match="has no edges with times yet"):
        time_cut(MOMENT, "", None)
    with pytest.raises(BadRequest, match="does not fit into 64 bits in ns"):
        time_cut(datetime(2999, 1, 1, tzinfo=UTC), "ns", None)


def test_the_range_is_stored_or_looked_up() -> None:
    rng = np.random.default_rng(0)
    times = rng.integers(10**9, 15 * 10**8, 50_000)
    built = Graph.from_tables(
        {"n": NodeTable(num_nodes=20_000)},
        {("n", "to", "n"): EdgeTable(rng.integers(0, 20_000, (2, 50_000)), time=times)},
    )
    (key,) = built.edges
    exact = int(times.min()), int(times.max())
    assert rough_range(built.edges, {key: 20_000}) == exact
    unstored = {key: dataclasses.replace(built.edges[key], stored_time_range=None)}
    low, high = rough_range(unstored, {key: 20_000}) or (0, 0)
    assert exact[0] <= low <= 1.01 * exact[0]
    assert 0.99 * exact[1] <= high <= exact[1]
