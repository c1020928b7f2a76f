"""Tables with a row for each node, taken out of a module: served answers are the module's."""

import json

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData

import hopline
from hopline.artifact import HEADS_FORMAT, read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import ArtifactError, BadRequest, PackagingError, SchemaMismatch
from hopline.graph import Graph
from hopline.jobs.batch.npy import NpyFolder
from hopline.jobs.batch.run import BatchOptions, BatchRun
from hopline.types import InlineNode, ScoreRequest
from tests.packaging.live_graph import live_view

N = 60


def edges(seed=0, num_nodes=N):
    rng = torch.Generator().manual_seed(seed)
    one = torch.randint(0, num_nodes, (2, 2 * num_nodes), generator=rng)
    return torch.cat([one, one.flip(0)], 1)


class ByNumber(nn.Module):
    """Features, a table that is read by number, and a parameter."""

    def __init__(self, num_nodes=N):
        super().__init__()
        self.parts = nn.ModuleDict({"emb": nn.Embedding(num_nodes, 6)})
        self.bias = nn.Parameter(torch.randn(num_nodes, 3))
        self.first, self.second = pyg.SAGEConv(10, 8), pyg.SAGEConv(8, 3)

    def forward(self, x, edge_index):
        h = torch.cat([x, self.parts["emb"](torch.arange(x.size(0)))], 1)
        return self.second(self.first(h, edge_index).relu(), edge_index) + self.bias


BY_NUMBER = {"parts.emb": "node", "bias": "node"}


class Whole(pyg.LightGCN):
    """LightGCN as PyG has it: no features, all rows."""

    def forward(self, edge_index):
        return self.get_embedding(edge_index)


class Towers(nn.Module):
    """No edges: two tables and a tower above each."""

    def __init__(self):
        super().__init__()
        self.user_emb, self.item_emb = nn.Embedding(20, 8), nn.Embedding(30, 8)
        self.user, self.item = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, edge_index_dict):
        return {"user": self.user(self.user_emb.weight).relu(), "item": self.item(self.item_emb.weight)}


def package(model, graph, repository, **options):
    options = {"fanouts": [-1, -1], "task": "multiclass", "embeddings": BY_NUMBER} | options
    return hopline.package(model, graph, repository, name="m", **options)


def answer(report, graph, output="logits", **request):
    answerer = Answerer(load_model(report.path, report.spec, graph), (output,), 999)
    (found,) = answerer.answer([ScoreRequest("m", **request)])
    return found if isinstance(found, Exception) else found.outputs[output]


def with_features(ids=None, order=None):
    """The same graph with its nodes in another order."""
    x, e = torch.randn(N, 4, generator=torch.Generator().manual_seed(1)), edges()
    if order is not None:
        place = np.argsort(order)
        x, e = x[torch.from_numpy(order)], torch.from_numpy(place)[e]
        ids = None if ids is None else [ids[at] for at in order]
    return Data(x=x, edge_index=e), Graph.from_pyg(Data(x=x, edge_index=e), ids=ids)


def expected(model, data):
    with torch.no_grad():
        return model.eval()(data.x, data.edge_index)


KINDS = {"range": None, "int": [7 * at + 3 for at in range(N)], "string": [f"u{at}" for at in range(N)]}


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_the_nodes(kind, tmp_path):
    data, graph = with_features(KINDS[kind])
    model = ByNumber()
    report = package(model, graph, tmp_path)
    ids = KINDS[kind] or list(range(N))
    np.testing.assert_allclose(answer(report, graph, nodes=ids), expected(model, data), atol=1e-5)
    spec = read_spec(report.path)
    assert spec.embeddings["node"].tables == {"parts.emb": 6, "bias": 3}
    assert spec.graph_schema["node_types"]["node"]["feature_dim"] == 4


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["int", "string"])
def test_a_later_graph_in_another_order_finds_its_rows_by_their_ids(kind, tmp_path):
    ids = KINDS[kind]
    data, graph = with_features(ids)
    model = ByNumber()
    report = package(model, graph, tmp_path)
    _, later = with_features(ids, np.random.default_rng(0).permutation(N))
    later = later.save(tmp_path / "later")
    np.testing.assert_allclose(answer(report, later, nodes=ids), expected(model, data), atol=1e-5)
    assert load_model(report.path, report.spec, later).graph.version == later.version


