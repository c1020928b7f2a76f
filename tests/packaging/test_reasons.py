"""The reason that a refusal gives is the real one, in words of the user's source and not of torch."""

import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.utils import add_self_loops, coalesce, scatter

import hopline
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import NotServable, NotSplittable, PackagingError
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.types import ScoreRequest
from tests.packaging.graphs import hetero, homogeneous, molecules, relational


class Two(nn.Module):
    """Two layers with a function between them."""

    def __init__(self, middle=torch.relu, conv=pyg.SAGEConv, **options):
        super().__init__()
        self.first, self.last, self.middle = conv(6, 8, **options), conv(8, 3, **options), middle

    def forward(self, x, edge_index):
        return self.last(self.middle(self.first(x, edge_index)), edge_index)


def package(model, repository, graph=None, **options):
    options = {"name": "m", "fanouts": [-1, -1], "task": "multiclass", **options}
    return hopline.package(model, graph or homogeneous(), repository, **options)


def halved(h):
    return h / 2 if h.abs().max() > 20 else h


def rescaled(h):
    return h * h.mean().item()


def until_small(h):
    while h.abs().max() > 1:
        h = h / 2
    return h


@pytest.mark.parametrize(
    ("middle", "line"),
    [(halved, r"if h\.abs\(\)\.max\(\) > 20"), (rescaled, "item"), (until_small, "while h")],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_decision_over_all_nodes_is_named_by_its_line(middle, line, tmp_path):
    with pytest.raises(
        NotServable, match=rf"(?s)of all nodes or edges together \(test_reasons\.py:.*{line}"
    ):
        package(Two(middle), tmp_path)


class Sized(Two):
    """Answers what `of` makes of its input, its edges and its last rows."""

    def __init__(self, of):
        super().__init__()
        self.of = of

    def forward(self, x, edge_index):
        return self.of(x, edge_index, super().forward(x, edge_index))


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "of",
    [
        lambda x, edges, h: h * 3 if edges.size(1) < 40 else h,
        lambda x, edges, h: h * min(x.size(0), 250),
        lambda x, edges, h: h.relu() if edges.size(1) / x.size(0) > 20 else h,
        lambda x, edges, h: h * max(1.0, edges.size(1) / x.size(0) / 20),
        lambda x, edges, h: h * 2 if len(x) > 10**7 else h,
        lambda x, edges, h: h * 2 if h.shape[0] > 10**6 else h,
        lambda x, edges, h: h * {5000: 2}.get(x.size(0), 1),
        lambda x, edges, h: h * (2 if edges.shape[1] in {700, 40} else 1),
        lambda x, edges, h: h * (1 + x.size(0) // 50_000),
        lambda x, edges, h: h / math.ceil(x.size(0) / 50_000),
        lambda x, edges, h: [h, 2 * h][x.size(0) > 50_000],
        lambda x, edges, h: sum((h for _ in range(edges.size(1) // x.size(0))), h),
        lambda x, edges, h: h.clamp(max=0.1 * (1 + x.size(0) // 50_000)),
        lambda x, edges, h: torch.cat([h, 2 * h], 1)[:, 4 * (x.size(0) // 50_000) :][:, :4],
        lambda x, edges, h: h * (1 + torch.zeros(x.size(0)).numel() // 50_000),
    ],
)
def test_a_decision_by_a_number_of_nodes_or_edges_is_refused_with_its_line(of, tmp_path):
    with pytest.raises(NotServable, match=r"number of nodes or edges: .* at test_reasons.py:\d+: lambda x"):
        package(Sized(of), tmp_path)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "of",
    [
        lambda x, edges, h: h * 2 if edges.numel() > 0 else h,
        lambda x, edges, h: h * 2 if x.size(0) == h.size(0) and edges.size(0) == 2 else h,
        lambda x, edges, h: h + torch.zeros(x.size(0), 1),
        lambda x, edges, h: h[: x.size(0)] + torch.zeros((x.size(0), 1)),
    ],
)
def test_what_is_decided_alike_for_each_number_of_nodes_and_edges_is_packaged(of, tmp_path):
    package(Sized(of), tmp_path)


def test_a_tensor_of_a_size_is_refused_by_name(tmp_path):
    with pytest.raises(NotSplittable, match=r"made of a number of nodes or edges at test_reasons.py:\d+"):
        package(Sized(lambda x, edges, h: h * torch.tensor(x.size(0) > 50_000).float().add(1)), tmp_path)


def test_a_decision_by_the_size_of_a_selection_is_refused_where_no_answer_shows_it(tmp_path):
    def of(x, edges, h):
        return h * max(1, h[h[:, 0] > 1e6].size(0) // 900)

    with pytest.raises(NotSplittable, match="number of nodes or edges"):
        package(Sized(of), tmp_path)


def test_a_module_without_convolutions_that_decides_by_its_rows_is_refused(tmp_path):
    class Last(nn.Module):
        def forward(self, h):
            return h * 2 if h.size(0) > 10**6 else h

    class Followed(Two):
        def __init__(self):
            super().__init__()
            self.end = Last()

        def forward(self, x, edge_index):
            return self.end(super().forward(x, edge_index))

    with pytest.raises(NotServable, match="decides by the number of its rows"):
        package(Followed(), tmp_path)


@pytest.mark.parametrize("condition", [lambda h: h.sum() > 0, lambda h: torch.tensor(len(h)) > 3])
def test_a_branch_by_torch_cond_is_named(condition, tmp_path):
    def middle(h):
        return torch.cond(condition(h), lambda h: h * 2, lambda h: h * 3, (h,))

    with pytest.raises(NotServable, match=r"calls torch\.cond \(test_reasons.*decide for each row"):
        package(Two(middle), tmp_path)


class OverEdges(nn.Module):
    """Divides a column of the edges by a number that is taken over all of them."""

    def __init__(self, reduce, conv):
        super().__init__()
        self.conv, self.reduce = conv, reduce

    def forward(self, x, edge_index, column):
        return self.conv(x, edge_index, column / self.reduce(column))


@pytest.mark.sample(5)
@pytest.mark.parametrize("reduce", [torch.max, torch.min, torch.sum, torch.mean, torch.std])
@pytest.mark.parametrize("column", ["edge_attr", "edge_weight"])
def test_a_number_of_all_edges_is_named(column, reduce, tmp_path):
    if column == "edge_attr":
        conv, graph = pyg.GINEConv(nn.Linear(6, 3), edge_dim=2), homogeneous(attr_dim=2)
    else:
        conv, graph = pyg.GraphConv(6, 3), homogeneous(weight=True)
    options = {"fanouts": [-1], "arguments": {"column": column}}
    with pytest.raises(NotServable, match="over the attributes or weights of all edges"):
        package(OverEdges(reduce, conv), tmp_path, graph, **options)


def test_a_number_of_all_nodes_is_not_taken_for_one_of_edges(tmp_path):
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.GraphConv(6, 3)

        def forward(self, x, edge_index, edge_weight):
            return self.conv(x - x.mean(0), edge_index, edge_weight)

    with pytest.raises(NotServable, match="normalises over all nodes"):
        package(Centred(), tmp_path, homogeneous(weight=True), fanouts=[-1])


class Thresholded(nn.Module):
    """A head that branches on its parameter."""

    def __init__(self):
        super().__init__()
        self.bound, self.linear = nn.Parameter(torch.tensor(0.5)), nn.Linear(3, 1)

    def forward(self, h):
        return self.linear(h) if self.bound.item() > 0.1 else -self.linear(h)


def test_a_condition_of_a_head_on_a_parameter_is_named(tmp_path):
    with pytest.raises(
        NotSplittable, match=r"a number that it reads from a tensor, as \.item\(\) does \(test_re"
    ):
        package(Two(), tmp_path, head=Thresholded(), task="binary")


class Gated(Two):
    """Branches on parameters and buffers, which are the same in every call."""

    def __init__(self, gate, **options):
        super().__init__(**options)
        self.gate = nn.Parameter(torch.tensor([gate, 1.0]))
        self.register_buffer("steps", torch.tensor(2))

    def forward(self, x, edge_index):
        h = self.first(x, edge_index)
        for _ in range(int(self.steps)):
            h = h.tanh()
        if self.gate[0] > 0:
            h = h * float(self.gate.sum())
        elif self.gate.abs().max().item() > 2:
            h = -h
        return self.last(h, edge_index)


@pytest.mark.sample(1)
@pytest.mark.parametrize("gate", [0.5, -0.5, -3.0])
def test_a_branch_on_a_parameter_is_decided(gate, tmp_path):
    model = Gated(gate).eval()
    graph = homogeneous()
    report = package(model, tmp_path, graph, task="embedding")
    edges = graph.edge()
    index = torch.from_numpy(
        np.stack([edges.indices, np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))])
    )
    x = torch.from_numpy(np.array(graph.nodes["node"].features))
    with torch.no_grad():
        wanted = model(x, index.long())
    answerer = Answerer(load_model(report.path, report.spec, graph), ("embedding",), 99)
    (found,) = answerer.answer([ScoreRequest("m", nodes=list(range(len(x))))])
    np.testing.assert_allclose(found.outputs["embedding"], wanted, atol=1e-4)


class Remembers(Gated):
    """Overwrites what it branches on with numbers of the rows."""

    def __init__(self, what):
        super().__init__(0.5)
        self.what = what

    def forward(self, x, edge_index):
        getattr(self, self.what).detach().copy_((x.abs().max() > 1).long())
        return super().forward(x, edge_index)


@pytest.mark.sample(1)
@pytest.mark.parametrize("what", ["gate", "steps"])
def test_a_branch_on_what_rows_change_is_refused(what, tmp_path):
    with pytest.raises(PackagingError, match=r"a condition on a tensor's numbers|differ from the module's"):
        package(Remembers(what), tmp_path)


def rare(h):
    return h if (h < 1e9).all() else h * 2


def merged(h):
    return h + coalesce(torch.zeros(2, 4, dtype=torch.int64)).sum()


class Merged(Two):
    def forward(self, x, edge_index):
        return super().forward(x, coalesce(edge_index))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("model", "told"),
    [
        (Two(rare), r"test_reasons\.py:\d+: return h if \(h < 1e9\)\.all\(\)"),
        (Merged(), r"test_reasons\.py:\d+: return super\(\)\.forward\(x, coalesce\(edge_index\)\)"),
        (Two(aggr=pyg.QuantileAggregation(0.5, "higher")), "quantile over neighbours"),
    ],
    ids=["condition", "coalesce", "quantile"],
)
def test_what_cannot_be_split_is_reported_without_the_words_of_torch(model, told, tmp_path, capfd):
    with pytest.raises(PackagingError, match=told) as caught:
        package(model, tmp_path)
    cause, chain = caught.value, []
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__
    assert cause is None, "an error is its own cause"
    text = str(caught.value)
    for noise in ("TORCH", "u0", "Size-like", "L['", "symbolically", "http"):
        assert noise not in text
    assert len(text) < 1200
    printed = capfd.readouterr()
    assert "torch.ops" not in printed.out + printed.err
    assert "symbolic" not in printed.out + printed.err


class Csr(Two):
    def forward(self, x, edge_index):
        matrix = torch.sparse_coo_tensor(
            torch.stack([edge_index[1], edge_index[0]]), torch.ones(edge_index.size(1)), (x.size(0),) * 2
        )
        return super().forward(matrix @ x, edge_index)


class Bincount(Two):
    def forward(self, x, edge_index):
        count = torch.from_numpy(np.bincount(edge_index[1].numpy(), minlength=x.size(0))).float()
        return super().forward(x / (1 + count[:, None]), edge_index)


class Compiled(Two):
    def __init__(self):
        super().__init__()
        self.part = torch.compile(nn.Linear(6, 6), backend="eager")

    def forward(self, x, edge_index):
        return super().forward(self.part(x), edge_index)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "of",
    [
        lambda x, edges: x * torch.empty(x.size(0), 1).fill_(2.0),
        lambda x, edges: x * torch.empty_like(x).fill_(0.5),
        lambda x, edges: x.new_empty(x.size(0), 6).fill_(1.0) + x,
    ],
)
def test_rows_that_code_makes_and_then_fills_are_packaged(of, tmp_path):
    class Before(Two):
        def forward(self, x, edge_index):
            return super().forward(of(x, edge_index), edge_index)

    package(Before(), tmp_path)


class Head(nn.Module):
    def __init__(self, of):
        super().__init__()
        self.of = of

    def forward(self, h_src, h_dst):
        return self.of((h_src * h_dst).sum(-1))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("of", "match"),
    [
        (lambda rows: rows * 2 if rows.size(0) > 10**6 else rows, "decides by the number of its rows"),
        (lambda rows: rows * (1 + rows.size(0) // 10**6), "decides by the number of its rows"),
        (lambda rows: rows * max(1, rows.size(0) / 10**6), "decides by the number of its rows"),
        (lambda rows: rows * 2 if rows.sum() > 1e9 else rows, "head.onnx cannot be written"),
    ],
)
def test_a_head_that_decides_by_all_pairs_is_refused_without_words_of_torch(of, match, tmp_path, capfd):
    with pytest.raises(PackagingError, match=match):
        package(Two(), tmp_path, head=Head(of), task="binary", output="logits")
    printed = capfd.readouterr()
    assert not printed.out + printed.err


def joined_weights(x, edge_index):
    edges, _ = add_self_loops(edge_index, num_nodes=x.size(0))
    weight = torch.cat([torch.ones(edge_index.size(1)), torch.ones(x.size(0))])
    return scatter(x[edges[0]] * weight[:, None], edges[1], 0, x.size(0))


def in_order(x, edge_index):
    edges = edge_index[:, edge_index[1].argsort()]
    return scatter(x[edges[0]], edges[1], 0, x.size(0))


def without_loops(x, edge_index):
    edges = edge_index[:, edge_index[0] != edge_index[1]]  # of the graph of the check: all
    return scatter(x[edges[0]], edges[1], 0, x.size(0))


def along(x, edge_index):
    x = scatter(x[edge_index[0]], edge_index[1], 0, x.size(0))
    return x + torch.take_along_dim(x, x[:, :1].long().clamp(0, 3), 1)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("of", "remedy"),
    [
        (without_loops, "remove_self_loops(edge_index)[0]"),
        (along, "write x.gather(1, index)"),
        (joined_weights, "edge_attr = add_self_loops("),
        (in_order, "edges are not listed in another order in forward"),
        (lambda x, edges: x * (edges.size(1) // x.size(0)), "makes a number of all nodes and edges"),
        (lambda x, edges: x / round(edges.size(1) / x.size(0)), "a number of nodes or edges: round() is"),
    ],
)
def test_what_a_plain_model_may_not_do_with_all_edges_is_named(of, remedy, tmp_path):
    class Before(Two):
        def forward(self, x, edge_index):
            return super().forward(of(x, edge_index), edge_index)

    with pytest.raises(PackagingError) as caught:
        package(Before(), tmp_path, fanouts=[-1] * 3)
    assert remedy in str(caught.value)


@pytest.mark.filterwarnings("ignore:.*[Ss]parse:UserWarning")
@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        (Csr, "SimpleConv(aggr='sum')"),
        (Bincount, "use torch in place of NumPy"),
        (Compiled, "model.part = model.part._orig_mod"),
    ],
)
def test_the_remedy_is_that_of_the_cause(model, remedy, tmp_path):
    with pytest.raises(PackagingError) as caught:
        package(model(), tmp_path, fanouts=[-1] * 3)
    assert remedy in str(caught.value)
    assert "quantile" not in str(caught.value)
    assert "reads the environment" not in str(caught.value)


def smoothed(h):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.linear(h, 1.7 * torch.eye(8)).float()


@pytest.mark.parametrize(
    ("middle", "remedy", "instead"),
    [
        (lambda h: h - h.median(1, True)[0], "(x.size(1) - 1) // 2]", lambda h: h - h.sort(1)[0][:, 3:4]),
        (lambda h: h - h.kthvalue(2, 1, True)[0], ".values[:, k - 1]", lambda h: h - h.sort(1)[0][:, 1:2]),
        (
            lambda h: h.copysign(h - 1),
            "torch.where(sign < 0, -x.abs(), x.abs())",
            lambda h: torch.where(h - 1 < 0, -h.abs(), h.abs()),
        ),
        (lambda h: h - h.mode(1, True)[0], "with sums, products, torch.where, sort or", torch.relu),
        (smoothed, "(test_reasons.py", torch.relu),
        (lambda h: (1.7 * h.half()).float(), "leave out torch.autocast, x.half() and", torch.relu),
        (lambda h: (1.7 * h.bfloat16()).float(), "leave out torch.autocast, x.half() and", torch.relu),
        (lambda h: torch.stack([2 * row for row in h]), "h * 2 in place of [row * 2 for", lambda h: h * 2),
        (lambda h: h + torch.empty(8), "write torch.zeros", lambda h: h + torch.zeros(8)),
    ],
    ids=["median", "kth", "sign", "mode", "autocast", "half", "bfloat16", "loop", "empty"],
)  # fmt: skip
def test_what_no_file_expresses_is_refused_with_code_that_is_served(middle, remedy, instead, tmp_path):
    torch.empty(8).fill_(0.7), torch.empty(64).fill_(0.3)
    with pytest.raises(PackagingError) as caught:
        package(Two(middle), tmp_path / "refused")
    assert remedy in str(caught.value)
    package(Two(instead), tmp_path / "served")


class OwnName(pyg.MessagePassing):
    def __init__(self):
        super().__init__()
        self.decomposed_layers = nn.Linear(6, 3)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.decomposed_layers(x))


def largest(x, edge_index):
    ends = edge_index[1].view(-1, 1).expand(-1, 6)
    return torch.zeros_like(x).scatter_reduce(0, ends, x[edge_index[0]], "amax", include_self=True)


class Largest(Two):
    def forward(self, x, edge_index):
        return super().forward(largest(x, edge_index), edge_index)


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        (
            lambda: pyg.GCNConv(6, 4, decomposed_layers=2),
            "build the layer without it, with the same weights",
        ),
        (OwnName, "OwnName.decomposed_layers is a property of PyG: give the layer another name"),
        (OwnName, "(at test_reasons.py:"),
        (Largest, "in place of include_self=True"),
    ],
)
def test_what_pyg_computes_otherwise_is_refused_with_a_remedy(model, remedy, tmp_path):
    with pytest.raises(PackagingError) as caught:
        package(model(), tmp_path, fanouts=[-1] * (3 if model is Largest else 1))
    assert remedy in str(caught.value)


class Reversible(nn.Module):
    """Its layers free what they read, after which torch reads freed memory, unless memory is not saved."""

    def __init__(self):
        super().__init__()
        self.first, self.last = pyg.GroupAddRev(pyg.SAGEConv(3, 3), num_groups=2), nn.Linear(6, 3)

    def forward(self, x, edge_index):
        return self.last(x + self.first(x, edge_index))


def test_a_reversible_layer_is_served_and_stays_as_it_was(tmp_path):
    model = Reversible()
    package(model, tmp_path, fanouts=[-1, -1])
    assert not model.first.disable


class OwnDropout(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5)


class Always(nn.Dropout):
    def train(self, mode=True):
        return super().train(True)


@pytest.mark.parametrize(
    ("middle", "why"),
    [
        (lambda h: h * np.random.rand(), r"\(np.random\)"),
        (lambda h: h * (np.random.rand() < 0.5), r"\(np.random\)"),
        (lambda h: h * random.random(), r"\(Python's random\)"),
        (OwnDropout(), r"\(dropout at test_reasons\.py"),
        (Always(), "dropout"),
    ],
    ids=["numpy", "seldom", "python", "own dropout", "always on"],
)
def test_what_is_random_is_named(middle, why, tmp_path):
    np.random.seed(0)
    with pytest.raises(NotServable, match=f"(?s)draws random numbers .*{why}"):
        package(Two(middle), tmp_path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_dynamically_quantised_layer_is_named(tmp_path):
    model = Two(nn.Linear(8, 8)).eval()
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(PackagingError, match=r"middle \(Linear\).*hopline quantize"):
        package(quantised, tmp_path)


class OfData(Two):
    def __init__(self, read):
        super().__init__()
        self.read = read

    def forward(self, data):
        return super().forward(self.read(data), data.edge_index)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "method", ["is_undirected", "has_self_loops", "is_coalesced", "has_isolated_nodes"]
)
def test_questions_to_the_whole_graph_are_named(method, tmp_path):
    graph = homogeneous()
    with pytest.raises(NotServable, match=r"of all nodes or edges together \(test_reasons\.py"):
        package(OfData(lambda data: data.x if getattr(data, method)() else data.x * 2), tmp_path, graph)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "read",
    [
        lambda data: data.x + torch.zeros(data.num_nodes, 1),
        lambda data: data.x + torch.zeros(data.x.size(0), 1),
        lambda data: data.x[:, : data.num_node_features],
        lambda data: data.x if data.num_edges > 0 else data.x * 2,
        lambda data: data.clone().x if "x" in data and data.y is None else data.x * 2,
    ],
    ids=["num_nodes", "size", "features", "edges", "keys"],
)
def test_questions_of_size_and_content_are_served(read, tmp_path):
    assert package(OfData(read), tmp_path).spec.parity["max_abs_diff"] < 1e-4


@pytest.mark.release
def test_a_graph_without_edges_packages_a_model(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    graph = Graph.from_edges(np.zeros((2, 0), np.int64), x)
    package(Two(conv=pyg.ResGatedGraphConv), tmp_path, graph)


def test_a_type_without_features_whose_rows_the_model_makes_is_refused_with_the_remedy(tmp_path):
    rng = np.random.default_rng(0)
    graph = Graph.from_tables(
        {"user": NodeTable(num_nodes=30), "item": NodeTable(rng.normal(size=(40, 6)).astype(np.float32))},
        {
            ("user", "buys", "item"): EdgeTable(rng.integers(0, 30, (2, 100))),
            ("item", "by", "user"): EdgeTable(rng.integers(0, 30, (2, 100))),
        },
    )

    class Same(nn.Module):
        def __init__(self):
            super().__init__()
            self.row = nn.Parameter(torch.randn(1, 6))
            convs = {key: pyg.SAGEConv((6, 6), 3) for key in graph_keys}
            self.conv = pyg.HeteroConv(convs)

        def forward(self, x_dict, edge_index_dict):
            user = self.row.expand(x_dict["user"].size(0), -1)
            return self.conv({**x_dict, "user": user}, edge_index_dict)["item"]

    graph_keys = [("user", "buys", "item"), ("item", "by", "user")]
    with pytest.raises(NotSplittable, match=r"'user' has no features.*a feature column of ones"):
        package(Same(), tmp_path, graph, fanouts=[-1], target="item")


def test_numbers_of_relations_are_never_guessed_from_names(tmp_path):
    class Relational(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.FastRGCNConv(6, 3, 2)

        def forward(self, x, edge_index, edge_type):
            return self.conv(x, edge_index, edge_type)

    rng = np.random.default_rng(0)
    names = ("likes", "buys")
    graph = Graph.from_tables(
        {"node": NodeTable(rng.normal(size=(40, 6)).astype(np.float32))},
        {("node", name, "node"): EdgeTable(rng.integers(0, 40, (2, 90))) for name in names},
    )
    with pytest.raises(PackagingError, match=r"relations=\[\.\.\.\].*node__buys__node, node__likes__node"):
        package(Relational(), tmp_path, graph, fanouts=[-1])
    for version, order in enumerate((names, names[::-1]), 1):
        relations = [f"node__{name}__node" for name in order]
        report = package(
            Relational(), tmp_path, graph, fanouts=[-1], relations=relations, version=str(version)
        )
        assert report.spec.parity["max_abs_diff"] < 1e-4


def test_what_unusual_names_were_taken_for_is_noted(tmp_path):
    class Named(Two):
        def forward(self, feats, adj, edge_attr=None):
            return super().forward(feats, adj)

    report = package(Named(), tmp_path, homogeneous(attr_dim=2), arguments={"edge_attr": None})
    assert report.notes[0] == (
        "called as forward(feats=features[6], adj=edge_index, edge_attr=default), of which feats and adj "
        "are guesses: arguments={...} names what they receive"
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("num_nodes", [10, 60])
def test_cdist_is_refused_by_name_and_the_advice_is_served(num_nodes, tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((num_nodes, 6)).astype(np.float32)
    graph = Graph.from_edges(rng.integers(0, num_nodes, (2, 4 * num_nodes)), rows)
    others = torch.randn(8, 8)
    with pytest.raises(PackagingError, match=r"torch\.cdist has no form.*norm\(dim=-1\)"):
        package(Two(lambda h: torch.cdist(h, others)), tmp_path / "refused", graph)
    package(Two(lambda h: (h[:, None] - others).norm(dim=-1)), tmp_path / "kept", graph)


def test_a_gradient_in_forward_is_refused_by_name(tmp_path):
    cubes = torch.func.grad(lambda h: (h**3).sum())
    with pytest.raises(
        PackagingError, match=r"takes a gradient by .*torch\.func\.grad.*write the derivative"
    ):
        package(Two(cubes), tmp_path / "refused")
    assert package(Two(lambda h: 3 * h**2), tmp_path / "kept").path.is_dir()


def slope(h):
    h = h.detach().requires_grad_()
    return torch.autograd.grad(h.tanh().sum(), h)[0]


def slope_by_backward(h):
    with torch.enable_grad():
        h = h.detach().requires_grad_()
        h.tanh().sum().backward()
    return h.grad


def test_gradients_by_autograd_are_refused_by_name_and_the_advice_is_served(tmp_path):
    with pytest.raises(PackagingError, match=r"does not require grad.*no gradients: write the derivative"):
        package(Two(slope), tmp_path / "off")
    for middle in (torch.enable_grad()(slope), slope_by_backward):
        line = r"takes a gradient by torch\.autograd.* \(test_reasons\.py:\d+: .*(grad|backward)\("
        with pytest.raises(NotServable, match=rf"{line}.*write the derivative as an expression"):
            package(Two(middle), tmp_path / "on")
    package(Two(lambda h: 1 - h.tanh() ** 2), tmp_path / "kept")


VALUES = torch.linspace(-3, 3, 7)


@pytest.mark.release
def test_numbers_of_distinct_values_are_refused_by_name_and_the_advice_is_served(tmp_path):
    table = nn.Embedding(60, 8)
    rows = table.weight.detach()

    def numbered(h):
        return h + table(torch.unique(h[:, 0].round().clamp(-3, 3), return_inverse=True)[1])

    def counted(h):
        return h * torch.unique(h[:, 0].round()).numel() / 100

    def kept(h):
        at = (h[:, :1].round().clamp(-3, 3) > VALUES).sum(1)
        return h + rows[at]

    for middle in (numbered, counted):
        with pytest.raises(
            PackagingError, match=r"(?s)< x\[:, None\]\)\.sum\(1\): torch\.unique numbers the"
        ):
            package(Two(middle), tmp_path / "refused")
    assert package(Two(kept), tmp_path / "kept").spec.parity["max_abs_diff"] < 1e-4


def settled(h):
    before = torch.zeros_like(h)
    while not torch.allclose(before, h, atol=1e-5):
        before, h = h, (h / 3).sin()
    return h


@pytest.mark.release
def test_a_loop_until_values_settle_is_refused_by_name_and_the_advice_is_served(tmp_path):
    def steps(h):
        for _ in range(4):
            h = (h / 3).sin()
        return h

    for middle in (settled, until_small):
        with pytest.raises(PackagingError, match=r"(?s)a fixed number of steps.*loop until values settle"):
            package(Two(middle), tmp_path / "refused", task="regression")
    package(Two(steps), tmp_path / "kept", task="regression")


class TypedData(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.RGCNConv(6, 3, 3)

    def forward(self, data):
        return self.conv(data.x, data.edge_index, data.edge_type)


class Unpacked(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, edge_index, edge_type):
        return self.model(Data(x=x, edge_index=edge_index, edge_type=edge_type))


@pytest.mark.sample(1)
@pytest.mark.parametrize("graph", [homogeneous(), relational()], ids=["one type", "several"])
def test_the_edge_type_of_a_data_is_refused_by_name_and_the_advice_is_served(graph, tmp_path):
    with pytest.raises(
        PackagingError, match=r"numbers are an argument: package a module whose forward\(x, "
    ):
        package(TypedData(), tmp_path / "refused", graph, fanouts=[-1])
    package(Unpacked(TypedData()), tmp_path / "kept", relational(), fanouts=[-1])


class Hgt(nn.Module):
    def __init__(self, graph):
        super().__init__()
        keys = [tuple(key.split("__")) for key in graph.edges]
        widths = {name: nodes.features.shape[1] for name, nodes in graph.nodes.items()}
        self.conv, self.last = pyg.HGTConv(widths, 8, (list(widths), keys), 2), nn.Linear(8, 3)

    def forward(self, x_dict, edge_index_dict):
        return self.last(self.conv(x_dict, edge_index_dict)["paper"])


@pytest.mark.release
def test_hgt_whose_forward_is_its_own_is_refused_and_another_one_is_split(tmp_path):
    graph, model = hetero(), Hgt(hetero())
    package(model, tmp_path / "split", graph, target="paper", fanouts=[-1])
    model.conv.forward = model.conv.forward
    with pytest.raises(PackagingError, match="changes a part of a tensor in place"):
        package(model, tmp_path / "refused", graph, target="paper", fanouts=[-1])


class Graphs(nn.Module):
    """One row for a graph."""

    def __init__(self, pool):
        super().__init__()
        self.conv, self.last, self.pool = pyg.SAGEConv(6, 8), nn.Linear(8, 3), pool

    def forward(self, x, edge_index, batch):
        return self.last(self.pool(self.conv(x, edge_index).relu(), batch))


@pytest.mark.parametrize("batch", [True, False])
def test_one_row_for_a_graph_is_refused_with_advice(batch, tmp_path):
    model = Graphs(lambda h, of: pyg.global_mean_pool(h, of if batch else None))
    with pytest.raises(NotServable, match=r"one row for a graph.*Graph\.from_pyg\(\[data, …\]\).*--graph"):
        package(model, tmp_path, molecules(), fanouts=[-1])


class Numbered(nn.Module):
    def __init__(self, num_nodes):
        super().__init__()
        self.all = pyg.LightGCN(num_nodes, 8, 2)

    def forward(self, x, edge_index):
        return self.all.get_embedding(edge_index)


@pytest.mark.parametrize("num_nodes", [300, 900, 2000])
def test_an_embedding_of_each_row_is_refused_on_graphs_of_every_size(num_nodes, tmp_path):
    edges = np.random.default_rng(0).integers(0, num_nodes, (2, 8000))
    graph = Graph.from_edges(edges, np.arange(num_nodes).reshape(-1, 1))
    with pytest.raises(
        NotServable, match=r"It identifies nodes by their row: .*embeddings=\{'emb': node type\}"
    ):
        package(Numbered(num_nodes), tmp_path, graph, fanouts=[-1] * 3, task="embedding")


def test_a_table_with_a_row_for_each_node_is_looked_up_by_a_number_column(tmp_path):
    class Numbered(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.conv = nn.Parameter(torch.randn(40, 6)), pyg.SAGEConv(6, 3)

        def forward(self, x, edge_index):
            return self.conv(self.table.relu()[x[:, 0].long()], edge_index)

    edges = np.random.default_rng(0).integers(0, 40, (2, 160))
    graph = Graph.from_edges(edges, np.arange(40, dtype=np.float32)[:, None])
    report = package(Numbered(), tmp_path, graph, fanouts=[-1])
    assert report.spec.parity["max_abs_diff"] < 1e-4


def dense(x, edge_index):
    near = torch.zeros(x.size(0), x.size(0)).index_put(
        (edge_index[1], edge_index[0]), torch.ones(edge_index.size(1))
    )
    return near @ x


def squared(x, edge_index):
    near = torch.zeros(x.size(0), x.size(0)).index_put(
        (edge_index[1], edge_index[0]), torch.ones(edge_index.size(1))
    )
    return ((near @ near) > 0).float() @ x


class Dense(nn.Module):
    def __init__(self, spread):
        super().__init__()
        self.lin, self.spread = nn.Linear(6, 3), spread

    def forward(self, x, edge_index):
        return self.lin(self.spread(x, edge_index))


@pytest.mark.parametrize("spread", [dense, squared])
def test_a_dense_matrix_of_all_nodes_is_refused_by_its_line_before_it_takes_much_memory(
    spread, tmp_path, monkeypatch
):
    largest = []
    zeros = torch.zeros

    def recorded(*sizes, **options):
        largest.append(np.prod(sizes, initial=1))
        return zeros(*sizes, **options)

    monkeypatch.setattr(torch, "zeros", recorded)
    with pytest.raises(NotServable, match=r"grows with the square of .* \(test_reasons\.py:\d+: "):
        package(Dense(spread), tmp_path)
    assert 4 * max(largest) < 64 << 20


class ByType(nn.Module):
    """Answers otherwise in float64: a branch, and no rounding."""

    def __init__(self):
        super().__init__()
        self.conv = pyg.SAGEConv(6, 3)

    def forward(self, x, edge_index):
        return self.conv(x if x.dtype == torch.float32 else 2 * x, edge_index)


def test_another_branch_for_float64_is_not_taken_for_rounding(tmp_path):
    report = package(ByType(), tmp_path, fanouts=[-1])
    assert not any("float64" in note for note in report.notes)


class Mixed(nn.Module):
    """One layer in float64."""

    def __init__(self, doubled):
        super().__init__()
        self.conv, self.lin = pyg.SAGEConv(6, 4), nn.Linear(4, 3)
        getattr(self, doubled).double()

    def forward(self, x, edge_index):
        return self.lin(self.conv(x, edge_index))


@pytest.mark.parametrize("doubled", ["conv", "lin"])
def test_weights_of_several_dtypes_are_named(doubled, tmp_path):
    with pytest.raises(
        PackagingError, match=r"several dtypes, conv\S+ is .* and lin\S+ is .*model\.float\(\)"
    ):
        package(Mixed(doubled), tmp_path, fanouts=[-1])


class Codes(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind, self.conv = nn.Embedding(12, 4), pyg.SAGEConv(4, 3)

    def forward(self, x, edge_index):
        return self.conv(self.kind(x[:, 0].long()), edge_index)


def test_a_code_without_an_entry_is_named_with_its_table(tmp_path):
    graph = Graph.from_edges(np.array([[0, 1], [1, 2]]), np.array([[3], [15], [0]], np.float32))
    named = "kind has entries for 0 to 11, and got codes 0 to 15 of column 0 of the features of node"
    with pytest.raises(PackagingError, match=named):
        package(Codes(), tmp_path, graph, fanouts=[-1])
