import importlib
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopline.errors import GraphError
from hopline.graph import EdgeFile, Graph, NodeFile

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


def test_types_each_have_their_file(tmp_path):
    users, items, buys = tmp_path / "u.csv", tmp_path / "i.npy", tmp_path / "b.parquet"
    write_csv(users, {"id": ["a", "b"], "f": [1, 2]})
    np.save(items, np.ones((3, 4)))
    write_parquet(buys, {"src": ["b"], "dst": [2]})
    graph = Graph.from_parquet(
        {"user": NodeFile(users, id="id"), "item": NodeFile(items)},
        {("user", "buys", "item"): EdgeFile(buys)},
    )
    assert graph.edge("user__buys__item").neighbors(2).tolist() == [1]


@pytest.mark.parametrize("shape", [(2, 5), (5, 2)])
def test_numpy_edges_either_way_up(tmp_path, shape):
    edges = np.arange(10).reshape(2, 5) % 4
    np.save(tmp_path / "e.npy", edges if shape[0] == 2 else edges.T)
    np.save(tmp_path / "f.npy", np.ones((4, 2), np.float32))
    graph = Graph.from_parquet(NodeFile(tmp_path / "f.npy"), EdgeFile(tmp_path / "e.npy"))
    assert graph.version == Graph.from_edges(edges, np.ones((4, 2))).version


def test_npz_holds_all_columns(tmp_path):
    np.savez(tmp_path / "e.npz", edge_index=[[5], [6]], edge_weight=[2.0], edge_time=[3], edge_attr=[[1.0]])
    np.savez(tmp_path / "n.npz", x=np.ones((2, 1)), ids=[5, 6])
    graph = Graph.from_parquet(NodeFile(tmp_path / "n.npz"), EdgeFile(tmp_path / "e.npz"))
    edge = graph.schema.edge_types["node__to__node"]
    assert (edge.has_time, edge.has_weight, edge.attr_dim) == (True, True, 1)


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
    refused("there is no such file", None, EdgeFile(tmp_path / "absent.npy"))
    refused(r"may end in .csv, .*.parquet, .*.npz, .*; not in '.xls'", None, EdgeFile(tmp_path / "e.xls"))
    for ending, match in ((".npy", "as a .npy"), (".npz", "as .npz"), (".parquet", "as Parquet")):
        path = tmp_path / f"broken{ending}"
        path.write_bytes(b"not at all")
        refused(match, None, EdgeFile(path))
    np.save(tmp_path / "objects.npy", np.array([{}], object))
    refused("cannot be read as a .npy", None, EdgeFile(tmp_path / "objects.npy"))
    np.savez(tmp_path / "e.npz", other=[1])
    refused("no array `edges` or `edge_index`; it holds other", None, EdgeFile(tmp_path / "e.npz"))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("", "is empty"),
        ("src,dst\n1\n", "line 2: 1 values; the header has 2"),
        ("source,target\n1,2\n", "no column 'src', 'dst'; there are 'source', 'target'"),
        (
            "src,dst\n\udcff,1\n",
            "line 2: cannot be read as text: byte 0xff is no utf-8.*--encoding latin-1",
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
    refused("row 0, column 'src': 1.5 is no integer.*an id is", None, EdgeFile(tmp_path / "e.parquet"))


def test_missing_values_are_refused(tmp_path):
    write_parquet(tmp_path / "e.parquet", {"src": [1, None], "dst": [1, 1]})
    refused(
        "row 1, column 'src': a value is missing, as in 1 of 2 rows", None, EdgeFile(tmp_path / "e.parquet")
    )
    (tmp_path / "n.csv").write_text("f,g\n1,2\n,3\n")
    np.save(tmp_path / "e.npy", np.zeros((2, 1), int))
    refused(
        "n.csv, line 3, column 'f': a value is missing.*--fill 0.*--exclude f",
        NodeFile(tmp_path / "n.csv"),
        EdgeFile(tmp_path / "e.npy"),
    )
    pq.write_table(pa.table({"e": [[1.0], [2.0, 3.0]]}), tmp_path / "n.parquet")
    refused("lists of different lengths", NodeFile(tmp_path / "n.parquet"), EdgeFile(tmp_path / "e.npy"))


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
