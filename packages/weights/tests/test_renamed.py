"""Weights of earlier PyG. The oracle is their formula, written out; the names are those of that release."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import hopline
from hopline.errors import PackagingError
from hopline.graph import Graph
from hopline_weights.checkpoint import load_weights
from tests.packaging import full_graph

N = 7
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(1))
#: Without loops: each layer adds its own where it does.
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 2], [1, 2, 0, 0, 0, 6, 5, 3, 3]])
LOOPS = torch.arange(N).repeat(2, 1)


def rand(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def summed(rows, edges=EDGES):
    return torch.zeros(N, rows.shape[1]).index_add_(0, edges[1], rows)


def gcn_1(weight, bias):
    """PyG 1: x @ weight [in, out], then the symmetric norm."""
    src, dst = edges = torch.cat([EDGES, LOOPS], 1)
    norm = torch.bincount(dst, minlength=N).float().rsqrt()
    return summed((X @ weight)[src] * (norm[src] * norm[dst])[:, None], edges) + bias


def gat_1(weight, att, bias):
    """PyG up to 1.5: one vector over [destination, source]."""
    src, dst = edges = torch.cat([EDGES, LOOPS], 1)
    heads, channels = att.shape[1], att.shape[2] // 2
    rows = (X @ weight).view(N, heads, channels)
    score = (torch.cat([rows[dst], rows[src]], -1) * att).sum(-1)
    score = nn.functional.leaky_relu(score, 0.2).exp()
    share = score / torch.zeros(N, heads).index_add_(0, dst, score)[dst]
    return summed((rows[src] * share[..., None]).flatten(1), edges) + bias


def mean_of_neighbours():
    return summed(X[EDGES[0]]) / torch.bincount(EDGES[1], minlength=N).clamp(min=1)[:, None]


W, BIAS = rand(4, 6), rand(6)
ATT = rand(1, 2, 6)
GAT = {"lin_src.weight": W.t(), "lin_dst.weight": W.t(), "att_src": ATT[..., 3:], "att_dst": ATT[..., :3]}
CASES = {
    "gcn 1": (pyg.GCNConv(4, 6), {"weight": W, "bias": BIAS}, gcn_1(W, BIAS)),
    "gat 2.4": (pyg.GATConv(4, 3, heads=2), GAT | {"bias": BIAS}, gat_1(W, ATT, BIAS)),
    "sage 1.5": (
        pyg.SAGEConv(4, 6),
        {"lin_rel.weight": W.t(), "lin_rel.bias": BIAS, "lin_root.weight": 2 * W.t()},
        mean_of_neighbours() @ W + BIAS + 2 * X @ W,
    ),
    "graph 1.6": (
        pyg.GraphConv(4, 6),
        {"lin_l.weight": W.t(), "lin_l.bias": BIAS, "lin_r.weight": 2 * W.t()},
        summed(X[EDGES[0]]) @ W + BIAS + 2 * X @ W,
    ),
    "nn 1": (
        pyg.NNConv(4, 6, nn.Linear(1, 24)),
        {"nn.weight": rand(24, 1), "nn.bias": rand(24), "root": W, "bias": BIAS},
        summed(X[EDGES[0]]) @ (rand(24, 1)[:, 0] + rand(24)).view(4, 6) + X @ W + BIAS,
    ),
}


def saved(tmp_path, state):
    torch.save(state, tmp_path / "old.pt")
    return tmp_path / "old.pt"


class Net(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv, self.out = conv, nn.Linear(6, 2)


@pytest.mark.parametrize("prefix", ["", "model.", "module."])
@pytest.mark.parametrize("name", CASES)
def test_weights_of_earlier_pyg_compute_what_they_did(tmp_path, name, prefix):
    conv, state, expected = CASES[name]
    net = Net(conv)
    whole = {f"conv.{key}": value for key, value in state.items()} | {
        f"out.{key}": value for key, value in net.out.state_dict().items()
    }
    path = saved(tmp_path, {prefix + key: value for key, value in whole.items()})
    notes = load_weights(net, path)
    assert any("conv (" in note and "since PyG" in note for note in notes)
    found = net.conv(X, EDGES, *([torch.ones(9, 1)] if name == "nn 1" else []))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("conv", "state", "match"),
    [
        (
            pyg.GATConv(4, 3, heads=2),
            {"lin_l.weight": W.t(), "lin_r.weight": W.t(), "att_l": rand(1, 2, 3), "att_r": rand(1, 2, 3)},
            r"lin_l\.weight, att_l, att_r are of before PyG 2\.0: .*ignored att_r; rename lin_l to lin",
        ),
        (
            pyg.GATConv(4, 3, heads=2),
            GAT | {"lin_dst.weight": 2 * W.t()},
            r"before PyG 2\.5: lin_src and lin_dst differ.*in_channels",
        ),
        (
            pyg.GATConv((4, 4), 3, heads=2, add_self_loops=False),
            {"lin_l.weight": W.t(), "lin_r.weight": W.t(), "att_l": rand(1, 2, 3), "att_r": rand(1, 2, 3)},
            "of a pair lin_src, and lin_r lin_dst",
        ),
        (pyg.GATConv(4, 3, heads=2), {"weight": W, "att": ATT}, r"save weight.t\(\) as lin.weight, and"),
        (pyg.ChebConv(4, 6, K=3), {"weight": rand(3, 4, 6)}, r"save weight\[k\].t\(\) as lins.<k>.weight"),
        (
            Net(pyg.TAGConv(4, 6, K=1)),
            {"conv.lin.weight": rand(6, 8), "conv.lin.bias": BIAS, "out.weight": rand(2, 6)},
            r"save lin.weight.chunk\(K \+ 1, 1\)\[k\] as lins",
        ),
        (pyg.SAGEConv(4, 6), {"weight": W}, r"before PyG 1\.5: one matrix"),
        (
            pyg.GraphConv(4, 6, aggr="max"),
            {"weight": W, "lin.weight": W.t(), "lin.bias": BIAS},
            r"before PyG 1\.6: it multiplied before it took the maximum.*lin_root",
        ),
        (
            pyg.RGCNConv(4, 6, 2, num_bases=3),
            {"basis": rand(3, 4, 6), "att": rand(2, 3), "root": W},
            r"before PyG 1\.6: .*give it aggr='add'",
        ),
        (
            pyg.HGTConv(4, 6, (["a"], [("a", "to", "a")])),
            {"k_lin.a.weight": W.t(), "a_rel.a__to__a": rand(1, 6, 6), "m_rel.a__to__a": rand(1, 6, 6)},
            r"before PyG 2\.3: it took the softmax",
        ),
    ],
)
def test_weights_that_may_have_computed_otherwise_are_refused_with_the_release(
    tmp_path, conv, state, match
):
    with pytest.raises(PackagingError, match=match):
        load_weights(conv, saved(tmp_path, state | {"bias": BIAS}))


def test_edge_types_of_heterogeneous_layers_have_the_names_of_today(tmp_path):
    types = [("user", "buys", "item"), ("item", "rev_buys", "user")]

    def build():
        return pyg.HeteroConv({each: pyg.GATConv((4, 4), 3, add_self_loops=False) for each in types})

    net = build()
    state = {
        name.replace("<user___buys___item>", "user__buys__item").replace(
            "<item___rev_buys___user>", "item__rev_buys__user"
        ): value
        for name, value in net.state_dict().items()
    }
    other = build()
    notes = load_weights(other, saved(tmp_path, state))
    assert "user__buys__item is <user___buys___item> since PyG 2.4" in notes
    for name, value in net.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)


def test_converted_weights_go_through_the_gate(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.GCNConv(4, 6)

        def forward(self, x, edge_index):
            return self.conv(x, edge_index)

    model = Model()
    load_weights(model, saved(tmp_path, {"conv.weight": W, "conv.bias": BIAS}))
    graph = Graph.from_edges(EDGES.numpy(), X.numpy()).save(tmp_path / "graph")
    report = hopline.package(model, graph, tmp_path / "models", name="m", task="regression", fanouts=[-1])
    np.testing.assert_allclose(full_graph.logits(report.path, graph), gcn_1(W, BIAS), atol=1e-4)
