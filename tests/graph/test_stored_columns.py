"""Columns of nodes as their tables have them: types, missing cells, codes, times, labels."""

import math

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest

from hopline.errors import GraphError
from hopline.graph import EdgeFile, EdgeTable, Graph, NodeFile, NodeTable
from hopline.graph.cells import Missing
from hopline.graph.stored_columns import cell_of, cells_of

LOOP = {("node", "to", "node"): EdgeTable(([0, 1, 2], [1, 2, 0]))}
FRAME = pd.DataFrame(
    {
        "amount": [1.5, None, 3.0],
        "country": ["DE", None, "JP"],
        "mcc": [5411, 5812, 5411],
        "active": pd.Series([True, None, False], dtype="boolean"),
        "opened": pd.to_datetime(
            ["2024-01-31T13:45:00Z", None, "1969-12-31T23:59:59.5Z"], format="ISO8601"
        ),
        "visits": pd.Series([3, None, 5], dtype="Int64"),
    }
)


def built(frame, **types):
    return Graph.from_tables({"node": NodeTable(columns=frame, column_types=types)}, LOOP)


def types_of(graph):
    return {column.name: column.type for column in graph.schema.node_types["node"].columns}


@pytest.mark.parametrize("form", ["pandas", "arrow", "polars"])
def test_a_table_is_kept_with_its_types_and_missing_cells(tmp_path, form):
    frame = FRAME
    if form == "arrow":
        frame = pa.Table.from_pandas(FRAME)
    elif form == "polars":
        frame = polars.from_pandas(FRAME)
    graph = built(frame, mcc="text")
    assert types_of(graph) == {
        "amount": "float", "country": "text", "mcc": "text", "active": "boolean", "opened": "timestamp",
        "visits": "integer",
    }  # fmt: skip
    saved = graph.save(tmp_path / "graph")
    assert saved.version == built(FRAME, mcc="text").version == Graph.open(saved.path, verify=True).version
    assert saved.node().features.shape == (3, 0)
    table = saved.node().columns.table
    assert table.column("country").to_pylist() == ["DE", None, "JP"]
    assert table.column("mcc").to_pylist() == ["5411", "5812", "5411"]
    assert table.column("active").to_pylist() == [True, None, False]
    values = saved.node().columns.values(np.array([2, 0]))
    assert values["opened"].tolist() == [-0.5, 1706708700.0]
    assert values["active"].tolist() == [0.0, 1.0]
    assert values["mcc"] == ["5411", "5411"]


def test_a_frame_to_fit_on_has_numbers_times_in_seconds_and_nan_for_missing():
    frame = built(FRAME).node().columns.frame()
    assert frame["mcc"].dtype == np.int64
    assert frame["visits"].tolist()[::2] == [3.0, 5.0]
    assert math.isnan(frame["visits"][1])
    assert math.isnan(frame["country"][1])
    assert frame["country"].dtype == object


def test_a_subgraph_keeps_the_columns_of_its_nodes():
    part = built(FRAME).subgraph([2, 1])
    assert part.node().columns.table.column("country").to_pylist() == ["JP", None]
    assert types_of(part) == types_of(built(FRAME))


def test_columns_are_described_with_type_share_of_missing_and_range():
    described = {one["name"]: one for one in built(FRAME).node().columns.described()}
    assert described["amount"] == {
        "name": "amount", "type": "float", "missing": 1 / 3, "min": 1.5, "max": 3.0
    }  # fmt: skip
    assert described["country"]["distinct"] == 2
    assert described["opened"]["max"] == "2024-01-31T13:45:00+00:00"


@pytest.mark.parametrize("name", ["is_fraud", "flagged", "label", "chargeback"])
def test_a_column_with_the_name_of_a_label_is_no_input_unless_named(name):
    frame = FRAME.assign(**{name: [0, 1, 0]})
    with pytest.raises(GraphError, match=f"column '{name}' is by name what a model predicts"):
        built(frame)
    assert types_of(built(frame, **{name: ""}))[name] == "integer"


