"""Columns of edges: preprocessing in the artifact makes of them the attributes that a module reads."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import StandardScaler
from torch_geometric.data import HeteroData
from typer.testing import CliRunner

import hopline
from hopline import cli
from hopline.answering.predicted import RequestSize
from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import BadRequest, GraphError, PackagingError, SchemaMismatch
from hopline.graph import EdgeFile, EdgeTable, Graph, NodeFile, NodeTable
from hopline.types import InlineNode
from packages.tabular.tests import payment_graph as shop
from packages.tabular.tests.fraud_graph import ACCOUNTS, MERCHANTS, dense, pairs
from packages.tabular.tests.fraud_world import as_sent, ask

KEY, TURNED = "account__pays__merchant", ("merchant", "rev_pays", "account")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hopline" / "encoded"


class Shop:
    """A packaged model that reads the columns of payments, and what it was made of."""

    def __init__(self, folder, turns):
        self.frame = shop.payments()
        self.ids = [f"a{row}" for row in range(ACCOUNTS)]
        self.graph = shop.graph_of(self.frame, both_directions=turns).save(folder / "graph")
        self.fitted = shop.transformer(self.graph)
        width = dense(self.fitted.transform(self.graph.frame(KEY))).shape[1]
        self.module = shop.Net(width, turns).eval()
        types = (shop.PAYS,) if turns else (shop.PAYS, shop.PAID_BY)
        self.report = hopline.package(
            self.module,
            self.graph,
            folder / "models",
            name="risk",
            fanouts=[-1, -1],
            task="multiclass",
            target="account",
            preprocess=dict.fromkeys(types, self.fitted),
        )

    def pyg(self, frame=None, **more):
        return shop.pyg(self.module, self.fitted, self.frame if frame is None else frame, **more)

    def answerer(self, graph=None):
        return Answerer(
            load_model(self.report.path, self.report.spec, graph or self.graph), ("logits",), 999
        )


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """Payments as two edge types, and as one that is read in both directions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield [Shop(tmp_path_factory.mktemp("world"), turns) for turns in (False, True)]


@pytest.fixture(scope="module")
def world(worlds):
    return worlds[0]


@pytest.fixture(scope="module")
def turned(worlds):
    return worlds[1]


@pytest.mark.sample(1)
@pytest.mark.parametrize("which", [0, 1], ids=["two types", "one type"])
def test_answers_are_pygs_on_the_transformed_rows_in_both_directions(worlds, which):
    world = worlds[which]
    found = ask(world.answerer(), nodes=world.ids)
    np.testing.assert_allclose(found, world.pyg(), atol=1e-4, rtol=1e-4)
    packed = ask(world.answerer(world.graph.compressed()), nodes=world.ids)
    np.testing.assert_array_equal(packed, found)
    scrambled = world.frame.assign(amount=world.frame["amount"].to_numpy()[::-1])
    assert np.abs(world.pyg(scrambled) - found).max() > 1e-2, "the rows matter"


@pytest.mark.parametrize("timed", [False, True])
def test_derived_edges_have_the_rows_of_the_edges_bit_for_bit(turned, timed):
    """Among repeated edges too, whose order is that of the input."""
    frame = pd.concat([turned.frame, turned.frame.iloc[:40].assign(amount=5.0)], ignore_index=True)
    ends = [np.concatenate([end, end[:40]]) for end in pairs()]
    time = {"time": np.random.default_rng(3).integers(0, 4, len(frame))} if timed else {}
    graph = shop.graph_of(frame, True, ends=ends, **time)
    rows = dense(turned.fitted.transform(shop.fitted_form(frame))).numpy()
    by_hand = Graph.from_tables(
        {"account": NodeTable(num_nodes=ACCOUNTS), "merchant": NodeTable(num_nodes=MERCHANTS)},
        {shop.PAYS: EdgeTable(tuple(ends), attr=rows, by_row=True, **time)},
        both_directions=True,
    )  # fmt: skip
    served = turned.answerer(graph).model.graph
    for key, edges in by_hand.edges.items():
        np.testing.assert_array_equal(served.edges[key].indices, edges.indices)
        np.testing.assert_array_equal(served.edges[key].attr, edges.attr)