def test_nodes_that_came_later_are_refused_by_their_numbers(tmp_path):
    _, graph = with_features(KINDS["int"])
    report = package(ByNumber(), graph, tmp_path)
    data, _ = with_features(KINDS["int"])
    more = Data(x=torch.cat([data.x, torch.ones(2, 4)]), edge_index=data.edge_index)
    later = Graph.from_pyg(more, ids=[*KINDS["int"], 10**6, 10**6 + 1])
    with pytest.raises(SchemaMismatch, match=r"no learned row of 2 nodes .*\(1000000, 1000001\)"):
        load_model(report.path, report.spec, later)


def test_ids_that_differ_in_zero_characters_at_their_end_have_rows_of_their_own(tmp_path):
    ids = [*KINDS["string"][:-2], "a", "a\0"]
    data, graph = with_features(ids)
    model = ByNumber()
    report = package(model, graph, tmp_path)
    np.testing.assert_allclose(answer(report, graph, nodes=ids), expected(model, data), atol=1e-5)


@pytest.mark.release
def test_nodes_that_came_later_are_refused_by_name_or_have_zeros(tmp_path):
    ids = KINDS["string"]
    data, graph = with_features(ids)
    more = Data(x=torch.cat([data.x, torch.ones(2, 4)]), edge_index=torch.cat(
        [data.edge_index, torch.tensor([[N, 3], [5, N + 1]])], 1))  # fmt: skip
    later = Graph.from_pyg(more, ids=[*ids, "new", "newer"])
    model = ByNumber()
    report = package(model, graph, tmp_path)
    with pytest.raises(SchemaMismatch, match=r"no learned row of 2 nodes .*\('new', 'newer'\)"):
        load_model(report.path, report.spec, later)
    report = package(model, graph, tmp_path / "zero", later_nodes="zero")
    larger = ByNumber(N + 2)
    state = {name: torch.cat([rows, torch.zeros(2, rows.shape[1])]) if len(rows) == N else rows
             for name, rows in model.state_dict().items()}  # fmt: skip
    larger.load_state_dict(state)
    found = answer(report, later, nodes=[*ids, "new", "newer"])
    np.testing.assert_allclose(found, expected(larger, more), atol=1e-5)


@pytest.mark.sample(1)
@pytest.mark.parametrize("later", ["mean-row", {"parts.emb": [0.5] * 6, "bias": [1.0, -1.0, 2.0]}])
def test_nodes_that_came_later_have_the_declared_row(tmp_path, later):
    """The user's own module, with the row in its tables: in a later graph, in a request, in a batch run."""
    ids = KINDS["string"]
    data, graph = with_features(ids)
    more = Data(x=torch.cat([data.x, torch.ones(2, 4)]), edge_index=torch.cat(
        [data.edge_index, torch.tensor([[N, 3, 4], [5, N + 1, N]])], 1))  # fmt: skip
    graph_of_later = Graph.from_pyg(more, ids=[*ids, "new", "newer"]).save(tmp_path / "graph")
    model, larger = ByNumber(), ByNumber(N + 2)
    report = package(model, graph, tmp_path, later_nodes=later)
    assert report.spec.format == HEADS_FORMAT
    state = {}
    for name, rows in model.state_dict().items():
        row = rows.mean(0)
        if later != "mean-row":
            row = torch.tensor(later.get(name.removesuffix(".weight"), [0.0]))
        state[name] = torch.cat([rows, row.expand(2, -1)]) if len(rows) == N else rows
    larger.load_state_dict(state)
    wanted = expected(larger, more)
    every = [*ids, "new", "newer"]
    found = answer(report, graph_of_later, nodes=every)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    described = [InlineNode([1.0] * 4, {"": [ids[3]]}), InlineNode([1.0] * 4, {"": [ids[4]]})]
    inline = answer(report, graph, inline=described)
    np.testing.assert_array_equal(inline[0], found[N + 1])
    rows = []
    BatchRun(report.path, graph_of_later.path, tmp_path / "run", BatchOptions(outputs=("logits",))).run(
        lambda: NpyFolder(tmp_path / "out")
    )
    rows = np.load(tmp_path / "out" / "logits.npy")
    np.testing.assert_array_equal(rows, found)


