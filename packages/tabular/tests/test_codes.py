"""Lists of codes in columns, such as tags: lists in files, requests and events, columns inside."""

import asyncio
import json
import warnings
from types import SimpleNamespace

import duckdb
import httpx
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MultiLabelBinarizer, OneHotEncoder, StandardScaler
from torch_geometric.nn import GATv2Conv

import hopline
from hopline import Graph
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import BadRequest, FeatureSchemaMismatch, GraphError
from hopline.features.base import FeatureGroup
from hopline.features.registry import open_store
from hopline.features.skew import column_differences
from hopline.graph import EdgeFile, EdgeTable, NodeFile, NodeTable
from hopline.graph.list_columns import lists_of, with_places
from hopline.graph.stored_columns import cells_of
from hopline.jobs.batch.edges import _of_file
from hopline.types import InlineNode
from hopline_tabular.store import EncodedStore
from packages.tabular.tests import list_world
from packages.tabular.tests.fraud_world import ask
from packages.tabular.tests.list_world import COUNT, ListWorld, edges
from packages.tabular.tests.test_live_columns import Live
from tests.commands.typed import typed
from tests.servers import running
from tests.thorough import thorough

#: Known to the graph of `Codes`; some have the signs that separate lists and names.
CODES = ["a", "b", "new shop", "x=1", "é", "#", "v_0"]
KNOWN = sorted(CODES)
NAMES = [*(f"tags={code}" for code in KNOWN), "tags#"]
SELF = {("node", "to", "node"): EdgeTable([[0], [0]], by_row=True)}


def binarized(lists, known=KNOWN):
    """scikit-learn's columns of lists and the number of distinct codes; NaN where a list is missing."""
    given = [[code.strip() for code in each or () if code and code.strip()] for each in lists]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # codes that are not known are ignored
        block = MultiLabelBinarizer(classes=known).fit([]).transform(given)
    found = np.column_stack([block, [len({*each}) for each in given]]).astype(float)
    found[[each is None for each in lists]] = np.nan
    return found


def frame_of(seed=0, count=COUNT):
    random = np.random.default_rng(seed)
    tags = [random.choice(CODES, random.integers(0, 5)).tolist() for _ in range(count)]
    rows = random.normal(size=(count, 3)).astype(np.float32).tolist()
    return pd.DataFrame(
        {
            "id": [f"n{row}" for row in range(count)],
            "amount": random.lognormal(3, 1, count),
            "tags": [None if row % 9 == 4 else each for row, each in enumerate(tags)],
            "emb": [None if row % 7 == 2 else each for row, each in enumerate(rows)],
            "country": random.choice(["DE", "FR"], count),
        }
    )


def written(folder, frame, known=CODES):
    """The graph of a table; `known`: codes, () for those of the frame."""
    named = [f"tags:codes={'|'.join(known)}"] if known else []
    return list_world.written(folder, pa.Table.from_pandas(frame, preserve_index=False), *named)


class Codes(ListWorld):
    def __init__(self, folder):
        frame = frame_of()
        none = SimpleImputer(strategy="constant", fill_value=0)
        parts = [
            ("tags", none, make_column_selector("^tags=")),
            ("number", make_pipeline(SimpleImputer(), StandardScaler()), ["tags#"]),
            ("emb", SimpleImputer(add_indicator=True), make_column_selector("^emb_")),
            ("amount", StandardScaler(), ["amount"]),
            ("country", OneHotEncoder(handle_unknown="ignore"), ["country"]),
        ]
        super().__init__(folder, frame, written(folder, frame), parts)

    def x(self, frame):
        """Features, of scikit-learn's binarizer and arithmetic of NumPy."""
        own, here = binarized(self.frame["tags"]), binarized(frame["tags"])
        mean = np.nanmean(own[:, -1])
        filled = np.nan_to_num(own[:, -1], nan=mean)
        number = (np.nan_to_num(here[:, -1], nan=mean) - mean) / filled.std()
        fitted = self.fitted.named_transformers_
        emb = np.array([[np.nan] * 3 if each is None else [*each] for each in frame["emb"]])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about names of columns
            return np.column_stack(
                [
                    np.nan_to_num(here[:, :-1]),
                    number,
                    fitted["emb"].transform(emb),
                    (frame["amount"] - self.frame["amount"].mean()) / self.frame["amount"].std(ddof=0),
                    fitted["country"].transform(frame[["country"]]).toarray(),
                ]
            )


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield Codes(tmp_path_factory.mktemp("world"))


