"""Vectors in columns, such as embeddings of a Parquet file: lists in files and requests, numbers inside."""

import asyncio
import json

import httpx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from sklearn.compose import make_column_selector
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import hopline
from hopline import Graph
from hopline.errors import BadRequest, GraphError
from hopline.features.registry import open_store
from hopline.graph import EdgeTable, NodeTable
from hopline.types import InlineNode
from packages.tabular.tests import list_world
from packages.tabular.tests.fraud_world import ask
from packages.tabular.tests.list_world import COUNT, ListWorld, edges
from packages.tabular.tests.test_live_columns import Live
from tests.servers import running

WIDTH = 6
KINDS = [pa.list_(pa.float32()), pa.list_(pa.float32(), WIDTH), pa.large_list(pa.float64())]


def frame_of(seed=0, count=COUNT):
    """Some embeddings are missing, and one has a hole."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(count, WIDTH)).astype(np.float32)
    return pd.DataFrame(
        {
            "id": [f"n{row}" for row in range(count)],
            "amount": random.lognormal(3, 1, count),
            "emb": [None if row % 9 == 4 else [float(each) for each in rows[row]] for row in range(count)],
            "country": random.choice(["DE", "FR"], count),
        }
    )


def table_of(frame, kind):
    table = pa.Table.from_pandas(frame, preserve_index=False)
    return table.set_column(2, "emb", pa.array(frame["emb"].tolist(), kind))


def written(folder, frame, kind=KINDS[0]):
    return list_world.written(folder, table_of(frame, kind))


class Vectors(ListWorld):
    def __init__(self, folder):
        frame = frame_of()
        parts = [
            ("emb", SimpleImputer(add_indicator=True), make_column_selector("^emb_")),
            ("amount", make_pipeline(SimpleImputer(), StandardScaler()), ["amount"]),
            ("country", OneHotEncoder(handle_unknown="ignore"), ["country"]),
        ]
        super().__init__(folder, frame, written(folder, frame), parts)

    def x(self, frame):
        flat = pd.DataFrame(
            [
                {
                    "amount": row.amount,
                    "country": row.country,
                    **{f"emb_{at}": np.nan if row.emb is None else row.emb[at] for at in range(WIDTH)},
                }
                for row in frame.itertuples()
            ]
        )
        return np.asarray(self.fitted.transform(flat))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield Vectors(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_list_of_floats_is_a_column_for_each_place_in_files_and_frames(tmp_path, kind):
    frame = frame_of()
    graph = written(tmp_path, frame, kind)
    names = ["amount", *(f"emb_{at}" for at in range(WIDTH)), "country"]
    assert [column.name for column in graph.schema.node_types["node"].columns] == names
    table = table_of(frame, kind).drop(["id"])
    other = Graph.from_tables(
        {"node": NodeTable(columns=table)}, {("node", "to", "node"): EdgeTable(edges(), by_row=True)}
    )
    assert other.node().columns.table.equals(graph.node().columns.table)
    stored = graph.frame("node")[[f"emb_{at}" for at in range(WIDTH)]].to_numpy()
    for row, given in zip(stored, frame["emb"], strict=True):
        np.testing.assert_array_equal(row, [np.nan] * WIDTH if given is None else given)


REFUSED = [
    ([[1.0], [1.0, 2.0]], pa.list_(pa.float32()), "codes or a vector of one length"),
    ([[1], [2]], pa.list_(pa.int64()), r"codes or a vector of one length \(emb:codes, emb:vector\)"),
    ([[[1.0]], [[2.0]]], pa.list_(pa.list_(pa.float32())), "codes or a vector of one length"),
    ([[], []], pa.list_(pa.float32()), "codes or a vector of one length"),
    ([None, None], pa.list_(pa.float32()), "codes or a vector of one length"),
]
NAMED = [
    ([[1.0], [1.0, 2.0]], pa.list_(pa.float32()), "vector", "lists that do not all have one length"),
    ([[1.0], [2.0]], pa.list_(pa.float32()), "vector=2", "lists that do not all have 2 numbers"),
    ([[[1.0]], [[2.0]]], pa.list_(pa.list_(pa.float32())), "vector", "instead of lists of numbers"),
    ([["a"], ["b"]], pa.list_(pa.string()), "vector", "instead of lists of numbers"),
    ([1.0, 2.0], pa.float64(), "vector", "double instead of lists of numbers"),
    ([None, None], pa.list_(pa.float32()), "vector", r"one length, which may be named \(vector=8\)"),
    ([[1.0], [2.0]], pa.list_(pa.float32()), "float", "codes or a vector of one length"),
    ([[1.0], [2.0]], pa.list_(pa.float32()), "vectors", "its type is one of float, .*, vector=8"),
    ([[1.0], [2.0]], pa.list_(pa.float32()), "vector=0", "its type is one of float, .*, vector=8"),
]


@pytest.mark.parametrize(("values", "kind", "message"), REFUSED, ids=[str(each[0]) for each in REFUSED])
def test_other_lists_are_refused(values, kind, message):
    table = pa.table({"emb": pa.array(values, kind)})
    edge = {("node", "to", "node"): EdgeTable(np.array([[0], [1]]), by_row=True)}
    with pytest.raises(GraphError, match=message):
        Graph.from_tables({"node": NodeTable(columns=table)}, edge)


@pytest.mark.parametrize(("values", "kind", "wanted", "message"), NAMED, ids=str)
def test_lists_that_are_not_of_the_named_type_are_refused(values, kind, wanted, message):
    table = NodeTable(columns=pa.table({"emb": pa.array(values, kind)}), column_types={"emb": wanted})
    with pytest.raises(GraphError, match=message):
        Graph.from_tables({"node": table}, {("node", "to", "node"): EdgeTable([[0], [1]], by_row=True)})


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.list_(pa.decimal128(4, 1), 2)], ids=str)
def test_a_named_vector_may_have_other_numbers_and_no_list_at_all(kind):
    edge = {("node", "to", "node"): EdgeTable([[0], [1]], by_row=True)}
    for values, expected in (([[1, 2], None], [[1, 2], [np.nan] * 2]), ([None, None], [[np.nan] * 2] * 2)):
        table = NodeTable(
            columns=pa.table({"emb": pa.array(values, kind)}), column_types={"emb": "vector=2"}
        )
        frame = Graph.from_tables({"node": table}, edge).frame("node")
        np.testing.assert_array_equal(frame[["emb_0", "emb_1"]].to_numpy(float), expected)


@pytest.mark.parametrize("other", ["emb_0", "emb_1"])
def test_a_column_that_would_be_a_place_of_the_vector_is_refused(other):
    """With `emb_1`, the vector of one number would have two."""
    table = pa.table({"emb": pa.array([[1.0], [2.0]]), other: [1.0, 2.0]})
    edge = {("node", "to", "node"): EdgeTable(np.array([[0], [1]]), by_row=True)}
    with pytest.raises(GraphError, match=f"'emb' is a list, and '{other}' is a column; rename one"):
        Graph.from_tables({"node": NodeTable(columns=table)}, edge)


def sent(row):
    return {"amount": row.amount, "emb": row.emb, "country": row.country}


def test_a_new_node_with_a_vector_has_pygs_answer(world):
    frame = frame_of(5)
    near = [np.random.default_rng(row).integers(0, COUNT, row % 4).tolist() for row in range(COUNT)]
    inline = [
        InlineNode(columns=sent(row), neighbors={"": [f"n{one}" for one in ids]})
        for row, ids in zip(frame.itertuples(), near, strict=True)
    ]
    found = ask(world.answerer(), inline=inline)
    np.testing.assert_allclose(found, world.expected(frame, near), atol=1e-5, rtol=1e-5)


def test_a_row_is_the_same_row_in_a_request_an_event_and_a_graph_that_is_built_with_it(world, tmp_path):
    """Bit for bit, as a list, an array, and a column for each place."""
    encoder = world.answerer().model.encoder
    graph = world.answerer().model.graph.nodes["node"].features
    rows = [sent(row) for row in world.frame.itertuples()]
    assert encoder.rows(rows).tobytes() == graph[:].tobytes()
    arrays = [{**row, "emb": None if row["emb"] is None else np.float32(row["emb"])} for row in rows]
    assert encoder.rows(arrays).tobytes() == graph[:].tobytes()
    places = [
        {
            **{name: value for name, value in row.items() if name != "emb"},
            **{f"emb_{at}": row["emb"] and row["emb"][at] for at in range(WIDTH)},
        }
        for row in rows
    ]
    assert encoder.rows(places).tobytes() == graph[:].tobytes()
    live, changed = Live(world), frame_of(3)
    event = {"op": "set_features", "node_type": "node"}
    assert (
        live.send(*({**event, "node": row.id, "columns": sent(row)} for row in changed.itertuples())) == []
    )
    rebuilt = written(tmp_path, changed)
    assert live.view.snapshot().node().columns.table.equals(rebuilt.node().columns.table)
    ids = changed["id"].tolist()
    np.testing.assert_array_equal(live.answers(ids), ask(world.answerer(rebuilt), nodes=ids))


WRONG = [
    ({"emb": [1.0]}, "'emb': 1 values instead of a list of 6 numbers"),
    ({"emb": [1.0] * 7}, "'emb': 7 values instead of a list of 6 numbers"),
    ({"emb": "1,2"}, "'emb': '1,2' instead of a list of 6 numbers"),
    ({"emb": 1.0}, "'emb': 1.0 instead of a list of 6 numbers"),
    ({"emb": ["x"] * 6}, "'emb_0': 'x' instead of a number"),
    ({"amount": [1.0]}, "'amount': [1.0] instead of a number"),
]


@pytest.mark.parametrize(("cells", "message"), WRONG, ids=[each[1][:24] for each in WRONG])
def test_a_vector_of_another_length_or_kind_is_refused_by_name(world, cells, message):
    row = {"amount": 1.0, "emb": [0.0] * WIDTH, "country": "DE"} | cells
    with pytest.raises(BadRequest) as error:
        world.answerer().model.encoder.rows([row], ["inline[0].columns"])
    assert str(error.value) == f"inline[0].columns: {message}"
    live = Live(world)
    (reason,) = live.send({"op": "add_node", "node_type": "node", "node": "new", "columns": row})
    assert message in reason
    live.answers(["n1"])


@pytest.mark.release
def test_a_server_takes_lists_and_answers_400_to_others(world):
    folder = world.report.path.parents[2]
    settings = {"graph__path": folder / "graph", "models__repository": folder / "models"}
    frame, near = frame_of(5, 8), [[1, 2]] * 8
    expected = world.expected(frame, near)
    with running("hopline.service:Service", **settings) as server:

        def post(columns):
            body = {"inline": [{"columns": columns, "neighbors": ["n1", "n2"]}], "outputs": ["logits"]}
            return httpx.post(f"{server.url}/v1/models/risk/score", content=json.dumps(body))

        for row, logits in zip(frame.itertuples(), expected, strict=True):
            found = post(sent(row)).json()["outputs"]["logits"][0]
            np.testing.assert_allclose(found, logits, atol=1e-5, rtol=1e-5)
            with hopline.Client(server.url) as client:
                array = None if row.emb is None else np.array(row.emb, np.float32)
                node = InlineNode(columns=sent(row) | {"emb": array}, neighbors={"": ["n1", "n2"]})
                answer = client.score_inline("risk", [node], outputs=["logits"])
                np.testing.assert_allclose(answer.outputs["logits"][0], logits, atol=1e-5, rtol=1e-5)
        for columns in ({"emb": [1.0]}, {"emb": [[1.0]] * WIDTH}, {"emb": ["x"] * WIDTH}):
            refused = post(sent(frame.iloc[0]) | columns)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_request")


def test_a_store_of_parquet_files_has_the_vectors_columns(world, tmp_path):
    parquet.write_table(table_of(world.frame, KINDS[0]), tmp_path / "nodes.parquet")

    async def read():
        store = open_store(f"parquet://{tmp_path}")
        await store.open()
        group = await store.describe_columns("nodes")
        rows = await store.fetch_columns(group, ["n0", "n4"])
        await store.close()
        return group, rows

    group, (first, missing) = asyncio.run(read())
    assert group.columns == {
        "amount": "float", "country": "text", **{f"emb_{at}": "float" for at in range(WIDTH)}
    }  # fmt: skip
    assert [first[f"emb_{at}"] for at in range(WIDTH)] == world.frame["emb"][0]
    assert [missing[f"emb_{at}"] for at in range(WIDTH)] == [None] * WIDTH