ROWS = {"parts.emb": [0.5] * 6, "bias": [1.0] * 3}


WRONG = (
    [0.5] * 4, 1.0, None, "mean", "", [1.0, np.nan, 1.0], [1.0, 1.0, 1e300], ["1", "2", "3"], [[1.0] * 3],
    [True] * 3, [1j] * 3, torch.ones(3, dtype=torch.complex64), torch.ones(1, 3), {1.0, 2.0, 3.0},
    [1.0, [1.0], 1.0], [torch.ones(1, requires_grad=True)] * 3,
)  # fmt: skip


@pytest.mark.parametrize(
    ("later", "message"),
    [
        ({"bias": [1.0] * 3}, r" for each table .*\(parts.emb, bias\); 'parts.emb' is missing"),
        ({}, "'parts.emb' is missing"),
        (ROWS | {"x": [1.0]}, r"\(parts.emb, bias\); 'x' is no table"),
        (ROWS | {3: "zero"}, "3 is no table"),
        *(
            (ROWS | {"bias": wrong}, r"\['bias'\]: refuse, zero, mean-row, or 3 finite numbers; got .*")
            for wrong in WRONG
        ),
        (ROWS | {"bias": "refuse"}, "'refuse' is for all tables of node type 'node': parts.emb, bias"),
        *(
            (bare, f" is refuse, zero, mean-row, or a mapping .*; got {type(bare).__name__}")
            for bare in ([0.5] * 9, (), None, 0, np.ones(9), torch.ones(9), True)
        ),
        ("mean", "'mean' is not one of refuse, zero, mean-row"),
    ],
)
def test_what_gives_no_row_to_each_table_is_refused(later, message, tmp_path):
    with pytest.raises(PackagingError, match=f"later_nodes.*{message}"):
        package(ByNumber(), with_features()[1], tmp_path, later_nodes=later)


@pytest.mark.parametrize("later", [[1.0], {"emb": [1.0]}, None, "mean"])
def test_a_row_of_later_nodes_is_of_a_declared_table(later, tmp_path):
    net = pyg.SAGEConv(4, 3)
    with pytest.raises(PackagingError, match="later_nodes"):
        package(net, with_features()[1], tmp_path, fanouts=[-1], embeddings=None, later_nodes=later)


@pytest.mark.release
def test_a_row_for_later_nodes_is_a_list_an_array_or_a_tensor_or_a_text(tmp_path):
    model, graph = ByNumber(), with_features()[1]
    of_module = model.parts["emb"].weight[0]
    for given in (of_module, of_module.tolist(), of_module.detach().numpy()[::-1].copy()[::-1]):
        tables = {"parts.emb": given, "bias": "mean-row"}
        report = package(model, graph, tmp_path, later_nodes=tables, overwrite=True)
        wanted = torch.cat([of_module, model.bias.mean(0)]).detach()
        found = np.frombuffer(report.spec.embeddings["node"].row, np.float32)
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    halves = {"parts.emb": torch.ones(6, dtype=torch.bfloat16), "bias": "zero"}
    report = package(model, graph, tmp_path, later_nodes=halves, overwrite=True)
    found = np.frombuffer(report.spec.embeddings["node"].row, np.float32)
    np.testing.assert_array_equal(found, [1.0] * 6 + [0.0] * 3)
    refused = package(model, graph, tmp_path, later_nodes=dict.fromkeys(ROWS, "refuse"), overwrite=True)
    assert refused.spec.embeddings["node"].later == "refuse"