def test_the_artifact_has_the_columns_that_are_read_and_a_later_graph_may_have_more(world):
    spec = read_spec(world.report.path)
    assert spec.format == 6
    assert {*spec.encoders} == {KEY, "merchant__paid_by__account"}
    edge = spec.graph_schema["edge_types"][KEY]
    assert {each["name"]: each["type"] for each in edge["columns"]} == {
        "amount": "float", "currency": "text", "items": "integer", "online": "boolean",
        "paid_at": "timestamp",
    }  # fmt: skip
    assert any("5 columns become 10 attributes" in note for note in world.report.notes)
    later = shop.graph_of(world.frame.assign(later=1.0, currency=world.frame["currency"].fillna("XXX")))
    expected = world.pyg(world.frame.assign(currency=world.frame["currency"].fillna("XXX")))
    np.testing.assert_allclose(ask(world.answerer(later), nodes=world.ids), expected, atol=1e-4, rtol=1e-4)
    for changed, message in (
        (world.frame.drop(columns="currency"), f"edge type '{KEY}': its column 'currency' is missing; the"),
        (world.frame.assign(items="1"), "its column 'items' is text; the model was packaged for integer"),
    ):
        with pytest.raises(SchemaMismatch, match=message):
            world.answerer(shop.graph_of(changed))
    with pytest.raises(SchemaMismatch, match=r"edges of type .*beyond"):
        world.answerer(shop.graph_of(world.frame.assign(amount=1e300)))


def test_rows_are_made_once_for_all_processes_in_both_directions(turned, cache):
    first = ask(turned.answerer(), nodes=turned.ids)
    files = {path: path.stat().st_ino for path in cache.glob("*.rows")}
    assert len(files) == 2
    np.testing.assert_array_equal(
        ask(turned.answerer(Graph.open(turned.graph.path)), nodes=turned.ids), first
    )
    assert {path: path.stat().st_ino for path in cache.glob("*.rows")} == files


def test_rows_of_another_process_that_have_other_bytes_now_are_made_again(turned, cache, caplog):
    first = ask(turned.answerer(), nodes=turned.ids)
    good = {path: path.read_bytes() for path in cache.glob("*.rows")}
    for path, content in good.items():
        changed = bytearray(content)
        changed[next(at for at in range(8, len(content)) if content[at])] ^= 0x41  # behind the digest
        with path.open("r+b") as file:
            file.write(changed)
    np.testing.assert_array_equal(ask(turned.answerer(), nodes=turned.ids), first)
    assert {path: path.read_bytes() for path in cache.glob("*.rows")} == good
    assert caplog.text.count("other bytes than were written") == 2


def test_columns_are_stored_in_the_order_of_the_lists(world, tmp_path):
    account, merchant = pairs()
    for graph in (
        world.graph,
        Graph.open(world.graph.path, verify=True),
        world.graph.compressed().save(tmp_path / "compressed"),
        world.graph.subgraph({"account": range(ACCOUNTS), "merchant": range(MERCHANTS)}),
    ):
        edges = graph.edge(shop.PAYS)
        into = np.repeat(np.arange(MERCHANTS), np.diff(edges.indptr))
        keys = np.asarray(edges.indices) * MERCHANTS + into
        order = np.argsort(merchant * ACCOUNTS + account, kind="stable")
        np.testing.assert_array_equal(keys, (account * MERCHANTS + merchant)[order])
        found = graph.frame(KEY)
        expected = shop.fitted_form(world.frame).iloc[order].reset_index(drop=True)
        pd.testing.assert_frame_equal(found, expected, check_dtype=False)
        assert {each.name: each.type for each in graph.schema.edge_types[KEY].columns} == {
            "amount": "float", "currency": "text", "items": "integer", "online": "boolean",
            "paid_at": "timestamp",
        }  # fmt: skip
    small = world.graph.subgraph({"account": range(20), "merchant": range(MERCHANTS)})
    assert len(small.frame(shop.PAYS)) == (account < 20).sum()


