"""One kind of cell has one meaning in all columns and all formats."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import csv

from hopline.errors import GraphError
from hopline.graph import EdgeFile, Graph, NodeFile
from hopline.graph.cells import Missing

EDGES = EdgeFile(pa.table({"src": [1], "dst": [2]}))


def refused(match, nodes, edges):
    with pytest.raises(GraphError, match=match):
        Graph.from_parquet(nodes, edges)


def as_text(path, table):
    csv.write_csv(table, path)
    return path


def ends(src, *, text=None, **columns):
    """Edges from `src` to the node of row 1 of that column; a text file if a path is given."""
    table = pa.table({"src": src, "dst": [src[-1]] * len(src), **columns})
    return table if text is None else as_text(text, table)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_floats_that_may_stand_for_several_integers_are_neither_ids_nor_times(kind):
    limit = 2 ** (np.finfo(kind).nmant + 1)
    for value, is_exact in ((limit - 1, True), (limit, False), (-limit, False)):
        column = pa.array(np.array([value], kind))
        for file in (
            EdgeFile(ends(column)),
            EdgeFile(ends([1], at=column), time="at"),
        ):
            if is_exact:
                assert Graph.from_parquet(None, file).num_edges == 1
            else:
                refused("is too large to identify one integer", None, file)


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("column", [["N/A", "x"], [-1, 5], [-1.0, 5.0]])
def test_a_marker_of_missing_values_is_one_in_every_kind_of_column(tmp_path, text, column):
    missing = Missing(na=["N/A", "-1"])
    path = tmp_path / "edges.csv" if text else None
    refused("'src': a value is missing", None, EdgeFile(ends(column, text=path), missing=missing))
    if column[1] != "x":
        timed = ends([3, 4], text=path, at=pa.array(column))
        refused("'at': a value is missing", None, EdgeFile(timed, time="at", missing=missing))
        nodes = pa.table({"id": [1, 2], "a": pa.array(column)})
        source = as_text(tmp_path / "nodes.csv", nodes) if text else nodes
        filled = NodeFile(source, "id", missing=Missing(na=["-1"], fill=0.5))
        graph = Graph.from_parquet(filled, EDGES)
        assert graph.nodes["node"].features[:, 0].tolist() == [0.5, 5]


def test_a_marker_that_is_a_number_is_not_an_id_with_leading_zeros(tmp_path):
    path = as_text(tmp_path / "edges.csv", pa.table({"src": ["007", "x"], "dst": ["x", "007"]}))
    graph = Graph.from_parquet(None, EdgeFile(path, missing=Missing(na=["7"])))
    assert graph.num_nodes == 2


def test_tables_without_rows_are_tables(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text("src,dst,at,w\n")
    timed = EdgeFile(path, time="at", weight="w")
    graph = Graph.from_parquet(NodeFile(pa.table({"id": [1], "a": [0.5]}), "id"), timed)
    assert graph.num_edges == 0
    for kind, width in ((pa.list_(pa.float32()), 0), (pa.list_(pa.float32(), 3), 3)):
        empty = pa.table({"id": pa.array([], pa.int64()), "e": pa.array([], kind)})
        edges = EdgeFile(pa.table({"src": pa.array([], pa.int64()), "dst": pa.array([], pa.int64())}))
        files = {"a": NodeFile(empty, "id"), "b": NodeFile(pa.table({"id": [1], "a": [0.5]}), "id")}
        graph = Graph.from_parquet(files, {("a", "to", "b"): edges})
        assert graph.nodes["a"].features.shape == (0, width)


def test_lists_are_rounded_on_request():
    codes = pa.table({"id": [1, 2], "e": [[2**24 + 1], [1]]})
    refused("cannot hold exactly", NodeFile(codes, "id"), EDGES)
    graph = Graph.from_parquet(NodeFile(codes, "id", rounded="e"), EDGES)
    assert graph.nodes["node"].features.tolist() == [[2**24], [1]]


def test_frames_in_place_of_files_are_named():
    frame = pd.DataFrame({"id": [1, 2], "a": [0.5, 1]})
    refused("NodeFile", frame, EDGES)
    refused("'node': expected a NodeFile; got DataFrame", {"node": frame}, EDGES)
    refused("expected a EdgeFile; got Table", None, {("a", "to", "a"): EDGES.path})
    refused("an edge type is a triple", None, {"a:to:a": EDGES})
    refused("the Series cannot be read as a table", NodeFile(frame["a"], "id"), EDGES)