LISTS = [["b", "a"], [], None, ["a", "a", " b "], ["c", None, "", " "], ["a"]]
KINDS = [
    pa.list_(pa.string()),
    pa.large_list(pa.large_string()),
    pa.list_(pa.dictionary(pa.int32(), pa.string())),
    pa.list_(pa.string_view()),
]


def stored(table, **types):
    """The frame of a graph of one table."""
    return Graph.from_tables({"node": NodeTable(columns=table, column_types=types)}, SELF).frame("node")


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_list_of_texts_is_a_column_for_each_code_and_their_number(kind):
    array = pa.chunked_array([pa.array(LISTS[:3], KINDS[0]), pa.array(LISTS[3:], KINDS[0])])
    if kind != KINDS[2]:
        array = array.cast(kind)
    else:
        array = pa.chunked_array(
            [
                pa.ListArray.from_arrays(each.offsets, each.values.dictionary_encode(), mask=each.is_null())
                for each in array.chunks
            ]
        )
    frame = stored(pa.table({"tags": array}))
    assert list(frame) == ["tags=a", "tags=b", "tags=c", "tags#"]
    np.testing.assert_array_equal(frame.to_numpy(float), binarized(LISTS, ["a", "b", "c"]))


def test_frames_of_pandas_and_polars_tables_of_duckdb_and_files_are_the_same(tmp_path):
    table = pa.table({"tags": pa.array(LISTS, KINDS[0])})
    expected = stored(table)
    pairs = pa.table({"tags": pa.array([["a", "b"], None], pa.list_(pa.string(), 2))})
    np.testing.assert_array_equal(stored(pairs).to_numpy(float), [[1, 1, 2], [np.nan] * 3])
    parquet.write_table(table, tmp_path / "nodes.parquet")
    of_duckdb = duckdb.sql(f"select * from '{tmp_path / 'nodes.parquet'}'").to_arrow_table()
    for other in (table.to_pandas(), polars.from_arrow(table), of_duckdb):
        pd.testing.assert_frame_equal(stored(other), expected)
    file = NodeFile(tmp_path / "nodes.parquet", columns=["*"])
    parquet.write_table(pa.table({"src": [0], "dst": [0]}), tmp_path / "edges.parquet")
    edge = {("node", "to", "node"): EdgeFile(tmp_path / "edges.parquet")}
    graph = Graph.from_parquet({"node": file}, edge, ids_are_rows=True)
    pd.testing.assert_frame_equal(graph.frame("node"), expected)


@settings(max_examples=thorough(15, 60), deadline=None, phases=[Phase.generate])
@given(
    lists=st.lists(
        st.none() | st.lists(st.none() | st.sampled_from([*CODES, "", " a ", "p|q"]), max_size=6),
        min_size=1,
    ),
    known=st.none() | st.lists(st.sampled_from(CODES), min_size=1, unique=True),
    chunk=st.integers(1, 7),
)
def test_any_lists_are_those_of_scikit_learn_as_a_table_and_as_rows(lists, known, chunk):
    codes = {code.strip() for each in lists for code in each or () if code} - {""}
    if not known and not codes:
        return
    parts = [pa.array(lists[at : at + chunk], KINDS[0]) for at in range(0, len(lists), chunk)]
    table = pa.table({"tags": pa.chunked_array(parts, KINDS[0])})
    kind = f"codes={'|'.join(known)}" if known else ""
    frame = stored(table, tags=kind)
    names = sorted(known or codes)
    assert list(frame) == [*(f"tags={code}" for code in names), "tags#"]
    np.testing.assert_array_equal(frame.to_numpy(float), binarized(lists, names))
    rows = [with_places({"tags": each}, lists_of(frame)) for each in lists]
    for name in frame:
        cells, wrong = cells_of("integer" if name == "tags#" else "boolean", [row[name] for row in rows])
        assert wrong == {}
        np.testing.assert_array_equal(cells, frame[name].to_numpy(float))