REFUSED = [
    ({"x": [[1, 2], [3], []]}, {}, "column 'x' holds list.*; leave it out, or say that it holds codes"),
    (
        pa.table({"x": pa.array([[1, 2]] * 3, pa.list_(pa.int32(), 2))}),
        {},
        r"column 'x' holds fixed_size_list.*\[2\]; leave it out, or say that it holds codes or a",
    ),
    ({"x": pd.to_timedelta([1, 2, 3], "s")}, {}, "column 'x' holds duration"),
    ({"x": pd.period_range("2024-01", periods=3, freq="M")}, {}, "column 'x' holds .*period"),
    ({"x": pd.interval_range(0, 3)}, {}, "column 'x' holds .*interval"),
    ({"y": [1, 2, 3], "x": [2**70, 1, 2]}, {}, "the DataFrame, column 'x', cannot be read as a table"),
    ({"y": [1, 2, 3], "x": ["a", 1, 2.5]}, {}, "the DataFrame, column 'x', cannot be read as a table"),
    ({"y": [1, 2, 3], "x": [1 + 2j, 1, 2]}, {}, "the DataFrame, column 'x', cannot be read as a table"),
    ({"x": pd.period_range("2024-01", periods=3, freq="M")}, {"x": "text"}, "column 'x' holds .*period"),
    ({"x": [2**60, 1, 2]}, {}, r"integers beyond 2\^53.*x:text"),
    ({"x": [2**53 + 1, 1, 2]}, {}, r"integers beyond 2\^53.*x:text"),
    ({"x": [-(2**63), 1, 2]}, {}, r"integers beyond 2\^53.*x:text"),
    ({"x": [1.5, 2, 3]}, {"x": "text"}, "column 'x' holds double, which is not read as text"),
    ({"x": ["a", "b", "c"]}, {"x": "float"}, "column 'x' holds .*string, which is not read as float"),
    ({"x": [1, 2, 3]}, {"y": "float"}, "column_types names 'y'; the table has x"),
    ({"x": [1, 2, 3]}, {"x": "code"}, "its type is one of float, integer"),
    ({"x": [1, 2]}, {}, "must agree|outside the node range"),
]


@pytest.mark.parametrize(("frame", "types", "message"), REFUSED, ids=[each[2][:25] for each in REFUSED])
def test_a_column_that_cannot_be_kept_is_refused_with_its_name(frame, types, message):
    with pytest.raises(GraphError, match=message):
        built(frame if isinstance(frame, pa.Table) else pd.DataFrame(frame), **types)


def test_a_frame_with_texts_is_no_matrix_of_features_and_the_way_out_is_named():
    with pytest.raises(GraphError, match=r"columns without numbers: .*country.*NodeTable\(columns=frame\)"):
        Graph.from_tables({"node": NodeTable(FRAME)}, LOOP)


def test_narrow_features_refuse_columns():
    tables = {"node": NodeTable(columns=FRAME)}
    with pytest.raises(GraphError, match="has columns, whose features are float32"):
        Graph.from_tables(tables, LOOP, feature_dtype="int8")
    with pytest.raises(GraphError, match="has columns, whose features are float32"):
        built(FRAME).with_features_as("float16")


NODES = """id,amount,country,mcc,branch,active,opened,is_fraud
1,1.5,DE,5411,007,true,2024-01-31,0
2,,,5812,010,,2023-05-01T10:00:00,1
3,3,JP,N/A,007,false,,0
"""


def read(tmp_path, *columns, nodes=NODES, **options):
    (tmp_path / "nodes.csv").write_text(nodes)
    (tmp_path / "edges.csv").write_text("src,dst\n1,2\n2,3\n3,1\n")
    file = NodeFile(tmp_path / "nodes.csv", "id", columns=columns, missing=Missing(("N/A",)), **options)
    return Graph.from_parquet(file, EdgeFile(tmp_path / "edges.csv"))


def test_types_of_a_text_file_are_detected_and_its_empty_cells_are_missing(tmp_path):
    graph = read(tmp_path, "*", "mcc:text", exclude=["is_fraud"])
    assert types_of(graph) == {
        "amount": "float", "country": "text", "mcc": "text", "branch": "text", "active": "boolean",
        "opened": "timestamp",
    }  # fmt: skip
    table = graph.node().columns.table
    assert table.column("country").to_pylist() == ["DE", None, "JP"]
    assert table.column("mcc").to_pylist() == ["5411", "5812", None]
    assert table.column("branch").to_pylist() == ["007", "010", "007"]
    assert graph.node().columns.values(slice(0, 3))["opened"][:2].tolist() == [1706659200.0, 1682935200.0]
    assert graph.node().features.shape == (3, 0)


def test_a_label_of_a_file_is_kept_only_if_named(tmp_path):
    with pytest.raises(GraphError, match=r"is_fraud: by name what a model predicts.*--column is_fraud"):
        read(tmp_path, "*")
    assert types_of(read(tmp_path, "*", "is_fraud"))["is_fraud"] == "integer"
    assert list(types_of(read(tmp_path, "amount", "country"))) == ["amount", "country"]


def test_features_and_columns_of_one_file_lie_side_by_side(tmp_path):
    graph = read(tmp_path, "country", features=["branch"])
    assert graph.node().features[:, 0].tolist() == [7.0, 10.0, 7.0]
    assert types_of(graph) == {"country": "text"}


