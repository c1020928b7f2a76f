import importlib
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopline.errors import GraphError
from hopline.graph import EdgeFile, Graph, NodeFile
from hopline.graph.cells import Missing

NODES = {
    "account": ["x", "y", "z"],
    "age": [30, 40, 50],
    "amount": [0.5, 1.5, 2.5],
    "note": ["p", "q", "p"],
}
EDGES = {
    "src": ["x", "y", "z", "x"],
    "dst": ["y", "z", "y", "y"],
    "at": [4, 3, 2, 1],
    "w": [1.0, 2.0, 3.0, 4.0],
}


def write_csv(path, table):
    rows = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values(), strict=True))]
    path.write_text("\n".join(rows) + "\n")


def write_parquet(path, table):
    pq.write_table(pa.table(table), path, row_group_size=2)


WRITERS = {".csv": write_csv, ".parquet": write_parquet}


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_named_columns_become_the_graph(tmp_path, ending):
    nodes, edges = tmp_path / f"nodes{ending}", tmp_path / f"edges{ending}"
    WRITERS[ending](nodes, NODES)
    WRITERS[ending](edges, EDGES)
    graph = Graph.from_parquet(
        NodeFile(nodes, id="account"), EdgeFile(edges, time="at", weight="w", attr=["w", "at"])
    )
    expected = Graph.from_edges(
        (EDGES["src"], EDGES["dst"]),
        np.stack([NODES["age"], NODES["amount"]], axis=1),
        ids=NODES["account"],
        feature_names=["age", "amount"],
        edge_time=EDGES["at"],
        edge_weight=EDGES["w"],
        edge_attr=np.stack([EDGES["w"], EDGES["at"]], axis=1),
        attr_names=["w", "at"],
    )
    assert graph.schema == expected.schema
    assert graph.version == expected.version


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_integer_ids_stay_integers(tmp_path, ending):
    nodes, edges = tmp_path / f"nodes{ending}", tmp_path / f"edges{ending}"
    WRITERS[ending](nodes, {"id": [7, -(2**63)], "f": [1.0, 2.0]})
    WRITERS[ending](edges, {"a": [7], "b": [-(2**63)]})
    graph = Graph.from_parquet(NodeFile(nodes, id="id"), EdgeFile(edges, src="a", dst="b"))
    assert graph.node().ids.lookup([-(2**63), 7]).tolist() == [1, 0]
    assert graph.edge().neighbors(1).tolist() == [0]


def test_csv_ids_that_are_not_written_as_integers_are_strings(tmp_path):
    nodes, edges = tmp_path / "n.csv", tmp_path / "e.csv"
    write_csv(nodes, {"id": ["7", "007", "1_0"], "f": [1, 2, 3]})
    write_csv(edges, {"src": ["007"], "dst": ["1_0"]})
    graph = Graph.from_parquet(NodeFile(nodes, id="id"), EdgeFile(edges))
    assert graph.node().ids.lookup(["1_0", "007", "7"]).tolist() == [2, 1, 0]


def test_csv_columns_are_typed_on_all_their_cells(tmp_path):
    path = tmp_path / "n.csv"
    write_csv(path, {"id": ["1", "2", "3", "x", "1e3"], "f": ["1", "2", "3", "4", "0.5"]})
    edges = tmp_path / "e.csv"
    write_csv(edges, {"src": ["1"], "dst": ["x"]})
    graph = Graph.from_parquet(NodeFile(path, id="id"), EdgeFile(edges))
    assert graph.node().ids.lookup(["x", "1", "1e3"]).tolist() == [3, 0, 4]
    assert graph.node().features.reshape(-1).tolist() == [1.0, 2.0, 3.0, 4.0, 0.5]


def test_parquet_lists_are_the_whole_feature_matrix(tmp_path):
    for kind in (pa.list_(pa.float32()), pa.list_(pa.float32(), 2), pa.large_list(pa.float64())):
        path, edges = tmp_path / "n.parquet", tmp_path / "e.parquet"
        pq.write_table(pa.table({"e": pa.array([[1, 2], [3, 4], [5, 6]], kind)}), path)
        write_parquet(edges, {"src": [0], "dst": [2]})
        graph = Graph.from_parquet(NodeFile(path, features=["e"]), EdgeFile(edges))
        assert graph.node().features.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_parquet_timestamps_and_dictionary_strings(tmp_path):
    nodes, edges = tmp_path / "n.parquet", tmp_path / "e.parquet"
    write_parquet(nodes, {"id": pa.array(["a", "b"]).dictionary_encode(), "f": [1.0, 2.0]})
    write_parquet(
        edges,
        {
            "src": pa.array(["a", "a"]).dictionary_encode(),
            "dst": pa.array(["b", "b"], pa.large_string()),
            "at": pa.array([2_000, 1_000], pa.timestamp("ms", "UTC")),
        },
    )
    graph = Graph.from_parquet(NodeFile(nodes, id="id"), EdgeFile(edges, time="at"))
    assert graph.edge().time.tolist() == [1_000, 2_000]