def test_words_as_codes_are_the_columns_of_a_count_vectorizer():
    """What the refusal of vectorizers advises."""
    texts = ["Refund, please!", "an URGENT refund", "", "refund-refund é"]
    vectorizer = CountVectorizer(binary=True).fit(texts)
    words = [vectorizer.build_analyzer()(each) for each in texts]
    frame = stored(pa.table({"words": words}))
    names = vectorizer.get_feature_names_out().tolist()
    assert list(frame) == [*(f"words={name}" for name in names), "words#"]
    np.testing.assert_array_equal(frame.to_numpy(int)[:, :-1], vectorizer.transform(texts).toarray())


def test_codes_of_texts_and_of_integers_are_named(tmp_path):
    lines = ["id,tags,far", "n1,b|a,1|22|333", "n2,,", "n3, a | |a|c ,-7", "n4,|,N/A"]
    (tmp_path / "nodes.csv").write_text("\n".join(lines))
    (tmp_path / "edges.csv").write_text("src,dst\nn1,n2\n")
    done = typed(
        "graph", "build", str(tmp_path / "edges.csv"), "--features", str(tmp_path / "nodes.csv"),
        "--id", "id", "--column", "tags:codes=c|a", "--column", "far:codes", "--na", "N/A",
        "--out", str(tmp_path / "graph"),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    frame = Graph.open(tmp_path / "graph").frame("node")
    assert list(frame) == ["tags=a", "tags=c", "tags#", "far=-7", "far=1", "far=22", "far=333", "far#"]
    none = [np.nan] * 3
    np.testing.assert_array_equal(
        frame[["tags=a", "tags=c", "tags#"]], [[1, 0, 2], none, [1, 1, 2], [0, 0, 0]]
    )
    np.testing.assert_array_equal(frame["far#"], [3, np.nan, 1, np.nan])
    done = typed("graph", "info", str(tmp_path / "graph"))
    assert "tags=c" in done.output
    whole = pa.table({"far": pa.array([[22, 1, 333], None, [-7]], pa.list_(pa.int16()))})
    pd.testing.assert_frame_equal(
        stored(whole, far="codes"),
        frame[[name for name in frame if name.startswith("far")]][:3],
    )
    empty = pa.table({"far": pa.array([[], None])})
    np.testing.assert_array_equal(stored(empty, far="codes=1").to_numpy(float), [[0, 0], [np.nan] * 2])


REFUSED = [
    ([[1], [2]], "", r"holds list<.*int64>; leave it out, or say that it holds codes .*\(tags:codes,"),
    ([[1.5], [2.5]], "codes", "instead of lists of codes, which are texts or integers"),
    ([[True], [False]], "codes", "instead of lists of codes, which are texts or integers"),
    ([[["a"]], [["b"]]], "", "leave it out, or say that it holds codes"),
    ([[["a"]], [["b"]]], "codes", "instead of lists of codes, which are texts or integers"),
    ([[{"a": 1}], []], "codes", "instead of lists of codes, which are texts or integers"),
    ([1, 2], "codes", "int64 instead of lists of codes"),
    ([["a"], ["b"]], "text", "holds list<.*string>; leave it out, or say that it holds codes"),
    ([[], None], "codes", "lists of 0 distinct codes: name those that are columns"),
    ([["", None], []], "codes", "lists of 0 distinct codes: name those that are columns"),
    ([[str(at)] for at in range(300)], "", "lists of 300 distinct codes: .* at most 256"),
    ([["a"], ["b"]], "codes=", r"its type is one of float, .*, codes=a\|b, .*; got 'codes='"),
]


@pytest.mark.parametrize(("values", "kind", "message"), REFUSED, ids=[str(each)[:40] for each in REFUSED])
def test_other_lists_are_refused(values, kind, message):
    with pytest.raises(GraphError, match=message):
        stored(pa.table({"tags": pa.array(values)}), **({"tags": kind} if kind else {}))


@pytest.mark.parametrize("other", ["tags=a", "tags=z", "tags#", "tags_0"])
def test_a_column_that_would_be_one_of_the_list_is_refused(other):
    table = pa.table({"tags": [["a"], []], other: [1.0, 2.0]})
    with pytest.raises(GraphError, match=f"'tags' is a list, and '{other}' is a column; rename one"):
        stored(table)
    with pytest.raises(GraphError, match="'a=b' is a list, and"):
        stored(pa.table({"a=b": [["a"], []]}))


def sent(row):
    return {"amount": row.amount, "tags": row.tags, "emb": row.emb, "country": row.country}


@pytest.mark.release
def test_a_new_node_with_codes_has_pygs_answer(world):
    frame = frame_of(5)
    frame["tags"] = [each and [*each, "later", "a "] for each in frame["tags"]]
    near = [np.random.default_rng(row).integers(0, COUNT, row % 4).tolist() for row in range(COUNT)]
    inline = [
        InlineNode(columns=sent(row), neighbors={"": [f"n{one}" for one in ids]})
        for row, ids in zip(frame.itertuples(), near, strict=True)
    ]
    found = ask(world.answerer(), inline=inline)
    np.testing.assert_allclose(found, world.expected(frame, near), atol=1e-5, rtol=1e-5)


CELLS = st.fixed_dictionaries(
    {
        "amount": st.floats(-1e6, 1e6),
        "tags": st.none() | st.lists(st.none() | st.sampled_from([*CODES, "", " a ", "later"]), max_size=8),
        "emb": st.none() | st.lists(st.none() | st.floats(-9, 9, width=32), min_size=3, max_size=3),
        "country": st.none() | st.sampled_from(["DE", "FR", " FR", "", "XX"]),
    }
)


@settings(max_examples=thorough(4, 15), deadline=None, phases=[Phase.generate])
@given(rows=st.lists(CELLS, min_size=1, max_size=8), data=st.data())
def test_a_row_is_the_same_row_in_a_request_an_event_a_store_and_a_graph_that_is_built_with_it(
    world, tmp_path_factory, rows, data
):
    """Bit for bit, as a list, an array, and a column for each code."""
    folder = tmp_path_factory.mktemp("rows")
    frame = pd.concat([world.frame, pd.DataFrame(rows).assign(id=[f"new{at}" for at in range(len(rows))])])
    graph = written(folder, frame)
    answerer = world.answerer(graph)
    encoder, built = answerer.model.encoder, answerer.model.graph.nodes["node"].features[COUNT:]
    rows = json.loads(json.dumps(rows))
    assert encoder.rows(rows).tobytes() == built.tobytes()
    given = [row | {"tags": row["tags"] and np.array(row["tags"], object)} for row in rows]
    assert encoder.rows(given).tobytes() == built.tobytes()
    places = [with_places(row, lists_of(graph.frame("node"))) for row in rows]
    assert encoder.rows(places).tobytes() == built.tobytes()
    live = Live(world)
    at = data.draw(st.lists(st.integers(0, COUNT - 1), max_size=len(rows), unique=True))
    ops = [
        {"op": "set_features", "node": f"n{node}", "columns": row}
        for node, row in zip(at, rows, strict=False)
    ]
    ops += [{"op": "add_node", "node": f"new{i}", "columns": row} for i, row in enumerate(rows)]
    assert live.send(*ops) == []
    for node, row in zip(at, rows, strict=False):
        for name, value in row.items():
            frame.iat[node, list(frame).index(name)] = value
    rebuilt = written(folder, frame)
    assert live.view.snapshot().node().columns.table.equals(rebuilt.node().columns.table)
    ids = [*frame["id"]]
    np.testing.assert_array_equal(live.answers(ids), ask(world.answerer(rebuilt), nodes=ids))


WRONG = [
    ({"tags": "a|b"}, "'tags': 'a|b' instead of a list of codes"),
    ({"tags": 7}, "'tags': 7 instead of a list of codes"),
    ({"tags": [7]}, "'tags': 7 instead of a code, which is a string"),
    ({"tags": ["a", True]}, "'tags': True instead of a code, which is a string"),
    ({"tags": [["a"]]}, "'tags': ['a'] instead of a code, which is a string"),
    ({"tags": {"a": 1}}, "'tags': {'a': 1} instead of a list of codes"),
    ({"emb": ["x"] * 3}, "'emb_0': 'x' instead of a number"),
]


@pytest.mark.parametrize(("cells", "message"), WRONG, ids=[each[1][:24] for each in WRONG])
def test_a_list_of_other_items_is_refused_by_name(world, cells, message):
    row = sent(next(world.frame.itertuples())) | cells
    with pytest.raises(BadRequest) as error:
        world.answerer().model.encoder.rows([row], ["inline[0].columns"])
    assert str(error.value) == f"inline[0].columns: {message}"
    live = Live(world)
    (reason,) = live.send({"op": "add_node", "node_type": "node", "node": "new", "columns": row})
    assert message in reason
    live.answers(["n1"])


def test_a_graph_with_other_codes_has_the_same_answers_or_is_refused(world, tmp_path):
    """`tags#` counts codes without a column too, so a model that reads it may be served on such a graph."""
    frame = world.frame.copy()
    frame["tags"] = [each and [*each, "0first"] for each in frame["tags"]]
    graph = written(tmp_path, frame, ())
    assert "tags=0first" in graph.frame("node")
    rows = [sent(row) for row in frame.itertuples()]
    answerer = world.answerer(graph)
    assert answerer.model.encoder.rows(rows).tobytes() == (
        answerer.model.graph.nodes["node"].features[:].tobytes()
    )
    ids = frame["id"].tolist()
    whole = [[np.flatnonzero(edges()[1] == at)] for at in range(COUNT)]
    lists = [edges()[0][each[0]].tolist() for each in whole]
    x = torch.tensor(world.x(frame)).float()
    with torch.no_grad():
        expected = world.module(x, torch.tensor(edges())).numpy()
    assert max(map(len, lists)) > 0
    np.testing.assert_allclose(ask(answerer, nodes=ids), expected, atol=1e-5, rtol=1e-5)
    frame["tags"] = [each and [code for code in each if code != "b"] for each in frame["tags"]]
    with pytest.raises(
        Exception, match="its column 'tags=b' is missing; the model was packaged for boolean"
    ):
        world.answerer(written(tmp_path, frame, ()))


class OnlyCodes(ListWorld):
    """A model that reads one of the codes, and no number; its graph refuses other codes."""

    def __init__(self, folder):
        frame = frame_of()
        self.only = f"tags:codes-only={'|'.join(CODES)}"
        graph = list_world.written(folder, pa.Table.from_pandas(frame, preserve_index=False), self.only)
        none = SimpleImputer(strategy="constant", fill_value=0)
        super().__init__(folder, frame, graph, [("tags", none, ["tags=b"])])

    def x(self, frame):
        return np.nan_to_num(binarized(frame["tags"])[:, [KNOWN.index("b")]])


def test_codes_that_a_description_does_not_have_are_refused_where_it_says_so(tmp_path, monkeypatch):
    """In tables, requests, events and stores, also by a model that does not read all codes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    world = OnlyCodes(tmp_path)
    names = [*(f"tags={code}" for code in KNOWN), "tags!"]
    schema = world.report.spec.graph_schema["node_types"]["node"]
    assert [each["name"] for each in schema["columns"]] == names
    wrong = f"'tags': 'later', not one of its codes {KNOWN}"
    answerer = world.answerer()
    encoder = answerer.model.encoder
    inline = [InlineNode(columns={"tags": ["b", "later"]}, neighbors={"": ["n1"]})]
    with pytest.raises(BadRequest) as error:
        ask(answerer, inline=inline)
    assert str(error.value) == f"inline[0].columns: {wrong}"
    with pytest.raises(
        BadRequest, match=r"inline\[0\].columns: 'tags' is missing; a row has tags \(a list\)$"
    ):
        ask(answerer, inline=[InlineNode(columns={}, neighbors={"": ["n1"]})])
    rows = [{"tags": each} for each in (["b", "a"], [], None)]
    expected = np.array([[1], [0], [0]], np.float32)
    np.testing.assert_array_equal(encoder.rows(rows), expected)
    live = Live(world)
    event = {"op": "add_node", "node_type": "node", "node": "new"}
    row = sent(next(world.frame.itertuples()))
    (reason,) = live.send(event | {"columns": row | {"tags": ["later"]}})
    assert reason == f"node type 'node': column {wrong}"
    assert live.send(event | {"columns": row | {"tags": ["a"]}}) == []
    frame = world.frame.assign(tags=[["b", "later"] if row == 3 else ["b"] for row in range(COUNT)])
    with pytest.raises(GraphError, match="column 'tags' holds 'later', not one of its codes "):
        list_world.written(tmp_path, pa.Table.from_pandas(frame, preserve_index=False), world.only)
    (tmp_path / "store").mkdir()
    frame.to_parquet(tmp_path / "store" / "nodes.parquet")
    wanted = FeatureGroup.of_columns("nodes", {each["name"]: each["type"] for each in schema["columns"]})
    features = FeatureGroup("node@1", encoder.width)

    async def read():
        store = open_store(f"parquet://{tmp_path / 'store'}")
        await store.open()
        encoded = EncodedStore(store, wanted, features, encoder)
        try:
            await encoded.describe("node@1")
            return await encoded.fetch(features, [*frame["id"]])
        finally:
            await store.close()

    found = asyncio.run(read())
    assert found.problems == (f"group 'nodes': the row of 'n3': column {wrong}",)
    assert found.found.tolist() == [row != 3 for row in range(COUNT)]
    np.testing.assert_array_equal(found.values[found.found], 1)
    with pytest.raises(Exception, match="its column 'tags!' is missing"):
        world.answerer(written(tmp_path, world.frame))


@pytest.mark.release
def test_a_server_takes_lists_logs_them_and_answers_400_to_others(world, tmp_path):
    folder = world.report.path.parents[2]
    settings = {"graph__path": folder / "graph", "models__repository": folder / "models"}
    settings |= {"prediction_log__path": tmp_path / "log", "prediction_log__tensors_share": 1.0}
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
                tags = None if row.tags is None else np.array(row.tags, object)
                node = InlineNode(columns=sent(row) | {"tags": tags}, neighbors={"": ["n1", "n2"]})
                answer = client.score_inline("risk", [node], outputs=["logits"])
                np.testing.assert_allclose(answer.outputs["logits"][0], logits, atol=1e-5, rtol=1e-5)
        for columns in ({"tags": "a"}, {"tags": [1]}, {"tags": [["a"]]}, {"tags": {"a": 1}}):
            refused = post(sent(frame.iloc[0]) | columns)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_request")
    words = ["--artifact", str(world.report.path), "--graph", str(folder / "graph"), "--json"]
    done = typed("skew", str(tmp_path / "log"), *words)
    report = json.loads(done.stdout)
    assert (report["rows"], report["encoded_rows"]) == (18, 16)
    assert not [each for each in report["skew"] if each["kind"] in ("encoded", "row")]


@pytest.mark.sample(1)
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_skew_against_a_training_table_with_lists(world, tmp_path, suffix):
    """A log of the training rows has none, and one whose tags are others has it."""
    frame = world.frame.drop(columns="emb") if suffix == "csv" else world.frame
    if suffix == "csv":
        emb = np.array([[None] * 3 if each is None else each for each in world.frame["emb"]])
        frame = frame.assign(**{f"emb_{at}": emb[:, at] for at in range(3)})
        frame["tags"] = [each if each is None else "|".join([*each, ""]) or "|" for each in frame["tags"]]
        frame.to_csv(tmp_path / "train.csv", index=False)
    else:
        frame.to_parquet(tmp_path / "train.parquet")
    folder = world.report.path.parents[2]
    settings = {"graph__path": folder / "graph", "models__repository": folder / "models"}
    for name, change in (("same", lambda tags: tags), ("other", lambda tags: ["b"] * bool(tags))):
        log = tmp_path / name
        with (
            running("hopline.service:Service", **settings, prediction_log__path=log) as server,
            hopline.Client(server.url) as client,
        ):
            rows = [sent(row) for row in world.frame.itertuples()]
            nodes = [
                InlineNode(columns=row | {"tags": change(row["tags"])}, id=f"n{at}")
                for at, row in enumerate(rows)
            ]
            client.score_inline("risk", nodes)
        done = typed(
            "skew", str(log), "--artifact", str(world.report.path), "--table",
            str(tmp_path / f"train.{suffix}"), "--id", "id", "--json",
        )  # fmt: skip
        report = json.loads(done.stdout)
        found = {each["column"] for each in report["skew"] if each["kind"] == "row"}
        assert ("tags=a" in found and "tags#" in found) == (name == "other"), report


class EdgeNet(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        torch.manual_seed(0)
        self.conv = GATv2Conv(3, 8, edge_dim=width, add_self_loops=False)
        self.head = torch.nn.Linear(8, 2)

    def forward(self, x, edge_index, edge_attr):
        return self.head(self.conv(x, edge_index, edge_attr).relu())


def test_codes_of_edges_have_pygs_answers_in_a_graph_a_request_and_an_event(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    random, pair = np.random.default_rng(3), ("node", "to", "node")
    x, frame, ends = random.normal(size=(COUNT, 3)).astype(np.float32), frame_of(4, 230), edges()
    ends = np.concatenate([ends, random.integers(0, COUNT, (2, 30))], axis=1)
    frame = frame[["amount", "tags"]]
    names = [f"n{row}" for row in range(COUNT)]

    def built(count):
        table = EdgeTable(ends[:, :count], columns=frame[:count], by_row=True)
        return Graph.from_tables({"node": NodeTable(x, ids=names)}, {pair: table})

    graph = built(200)
    parts = [
        ("tags", SimpleImputer(strategy="constant", fill_value=0), make_column_selector("^tags=")),
        ("rest", SimpleImputer(), ["amount", "tags#"]),
    ]
    fitted = ColumnTransformer(parts).fit(graph.frame(pair))
    codes = binarized(frame["tags"])
    number = np.nan_to_num(codes[:, -1], nan=np.nanmean(codes[:200, -1]))
    attr = np.column_stack([np.nan_to_num(codes[:, :-1]), frame["amount"], number]).astype(np.float32)
    module = EdgeNet(attr.shape[1]).eval()
    report = hopline.package(
        module, graph, tmp_path / "models", name="risk", fanouts=[-1], task="multiclass",
        preprocess={pair: fitted},
    )  # fmt: skip

    def pyg(rows, count, more=()):
        """The nodes' answers with `count` edges, and those of new nodes whose edges are `more`."""
        near = np.array(more, np.int64).reshape(-1, 2).T
        given = [torch.tensor(rows), torch.tensor(np.concatenate([ends[:, :count], near], axis=1))]
        with torch.no_grad():
            return module(*given, torch.tensor(attr[: count + len(more)])).numpy()

    def answerer(graph):
        return Answerer(load_model(report.path, report.spec, graph), ("logits",), 999)

    np.testing.assert_allclose(ask(answerer(graph), nodes=names), pyg(x, 200), atol=1e-5, rtol=1e-5)
    sent = frame[200:].to_dict("records")
    near = [(int(at), COUNT + row // 3) for row, at in enumerate(ends[0, 200:])]
    inline = [
        InlineNode(
            features=x[row],
            neighbors={"": [names[at] for at, _ in near[3 * row : 3 * row + 3]]},
            edge_attr={"": sent[3 * row : 3 * row + 3]},
        )
        for row in range(10)
    ]
    expected = pyg(np.concatenate([x, x[:10]]), 200, near)[COUNT:]
    np.testing.assert_allclose(ask(answerer(graph), inline=inline), expected, atol=1e-5, rtol=1e-5)
    live = Live(SimpleNamespace(graph=graph, report=report))
    events = [
        {"op": "add_edge", "src": names[src], "dst": names[dst], "columns": row}
        for src, dst, row in zip(*ends[:, 200:].tolist(), sent, strict=True)
    ]
    assert live.send(*events) == []
    np.testing.assert_allclose(live.answers(names), pyg(x, 230), atol=1e-5, rtol=1e-5)
    (reason,) = live.send(events[0] | {"columns": {"amount": 1.0, "tags": [1]}})
    assert "column 'tags': 1 instead of a code, which is a string" in reason
    stored = live.view.snapshot().edges["node__to__node"].columns.frame()
    np.testing.assert_array_equal(
        np.unique(stored.to_numpy(float), axis=0), np.unique(built(230).frame(pair).to_numpy(float), axis=0)
    )


class EdgeHead(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.out = torch.nn.Linear(8 + width, 2)

    def forward(self, h_src, h_dst, edge_attr):
        return self.out(torch.cat([h_src, h_dst, edge_attr], dim=1))


class Encoded(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = GATv2Conv(3, 4, edge_dim=width, add_self_loops=False)

    def forward(self, x, edge_index, edge_attr):
        return self.conv(x, edge_index, edge_attr).relu()


def test_a_batch_of_edges_refuses_codes_that_a_description_does_not_have(tmp_path, monkeypatch):
    """Also of a list of which the model reads one code; in requests the same."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    random, pair = np.random.default_rng(3), ("node", "to", "node")
    x, names = random.normal(size=(COUNT, 3)).astype(np.float32), [f"n{row}" for row in range(COUNT)]
    columns = pa.table({"tags": [["a"] if row % 2 else ["a", "b"] for row in range(200)]})
    table = EdgeTable(edges(), columns=columns, by_row=True, column_types={"tags": "codes-only"})
    graph = Graph.from_tables({"node": NodeTable(x, ids=names)}, {pair: table})
    torch.manual_seed(0)
    reads = ColumnTransformer([("tags", "passthrough", ["tags=b"])]).fit(graph.frame(pair))
    report = hopline.package(
        Encoded(1).eval(), graph, tmp_path / "models", name="risk", fanouts=[-1], task="multiclass",
        target=("node", "node"), head=EdgeHead(1).eval(), preprocess={pair: reads},
    )  # fmt: skip
    model = load_model(report.path, report.spec, graph)
    ends = {"from": ["n1", "n2"], "to": ["n3", "n4"]}
    parquet.write_table(pa.table(ends | {"tags": [["b"], ["a"]]}), tmp_path / "good.parquet")
    assert _of_file(model, tmp_path / "good.parquet").rows.tolist() == [[1], [0]]
    parquet.write_table(pa.table(ends | {"tags": [["b"], ["later"]]}), tmp_path / "wrong.parquet")
    with pytest.raises(GraphError, match="column 'tags' holds 'later', not one of its codes "):
        _of_file(model, tmp_path / "wrong.parquet")
    with pytest.raises(BadRequest, match="'tags': 'later', not one of its codes "):
        model.encoders["node__to__node"].rows([{"tags": ["b", "later"]}])


def test_rows_of_a_store_with_lists_are_encoded_as_rows_of_requests(world, tmp_path):
    frame = world.frame.copy()
    frame["tags"] = [["0first", "a"] if row % 2 else each for row, each in enumerate(frame["tags"])]
    encoder = world.answerer().model.encoder
    types = {one["name"]: one["type"] for one in encoder.columns}
    wanted, features = FeatureGroup.of_columns("nodes", types), FeatureGroup("node@1", encoder.width)

    async def read():
        store = open_store(f"parquet://{tmp_path}")
        await store.open()
        encoded = EncodedStore(store, wanted, features, encoder)
        try:
            assert await encoded.describe("node@1") == features
            return await encoded.fetch(features, [*frame["id"], "nobody"])
        finally:
            await store.close()

    frame.to_parquet(tmp_path / "nodes.parquet")
    found = asyncio.run(read())
    assert (found.problems, found.found.tolist()) == ((), [True] * COUNT + [False])
    assert found.values[:-1].tobytes() == encoder.rows([sent(row) for row in frame.itertuples()]).tobytes()
    frame.assign(tags="a|b").to_parquet(tmp_path / "nodes.parquet")
    with pytest.raises(FeatureSchemaMismatch, match=r"the store has no column 'tags=#' \(boolean\)"):
        asyncio.run(read())


def test_a_store_of_parquet_files_has_lists_of_the_codes_of_a_request(world, tmp_path):
    frame = world.frame.copy()
    frame["tags"] = [["0first", "a"] if row % 2 else each for row, each in enumerate(frame["tags"])]
    frame.to_parquet(tmp_path / "nodes.parquet")

    async def read():
        store = open_store(f"parquet://{tmp_path}")
        await store.open()
        stored = await store.describe_columns("nodes")
        wanted = FeatureGroup.of_columns("nodes", dict.fromkeys(NAMES, "boolean") | {"tags#": "integer"})
        rows = await store.fetch_columns(wanted, frame["id"].tolist())
        await store.close()
        return stored, rows

    stored, rows = asyncio.run(read())
    assert stored.columns["tags"] == "codes"
    assert list(rows[0]) == NAMES
    found = np.array([[row[name] for name in NAMES] for row in rows], float)
    np.testing.assert_array_equal(found, binarized(frame["tags"]))


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("tags", "text", "column 'tags' is codes in the store, and text is expected"),
        ("tags_0", "float", "the store has no column 'tags_0'"),
        ("tags=food", "boolean", ""),
        ("tags#", "integer", ""),
        ("other=food", "boolean", "the store has no column 'other=food'"),
    ],
)
def test_lists_of_codes_in_a_store_are_the_columns_of_codes_alone(name, kind, text):
    expected = FeatureGroup.of_columns("node", {name: kind})
    stored = FeatureGroup.of_columns("node", {"tags": "codes"})
    found = column_differences(expected, stored, lists_of(expected.columns))
    assert found == [] if not text else found[0].startswith(text)