def test_a_model_of_pyg_without_features_is_served(tmp_path):
    data = Data(edge_index=edges(), num_nodes=N)
    model, graph = Whole(N, 16, 2).eval(), Graph.from_pyg(data)
    options = {"task": "embedding", "fanouts": [-1] * 2, "embeddings": {"embedding": "node"}}
    report = package(model, graph, tmp_path, **options)
    with torch.no_grad():
        wanted = model(data.edge_index)
    np.testing.assert_allclose(answer(report, graph, "embedding", nodes=list(range(N))), wanted, atol=1e-5)


def test_two_towers_without_edges_score_pairs(tmp_path):
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 20, 30
    data["user", "buys", "item"].edge_index = torch.tensor([[0, 1], [2, 3]])
    graph, model = Graph.from_pyg(data), Towers().eval()
    tables = {"user_emb": "user", "item_emb": "item"}
    options = {"task": "binary", "fanouts": [], "head": "dot", "target": ("user", "item")}
    report = package(model, graph, tmp_path, embeddings=tables, **options)
    users, items = list(range(20)), list(range(10, 30))
    with torch.no_grad():
        rows = model(None)
        wanted = (rows["user"] * rows["item"][10:]).sum(1)
    found = answer(report, graph, pairs=(users, items))
    np.testing.assert_allclose(found[:, 0], wanted, atol=1e-5)


def test_factors_of_users_and_items_score_pairs(tmp_path):
    class Factors(Towers):
        def forward(self, edge_index_dict):
            return {"user": self.user_emb.weight, "item": self.item_emb.weight}

    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 20, 30
    data["user", "buys", "item"].edge_index = torch.tensor([[0, 1], [2, 3]])
    graph, model = Graph.from_pyg(data), Factors().eval()
    tables = {"user_emb": "user", "item_emb": "item"}
    options = {"task": "regression", "fanouts": [], "head": "dot", "target": ("user", "item")}
    report = package(model, graph, tmp_path, embeddings=tables, **options)
    with torch.no_grad():
        wanted = (model.user_emb.weight * model.item_emb.weight[:20]).sum(1)
    found = answer(report, graph, pairs=(list(range(20)), list(range(20))))
    np.testing.assert_allclose(found[:, 0], wanted, atol=1e-5)


def test_a_table_is_read_by_the_numbers_of_a_loader(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.conv = nn.Embedding(20, 6), pyg.SAGEConv((8, 6), 3)

        def forward(self, data):
            users = self.emb(data["user"].node_id)
            return self.conv((data["item"].x, users), data["item", "by", "user"].edge_index)

    data = HeteroData()
    data["user"].num_nodes, data["item"].x = 20, torch.randn(30, 8)
    data["item", "by", "user"].edge_index = torch.stack([torch.arange(30), torch.arange(30) % 20])
    model, graph = Net().eval(), Graph.from_pyg(data)
    report = package(model, graph, tmp_path, embeddings={"emb": "user"}, target="user", fanouts=[-1])
    data["user"].node_id = torch.arange(20)
    with torch.no_grad():
        wanted = model(data)
    np.testing.assert_allclose(answer(report, graph, nodes=list(range(20))), wanted, atol=1e-5)


def test_the_user_s_module_keeps_its_tables(tmp_path):
    _, graph = with_features()
    model = ByNumber()
    package(model, graph, tmp_path)
    assert isinstance(model.parts["emb"], nn.Embedding)
    assert model.bias.shape == (N, 3)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"emb": "node"}, r"is no table; .* have: bias, parts\.emb"),
        ({"parts.emb": "user"}, "is 'user'; the node types are node"),
        ({"first.lin_l.weight": "node"}, r"is \[8, 10\]; a table has a row for each of the 60 nodes"),
    ],
)
def test_what_is_no_table_is_refused_with_those_that_there_are(tables, message, tmp_path):
    with pytest.raises(PackagingError, match=message):
        package(ByNumber(), with_features()[1], tmp_path, embeddings=tables)


def test_a_table_that_changes_when_it_is_read_is_refused(tmp_path):
    model = ByNumber()
    model.parts["emb"] = nn.Embedding(N, 6, max_norm=1.0)
    with pytest.raises(PackagingError, match="max_norm"):
        package(model, with_features()[1], tmp_path)