@pytest.mark.parametrize("is_encoded", [False, True])
def test_parquet_strings_that_are_not_utf_8_are_refused_by_column(tmp_path, is_encoded):
    nodes, edges = tmp_path / "n.parquet", tmp_path / "e.parquet"
    made = pa.array([b"a", b"b\xed\xa0\x80", b"c"]).buffers()  # a lone surrogate
    ids = pa.Array.from_buffers(pa.utf8(), 3, made)
    write_parquet(nodes, {"id": ids.dictionary_encode() if is_encoded else ids, "f": [1.0, 2.0, 3.0]})
    write_parquet(edges, {"src": ["a"], "dst": ["c"]})
    with pytest.raises(GraphError, match=r"n\.parquet.*column 'id' holds bytes that are not UTF-8 text"):
        Graph.from_parquet(NodeFile(nodes, id="id"), EdgeFile(edges))


def test_types_each_have_their_file(tmp_path):
    users, items, buys = tmp_path / "u.csv", tmp_path / "i.csv", tmp_path / "b.parquet"
    write_csv(users, {"id": ["a", "b"], "f": [1, 2]})
    write_csv(items, {"g": [1, 1, 1]})
    write_parquet(buys, {"src": ["b"], "dst": [2]})
    graph = Graph.from_parquet(
        {"user": NodeFile(users, id="id"), "item": NodeFile(items)},
        {("user", "buys", "item"): EdgeFile(buys)},
    )
    assert graph.edge("user__buys__item").neighbors(2).tolist() == [1]


def test_edges_alone_are_a_graph(tmp_path):
    write_csv(tmp_path / "e.csv", {"src": [0, 4], "dst": [1, 1]})
    graph = Graph.from_parquet(None, EdgeFile(tmp_path / "e.csv"))
    assert graph.node().ids.external(np.arange(3)).tolist() == [0, 1, 4]
    rows = EdgeFile(tmp_path / "e.csv")
    assert Graph.from_parquet(None, rows, ids_are_rows=True).num_nodes == 5
    assert Graph.from_parquet(None, rows, ids_are_rows=True, num_nodes=9).num_nodes == 9


def refused(match, nodes, edges):
    with pytest.raises(GraphError, match=match):
        Graph.from_parquet(nodes, edges)


def test_files_that_cannot_be_read(tmp_path):
    refused("no such file", None, EdgeFile(tmp_path / "absent.csv"))
    refused(r"may end in .csv, .*.parquet, .*; not in '.xls'", None, EdgeFile(tmp_path / "e.xls"))
    (tmp_path / "broken.parquet").write_bytes(b"not at all")
    refused("as Parquet", None, EdgeFile(tmp_path / "broken.parquet"))
    for ending in ("npy", "npz"):
        refused(
            rf"np.load\('e.{ending}'\) to Graph.from_edges.*edges are \[2, E\]",
            None,
            EdgeFile(tmp_path / f"e.{ending}"),
        )


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("", "is empty"),
        ("src,dst\n1\n", "line 2: 1 values; the header has 2"),
        ("source,target\n1,2\n", "no column 'src', 'dst'; there are 'source', 'target'"),
        (
            "src,dst\n\udcff,1\n",
            "line 2: cannot be read as text: byte 0xff is not utf-8.*--encoding latin-1",
        ),
    ],
)
def test_bad_csv(tmp_path, content, match):
    path = tmp_path / "e.csv"
    path.write_text(content, encoding="utf-8", errors="surrogateescape")
    refused(match, None, EdgeFile(path))


def test_columns_that_are_no_numbers(tmp_path):
    write_csv(tmp_path / "e.csv", {"src": [1], "dst": [1], "w": ["heavy"]})
    refused(
        "line 2, column 'w' must hold numbers; it holds 'heavy'",
        None,
        EdgeFile(tmp_path / "e.csv", weight="w"),
    )
    write_parquet(tmp_path / "e.parquet", {"src": [1], "dst": [1], "w": ["heavy"]})
    refused("column 'w' must hold numbers", None, EdgeFile(tmp_path / "e.parquet", attr=["w"]))
    write_parquet(tmp_path / "e.parquet", {"src": [1.5], "dst": [1]})
    refused("row 0, column 'src': 1.5 is not an integer.*an id is", None, EdgeFile(tmp_path / "e.parquet"))


