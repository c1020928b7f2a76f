"""Models that answer a row for each graph of a data set: they are split, and equal to PyG on each graph."""

from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data
from torch_geometric.utils import degree, softmax

import hopline
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import HoplineError, NotSplittable, PackagingError
from hopline.graph import Graph
from hopline.types import ContextNode, InlineNode, ScoreRequest

DIM, HIDDEN = 5, 8


def graphs(count=40, seed=0, *, attr_dim=0):
    """Graphs of 1 to 60 nodes, some without edges, others with one-way edges, loops and repeated edges."""
    rng = np.random.default_rng(seed)
    found = []
    for place in range(count):
        size = int(rng.integers(1, 61)) if place % 4 else int(rng.integers(1, 4))
        num_edges = 0 if place % 7 == 0 else int(rng.integers(0, 3 * size))
        found.append(
            Data(
                x=torch.from_numpy(rng.normal(size=(size, DIM)).astype(np.float32)),
                edge_index=torch.from_numpy(rng.integers(0, size, (2, num_edges))),
                edge_attr=torch.from_numpy(rng.normal(size=(num_edges, attr_dim)).astype(np.float32))
                if attr_dim
                else None,
                y=torch.tensor([place % 2]),
            )
        )
    return found


class Net(nn.Module):
    """GIN, then a readout, then a layer over graphs."""

    def __init__(self, readout, width=HIDDEN):
        super().__init__()
        self.first = pyg.GINConv(
            nn.Sequential(nn.Linear(DIM, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN))
        )
        self.second = pyg.GINConv(nn.Linear(HIDDEN, HIDDEN))
        self.readout, self.last = readout, nn.Linear(width, 3)

    def forward(self, x, edge_index, batch):
        h = self.first(x, edge_index).relu()
        h = self.second(h, edge_index).relu()
        return self.last(self.readout(h, batch))


class Several(nn.Module):
    """A readout behind each layer, as `JumpingKnowledge` of graphs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = pyg.GCNConv(DIM, HIDDEN), pyg.SAGEConv(HIDDEN, HIDDEN)
        self.last = nn.Linear(DIM + 2 * HIDDEN, 3)

    def forward(self, x, edge_index, batch):
        parts = [pyg.global_add_pool(x, batch)]
        h = self.first(x, edge_index).relu()
        parts.append(pyg.global_mean_pool(h, batch))
        h = self.second(h, edge_index).relu()
        parts.append(pyg.global_max_pool(h, batch))
        return self.last(torch.cat(parts, dim=1))


class Weighted(nn.Module):
    """Attention over the nodes of a graph, written by hand."""

    def __init__(self):
        super().__init__()
        self.conv, self.gate = pyg.SAGEConv(DIM, HIDDEN), nn.Linear(HIDDEN, 1)
        self.last = nn.Linear(HIDDEN, 3)

    def forward(self, x, edge_index, batch):
        h = self.conv(x, edge_index).relu()
        weights = softmax(self.gate(h), batch)
        return self.last(pyg.global_add_pool(weights * h, batch))


class Readout(nn.Module):
    def forward(self, h, batch):
        return torch.cat([pyg.global_add_pool(h, batch), pyg.global_max_pool(h, batch)], dim=1)


class OwnModule(nn.Module):
    """A readout in a module of the model's own."""

    def __init__(self):
        super().__init__()
        self.conv, self.readout = pyg.SAGEConv(DIM, HIDDEN), Readout()
        self.last = nn.Linear(2 * HIDDEN, 3)

    def forward(self, x, edge_index, batch):
        return self.last(self.readout(self.conv(x, edge_index).relu(), batch))