class Codes(ByNumber):
    """Reads the table by something else than the nodes' numbers."""

    def forward(self, x, edge_index):
        codes = (x[:, 0].abs() * 20).long() % N
        return super().forward(x, edge_index) + self.parts["emb"](codes)[:, :3]


def test_a_table_of_something_else_is_refused(tmp_path):
    with pytest.raises(PackagingError, match="read by something else than the numbers of all nodes"):
        package(Codes(), with_features()[1], tmp_path)


def test_what_does_not_hold_the_rows_is_refused(tmp_path):
    _, graph = with_features()
    report = package(ByNumber(), graph, tmp_path)
    with pytest.raises(ArtifactError, match="reads 4 columns and learned rows of 'node', and events may"):
        load_model(report.path, report.spec, live_view(graph))
    refusal = answer(report, graph, inline=[InlineNode([0.0] * 4)])
    assert isinstance(refusal, BadRequest)
    assert "no learned row of nodes of type 'node' that are not in the graph" in str(refusal)


@pytest.mark.sample(1)
@pytest.mark.parametrize("later", ["zero", "mean-row"])
def test_a_new_user_of_a_live_graph_gets_what_was_declared(tmp_path, later):
    """LightGCN of PyG: a node that came later counts with its row, and is answered from its neighbours."""
    data = Data(edge_index=edges(), num_nodes=N)
    model, graph = Whole(N, 16, 2).eval(), Graph.from_pyg(data)
    options = {"task": "embedding", "fanouts": [-1] * 2, "embeddings": {"embedding": "node"}}
    refused = package(model, graph, tmp_path / "refused", **options)
    with pytest.raises(SchemaMismatch, match=r"nodes that a live graph gets later"):
        load_model(refused.path, refused.spec, live_view(graph))
    report = package(model, graph, tmp_path, later_nodes=later, **options)
    larger = Whole(N + 1, 16, 2).eval()
    with torch.no_grad():
        row = model.embedding.weight.mean(0) if later == "mean-row" else 0.0
        larger.embedding.weight[:N], larger.embedding.weight[N] = model.embedding.weight, row
        clicks = torch.tensor([[3, 5, 8], [N, N, N]])
        wanted = larger(torch.cat([data.edge_index, clicks], 1))[N]
    found = answer(report, graph, "embedding", inline=[InlineNode([], {"": [3, 5, 8]})])
    np.testing.assert_allclose(found[0], wanted, atol=1e-5)
    found = answer(report, live_view(graph), "embedding", inline=[InlineNode([], {"": [3, 5, 8]})])
    np.testing.assert_allclose(found[0], wanted, atol=1e-5)


def _cut(folder):
    table = np.load(folder / "embeddings" / "node.npy")
    np.save(folder / "embeddings" / "node.npy", table[:-1])


def _fewer(folder):
    (folder / "embeddings" / "node.ids.json").write_text(json.dumps(KINDS["string"][:-1]))


def _other(folder):
    (folder / "embeddings" / "node.ids.json").write_text("[1, 2]")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut, r"float32 of shape \[60, 9\]; model\.json says float32 of \[61, 9\]"),
        (_fewer, "59 ids of 60 rows"),
        (_other, "cannot be read"),
        (lambda folder: (folder / "embeddings" / "node.npy").write_bytes(b"x"), "cannot be read"),
    ],
)
def test_a_damaged_table_is_refused(damage, message, tmp_path):
    _, graph = with_features(KINDS["string"])
    report = package(ByNumber(), graph, tmp_path)
    damage(report.path)
    with pytest.raises(ArtifactError, match=message):
        load_model(report.path, report.spec, graph)


def test_learned_rows_of_an_unknown_type_are_refused(tmp_path):
    _, graph = with_features()
    report = package(ByNumber(), graph, tmp_path)
    wrong = msgspec.structs.replace(report.spec, embeddings={"user": report.spec.embeddings["node"]})
    with pytest.raises(ArtifactError, match="learned rows of 'user', not a node type"):
        load_model(report.path, wrong, graph)