def test_missing_values_are_refused(tmp_path):
    write_parquet(tmp_path / "e.parquet", {"src": [1, None], "dst": [1, 1]})
    refused(
        r"row 1, column 'src': a value is missing \(1 of 2 rows have none\)",
        None,
        EdgeFile(tmp_path / "e.parquet"),
    )
    (tmp_path / "n.csv").write_text("f,g\n1,2\n,3\n")
    write_csv(tmp_path / "e.csv", {"src": [0], "dst": [0]})
    refused(
        "n.csv, line 3, column 'f': a value is missing.*--fill 0.*--exclude f",
        NodeFile(tmp_path / "n.csv"),
        EdgeFile(tmp_path / "e.csv"),
    )
    pq.write_table(pa.table({"e": [[1.0], [2.0, 3.0]]}), tmp_path / "n.parquet")
    refused("lists of different lengths", NodeFile(tmp_path / "n.parquet"), EdgeFile(tmp_path / "e.csv"))


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    write_parquet(tmp_path / "e.parquet", {"src": [1], "dst": [1]})
    real = importlib.import_module

    def without(name, package=None):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    refused(r"pip install 'hopline\[parquet\]'", None, EdgeFile(tmp_path / "e.parquet"))


def test_the_package_imports_neither_torch_nor_pyarrow():
    import subprocess

    code = (
        "import hopline.graph, sys; sys.exit(any(m in sys.modules for m in ('torch', 'pyarrow', 'pandas')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


EDGE_TYPE = ("user", "rates", "movie")


def test_a_node_file_of_a_type_that_no_edge_file_has_is_refused(tmp_path):
    """A type that is misspelt would leave the right one without its features."""
    write_csv(tmp_path / "e.csv", {"src": ["a"], "dst": ["b"]})
    write_csv(tmp_path / "n.csv", {"id": ["a"], "f": [1]})
    edges = {EDGE_TYPE: EdgeFile(tmp_path / "e.csv")}
    match = r"n\.csv: no edge file uses its node type, 'usr'; edges join 'movie', 'user'"
    refused(match, {"usr": NodeFile(tmp_path / "n.csv", id="id")}, edges)
    with pytest.raises(GraphError, match=r"n\.csv already defines the number of nodes of type 'user'"):
        Graph.from_parquet(
            {"user": NodeFile(tmp_path / "n.csv")},
            edges,
            ids_are_rows=True,
            num_nodes={"user": 5, "movie": 9},
        )


@pytest.mark.parametrize("name", ["", " ", "Unnamed: 0", "__index_level_0__"])
@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_the_index_of_a_data_frame_is_no_feature(tmp_path, ending, name, caplog):
    write_csv(tmp_path / "e.csv", {"src": ["a"], "dst": ["b"]})
    WRITERS[ending](tmp_path / f"n{ending}", {name: [0, 1], "id": ["a", "b"], "f": [5, 6]})
    edges = EdgeFile(tmp_path / "e.csv")
    graph = Graph.from_parquet(NodeFile(tmp_path / f"n{ending}", id="id"), edges)
    assert graph.schema.node_types["node"].feature_names == ("f",)
    assert f"left out: {name.strip() or 'a column without a name'} (a row number)" in caplog.text
    if name.strip():
        chosen = Graph.from_parquet(NodeFile(tmp_path / f"n{ending}", id="id", features=[name]), edges)
        assert chosen.schema.node_types["node"].feature_names == (name,)


def test_pandas_writes_an_index_that_is_no_feature(tmp_path):
    frame = pd.DataFrame({"id": ["a", "b"], "f": [5.0, 6.0]}, index=[7, 9])
    frame.to_csv(tmp_path / "n.csv")
    frame.to_parquet(tmp_path / "n.parquet")
    pd.read_csv(tmp_path / "n.csv").to_csv(tmp_path / "again.csv")
    edges = EdgeFile(pa.table({"src": ["a"], "dst": ["b"]}))
    for name in ("n.csv", "n.parquet", "again.csv"):
        graph = Graph.from_parquet(NodeFile(tmp_path / name, id="id"), edges)
        assert graph.schema.node_types["node"].feature_names == ("f",), name


def test_one_name_is_the_name_of_one_column():
    """Python takes a string for a list of its letters, which here would be columns, too."""
    nodes = pa.table({"id": ["a", "b"], "x": [1, 2], "z": [3, 4], "xz": [5, 6]})
    edges = pa.table({"src": ["a"], "dst": ["b"], "w": [1], "t": [2], "wt": [3]})
    graph = Graph.from_parquet(NodeFile(nodes, id="id", features="xz"), EdgeFile(edges, attr="wt"))
    assert graph.node().features.tolist() == [[5], [6]]
    assert graph.edge().attr.tolist() == [[3]]
    rest = Graph.from_parquet(NodeFile(nodes, id="id", exclude="xz"), EdgeFile(edges))
    assert rest.schema.node_types["node"].feature_names == ("x", "z")
    assert Missing(na="N/A").na == ("N/A",)


def test_features_that_are_named_twice_or_excluded_are_refused():
    nodes = pa.table({"id": ["a", "b"], "x": [1, 2]})
    edges = EdgeFile(pa.table({"src": ["a"], "dst": ["b"]}))
    refused("feature 'x' is repeated", NodeFile(nodes, id="id", features=["x", "x"]), edges)
    excluded = NodeFile(nodes, id="id", features=["x"], exclude=["x"])
    refused("'x' is named as a feature, and excluded", excluded, edges)


@pytest.mark.parametrize(
    ("values", "fill", "expected"),
    [
        (pa.array([True, None]), -1, [1, -1]),
        (pa.array([200, None], pa.uint8()), -1, [200, -1]),
        (pa.array([7, None], pa.int8()), 1000, [7, 1000]),
        (pa.array([7, None], pa.uint64()), -1, [7, -1]),
        (pa.array([7, None], pa.int64()), 0.5, [7, 0.5]),
        (pa.nulls(2), 3, [3, 3]),
    ],
)
def test_missing_values_are_filled_with_any_number(values, fill, expected):
    nodes = NodeFile(pa.table({"id": ["a", "b"], "x": values}), id="id", missing=Missing(fill=fill))
    graph = Graph.from_parquet(nodes, EdgeFile(pa.table({"src": ["a"], "dst": ["b"]})))
    assert graph.node().features[:, 0].tolist() == expected


def test_a_filling_that_would_change_other_values_is_refused():
    values = pa.array([2**53 + 1, None])
    nodes = NodeFile(pa.table({"id": ["a", "b"], "x": values}), id="id", missing=Missing(fill=0.5))
    refused("0.5 cannot be mixed with", nodes, EdgeFile(pa.table({"src": ["a"], "dst": ["b"]})))


def test_numbers_beyond_a_floats_integers_are_named_as_such():
    large = pa.table({"src": [9007199254740994.0], "dst": [1.0]})
    refused("too large to identify one integer as double", None, EdgeFile(large))


def test_periods_of_pandas_are_no_numbers(caplog):
    frame = pd.DataFrame(
        {"src": ["a", "b"], "dst": ["b", "c"], "t": pd.period_range("2020-01", periods=2, freq="M")}
    )
    refused("column 't' must hold integers or dates", None, EdgeFile(frame, time="t"))
    nodes = frame.rename(columns={"src": "id"})[["id", "t"]]
    graph = Graph.from_parquet(NodeFile(nodes, id="id"), EdgeFile(pa.table({"src": ["a"], "dst": ["b"]})))
    assert graph.schema.node_types["node"].feature_dim == 0
    assert "left out: t (" in caplog.text


def test_folders_and_frames_are_named_in_errors(tmp_path):
    for folder in (tmp_path, Path(".")):
        refused("is a folder; pass one file", None, EdgeFile(folder))
    frame = pd.DataFrame({"src": [1], "dst": [2]})
    nodes = NodeFile(pd.DataFrame({"id": ["1", "2"], "x": [1, 2]}), id="id")
    refused("the edges of the DataFrame hold integers", nodes, EdgeFile(frame))


def test_an_unknown_id_of_a_text_file_is_named_with_the_file(tmp_path):
    write_csv(tmp_path / "n.csv", {"id": ["007", "x"], "f": [1, 2]})
    write_csv(tmp_path / "e.csv", {"src": [7], "dst": [7]})
    nodes = NodeFile(tmp_path / "n.csv", id="id")
    refused(r"no such id; .*e\.csv, row 0 has '7'", nodes, EdgeFile(tmp_path / "e.csv"))