class OfData(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.last = pyg.GraphConv(DIM, HIDDEN), nn.Linear(HIDDEN, 3)

    def forward(self, data):
        h = self.conv(data.x, data.edge_index).relu()
        return self.last(pyg.global_mean_pool(h, data.batch))


class OfEdges(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.GINEConv(nn.Linear(DIM, HIDDEN), edge_dim=2)
        self.last = nn.Linear(HIDDEN, 3)

    def forward(self, x, edge_index, edge_attr, batch):
        return self.last(pyg.global_add_pool(self.conv(x, edge_index, edge_attr).relu(), batch))


class Bag(nn.Module):
    """A set of rows: no convolution."""

    def __init__(self):
        super().__init__()
        self.each, self.last = nn.Linear(DIM, HIDDEN), nn.Linear(HIDDEN, 3)

    def forward(self, x, edge_index, batch):
        return self.last(pyg.global_mean_pool(self.each(x).relu(), batch))


def attention():
    return pyg.AttentionalAggregation(nn.Sequential(nn.Linear(HIDDEN, 4), nn.ReLU(), nn.Linear(4, 1)))


READOUTS = {
    "add": lambda: pyg.global_add_pool,
    "mean": lambda: pyg.global_mean_pool,
    "max": lambda: pyg.global_max_pool,
    "SumAggregation": pyg.SumAggregation,
    "MedianAggregation": pyg.MedianAggregation,
    "StdAggregation": pyg.StdAggregation,
    "SoftmaxAggregation": lambda: pyg.SoftmaxAggregation(learn=True),
    "AttentionalAggregation": attention,
    "an MLP as gate": lambda: pyg.AttentionalAggregation(pyg.MLP([HIDDEN, 4, 1], norm=None)),
}
MODELS = {
    **{name: (lambda make=make: Net(make())) for name, make in READOUTS.items()},
    "several aggregations": lambda: Net(pyg.MultiAggregation(["mean", "max", "std"]), 3 * HIDDEN),
    "a readout behind each layer": Several,
    "softmax by hand": Weighted,
    "data": OfData,
    "own module": OwnModule,
}


def package(model, graph, repository, fanouts=(-1, -1), **options):
    options = {"name": "m", "task": "multiclass", **options}
    return hopline.package(model.eval(), graph, repository, fanouts=list(fanouts), **options)


def alone(model, data):
    """The module on one graph."""
    with torch.no_grad():
        return called(model, Batch.from_data_list([data])).numpy()[0]


def called(model, batch):
    if isinstance(model, OfData):
        return model(batch)
    given = (batch.edge_attr,) if batch.edge_attr is not None else ()
    return model(batch.x, batch.edge_index, *given, batch.batch)


def served(report, graph, **request):
    answerer = Answerer(load_model(report.path, report.spec, graph), ("logits",), 1000)
    (found,) = answerer.answer([ScoreRequest("m", **request)])
    if isinstance(found, HoplineError):
        raise found
    return found.outputs["logits"]


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", MODELS)
def test_graphs_of_a_data_set_are_scored_as_by_pyg(name, tmp_path):
    model, data = MODELS[name](), graphs()
    graph = Graph.from_pyg(data)
    layers = 1 if name in ("softmax by hand", "data", "own module") else 2
    report = package(model, graph, tmp_path, (-1,) * layers)
    assert report.spec.head.node_type == "graph"
    found = served(report, graph, nodes=list(range(len(data))))
    with torch.no_grad():
        together = called(model, Batch.from_data_list(data)).numpy()
    np.testing.assert_allclose(found, together, atol=1e-4)
    np.testing.assert_allclose(found, [alone(model, each) for each in data], atol=1e-4)


@pytest.mark.release
def test_edge_attributes_and_sets_of_rows(tmp_path):
    for model, data, fanouts in ((OfEdges(), graphs(attr_dim=2), [-1]), (Bag(), graphs(), [])):
        graph = Graph.from_pyg(data)
        report = package(model, graph, tmp_path / type(model).__name__, fanouts)
        found = served(report, graph, nodes=list(range(len(data))))
        np.testing.assert_allclose(found, [alone(model, each) for each in data], atol=1e-4)


def described(data, number, edges="node__to__node"):
    """A graph of a request's own: a node of type graph, and its members."""
    into = data.edge_index.numpy()
    members = [
        ContextNode(
            type="node",
            id=f"{number}-{node}",
            features=data.x[node].numpy(),
            neighbors={edges: [f"{number}-{source}" for source in into[0][into[1] == node].tolist()]},
            edge_attr={}
            if data.edge_attr is None
            else {edges: data.edge_attr[torch.from_numpy(into[1] == node)].numpy()},
        )
        for node in range(data.num_nodes)
    ]
    own = InlineNode(features=[], neighbors={"node__in__graph": [node.id for node in members]})
    return own, members


@pytest.mark.sample(1)
@pytest.mark.parametrize("attr_dim", [0, 2])
def test_a_request_has_graphs_of_its_own(attr_dim, tmp_path):
    model = OfEdges() if attr_dim else Net(pyg.global_add_pool)
    graph = Graph.from_pyg(graphs(attr_dim=attr_dim))
    report = package(model, graph, tmp_path, [-1] * (1 if attr_dim else 2))
    new = graphs(12, seed=5, attr_dim=attr_dim)
    own, members = zip(*(described(data, number) for number, data in enumerate(new)), strict=True)
    found = served(report, graph, nodes=[3], inline=own, context=tuple(chain.from_iterable(members)))
    expected = [alone(model, each) for each in (graphs(attr_dim=attr_dim)[3], *new)]
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.release
def test_a_request_names_sets_of_known_nodes(tmp_path):
    """Sets may overlap, repeat a node or be empty; states are those of the whole graph."""
    model, data = Net(pyg.global_mean_pool), graphs()
    graph = Graph.from_pyg(data)
    report = package(model, graph, tmp_path)
    sets = [[0], [5, 9, 200], [9, 5, 200], [9, 9, 5], []]
    found = served(report, graph, inline=[InlineNode([], {"": members}) for members in sets])
    batch = Batch.from_data_list(data)
    with torch.no_grad():
        h = model.first(batch.x, batch.edge_index).relu()
        h = model.second(h, batch.edge_index).relu()
        pooled = torch.stack([h[members].mean(0) if members else h.new_zeros(HIDDEN) for members in sets])
        np.testing.assert_allclose(found, model.last(pooled), atol=1e-4)


@pytest.mark.release
def test_ids_of_graphs_are_those_of_the_caller(tmp_path):
    data = graphs(6)
    graph = Graph.from_pyg(data, ids=[f"molecule {i}" for i in range(6)])
    report = package(Net(pyg.global_add_pool), graph, tmp_path)
    model = Net(pyg.global_add_pool)
    assert served(report, graph, nodes=["molecule 4"]).shape == (1, 3)
    named = Graph.from_pyg(data, ids={"graph": [7, 8, 9, 10, 11, 12]})
    assert named.nodes["graph"].ids.lookup([12]).tolist() == [5]
    assert model is not None


def test_a_graph_of_many_has_a_node_and_an_edge_for_each_membership():
    data = graphs(6)
    for given in (data, tuple(data), Batch.from_data_list(data), (each for each in data)):
        graph = Graph.from_pyg(given)
        assert graph.nodes["graph"].num_nodes == 6
        members = graph.edges["node__in__graph"]
        assert np.diff(members.indptr).tolist() == [each.num_nodes for each in data]
        assert members.indices.tolist() == list(range(sum(each.num_nodes for each in data)))
    assert Graph.from_pyg(data[1]).schema.memberships == {}


@pytest.mark.release
def test_readouts_that_read_all_members_have_no_fanout(tmp_path):
    graph = Graph.from_pyg(graphs())
    report = package(Net(pyg.global_add_pool), graph, tmp_path, [3, 2])
    assert report.spec.fanouts == {"node__to__node": (-1, 3, 2), "node__in__graph": (-1, -1, -1)}
    with pytest.raises(PackagingError, match="the model has 2 message-passing layers"):
        package(Net(pyg.global_add_pool), graph, tmp_path / "more", [-1, -1, -1])
    with pytest.raises(PackagingError, match="max_degree would leave out nodes of a graph"):
        package(Net(pyg.global_add_pool), graph, tmp_path / "capped", max_degree=4)


class TopK(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.pool, self.last = (
            pyg.GCNConv(DIM, HIDDEN),
            pyg.TopKPooling(HIDDEN),
            nn.Linear(HIDDEN, 3),
        )

    def forward(self, x, edge_index, batch):
        h, _, _, batch, _, _ = self.pool(self.conv(x, edge_index).relu(), edge_index, batch=batch)
        return self.last(pyg.global_mean_pool(h, batch))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.last = (
            pyg.GCNConv(DIM, HIDDEN),
            pyg.GraphNorm(HIDDEN),
            nn.Linear(HIDDEN, 3),
        )

    def forward(self, x, edge_index, batch):
        h = self.norm(self.conv(x, edge_index), batch).relu()
        return self.last(pyg.global_mean_pool(h, batch))


@pytest.mark.sample(1)
@pytest.mark.parametrize("model", [TopK, Normed, lambda: Net(pyg.Set2Set(HIDDEN, 2), 2 * HIDDEN)])
def test_what_reads_a_graph_in_another_way_is_refused(model, tmp_path):
    with pytest.raises(PackagingError):
        package(model(), Graph.from_pyg(graphs()), tmp_path, [-1] * 2)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("readout", "width", "message"),
    [
        (
            lambda h, b: pyg.global_add_pool(h - pyg.global_mean_pool(h, b)[b], b),
            HIDDEN,
            "cannot go back to",
        ),
        (lambda h, b: degree(b, int(b.max()) + 1)[:, None], 1, r"leave out sizes: degree\(batch\)"),
    ],
)
def test_a_refusal_of_a_readout_names_the_way_out(readout, width, message, tmp_path):
    with pytest.raises(NotSplittable, match=message):
        package(Net(readout, width), Graph.from_pyg(graphs()), tmp_path)


def test_a_readout_that_has_no_form_runs_on_no_graph_before_it_is_refused(tmp_path, monkeypatch):
    """Attention to all nodes of a graph takes minutes on the graphs that packages are checked on."""
    monkeypatch.setattr(pyg.aggr.SetTransformerAggregation, "forward", lambda *_, **__: 1 / 0)
    with pytest.raises(
        NotSplittable, match=r"readout .SetTransformerAggregation. cannot be a stage: .*no form"
    ):
        package(Net(pyg.aggr.SetTransformerAggregation(HIDDEN)), Graph.from_pyg(graphs()), tmp_path)


def test_a_readout_without_batch_is_refused_with_advice(tmp_path):
    model = Net(lambda h, batch: pyg.global_mean_pool(h, None))
    with pytest.raises(PackagingError, match=r"1 rows for .* graphs: give batch to its readout"):
        package(model, Graph.from_pyg(graphs()), tmp_path)


class OfNodes(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.SAGEConv(DIM, 3)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


def test_a_model_of_nodes_is_packaged_on_a_data_set_of_graphs(tmp_path):
    model, data = OfNodes().eval(), graphs()
    graph = Graph.from_pyg(data)
    report = package(model, graph, tmp_path, [-1])
    assert report.spec.head.node_type == "node"
    batch = Batch.from_data_list(data)
    with torch.no_grad():
        expected = model(batch.x, batch.edge_index)[:50]
    np.testing.assert_allclose(served(report, graph, nodes=list(range(50))), expected, atol=1e-4)
