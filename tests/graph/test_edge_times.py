"""One unit of time in a graph, and what its times range over."""

import dataclasses
import json
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.errors import BadRequest, GraphError
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.graph.edge_times import UNITS, iso, likely_unit, rough_range, time_cut, with_likely_unit
from tests.graphs import hetero_graph

NODES = {"user": NodeTable(num_nodes=2), "item": NodeTable(num_nodes=2)}


def graph(buys, sells=None, buys_unit="", sells_unit=""):
    edges = {("user", "buys", "item"): EdgeTable([[0, 1], [1, 0]], time=buys, time_unit=buys_unit)}
    if sells is not None:
        edges["user", "sells", "item"] = EdgeTable([[0, 1], [1, 0]], time=sells, time_unit=sells_unit)
    return Graph.from_tables(NODES, edges)


def test_the_range_is_known_in_memory_and_in_a_saved_graph(tmp_path):
    built = graph([1_600_000_000, 1_700_000_000], [1_500_000_000, 1_650_000_000], "s", "s")
    for each in (built, built.save(tmp_path / "g")):
        assert each.time_range == (1_500_000_000, 1_700_000_000)
        assert each.edges["user__buys__item"].time_range == (1_600_000_000, 1_700_000_000)
        assert each.schema.time_unit == "s"
        assert each.edges["user__buys__item"].stored_time_range is not None


def test_a_graph_whose_unit_is_not_set_has_a_likely_one():
    """Events are checked against it: milliseconds among seconds would be the newest edge for ever."""
    assert with_likely_unit(graph([1_600_000_000, 1_700_000_000])).time_unit == "s"
    assert with_likely_unit(graph([1_600_000_000_000, 1_700_000_000_000], buys_unit="ms")).time_unit == "ms"
    for unknown in (graph([3, 700]), Graph.from_edges([[0], [1]])):
        assert with_likely_unit(unknown) is unknown.schema


def test_graphs_without_times_have_no_range_and_no_unit(tmp_path):
    built = Graph.from_edges([[0], [1]])
    assert (built.time_range, built.schema.time_unit) == (None, "")
    assert Graph.from_edges(np.empty((2, 0), int), num_nodes=1, edge_time=[]).time_range is None


def test_a_graph_saved_before_there_were_ranges_has_one(tmp_path):
    saved = graph([5, 3]).save(tmp_path / "g")
    manifest = json.loads((tmp_path / "g" / "graph.json").read_text())
    del manifest["edges"]["user__buys__item"]["time_range"]
    (tmp_path / "g" / "graph.json").write_text(json.dumps(manifest))
    assert Graph.open(saved.path).time_range == (3, 5)


def test_a_unit_belongs_to_the_version_and_to_the_schema_hash():
    assert graph([1, 2], buys_unit="s").version != graph([1, 2], buys_unit="ms").version
    assert "time_unit" not in hetero_graph().schema.canonical().decode()


@pytest.mark.parametrize("unit", UNITS)
def test_datetimes_keep_their_unit_and_are_brought_to_the_one_that_is_said(unit):
    at = np.array(["2021-03-04T05:06:07", "1969-12-31T23:59:59"], f"M8[{unit}]")
    assert graph(at).schema.time_unit == unit
    assert sorted(graph(at, buys_unit="us").edge().time) == sorted(at.astype("M8[us]").view(np.int64))


def test_days_are_seconds():
    built = graph(np.array(["2021-03-04", "2021-03-05"], "M8[D]"))
    assert built.schema.time_unit == "s"
    assert built.time_range == (1_614_816_000, 1_614_902_400)


def test_datetimes_finer_than_the_unit_are_refused():
    with pytest.raises(GraphError, match=r"1 times are not whole s.*edge 1; choose another time unit"):
        graph(np.array([1_000, 1_500], "M8[ms]"), buys_unit="s")


def test_stated_units_are_brought_to_the_finest():
    built = graph([1_600_000_000, 5], [1_600_000_000_123, 7], "s", "ms")
    assert built.schema.time_unit == "ms"
    assert sorted(built.edges["user__buys__item"].time) == [5_000, 1_600_000_000_000]
    assert sorted(built.edges["user__sells__item"].time) == [7, 1_600_000_000_123]


@pytest.mark.parametrize(
    ("buys", "sells", "sells_unit"),
    [
        ([1_600_000_000, 1_600_000_001], [1_600_000_000_000, 1_600_000_000_001], ""),
        ([1_600_000_000, 1_600_000_001], [1_600_000_000_000, 1_600_000_000_001], "ms"),
        ([1_600_000_000, 1_600_000_001], np.array(["2020-01-01", "2020-01-02"], "M8[ns]"), ""),
        ([1, 49], [1_600_000_000, 1_600_000_001], ""),
    ],
)
def test_edge_types_plainly_in_different_units_are_refused(buys, sells, sells_unit):
    with pytest.raises(GraphError, match=r"are not in one unit.*--time-unit"):
        graph(buys, sells, sells_unit=sells_unit)