def test_a_number_among_texts_that_mean_missing_values_is_not_read_as_text(tmp_path):
    with pytest.raises(GraphError, match=r"'unknown'.*--na"):
        read(tmp_path, "amount", nodes="id,amount\n1,1.5\n2,2.5\n3,unknown\n")


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (
            ["true", "false", "maybe"],
            r"line 4, column .x. must hold true or false; it holds .maybe. \(1 of 3",
        ),
        (
            ["2024-01-31", "2024-02-01", "soon"],
            r"line 4, .*'soon' is neither .* ISO 8601.*as text, NAME:text",
        ),
    ],
)
def test_a_column_that_is_mostly_of_a_type_names_the_cells_that_are_not(tmp_path, cells, message):
    rows = "".join(f"{row},{cell}\n" for row, cell in enumerate(cells, 1))
    with pytest.raises(GraphError, match=message):
        read(tmp_path, "x", nodes="id,x\n" + rows)
    assert types_of(read(tmp_path, "x:text", nodes="id,x\n" + rows)) == {"x": "text"}
    few = "id,x\n1,true\n2,word\n3,2024-01-31\n4,other\n"
    assert types_of(read(tmp_path, "x", nodes=few)) == {"x": "text"}


@pytest.mark.parametrize(
    ("cells", "column", "message"),
    [
        (
            ["true", "false", "1", "true", "yes", "0", "no"],
            "x:boolean",
            r"line 4, column .x. must hold true or false; it holds .1. \(4 of 7 cells do not hold true or "
            r"false, .yes. in line 6, .0. in line 7\); pass --na .1. if .*\(--column x:text\)",
        ),
        (["0", "1"], "x:boolean", r"line 2, column 'x' must hold true or false; it holds '0' \(2 of 2"),
        (["1.5", "nan"], "x", r"line 3, .*numbers; it holds 'nan' .*; pass --na 'nan' if it marks.*x:text"),
        (
            ["1", "2,5", "3"],
            "x:float",
            r"numbers without separators .*, or keep it as text \(--column x:text\)",
        ),
    ],
)
def test_the_first_cells_that_are_not_of_the_type_are_named(tmp_path, cells, column, message):
    rows = "".join(f'{row},"{cell}"\n' for row, cell in enumerate(cells, 1))
    with pytest.raises(GraphError, match=message) as refused:
        read(tmp_path, column, nodes="id,x\n" + rows)
    assert "--fill" not in str(refused.value)


@pytest.mark.parametrize("form", ["csv", "parquet", "pandas", "request"])
def test_blanks_around_a_text_are_removed_and_an_empty_one_is_missing(tmp_path, form):
    cells = [" FR ", "FR", "", "  ", "\u2003x y\t", None]
    frame = pd.DataFrame({"id": range(len(cells)), "x": cells})
    if form == "request":
        read = [cell_of("text", each) for each in cells]
        assert cells_of("text", cells)[0].tolist() == read
    else:
        path = frame
        if form != "pandas":
            path = tmp_path / f"nodes.{form}"
            frame.to_csv(path, index=False) if form == "csv" else frame.to_parquet(path)
        loop = EdgeFile(pd.DataFrame({"src": [0], "dst": [1]}))
        graph = Graph.from_parquet(NodeFile(path, "id", columns=["x:text"]), loop)
        read = graph.node().columns.table.column("x").to_pylist()
    assert read == ["FR", "FR", None, None, "x y", None]


def test_integers_are_no_times_without_a_unit(tmp_path):
    with pytest.raises(GraphError, match=r"'x' holds integers, not dates: its type is integer"):
        read(tmp_path, "x:timestamp", nodes="id,x\n1,1704067200\n2,1704067300\n")


def test_a_damaged_table_is_refused(tmp_path):
    path = built(FRAME).save(tmp_path / "graph").path / "nodes" / "node" / "columns.npy"
    content = bytearray(path.read_bytes())
    content[-40:-20] = b"\xff" * 20
    path.write_bytes(bytes(content))
    with pytest.raises(GraphError, match=r"damaged|hash"):
        Graph.open(tmp_path / "graph", verify=True).node().columns.table  # noqa: B018
    with pytest.raises(GraphError, match="damaged"):
        Graph.open(tmp_path / "graph").node().columns.table  # noqa: B018


@pytest.mark.parametrize("kind", ["float", "integer"])
def test_an_integer_that_float64_would_round_is_no_number_of_a_column(kind):
    """As in a text file; a float is what it says."""
    cells, wrong = cells_of(kind, [2**53, 2**53 + 1, None, -(2**53) - 1])
    assert cells[0] == 2**53
    assert set(wrong) == {1, 3}
    assert cells_of("float", [2.0**60, 1e300, 7])[1] == {}
    for value in (2**53 + 1, np.int64(2**53 + 1)):
        with pytest.raises(ValueError, match="9007199254740993 is beyond"):
            cell_of(kind, value)
