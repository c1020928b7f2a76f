"""Edge types that a graph gets, or loses, after packaging: refused, or answered as by the module."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData

import hopline
from hopline.engine.model import load_model
from hopline.errors import SchemaMismatch
from tests.packaging.live_graph import live_view

BUYS, BACK = ("user", "buys", "item"), ("item", "bought_by", "user")
KNOWS, ALIKE = ("user", "knows", "user"), ("item", "like", "item")
COUNTS = {"user": 50, "item": 40}


def shop(*edge_types, seed=0, edges=160):
    """Users and items with edges of these types."""
    generator = torch.Generator().manual_seed(seed)
    data = HeteroData()
    for node_type, count in COUNTS.items():
        data[node_type].x = torch.randn(count, 6, generator=generator)
    for edge_type in edge_types:
        ends = (torch.randint(0, COUNTS[end] - 4, (edges,), generator=generator) for end in edge_type[::2])
        data[edge_type].edge_index = torch.stack(list(ends))
    return data


class Shop(nn.Module):
    """Two layers over the edge types that are there, as `HeteroConv` does."""

    def __init__(self, *edge_types):
        super().__init__()
        self.first, self.second = (
            pyg.HeteroConv({each: pyg.SAGEConv(6, 6) for each in edge_types}) for _ in range(2)
        )

    def forward(self, x_dict, edge_index_dict):
        h = {name: rows.relu() for name, rows in self.first(x_dict, edge_index_dict).items()}
        return self.second(h, edge_index_dict)["user"]


class OfData(Shop):
    def forward(self, data):
        return super().forward(data.x_dict, data.edge_index_dict)


class Constant(Shop):
    """Looks for an edge type that only its code names."""

    def forward(self, x_dict, edge_index_dict):
        extra = edge_index_dict.get(("item", "like", "item"))
        if extra is not None:
            x_dict = {**x_dict, "item": x_dict["item"] + 2}
        return super().forward(x_dict, edge_index_dict)


class Names(nn.Module):
    """A convolution for each edge type, in a dictionary of names."""

    def __init__(self, *edge_types):
        super().__init__()
        self.parts = nn.ModuleDict({"__".join(each): pyg.SAGEConv(6, 6) for each in edge_types})

    def forward(self, x_dict, edge_index_dict):
        out = 0.0
        for edge_type, edges in edge_index_dict.items():
            if edge_type[2] == "user" and "__".join(edge_type) in self.parts:
                out = out + self.parts["__".join(edge_type)]((x_dict[edge_type[0]], x_dict["user"]), edges)
        return out


class Every(nn.Module):
    """One convolution for every edge type to users."""

    def __init__(self):
        super().__init__()
        self.conv = pyg.SAGEConv(6, 6)

    def forward(self, x_dict, edge_index_dict):
        return sum(
            self.conv((x_dict[src], x_dict["user"]), edges)
            for (src, _, dst), edges in edge_index_dict.items()
            if dst == "user"
        )


class Guarded(Shop):
    """Branches on whether an edge type has edges."""

    def forward(self, x_dict, edge_index_dict):
        if edge_index_dict[KNOWS].size(1) > 0:
            x_dict = {**x_dict, "user": x_dict["user"] * 2}
        return super().forward(x_dict, edge_index_dict)


def packaged(model, data, folder, **options):
    torch.manual_seed(0)
    graph = hopline.Graph.from_pyg(data)
    options = {"fanouts": [-1, -1], "task": "embedding", "target": "user", **options}
    return hopline.package(model, graph, folder, name="m", **options)


def expect(report, model, data, target="user", **build):
    """The packaged model answers for all nodes of a graph as the module does."""
    graph = hopline.Graph.from_pyg(data, **build)
    model.eval()
    with torch.no_grad():
        if isinstance(data, Data):
            rows = model(data.x, data.edge_index, data.edge_type)
        elif isinstance(model, OfData):
            rows = model(data)
        else:
            rows = model(data.x_dict, data.edge_index_dict)
    served = load_model(report.path, report.spec, graph)
    states = served.final_states({target: np.arange(graph.nodes[target].num_nodes)})[target]
    np.testing.assert_allclose(states, rows.numpy(), atol=1e-4)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", [Shop, OfData, Constant])
def test_an_edge_type_that_the_model_reads_and_was_packaged_without_is_refused(kind, tmp_path):
    model = kind(BUYS, BACK, KNOWS, ALIKE)
    report = packaged(model, shop(BUYS, BACK, KNOWS), tmp_path)
    expect(report, model, shop(BUYS, BACK, KNOWS, seed=3))
    assert any("item__like__item" in note for note in report.notes)
    with pytest.raises(SchemaMismatch, match="the model reads edge type 'item__like__item'"):
        expect(report, model, shop(BUYS, BACK, KNOWS, ALIKE))
    again = packaged(model, shop(BUYS, BACK, KNOWS, ALIKE), tmp_path, version="2")
    assert again.spec.types_without == ()
    expect(again, model, shop(BUYS, BACK, KNOWS, ALIKE, seed=3))


def test_an_edge_type_that_a_dictionary_of_modules_names_is_refused(tmp_path):
    model = Names(BACK, KNOWS)
    report = packaged(model, shop(BACK, BUYS), tmp_path, fanouts=[-1])
    with pytest.raises(SchemaMismatch, match="the model reads edge type 'user__knows__user'"):
        expect(report, model, shop(BACK, BUYS, KNOWS))


def test_a_model_that_reads_every_edge_type_refuses_new_ones(tmp_path):
    model = Every()
    report = packaged(model, shop(BACK, BUYS), tmp_path, fanouts=[-1])
    expect(report, model, shop(BACK, BUYS, seed=3))
    with pytest.raises(SchemaMismatch, match="the model reads edge type 'user__knows__user'"):
        expect(report, model, shop(BACK, BUYS, KNOWS))


def test_an_edge_type_that_the_model_does_not_read_may_come_later(tmp_path):
    model = Shop(BUYS, BACK)
    report = packaged(model, shop(BUYS, BACK), tmp_path)
    assert report.spec.types_without == ()
    expect(report, model, shop(BUYS, BACK, KNOWS, ALIKE))


def test_a_node_type_that_the_model_names_may_not_come_later(tmp_path):
    model = Shop(BUYS, BACK, ("tag", "of", "user"), ("user", "has", "tag"))
    report = packaged(model, shop(BUYS, BACK), tmp_path)
    assert report.spec.types_without == ("tag__of__user", "user__has__tag")


@pytest.mark.release
def test_an_edge_type_without_edges_is_refused_where_the_model_branches_on_that(tmp_path):
    model = Guarded(BUYS, BACK, KNOWS)
    report = packaged(model, shop(BUYS, BACK, KNOWS), tmp_path)
    expect(report, model, shop(BUYS, BACK, KNOWS, seed=3))
    without = shop(BUYS, BACK, KNOWS)
    without[KNOWS].edge_index = without[KNOWS].edge_index[:, :0]
    with pytest.raises(SchemaMismatch, match="'user__knows__user' has no edges"):
        expect(report, model, without)
    with pytest.raises(SchemaMismatch, match="'user__knows__user' can lose its last edge"):
        load_model(report.path, report.spec, live_view(hopline.Graph.from_pyg(shop(BUYS, BACK, KNOWS))))
    plain = Shop(BUYS, BACK, KNOWS)
    expect(packaged(plain, shop(BUYS, BACK, KNOWS), tmp_path, version="2"), plain, without)


def related(relations, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(60, 6, generator=generator),
        edge_index=torch.randint(0, 55, (2, 240), generator=generator),
        edge_type=torch.arange(240) % relations,
    )


class Related(nn.Module):
    def __init__(self, relations):
        super().__init__()
        self.conv = pyg.RGCNConv(6, 4, relations)

    def forward(self, x, edge_index, edge_type):
        return self.conv(x, edge_index, edge_type)


@pytest.mark.release
def test_a_relation_that_the_model_reads_and_was_packaged_without_is_refused(tmp_path):
    model = Related(4)
    report = packaged(model, related(3), tmp_path, target="node", fanouts=[-1])
    expect(report, model, related(3, seed=3), "node")
    with pytest.raises(SchemaMismatch, match="the model reads edge type 'node__r3__node'"):
        expect(report, model, related(4), "node")
    whole = packaged(Related(3), related(3), tmp_path, version="2", target="node", fanouts=[-1])
    assert whole.spec.types_without == ()


class Attributed(nn.Module):
    def __init__(self, relations):
        super().__init__()
        self.conv = pyg.RGATConv(6, 4, relations, edge_dim=2)

    def forward(self, x, edge_index, edge_type, edge_attr):
        return self.conv(x, edge_index, edge_type, edge_attr)


@pytest.mark.release
def test_a_later_relation_has_the_columns_of_the_others(tmp_path):
    data = related(3)
    data.edge_attr = torch.randn(240, 2)
    report = packaged(Attributed(4), data, tmp_path, target="node", fanouts=[-1])
    assert report.spec.types_without == ("node__r3__node",)


def test_types_of_the_graph_that_a_model_is_not_given_are_not_later_ones(tmp_path):
    given = [f"node__r{number}__node" for number in range(2)]
    options = {"target": "node", "fanouts": [-1], "relations": given}
    assert packaged(Related(4), related(3), tmp_path, **options).spec.types_without == ()