def test_edge_types_that_may_be_in_one_unit_are_not():
    assert graph([1, 49], [7, 200]).schema.time_unit == ""
    assert graph([0, 0], [1_600_000_000, 1_600_000_001]).schema.time_unit == ""
    adopted = graph([1_500_000_000, 1_500_000_001], [1_600_000_000, 1_600_000_001], "s")
    assert [edge.time_unit for edge in adopted.schema.edge_types.values()] == ["s", "s"]


def test_units_have_names():
    with pytest.raises(GraphError, match="one of s, ms, us, ns; got 'seconds'"):
        graph([1, 2], buys_unit="seconds")


def test_a_common_unit_that_does_not_hold_the_times_is_refused():
    with pytest.raises(GraphError, match="do not fit into 64 bits in ns"):
        graph([5 * 10**10, 1], [1, 2], "s", "ns")


def test_models_of_another_unit_do_not_fit():
    seconds, millis, unknown = (graph([1, 2], buys_unit=unit).schema for unit in ("s", "ms", ""))
    assert seconds.differences(millis) == [
        "edge type 'user__buys__item' has times in ms; the model was packaged with times in s"
    ]
    assert seconds.differences(unknown) == unknown.differences(seconds) == []


@given(st.integers(10**8, 10**10 - 1), st.sampled_from(UNITS))
def test_the_unit_of_times_of_today_is_reported_by_their_size(seconds, unit):
    value = seconds * 1000 ** UNITS.index(unit)
    if value < 2**63:
        assert likely_unit(np.array([value])) == unit


def test_iso_dates():
    assert iso(1_600_000_000, "s") == "2020-09-13T12:26:40Z"
    assert iso(1_600_000_000_123, "ms") == "2020-09-13T12:26:40.123Z"


S, MS, US, NS = 1_706_708_700, 1_706_708_700_000, 1_706_708_700_000_000, 1_706_708_700_000_000_000


@pytest.mark.parametrize("unit", ["", "s", "ms", "us", "ns"])
@pytest.mark.parametrize("pair", [(S, MS), (MS, S), (S, US), (US, NS), (NS, MS)])
def test_two_units_in_one_column_are_refused(unit, pair):
    with pytest.raises(
        GraphError, match=r"are not in one unit: \d+ at edge [01] looks like .*s since 1970"
    ):
        graph(pair, buys_unit=unit)


def test_a_clock_that_counts_through_the_ranges_of_two_units_is_one_clock():
    steps = [5 * 10**9, 5 * 10**10, 5 * 10**11]
    built = Graph.from_edges([[0, 1, 2], [1, 2, 0]], edge_time=steps)
    assert sorted(built.edge().time.tolist()) == steps


@pytest.mark.parametrize(
    ("times", "unit", "match"),
    [
        ([5, 10**12], "s", "1000000000000 s at edge 1 is in the year 33658"),
        ([5, 10**15], "ms", "1000000000000000 ms at edge 1 is in the year 33658"),
        ([5, -(10**12)], "s", "at edge 1 is in the year -29719"),
        ([20240131, 20240201], "s", r"20240131 at edge 0 looks like a date \(YYYYMMDD\)"),
        ([20240131, 20240201], "ms", "looks like a date"),
        ([2024013113, 2024020100], "ms", "looks like a date"),
        ([202401311345, 202402010000], "s", "looks like a date"),
        ([20240131134500, 20240201000000], "ms", "looks like a date"),
    ],
)
def test_integers_that_are_no_times_of_their_unit_are_refused(times, unit, match):
    with pytest.raises(GraphError, match=match):
        graph(times, buys_unit=unit)


@pytest.mark.parametrize(
    "times", [[20240131, 20241301], [20240131, 5], [S, S + 1], [0, -1], [253_402_300_799, 0]]
)
def test_integers_that_may_be_seconds_are_seconds(times):
    built = graph(times, buys_unit="s")
    assert sorted(built.edges["user__buys__item"].time.tolist()) == sorted(times)


def test_dates_written_as_integers_keep_their_order_without_a_unit():
    built = graph([20240131, 20240201])
    assert built.time_range == (20240131, 20240201)
    assert built.schema.time_unit == ""


@given(
    st.lists(st.datetimes(datetime(1973, 3, 4), datetime(2262, 1, 1)), min_size=1, max_size=5),
    st.sampled_from(UNITS),
)
def test_instants_of_one_unit_are_read(instants, unit):
    exact = [int(each.replace(tzinfo=UTC).timestamp()) * 1000 ** UNITS.index(unit) for each in instants]
    ends = [[0] * len(exact), [1] * len(exact)]
    built = Graph.from_edges(ends, num_nodes=2, edge_time=exact, time_unit=unit)
    assert built.edge().time.tolist() == sorted(exact)


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
    assert rough_range(built, [key]) == exact
    unstored = dataclasses.replace(built.edges[key], stored_time_range=None)
    low, high = rough_range(SimpleNamespace(nodes=built.nodes, edges={key: unstored}), [key]) or (0, 0)
    assert exact[0] <= low <= 1.01 * exact[0]
    assert 0.99 * exact[1] <= high <= exact[1]
