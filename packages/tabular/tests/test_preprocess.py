"""Preprocessing in the artifact of a graph model: answers to columns are PyG's on the transformed frame."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MinMaxScaler,
    OneHotEncoder,
    StandardScaler,
)  # fmt: skip

import hopline
from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import ArtifactError, BadRequest, PackagingError, SchemaMismatch
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.types import InlineNode
from packages.tabular.tests import fraud_graph as fraud
from packages.tabular.tests.fraud_world import as_sent, ask, fitted_form, new_accounts


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Each test has a cache of encoded features of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hopline" / "encoded"


def test_nodes_of_the_graph_have_pygs_answers_on_the_transformed_frame(world):
    found = ask(world.answerer(), nodes=world.ids)
    np.testing.assert_allclose(found, world.pyg(), atol=1e-4, rtol=1e-4)


def test_a_thousand_unseen_rows_have_pygs_answers_on_the_transformed_frame(world):
    frame, neighbors = new_accounts()
    inline = [
        InlineNode(columns=as_sent(row), neighbors={"": merchants})
        for row, merchants in zip(frame.to_dict("records"), neighbors, strict=True)
    ]
    found = ask(world.answerer(), inline=inline)
    expected = world.pyg(fitted_form(frame), neighbors)[fraud.ACCOUNTS :]
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


def test_a_row_of_the_graph_sent_inline_has_the_graphs_answer(world):
    merchants = world.graph.edge(fraud.PAID_BY)
    rows = range(40)
    inline = [
        InlineNode(
            columns=as_sent(world.frame.iloc[row]),
            neighbors={"": merchants.indices[merchants.indptr[row] : merchants.indptr[row + 1]].tolist()},
        )
        for row in rows
    ]
    both = ask(world.answerer(), nodes=[world.ids[row] for row in rows], inline=inline)
    np.testing.assert_allclose(both[:40], both[40:], atol=1e-5)
    alone = [ask(world.answerer(), inline=[node])[0] for node in inline[:5]]
    np.testing.assert_allclose(both[40:45], alone, atol=1e-6)


def test_a_row_is_the_same_row_in_a_request_as_in_the_graph_bit_for_bit(world):
    encoder = world.answerer().model.encoder
    graph = encoder.encode(
        world.graph.node("account").columns.values(slice(0, fraud.ACCOUNTS)), fraud.ACCOUNTS
    )
    sent = [as_sent(row) for row in world.frame.to_dict("records")]
    assert encoder.rows(sent).tobytes() == graph.tobytes()
    alone = np.concatenate([encoder.rows([row]) for row in sent])
    assert alone.tobytes() == graph.tobytes()
    np.testing.assert_array_equal(graph, world.x["account"].numpy(), strict=True)


def test_the_artifact_has_the_encoders_and_the_columns_that_they_read(world):
    spec = read_spec(world.report.path)
    assert {file for file in spec.files if file.startswith("encoders/")} == {
        "encoders/account.onnx",
        "encoders/merchant.onnx",
    }
    columns = {
        name: {column["name"]: column["type"] for column in node["columns"]}
        for name, node in spec.graph_schema["node_types"].items()
    }
    assert columns["account"] == {
        "amount": "float", "country": "text", "mcc": "text", "age": "integer", "active": "boolean",
        "opened": "timestamp",
    }  # fmt: skip
    assert columns["merchant"] == {"risk": "float", "category": "text"}, "unread is not read"
    assert any("6 columns become" in note for note in world.report.notes)


BAD = [
    ({"amount": "much"}, "amount.*'much' instead of a number"),
    ({"country": 5}, "country.*5 instead of a string"),
    ({"mcc": 5411}, "mcc.*5411 instead of a string"),
    ({"age": 1.5}, "age.*1.5 instead of a whole number"),
    ({"active": 1}, "active.*1 instead of true or false"),
    ({"opened": 1_700_000_000}, "opened.*1700000000 instead of a time in ISO 8601"),
    ({"opened": "yesterday"}, "opened.*'yesterday' instead of a time"),
    ({"amount": 1e300}, "amount.*beyond"),
    ({"mcc": None, "amount": True}, "amount.*True instead of a number"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD, ids=lambda each: str(each)[:30])
def test_a_value_of_a_wrong_type_is_refused_by_column_and_value(world, wrong, message):
    row = as_sent(fraud.accounts(1, 5).iloc[0]) | {"age": 30, "mcc": "5411"}
    with pytest.raises(BadRequest, match=message):
        ask(world.answerer(), inline=[InlineNode(columns=row | wrong)])


def test_a_missing_column_is_named_and_a_further_one_is_not_read(world):
    row = as_sent(fraud.accounts(1, 5).iloc[0])
    answerer = world.answerer()
    with pytest.raises(
        BadRequest, match=r"inline\[0\].columns: 'country' is missing; a row has amount \(float"
    ):
        ask(answerer, inline=[InlineNode(columns={k: v for k, v in row.items() if k != "country"})])
    more = ask(answerer, inline=[InlineNode(columns=row | {"comment": "new"})])
    np.testing.assert_array_equal(more, ask(answerer, inline=[InlineNode(columns=row)]))


def test_features_by_position_and_columns_by_name_are_not_exchanged(world, tmp_path):
    width = world.x["account"].shape[1]
    row = as_sent(fraud.accounts(1, 5).iloc[0])
    for node in (InlineNode([0.0] * width), InlineNode([0.0] * width, columns=row)):
        with pytest.raises(BadRequest, match="the model has preprocessing; send `columns`"):
            ask(world.answerer(), inline=[node])
    edges = np.array([[0, 1, 2], [1, 2, 0]])
    plain = Graph.from_edges(edges, np.random.default_rng(0).normal(size=(3, 4)))
    from torch_geometric.nn import GraphSAGE

    report = hopline.package(
        GraphSAGE(4, 8, 1, 2).eval(), plain, tmp_path, name="risk", fanouts=[-1], task="multiclass"
    )
    with pytest.raises(BadRequest, match="the model has no preprocessing; send `features`"):
        ask(world.answerer(plain, report), inline=[InlineNode([0.0] * 4, columns=row)])


def test_columns_are_encoded_once_for_all_processes_and_versions(world, cache, monkeypatch):
    first = world.answerer()
    files = {path: path.stat().st_mtime_ns for path in cache.glob("*.rows")}
    assert len(files) == 2
    inodes = {path: path.stat().st_ino for path in files}
    second = world.answerer()
    assert {path: path.stat().st_ino for path in cache.glob("*.rows")} == inodes
    np.testing.assert_array_equal(ask(first, nodes=world.ids), ask(second, nodes=world.ids))
    (path, *_) = files
    path.write_bytes(path.read_bytes()[:-8])
    np.testing.assert_array_equal(ask(world.answerer(), nodes=world.ids), ask(second, nodes=world.ids))


def test_a_graph_without_a_column_or_with_another_type_is_refused_when_loaded(world, tmp_path):
    frame = world.frame
    for changed, message in (
        (frame.drop(columns="country"), "its column 'country' is missing; the model was packaged for text"),
        (
            frame.assign(age=frame["age"] + 0.5),
            "its column 'age' is float; the model was packaged for integer",
        ),
    ):
        with pytest.raises(SchemaMismatch, match=message):
            world.answerer(fraud.graph_of(changed, fraud.merchants(), world.ids))
    more = fraud.graph_of(frame.assign(later=1.5), fraud.merchants(), world.ids)
    np.testing.assert_allclose(ask(world.answerer(more), nodes=world.ids), world.pyg(), atol=1e-4)


def later_graph(world, accounts, more_nodes=(), more_edges=(), merchants=None):
    """A graph of later tables, with further node types and edge types."""
    account, merchant = fraud.pairs()
    nodes = {
        "account": NodeTable(columns=accounts, column_types={"mcc": "text"}, ids=world.ids),
        "merchant": NodeTable(columns=fraud.merchants() if merchants is None else merchants),
    }
    edges = {
        fraud.PAYS: EdgeTable((account, merchant), by_row=True),
        fraud.PAID_BY: EdgeTable((merchant, account), by_row=True),
    }
    return Graph.from_tables(nodes | dict(more_nodes), edges | dict(more_edges))


def test_an_older_model_serves_a_graph_with_more_columns_categories_and_types(world, tmp_path):
    frame = world.frame.assign(later=1.5, comment="x")
    frame.loc[::9, "country"] = "XX"
    frame.loc[::11, "mcc"] = "0001"
    device = {"device": NodeTable(columns=pd.DataFrame({"os": ["a", "b"]}))}
    uses = {("account", "uses", "device"): EdgeTable(([0, 1], [0, 1]), by_row=True)}
    back = {("device", "used_by", "account"): EdgeTable(([0, 1], [0, 1]), by_row=True)}
    graph = later_graph(world, frame, device, uses | back).save(tmp_path / "graph")
    x = dict(world.x, account=fraud.dense(world.fitted["account"].transform(fitted_form(frame))))
    with torch.no_grad():
        expected = world.module(x, fraud.edge_indices()).numpy()
    answerer = world.answerer(Graph.open(graph.path))
    np.testing.assert_allclose(ask(answerer, nodes=world.ids), expected, atol=1e-4)
    row = as_sent(world.frame.iloc[3])
    node = InlineNode(
        columns=row, neighbors={"merchant__paid_by__account": [3], "device__used_by__account": [1]}
    )
    found = ask(answerer, inline=[node])[0]
    with torch.no_grad():
        same = fraud.dense(world.fitted["account"].transform(fitted_form(world.frame.iloc[[3]])))
        x["account"] = torch.cat([x["account"], same])
        expected = world.module(x, fraud.edge_indices(([3], [fraud.ACCOUNTS]))).numpy()[-1]
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("accounts", "merchants", "message"),
    [
        (
            lambda frame: frame.drop(columns="opened"),
            None,
            "'opened' is missing; the model.* for timestamp",
        ),
        (lambda frame: frame.assign(opened="2024"), None, "'opened' is text; the model.* for timestamp"),
        (lambda frame: frame.assign(active=1), None, "'active' is integer; the model.* for boolean"),
        (lambda frame: frame.rename(columns={"age": "Age"}), None, "'age' is missing"),
        (None, lambda frame: frame.assign(category=1), r"'category' is integer; .* text \(category:text\)"),
        (
            None,
            lambda frame: frame.drop(columns="risk"),
            "node type 'merchant': its column 'risk' is missing",
        ),
    ],
)
def test_a_column_that_a_model_reads_and_that_is_gone_or_of_another_type_is_named_when_loaded(
    world, accounts, merchants, message
):
    same = lambda frame: frame  # noqa: E731
    graph = later_graph(
        world, (accounts or same)(world.frame), merchants=(merchants or same)(fraud.merchants())
    )
    with pytest.raises(SchemaMismatch, match=message):
        world.answerer(graph)
    later_graph(world, world.frame, merchants=fraud.merchants().drop(columns="unread"))


def test_a_value_of_a_later_graph_that_an_encoder_refuses_is_named_when_loaded(tmp_path):
    frame = pd.DataFrame({"country": ["DE", "JP", "FR"] * 4, "amount": np.arange(12.0)})
    edges = {("node", "to", "node"): EdgeTable((np.arange(12), np.roll(np.arange(12), 1)))}
    graph = Graph.from_tables({"node": NodeTable(columns=frame)}, edges)
    fitted = ColumnTransformer([("a", OneHotEncoder(), ["country"]), ("b", StandardScaler(), ["amount"])])
    fitted.fit(frame)
    from torch_geometric.nn import GraphSAGE

    report = hopline.package(
        GraphSAGE(4, 8, 1, 2).eval(), graph, tmp_path, name="risk", fanouts=[-1], task="multiclass",
        preprocess={"node": fitted},
    )  # fmt: skip
    load_model(report.path, report.spec, graph)
    later = Graph.from_tables({"node": NodeTable(columns=frame.replace("FR", "XX"))}, edges)
    with pytest.raises(SchemaMismatch, match="column 'country', row 2: 'XX' is unknown to the model"):
        load_model(report.path, report.spec, later)
    missing = Graph.from_tables({"node": NodeTable(columns=frame.replace(3.0, math.nan))}, edges)
    with pytest.raises(SchemaMismatch, match="column 'amount', row 3: no value"):
        load_model(report.path, report.spec, missing)
    answerer = Answerer(load_model(report.path, report.spec, graph), ("logits",), 99)
    with pytest.raises(BadRequest, match="'XX' is unknown to the model; known are 'DE', 'FR', 'JP'"):
        ask(answerer, inline=[InlineNode(columns={"country": "XX", "amount": 1})])


REFUSED = [
    ({"node": StandardScaler()}, "not fitted"),
    ({"node": StandardScaler().fit(np.zeros((3, 2)))}, "fitted on an array: fit it on a DataFrame"),
    (
        {"node": StandardScaler().fit(pd.DataFrame({"height": [1.0, 2]}))},
        "it reads height, which the graph",
    ),
    ({"other": StandardScaler()}, "no such node type or edge type; it has node"),
    ({"node": FunctionTransformer(lambda x: x + 1).fit(pd.DataFrame({"amount": [1.0]}))}, "no ONNX form"),
    ({"node": "standard"}, "str is not a transformer"),
    ("standard", "fitted transformer"),
]


@pytest.mark.parametrize(("preprocess", "message"), REFUSED, ids=[each[1][:20] for each in REFUSED])
def test_a_transformer_that_cannot_be_packaged_is_refused_with_the_reason(tmp_path, preprocess, message):
    frame = pd.DataFrame({"amount": np.arange(6.0)})
    edges = {("node", "to", "node"): EdgeTable((np.arange(6), np.roll(np.arange(6), 1)))}
    graph = Graph.from_tables({"node": NodeTable(columns=frame)}, edges)
    from torch_geometric.nn import GraphSAGE

    with pytest.raises(PackagingError, match=message):
        hopline.package(
            GraphSAGE(1, 8, 1, 2), graph, tmp_path, name="m", fanouts=[-1], task="multiclass",
            preprocess=preprocess,
        )  # fmt: skip


def test_missing_values_without_an_imputer_are_refused_with_the_row(tmp_path):
    frame = pd.DataFrame({"amount": [1.0, math.nan, 3.0]})
    edges = {("node", "to", "node"): EdgeTable(([0, 1, 2], [1, 2, 0]))}
    graph = Graph.from_tables({"node": NodeTable(columns=frame)}, edges)
    from torch_geometric.nn import GraphSAGE

    with pytest.raises(PackagingError, match=r"amount is nan for \{'amount': None\}; impute"):
        hopline.package(
            GraphSAGE(1, 8, 1, 2), graph, tmp_path, name="m", fanouts=[-1], task="multiclass",
            preprocess={"node": StandardScaler().fit(frame)},
        )  # fmt: skip


def test_what_does_not_read_columns_yet_refuses_such_a_model(world):
    for what in ("a run on Ray", "quantisation"):
        with pytest.raises(ArtifactError, match=f"has preprocessing of account, merchant.*{what}"):
            world.report.spec.check_plain_features(what)
    assert world.report.spec.format == 4, "a Hopline without preprocessing refuses the artifact"


def loop_graph(frame, count=12):
    edges = np.stack([np.arange(count), np.roll(np.arange(count), 1)])
    return Graph.from_tables({"node": NodeTable(columns=frame)}, {("node", "to", "node"): EdgeTable(edges)})


def test_a_small_graph_is_read_by_its_encoded_columns(tmp_path):
    from torch_geometric.nn import GraphSAGE

    frame = pd.DataFrame({"country": ["DE", "JP", "FR"] * 4, "amount": np.arange(12.0)})
    graph = loop_graph(frame)
    fitted = ColumnTransformer([("a", OneHotEncoder(), ["country"]), ("b", StandardScaler(), ["amount"])])
    fitted.fit(frame)
    module = GraphSAGE(4, 8, 1, 2).eval()
    report = hopline.package(
        module, graph, tmp_path, name="risk", fanouts=[-1], task="multiclass", preprocess={"node": fitted}
    )  # fmt: skip
    edges = torch.tensor(np.stack([np.arange(12), np.roll(np.arange(12), 1)]))
    with torch.no_grad():
        expected = module(fraud.dense(fitted.transform(frame)), edges).numpy()
    answerer = Answerer(load_model(report.path, report.spec, graph), ("logits",), 99)
    np.testing.assert_allclose(ask(answerer, nodes=list(range(12))), expected, atol=1e-4)


class WithTable(torch.nn.Module):
    """Features, and a row for each node."""

    def __init__(self):
        super().__init__()
        from torch_geometric.nn import SAGEConv

        self.emb, self.conv = torch.nn.Embedding(12, 3), SAGEConv(7, 2)

    def forward(self, x, edge_index):
        return self.conv(torch.cat([x, self.emb.weight], 1), edge_index)


def test_preprocessing_and_learned_rows_of_one_type(tmp_path):
    frame = pd.DataFrame({"country": ["DE", "JP", "FR"] * 4, "amount": np.arange(12.0)})
    graph = loop_graph(frame)
    fitted = ColumnTransformer([("a", OneHotEncoder(), ["country"]), ("b", StandardScaler(), ["amount"])])
    fitted.fit(frame)
    module = WithTable().eval()
    report = hopline.package(
        module, graph, tmp_path, name="risk", fanouts=[-1], task="multiclass", embeddings={"emb": "node"},
        later_nodes="zero", preprocess={"node": fitted},
    )  # fmt: skip
    edges = np.stack([np.arange(12), np.roll(np.arange(12), 1)])
    x = fraud.dense(fitted.transform(frame))
    answerer = Answerer(load_model(report.path, report.spec, graph), ("logits",), 99)
    with torch.no_grad():
        expected = module(x, torch.tensor(edges)).numpy()
        new = fraud.dense(fitted.transform(pd.DataFrame({"country": ["JP"], "amount": [7.0]})))
        rows = torch.cat([torch.cat([x, module.emb.weight], 1), torch.cat([new, torch.zeros(1, 3)], 1)])
        further = module.conv(rows, torch.tensor(np.concatenate([edges, [[4], [12]]], 1))).numpy()[-1]
    np.testing.assert_allclose(ask(answerer, nodes=list(range(12))), expected, atol=1e-4)
    node = InlineNode(columns={"country": "JP", "amount": 7}, neighbors={"": [4]})
    np.testing.assert_allclose(ask(answerer, inline=[node])[0], further, atol=1e-4)


TIMES = pd.to_datetime("2024-01-01") + pd.to_timedelta(np.arange(12) * 86_400, "s")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "step",
    [
        StandardScaler(),
        MinMaxScaler(),
        KBinsDiscretizer(3, encode="onehot-dense", quantile_method="averaged_inverted_cdf"),
    ],
)
@pytest.mark.parametrize("unit", ["ns", "ms", "datetime"])
def test_a_transformer_that_was_fitted_on_times_in_another_form_is_refused(tmp_path, step, unit):
    """The module and the server would agree, and both be wrong."""
    graph = loop_graph(pd.DataFrame({"opened": TIMES}))
    seconds = graph.frame()
    other = {
        "ns": seconds * 1e9,
        "ms": seconds * 1e3,
        "datetime": pd.DataFrame({"opened": TIMES}),
    }[unit]
    fitted = ColumnTransformer([("times", clone(step), ["opened"])])
    from torch_geometric.nn import GraphSAGE

    def package(frame):
        fitted.fit(frame)
        width = fitted.transform(frame).shape[1]
        hopline.package(
            GraphSAGE(width, 8, 1, 2), graph, tmp_path, name="m", fanouts=[-1], task="multiclass",
            preprocess={"node": fitted},
        )  # fmt: skip

    with pytest.raises(PackagingError, match=r"do not depend on 'opened'.*seconds since 1970"):
        package(other)
    package(seconds)


@pytest.mark.sample(1)
@pytest.mark.parametrize("seconds", [600, 3600, 86_400])
def test_a_scaler_of_years_is_served_on_a_graph_of_an_hour(tmp_path, seconds):
    """Its features change by 1e-4 there; one fitted on milliseconds is refused all the same."""
    first = pd.Timestamp("2024-01-01")
    times = first + pd.to_timedelta(np.linspace(0, seconds, 12).round(), unit="s")
    graph = loop_graph(pd.DataFrame({"opened": times.astype("datetime64[us]")}))
    years = pd.DataFrame({"opened": first.timestamp() - np.linspace(0, 3 * 365 * 86_400, 500)})
    from torch_geometric.nn import GraphSAGE

    def package(frame):
        fitted = ColumnTransformer([("times", StandardScaler(), ["opened"])]).fit(frame)
        hopline.package(
            GraphSAGE(1, 8, 1, 2), graph, tmp_path, name="m", fanouts=[-1], task="multiclass",
            preprocess={"node": fitted},
        )  # fmt: skip

    with pytest.raises(PackagingError, match="do not depend on 'opened'"):
        package(years * 1e3)
    package(years)


@pytest.mark.release
def test_booleans_of_a_frame_of_ones_own_are_categories(tmp_path):
    frame = pd.DataFrame({"active": [True, False, True] * 4})
    graph = loop_graph(frame)
    fitted = ColumnTransformer([("flags", OneHotEncoder(), ["active"])]).fit(frame)
    from torch_geometric.nn import GraphSAGE

    report = hopline.package(
        GraphSAGE(2, 8, 1, 2).eval(), graph, tmp_path, name="risk", fanouts=[-1], task="multiclass",
        preprocess={"node": fitted},
    )  # fmt: skip
    answerer = Answerer(load_model(report.path, report.spec, graph), ("logits",), 99)
    both = ask(answerer, inline=[InlineNode(columns={"active": value}) for value in (True, False)])
    assert (both[0] != both[1]).any()