def test_undirected_edges_have_their_row_in_both_directions():
    def graph(ends, frame):
        table = EdgeTable(ends, columns=frame, undirected=True)
        return Graph.from_tables({"node": NodeTable(num_nodes=3)}, {("node", "to", "node"): table})

    found = graph(([0, 1], [1, 2]), pd.DataFrame({"currency": ["EUR", None], "amount": [1.5, None]}))
    rows = list(found.frame(("node", "to", "node")).fillna("none").itertuples(index=False, name=None))
    assert rows == [("EUR", 1.5), ("EUR", 1.5), ("none", "none"), ("none", "none")]
    same = graph(([0, 1], [1, 0]), pd.DataFrame({"currency": [None, None]}))
    assert same.num_edges == 2
    with pytest.raises(GraphError, match="with another time, weight or attribute"):
        graph(([0, 1], [1, 0]), pd.DataFrame({"currency": ["EUR", None]}))


def test_tables_that_cannot_be_are_refused(world, turned):
    frame = world.frame
    for wrong, options, message in (
        (frame.iloc[:5], {}, "has 5 rows of columns and 900 edges"),
        (frame, {"attr": np.ones((900, 1))}, "has attributes besides its columns and 900 edges: keep all"),
        (frame.assign(is_fraud=0), {}, f"edge type '{KEY}': column 'is_fraud' is by name what a model pre"),
    ):
        with pytest.raises(GraphError, match=message):
            shop.graph_of(wrong, **options)
    kept = shop.graph_of(frame.assign(is_fraud=0), column_types={"is_fraud": ""})
    assert "is_fraud" in kept.frame(shop.PAYS)
    with pytest.raises(GraphError, match=r"edge type .*rev_pays.* has no columns; build it with EdgeTable"):
        turned.graph.frame(TURNED)
    with pytest.raises(GraphError, match="node type 'account' has no columns"):
        world.graph.frame("account")


def package(world, folder, preprocess):
    return hopline.package(
        world.module, world.graph, folder, name="risk", fanouts=[-1, -1], task="multiclass",
        target="account", preprocess=preprocess,
    )  # fmt: skip


def test_what_cannot_be_packaged_is_named(turned, tmp_path):
    other = ColumnTransformer([("a", StandardScaler(), ["height"])]).fit(pd.DataFrame({"height": [1.0, 2]}))
    for preprocess, message in (
        ({shop.PAYS: other}, f"preprocessing of '{KEY}': it reads height, which the graph does not have"),
        ({TURNED: turned.fitted}, "the graph has no columns of it: EdgeTable.columns="),
        ({("a", "b"): turned.fitted}, "the graph has no such node type or edge type; it has account, mer"),
        ({"account": None}, rf"edge type '{KEY}' has columns \(amount, .*\) and no transformer: add one"),
        ({"account": turned.fitted}, "has no columns of it: NodeTable"),
        ({shop.PAYS: None}, "edge_attr"),
        (None, "edge_attr"),
    ):
        with pytest.raises(PackagingError, match=message):
            package(turned, tmp_path, preprocess)


def new_payments(count=300, seed=4):
    """Payments of new accounts, some of an unseen currency: (account, merchant), and their rows."""
    random = np.random.default_rng(seed)
    of = np.sort(random.integers(0, 100, count))
    return (of, random.integers(0, MERCHANTS, count)), shop.payments(count, seed, ["EUR", "JPY", "XXX"])


