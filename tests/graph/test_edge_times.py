"""One unit of time in a graph, and what its times range over."""

import json
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.errors import GraphError
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.graph.edge_times import UNITS, iso, likely_unit
from hopline.testing.graphs import hetero_graph

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
def test_the_unit_of_times_of_today_is_told_by_their_size(seconds, unit):
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
