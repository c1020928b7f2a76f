"""Rows of nodes over time: how they are built, stored and found."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.errors import GraphError
from hopline.graph import EdgeFile, EdgeTable, Graph, NodeFile, NodeTable
from hopline.graph.extent import NO_RECORDS
from hopline.graph.history import find_rows
from tests.commands.typed import typed
from tests.thorough import thorough

EDGE = ("a", "to", "a")
DAY = 86_400


def built(rows, edges=((), ()), edge_time=None, **options):
    """A graph of rows (id, time, value)."""
    ids, times, values = ([row[at] for row in rows] for at in range(3))
    table = NodeTable(np.array(values, np.float32)[:, None], ids=ids, history=np.array(times), **options)
    return Graph.from_tables({"a": table}, {EDGE: EdgeTable(edges, time=edge_time)})


def value_at(graph, name, as_of):
    part = graph.nodes["a"]
    place = part.history.places(part.ids.lookup([name]), as_of)[0]
    return None if place < 0 else float(part.history.features[place, 0])


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["x", "y", "z", "", "x\x00"]),
        st.one_of(st.integers(-4, 4), st.sampled_from([-(2**63), -(10**7), 10**7])),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=40,
    unique_by=lambda row: row[:2],
)


@settings(deadline=None, max_examples=thorough(50, 200))
@given(rows=ROWS, moments=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5))
def test_the_row_of_a_time_is_the_last_one_until_then(rows, moments):
    graph = built(rows)
    for name in {row[0] for row in rows}:
        own = sorted(row[1:] for row in rows if row[0] == name)
        for as_of in [*moments, *(time for time, _ in own)]:
            before = [value for time, value in own if time <= as_of]
            assert value_at(graph, name, as_of) == (before[-1] if before else None)
        newest = graph.nodes["a"].features[graph.nodes["a"].ids.lookup([name])[0], 0]
        assert newest == own[-1][1]


@settings(deadline=None)
@given(rows=ROWS, as_of=st.integers(-5, 5))
def test_nodes_that_exist_then_are_the_first_ones_in_the_same_order(rows, as_of):
    """So a graph of the rows known then gives them the same numbers, whatever comes later."""
    known = [row for row in rows if row[1] <= as_of]
    every = built(rows).nodes["a"]
    there = every.history.places(np.arange(every.num_nodes), as_of) >= 0
    assert there.tolist() == sorted(there, reverse=True)
    if known:
        ids = built(known).nodes["a"].ids
        assert ids.external(np.arange(len(ids))) == every.ids.external(np.arange(there.sum()))


@settings(deadline=None)
@given(counts=st.lists(st.integers(1, 80), min_size=1, max_size=9), seed=st.integers(0, 99))
def test_long_and_short_lists_are_searched_alike(counts, seed):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    times = np.concatenate([np.sort(rng.choice(200, count, replace=False)) for count in counts])
    ids, out = rng.integers(0, len(counts), 50), np.empty(50, np.int64)
    for as_of in rng.integers(-1, 202, 8).tolist():
        find_rows(offsets, NO_RECORDS, 0, times, ids, np.array([as_of]), out)
        for node, found in zip(ids.tolist(), out.tolist(), strict=True):
            own = times[offsets[node] : offsets[node + 1]]
            right = np.searchsorted(own, as_of, side="right")
            assert found == (offsets[node] + right - 1 if right else -1)


def test_a_folder_has_the_history_and_its_version_counts_it(tmp_path):
    rows = [("x", 3, 1.0), ("y", 1, 2.0), ("x", 5, 3.0)]
    graph = built(rows, history_since=1)
    saved = graph.save(tmp_path / "graph")
    again = Graph.open(saved.path, verify=True)
    assert [value_at(again, "x", at) for at in (2, 3, 4, 5)] == [None, 1.0, 1.0, 3.0]
    assert (again.nodes["a"].history.since, again.clock, again.schema.time_unit) == (1, 5, "")
    assert json.loads((saved.path / "graph.json").read_text())["format"] == 12
    other = built([("x", 4, 1.0), *rows[1:]], history_since=1)
    assert len({graph.version, built(rows).version, other.version}) == 3
    assert again.version == graph.version
    assert not any(array.flags.writeable for array in again.nodes["a"].history.arrays().values())
    assert not graph.nodes["a"].features.flags.writeable


@pytest.mark.parametrize(
    ("file", "changed", "message"),
    [
        ("offsets", [0, 2, 2], "do not divide"),
        ("offsets", [0, 1, 9], "do not divide"),
        ("times", [1, 5, 5], "ascend"),
    ],
)
def test_a_damaged_history_is_refused_before_it_is_read(tmp_path, file, changed, message):
    saved = built([("y", 1, 2.0), ("x", 3, 1.0), ("x", 5, 3.0)]).save(tmp_path / "graph")
    path = saved.path / "nodes" / "a" / "history" / f"{file}.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-24] + np.array(changed, np.int64).tobytes())
    with pytest.raises(GraphError, match=message):
        Graph.open(saved.path)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (
            [("x", 3, 1.0), ("x", 3, 2.0)],
            {},
            "1 rows have the id and the time of another row; the first are 0 and 1",
        ),
        ([("x", 3, 1.0), ("x", 3, 1.0)], {}, "Keep one row for each id and time"),
        ([("x", 3, 1.0), (5, 4, 1.0)], {}, "all integers or all strings"),
        ([("x", 1.5, 1.0)], {}, "must be integers"),
        ([("x", 1, np.nan)], {}, "NaN"),
        ([("x", 1, 1.0)], {"time": [1]}, "times and a history"),
        ([("x", 1, 1.0)], {"history_since": "soon"}, "history_since is 'soon'"),
        ([("x", 1, 1.0)], {"num_nodes": 5}, "must agree"),
    ],
)
def test_wrong_tables_are_refused_by_name(rows, options, message):
    with pytest.raises(GraphError, match=message):
        built(rows, **options)


def test_rows_without_ids_or_values_are_refused():
    edges = {EDGE: EdgeTable(([], []))}
    for table in (
        NodeTable(np.ones((2, 1)), history=[1, 2]),
        NodeTable(np.ones((2, 1)), ids=["x"], history=[1, 2]),
        NodeTable(np.ones((3, 1)), ids=["x", "y"], history=[1, 2]),
        NodeTable(ids=["x", "y"], history=[1, 2]),
    ):
        with pytest.raises(GraphError, match=r"a history of 2 times, [0-3] ids, [0-3] rows of values"):
            Graph.from_tables({"a": table}, edges)


def test_edges_know_only_nodes_with_rows():
    with pytest.raises(GraphError, match="sources of 'a__to__a' unknown: 1"):
        built([("x", 1, 1.0)], (["w"], ["x"]))


def test_an_edge_is_not_older_than_the_first_row_of_its_source():
    """The other end may come later: nothing reads the node before its first row."""
    rows = [("x", 10, 1.0), ("y", 20, 2.0)]
    graph = built(rows, (["x", "x"], ["y", "x"]), [10, 15])
    assert sorted(graph.edges["a__to__a"].time.tolist()) == [10, 15]
    assert built(rows, (["y", "x"], ["x", "y"])).edges["a__to__a"].time.tolist() == [20, 10], (
        "of the first rows"
    )
    with pytest.raises(GraphError, match=r"1 edges are older than their source.*history_since"):
        built(rows, (["y"], ["x"]), [19])


def test_edges_from_before_a_history_is_known_need_no_row():
    rows, edges = [("x", 10, 1.0), ("y", 20, 2.0)], (["x"], ["y"])
    assert built(rows, edges, [-5], history_since=12).edges["a__to__a"].time.tolist() == [-5]
    with pytest.raises(GraphError, match="1 edges are older"):
        built(rows, edges, [-5], history_since=9)


def test_times_of_rows_and_edges_have_one_unit():
    days = np.array(["2024-01-01", "2024-01-03"], "M8[D]")
    table = NodeTable(np.ones((2, 1)), ids=["x", "x"], history=days, history_since="2024-01-02")
    edges = EdgeTable((["x"], ["x"]), time=np.array(["2024-01-05T00:00:00.5"], "M8[ms]"))
    graph = Graph.from_tables({"a": table}, {EDGE: edges})
    first = 1_704_067_200_000
    assert graph.nodes["a"].history.times.tolist() == [first, first + 2 * DAY * 1000]
    assert graph.nodes["a"].history.since == first + DAY * 1000
    assert graph.schema.time_unit == graph.schema.node_types["a"].history.time_unit == "ms"
    alone = Graph.from_tables({"a": table}, {EDGE: EdgeTable(([], []))})
    assert alone.schema.time_unit == "s"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_narrow_rows_of_then_and_now_have_one_scale(dtype, tmp_path):
    rng = np.random.default_rng(0)
    values, times = rng.standard_normal((60, 3)).astype(np.float32) * 9, np.arange(60)
    table = NodeTable(values, ids=[f"n{at % 20}" for at in range(60)], history=times)
    graph = Graph.from_tables({"a": table}, {EDGE: EdgeTable(([], []))}, feature_dtype=dtype)
    part = graph.save(tmp_path / "graph").nodes["a"]
    for at in range(60):
        node = part.ids.lookup([f"n{at % 20}"])
        row = np.asarray(part.history.features[part.history.places(node, at)], np.float32)
        np.testing.assert_allclose(row[0], values[at], atol=0.2)
        if at >= 40:
            np.testing.assert_array_equal(row, np.asarray(part.features[node], np.float32))


def test_columns_of_a_table_have_a_history_with_missing_cells(tmp_path):
    frame = pd.DataFrame(
        {
            "plan": ["free", None, "pro"],
            "seats": [1.0, np.nan, 3.0],
            "on": pd.to_datetime(["2024-01-01"] * 3),
        }
    )
    table = NodeTable(columns=frame, ids=[7, 8, 7], history=[20, 10, 10])
    part = Graph.from_tables({"a": table}, {EDGE: EdgeTable(([], []))}).save(tmp_path / "graph").nodes["a"]
    assert part.ids.external(np.arange(2)).tolist() == [8, 7]
    assert part.columns.table["plan"].to_pylist() == [None, "free"]
    assert part.history.columns.table["plan"].to_pylist() == [None, "pro", "free"]
    assert part.history.columns.table["seats"].to_pylist() == [None, 3.0, 1.0]


def test_what_would_lose_a_history_refuses():
    graph = built([("x", 3, 1.0), ("x", 5, 3.0)])
    with pytest.raises(GraphError, match="'a' has a history, which a subgraph"):
        graph.subgraph([0])
    with pytest.raises(GraphError, match="'a' has a history: build it again"):
        graph.with_features_as("float16")


def test_files_and_the_command_line_have_histories(tmp_path):
    (tmp_path / "accounts.csv").write_text(
        "id,valid_from,limit\nb,2024-01-02,5\na,2024-01-01,7\nb,2024-01-04,6\n"
    )
    (tmp_path / "pays.csv").write_text("src,dst,at\nb,a,2024-01-03\n")
    words = [
        "graph",
        "build",
        f"account:pays:account={tmp_path / 'pays.csv'}",
        "--time",
        "account:pays:account=at",
    ]
    words += ["--features", f"account={tmp_path / 'accounts.csv'}", "--id", "account=id"]
    words += ["--history", "account=valid_from", "--history-since", "account=2024-01-01"]
    found = typed(*words, "--out", str(tmp_path / "graph"))
    assert found.exit_code == 0, found.output
    assert "3 rows, 2024-01-01T00:00:00Z on" in found.output
    part, first = Graph.open(tmp_path / "graph").nodes["account"], 1_704_067_200
    assert part.ids.external(np.arange(2)) == ["a", "b"]
    assert part.history.times.tolist() == [first, first + DAY, first + 3 * DAY]
    assert (part.features[:, 0].tolist(), part.history.since) == ([7.0, 6.0], first)
    shown = json.loads(typed("graph", "info", str(tmp_path / "graph"), "--json").output)
    past = shown["node_types"]["account"]["history"]
    assert (past["rows"], past["since"], past["time"]["max"]) == (3, first, first + 3 * DAY)
    node = NodeFile(
        tmp_path / "accounts.csv",
        "id",
        history="valid_from",
        history_since=str(np.datetime64("2024-01-01")),
    )
    edge = EdgeFile(tmp_path / "pays.csv", time="at")
    same = Graph.from_parquet({"account": node}, {("account", "pays", "account"): edge})
    assert same.version == Graph.open(tmp_path / "graph").version


def test_a_missing_time_of_a_row_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("id,since,x\nb,,5\na,4,7\n")
    (tmp_path / "e.csv").write_text("src,dst\nb,a\n")
    words = ["graph", "build", str(tmp_path / "e.csv"), "--features", str(tmp_path / "a.csv"), "--id", "id"]
    found = typed(*words, "--history", "since", "--out", str(tmp_path / "graph"))
    assert found.exit_code != 0
    assert "missing" in found.output