def described(ends, frame, count):
    rows = [as_sent(row) for row in frame.to_dict("records")]
    return [
        InlineNode(
            [1.0] * 3,
            {"": ends[1][ends[0] == node].tolist()},
            edge_attr={"": [rows[at] for at in np.flatnonzero(ends[0] == node)]},
        )
        for node in range(count)
    ]


def test_payments_of_unseen_accounts_have_pygs_answers_on_the_transformed_rows(world):
    ends, frame = new_payments()
    found = ask(world.answerer(), inline=described(ends, frame, 100))
    expected = world.pyg(new=100, more=frame, more_ends=ends)[ACCOUNTS:]
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)
    assert frame["currency"].isna().sum() > 10
    assert (frame["currency"] == "XXX").sum() > 50


def test_a_row_of_a_request_is_that_of_the_graph_bit_for_bit(world):
    answerer, key = world.answerer(), "merchant__paid_by__account"
    edges = answerer.model.graph.edges[key]
    order = np.lexsort((pairs()[1], pairs()[0]))  # the order of the lists
    sent = [as_sent(row) for row in world.frame.iloc[order].to_dict("records")]
    assert answerer.model.encoders[key].rows(sent).tobytes() == edges.attr.tobytes()
    assert answerer.model.encoders[key].rows(sent[7:8]).tobytes() == edges.attr[7:8].tobytes()
    nodes = [
        InlineNode(
            features=shop.rows_of(ACCOUNTS, 1)[row],
            neighbors={"": edges.indices[slice(*edges.indptr[row : row + 2])].tolist()},
            edge_attr={key: sent[slice(*edges.indptr[row : row + 2])]},
        )
        for row in range(40)
    ]
    both = ask(answerer, nodes=world.ids[:40], inline=nodes)
    np.testing.assert_allclose(both[:40], both[40:], atol=1e-6)


ROW = {"amount": 9.5, "currency": "EUR", "items": 2, "online": True, "paid_at": "2024-02-01T00:00:00Z"}
WRONG = [
    ([ROW, ROW | {"amount": "much"}], r"inline\[0\].edge_attr\[1\]: 'amount': 'much' instead of a number"),
    (
        [ROW, ROW | {"paid_at": 17}],
        r"inline\[0\].edge_attr\[1\]: 'paid_at': 17 instead of a time in ISO 8601",
    ),
    ([ROW | {"items": 1.5}, ROW], r"inline\[0\].edge_attr\[0\]: 'items': 1.5 instead of a whole number"),
    (
        [ROW, {"amount": 1.0}],
        r"edge_attr\[1\]: 'currency' is missing; a row has amount \(float, may be null",
    ),
    ([ROW], "has columns, which the model's preprocessing reads: an object for each of 2 neighbours, with"),
    ([[1.0] * 10] * 2, r"object for each of 2 neighbours, with amount \(float\), currency \(text\)"),
    (None, "an object for each of 2 neighbours"),
]


@pytest.mark.parametrize(("rows", "message"), WRONG, ids=[each[1][:40] for each in WRONG])
def test_a_wrong_row_of_an_edge_is_named_by_place_column_and_value(world, rows, message):
    given = {} if rows is None else {"edge_attr": {"": rows}}
    node = InlineNode([1.0] * 3, {"": [3, 5]}, **given)
    with pytest.raises(BadRequest, match=message):
        ask(world.answerer(), inline=[node])
    null = ROW | {"amount": None, "currency": None, "online": None, "paid_at": None}
    good = InlineNode([1.0] * 3, {"": [3, 5]}, edge_attr={"": [ROW, null | {"comment": "unread"}]})
    assert ask(world.answerer(), inline=[good]).shape == (1, 2)


