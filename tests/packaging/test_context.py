"""Requests that describe nodes of several types: equal to PyG on the graph with these nodes in it."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import hopline
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import BadRequest, HoplineError, NodeNotFound
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.types import ContextNode, InlineNode, ScoreRequest

ACCOUNTS, MERCHANTS = 30, 12
PAYS, PAID, KNOWS = (
    ("account", "pays", "merchant"),
    ("merchant", "paid", "account"),
    ("account", "knows", "account"),
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            pyg.HeteroConv(
                {
                    PAYS: pyg.SAGEConv((width, other), 6),
                    PAID: pyg.GATv2Conv((other, width), 6, add_self_loops=False),
                    KNOWS: pyg.GCNConv(width, 6, add_self_loops=False),
                }
            )
            for width, other in ((4, 3), (6, 6))
        )
        self.last = nn.Linear(6, 2)

    def forward(self, x_dict, edge_index_dict):
        for layer in self.layers:
            x_dict = {name: h.relu() for name, h in layer(x_dict, edge_index_dict).items()}
        return self.last(x_dict["account"])


def rows(count, width, seed):
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


def ends(num_src, num_dst, count, seed):
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, num_src, count), rng.integers(0, num_dst, count)])


def data():
    x = {"account": rows(ACCOUNTS, 4, 0), "merchant": rows(MERCHANTS, 3, 1)}
    edges = {
        PAYS: ends(ACCOUNTS, MERCHANTS, 60, 2),
        PAID: ends(MERCHANTS, ACCOUNTS, 60, 3),
        KNOWS: ends(ACCOUNTS, ACCOUNTS, 60, 4),
    }
    return x, edges


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def answerer(model, tmp_path_factory):
    x, edges = data()
    graph = Graph.from_tables(
        {name: NodeTable(values) for name, values in x.items()},
        {key: EdgeTable(pair) for key, pair in edges.items()},
    )
    report = hopline.package(
        model, graph, tmp_path_factory.mktemp("models"), name="m", target="account", fanouts=[-1, -1],
        task="multiclass",
    )  # fmt: skip
    return Answerer(load_model(report.path, report.spec, graph), ("logits",), 1000)


def served(answerer, **request):
    (found,) = answerer.answer([ScoreRequest("m", **request)])
    if isinstance(found, HoplineError):
        raise found
    return found.outputs["logits"]


NEW = {"account": rows(3, 4, 7), "merchant": rows(2, 3, 8)}
#: Edge type -> destination among the new nodes, and its sources: known nodes, or names of new ones.
LISTS = {
    PAID: {0: [3, "m0"], 1: ["m1", "m0", 5], 2: []},
    KNOWS: {0: [4, "a1"], 1: ["a2"], 2: [9, 9]},
    PAYS: {0: ["a0", 2, "a2"], 1: ["a1"]},
}


def expected(model):
    """The module on the graph with the new nodes behind the others."""
    x, edges = data()
    first = {"account": ACCOUNTS, "merchant": MERCHANTS}
    place = {f"a{i}": ACCOUNTS + i for i in range(3)} | {f"m{i}": MERCHANTS + i for i in range(2)}
    for key, lists in LISTS.items():
        new = [
            (place.get(source, source), first[key[2]] + into)
            for into, sources in lists.items()
            for source in sources
        ]
        edges[key] = np.concatenate([edges[key], np.array(new).T], axis=1)
    joined = {name: torch.from_numpy(np.concatenate([x[name], NEW[name]])) for name in x}
    with torch.no_grad():
        out = model(joined, {key: torch.from_numpy(pair) for key, pair in edges.items()})
    return out.numpy()[ACCOUNTS:]


def neighbors(node_type, at):
    return {"__".join(key): lists[at] for key, lists in LISTS.items() if key[2] == node_type}


@pytest.mark.release
def test_a_new_account_at_a_new_merchant(model, answerer):
    accounts = [InlineNode(NEW["account"][i], neighbors("account", i), f"a{i}") for i in range(3)]
    merchants = tuple(
        ContextNode(
            type="merchant", features=NEW["merchant"][i], neighbors=neighbors("merchant", i), id=f"m{i}"
        )
        for i in range(2)
    )
    found = served(answerer, inline=accounts, context=merchants)
    np.testing.assert_allclose(found, expected(model), atol=1e-4)


def test_context_of_the_models_type_is_not_answered(model, answerer):
    one, *others = [
        ContextNode(features=NEW["account"][i], neighbors=neighbors("account", i), id=f"a{i}")
        for i in range(3)
    ]
    merchants = [
        ContextNode(
            type="merchant", features=NEW["merchant"][i], neighbors=neighbors("merchant", i), id=f"m{i}"
        )
        for i in range(2)
    ]
    found = served(answerer, nodes=[5], inline=[one], context=(*merchants, *others))
    assert found.shape == (2, 2)
    np.testing.assert_allclose(found[1:], expected(model)[:1], atol=1e-4)


@pytest.mark.parametrize(
    ("context", "error", "text"),
    [
        (
            [ContextNode(type="shop", features=[0.0])],
            BadRequest,
            r"context\[0\]\.type: 'shop' is no node type",
        ),
        (
            [ContextNode(type="merchant", features=[0.0])],
            BadRequest,
            r"context\[0\]\.features: shape \[1\]",
        ),
        (
            [ContextNode(type="merchant", features=[0.0] * 3, neighbors={"account__knows__account": [1]})],
            BadRequest,
            r"context\[0\]\.neighbors: unknown edge type",
        ),
        (
            [ContextNode(type="merchant", features=[0.0] * 3, id="m0")] * 2,
            BadRequest,
            r"context\[1\]\.id: 'm0' is also the id of context\[0\]",
        ),
        (
            [ContextNode(features=[0.0] * 4, id="a0")],
            BadRequest,
            r"context\[0\]\.id: 'a0' is also the id of inl",
        ),
        (
            [ContextNode(type="merchant", features=[0.0] * 3, neighbors={"": [99]})],
            NodeNotFound,
            "in neither graph .* nor this request: 99",
        ),
    ],
)
def test_wrong_context_is_refused_where_it_is(context, error, text, answerer):
    with pytest.raises(error, match=text):
        served(answerer, inline=[InlineNode([0.0] * 4, id="a0")], context=tuple(context))


def test_an_id_is_looked_up_in_the_type_of_the_edge(answerer):
    """A merchant's name is no account."""
    merchant = ContextNode(type="merchant", features=[0.0] * 3, id="x")
    with pytest.raises((NodeNotFound, BadRequest)):
        served(
            answerer,
            inline=[InlineNode([0.0] * 4, {"account__knows__account": ["x"]})],
            context=(merchant,),
        )