def test_columns_of_a_file_are_read_by_their_names(tmp_path, caplog):
    frame = pd.DataFrame(
        {
            "a": ["x", "y", "x"], "m": ["p", "p", "q"], "at": [1, 2, 3], "amount": ["1,5", "", "2"],
            "code": ["007", "008", ""], "is_fraud": [0, 1, 0],
        }
    )  # fmt: skip
    frame["amount"] = [1.5, np.nan, 2]
    frame.to_csv(tmp_path / "payments.csv", index=False)
    pd.DataFrame({"id": ["x", "y"]}).to_csv(tmp_path / "a.csv", index=False)
    pd.DataFrame({"id": ["p", "q"]}).to_csv(tmp_path / "m.csv", index=False)
    ends = ("a", "pays", "m")

    def build(**options):
        file = EdgeFile(tmp_path / "payments.csv", "a", "m", time="at", **options)
        return Graph.from_parquet(
            {"a": NodeFile(tmp_path / "a.csv", "id"), "m": NodeFile(tmp_path / "m.csv", "id")}, {ends: file}
        )

    build(exclude=["is_fraud"])
    assert "payments.csv: left out: amount, code; columns= (--column) keeps them" in caplog.text
    caplog.clear()
    found = build(columns=["*", "at"], exclude=["is_fraud"]).frame(ends)
    assert caplog.text == ""
    assert found.to_dict("list")["code"][:2] == ["007", "008"]
    assert [*found.columns] == ["amount", "code", "at"]
    assert found["amount"].isna().tolist() == [False, True, False]
    with pytest.raises(
        GraphError, match=r"payments.csv: is_fraud: by name what a model predicts; leave it"
    ):
        build(columns="*")
    with pytest.raises(GraphError, match=r"payments.csv: no column 'amonut'; there are 'a', 'm', 'at'"):
        build(columns=["amonut"])
    words = [
        "graph",
        "build",
        f"a:pays:m={tmp_path}/payments.csv",
        "--id",
        "id",
        "--src",
        "a",
        "--dst",
        "m",
    ]
    words += ["--time", "at", "--features", f"a={tmp_path}/a.csv", "--features", f"m={tmp_path}/m.csv"]
    words += ["--column", "a:pays:m=*", "--column", "a:pays:m=code:text", "--out", f"{tmp_path}/graph"]
    refused = CliRunner().invoke(cli.build_app(words), words)
    assert "is_fraud" in str(refused.exception)
    words += ["--exclude", "a:pays:m=is_fraud"]
    done = CliRunner().invoke(cli.build_app(words), words)
    assert done.exit_code == 0, done.output
    assert "a__pays__m" in done.stdout
    assert "33.3%" in done.stdout
    graph = Graph.open(tmp_path / "graph")
    assert [each.name for each in graph.schema.edge_types["a__pays__m"].columns] == ["amount", "code"]


def test_a_graph_of_pyg_has_a_table_of_its_edges(world):
    data = HeteroData()
    data["account"].x, data["merchant"].x = torch.ones(ACCOUNTS, 3), torch.ones(MERCHANTS, 3)
    data[shop.PAYS].edge_index = torch.tensor(np.stack(pairs()))
    graph = Graph.from_pyg(data, edge_columns={shop.PAYS: world.frame})
    pd.testing.assert_frame_equal(graph.frame(shop.PAYS), world.graph.frame(shop.PAYS))
    with pytest.raises(GraphError, match=r"edge_columns: \('a', 'b', 'c'\) is not an edge type; there are"):
        Graph.from_pyg(data, edge_columns={("a", "b", "c"): world.frame})
    data[shop.PAYS].edge_attr = torch.ones(900, 2)
    with pytest.raises(GraphError, match="attributes besides its columns"):
        Graph.from_pyg(data, edge_columns={shop.PAYS: world.frame})


def test_rows_that_a_request_describes_count_as_what_they_cost(world):
    size = RequestSize(world.report.spec, world.graph, 2)
    few, many = (
        size.described("account", [InlineNode([1.0] * 3, {"": [1] * count}, edge_attr={"": [ROW] * count})])
        for count in (10, 1_000)
    )
    assert many[0] - few[0] > 5 * 990
