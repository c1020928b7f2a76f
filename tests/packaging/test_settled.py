"""Operators of ONNX files: NaN as in torch, and rows that do not depend on their place."""

import functools

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

from hopline import package
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import NotServable
from hopline.graph import Graph
from hopline.packaging.export import export
from hopline.types import ScoreRequest

NUM_NODES = 40


class Rowwise(nn.Module):
    def __init__(self, code):
        super().__init__()
        self.code = code

    def forward(self, x):
        return self.code(x)


def exported(code, width, folder):
    path = folder / "h.onnx"
    module = Rowwise(code).eval()
    export(module, [torch.randn(5, width)], [{0: torch.export.Dim("n", min=1)}], ["x"], "h", path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


OPERATORS = {
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(1, keepdim=True),
    "max": lambda x: x.max(1).values * 2,
    "min": lambda x: x.min(1).values,
    "stacked": lambda x: torch.stack([x, 2 * x, -x], -1).max(-1).values,
    "of a half": lambda x: x[:, :2].amax(1) + x[:, 2:].amin(1),
    "argmax": lambda x: x.argmax(1).float(),
    "argmin": lambda x: x.argmin(1, keepdim=True).float(),
    "topk": lambda x: x.topk(2, 1).values,
    "smallest": lambda x: x.topk(2, 1, largest=False).values,
    "sort": lambda x: x.sort(1).values,
    "maximum": lambda x: torch.maximum(x, x.flip(1)),
    "relu": torch.relu,
    "clamp": lambda x: x.clamp(-1, 1),
    "softmax": lambda x: x.softmax(1),
    "norm": lambda x: x.norm(dim=1),
}


@pytest.mark.sample(16)
@pytest.mark.parametrize("width", [3, 8, 17])
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_treats_nan_as_torch_does(name, width, tmp_path):
    torch.manual_seed(0)
    rows = torch.randn(2 * width, width)
    for place in range(width):
        rows[place, place] = torch.nan
    session = exported(OPERATORS[name], width, tmp_path)
    (found,) = session.run(None, {"x": rows.numpy()})
    np.testing.assert_allclose(found, OPERATORS[name](rows), rtol=1e-5, atol=1e-6)


ROW_SUMS = {
    "sum": lambda x: x.sum(1),
    "kept": lambda x: x.sum(-1, keepdim=True) + x,
    "mean": lambda x: x.mean(1),
    "var": lambda x: x.var(1),
    "std": lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True),
    "norm": lambda x: x.norm(dim=1),
    "p1": lambda x: torch.nn.functional.normalize(x, p=1, dim=1),
    "softmax": lambda x: x.softmax(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[1:]),
}


@pytest.mark.sample(10)
@pytest.mark.parametrize("width", [5, 7, 8, 37, 50])
@pytest.mark.parametrize("name", ROW_SUMS)
def test_a_row_has_the_same_bits_at_every_place(name, width, tmp_path):
    session = exported(ROW_SUMS[name], width, tmp_path)
    rows = np.random.default_rng(0).normal(size=(64, width)).astype(np.float32)
    (whole,) = session.run(None, {"x": rows})
    np.testing.assert_allclose(whole, ROW_SUMS[name](torch.from_numpy(rows)), rtol=1e-4, atol=1e-5)
    for first in range(8):
        for count in (4, 8, 32):
            (part,) = session.run(None, {"x": rows[first : first + count].copy()})
            assert (part == whole[first : first + count]).all()


def test_logsigmoid_of_small_values_is_that_of_torch(tmp_path):
    session = exported(torch.nn.functional.logsigmoid, 4, tmp_path)
    rows = torch.tensor([[-1e10, -200.0, -50.0, -1.0], [0.0, 1.0, 50.0, 1e10]])
    (found,) = session.run(None, {"x": rows.numpy()})
    np.testing.assert_allclose(found, torch.nn.functional.logsigmoid(rows), rtol=1e-5, atol=1e-6)


class OfLogarithms(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv, self.linear = conv, nn.Linear(6, 3)

    def forward(self, x, edge_index):
        return self.linear(self.conv(torch.log(x), edge_index))


CONVS = {
    "max": lambda: pyg.SAGEConv(6, 6, aggr="max"),
    "projected max": lambda: pyg.SAGEConv(6, 6, aggr="max", project=True),
    "gin": lambda: pyg.GINConv(nn.Linear(6, 6), aggr="max"),
    "min": lambda: pyg.SAGEConv(6, 6, aggr="min"),
    "several": lambda: pyg.SAGEConv(6, 6, aggr=["mean", "max", "min", "std"]),
    "softmax": lambda: pyg.SAGEConv(6, 6, aggr="softmax"),
    "mean": lambda: pyg.SAGEConv(6, 6),
    "attention": lambda: pyg.GATConv(6, 3, heads=2),
    "transformer": lambda: pyg.TransformerConv(6, 6),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CONVS)
def test_a_nan_in_a_later_graph_reaches_every_answer_that_the_module_gives_it_to(name, tmp_path):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    module = OfLogarithms(CONVS[name]()).eval()
    edges = np.unique(rng.integers(0, NUM_NODES, (2, 160)), axis=1)
    features = rng.uniform(0.1, 2.0, (NUM_NODES, 6)).astype(np.float32)
    report = package(
        module, Graph.from_edges(edges, features), tmp_path, name="m", fanouts=[-1], task="embedding",
    )  # fmt: skip
    later = features.copy()
    later[::9, 2] = -1.0
    graph = Graph.from_edges(edges, later)
    answerer = Answerer(load_model(report.path, report.spec, graph), ("embedding",), 0)
    (served,) = answerer.answer([ScoreRequest("m", nodes=list(range(NUM_NODES)))])
    with torch.no_grad():
        expected = module(torch.from_numpy(later), torch.from_numpy(edges)).numpy()
    assert 0 < np.isnan(expected).any(axis=1).sum() < NUM_NODES
    np.testing.assert_allclose(served.outputs["embedding"], expected, rtol=1e-4, atol=1e-4)


TABLE, UNIT, BAG = nn.Embedding(10, 4), torch.eye(10), nn.EmbeddingBag(10, 4, mode="mean")
CODES = {
    "embedding": lambda x: TABLE(x[:, 0].long()),
    "embedding of int32": lambda x: TABLE(x[:, 0].int()),
    "index": lambda x: TABLE.weight[x[:, 0].long()],
    "index of int32": lambda x: TABLE.weight[x[:, 0].int()],
    "index_select": lambda x: TABLE.weight.index_select(0, x[:, 0].long()),
    "gather": lambda x: UNIT[0].expand(len(x), -1).gather(1, x[:, :1].long()),
    "take_along_dim": lambda x: torch.take_along_dim(UNIT[1].expand(len(x), -1), x[:, :1].long() % 10, 1),
    "one_hot": lambda x: torch.nn.functional.one_hot(x[:, 0].long(), 10).float(),
    "embedding_bag": lambda x: BAG(x[:, :2].long()),
    "scatter": lambda x: torch.zeros(len(x), 10).scatter(1, x[:, :1].long(), 1.0),
}


@pytest.fixture(scope="module")
def sessions(tmp_path_factory):
    """The name of a code -> its file, loaded: one for all values."""
    return functools.cache(lambda name: exported(CODES[name], 3, tmp_path_factory.mktemp("codes")))


@pytest.mark.sample(20)
@pytest.mark.parametrize("code", [-11, -3, -1, 0, 9, 10, 40, 3e30, float("nan")])
@pytest.mark.parametrize("name", CODES)
def test_a_code_is_refused_where_torch_refuses_it(name, code, sessions):
    session = sessions(name)
    x = torch.ones(5, 3)
    x[2, 0] = code
    try:
        with torch.no_grad():
            expected = CODES[name](x)
    except (IndexError, RuntimeError):
        with pytest.raises(Exception, match=r"ind(ex|ices)"):
            session.run(None, {"x": x.numpy()})
    else:
        np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], expected, atol=1e-6)


#: Functions of integers that people make buckets of ids with; `i` is some integers, beyond 2^53 among them.
OF_INTEGERS = {
    "remainder": lambda i: i % 1000,
    "of a negative divisor": lambda i: i % -7,
    "floor": lambda i: i // 4097,
    "toward zero": lambda i: torch.div(i, 4097, rounding_mode="trunc"),
    "fmod": lambda i: torch.fmod(i, 1000),
    "divmod": lambda i: (i // 3) * 5 + i % 3,
    "power": lambda i: i**3 % 1009,
    "by a column": lambda i: i % (i[:, :1].abs() + 1),
    "bits": lambda i: ((i >> 5) ^ i) & 1023,
    "sum": lambda i: i.sum(1) % 1000,
    "kept": lambda i: i.sum(-1, keepdim=True) + i,
    "of two axes": lambda i: torch.stack([i, i // 3], 2).sum((1, 2)),
    "cumsum": lambda i: i.cumsum(1) % 1000,
}


@pytest.mark.parametrize("name", OF_INTEGERS)
def test_functions_of_large_integers_are_exact(name, tmp_path):
    code = lambda x: OF_INTEGERS[name](x.long() * 2654435761)  # noqa: E731
    session = exported(lambda x: code(x).remainder(2**20).float(), 3, tmp_path)
    rows = torch.randint(-(2**24), 2**24, (200, 3), generator=torch.Generator().manual_seed(0)).float()
    (found,) = session.run(None, {"x": rows.numpy()})
    np.testing.assert_array_equal(found, code(rows).remainder(2**20).float())


@pytest.mark.parametrize(
    "code", [lambda x: (x > 0).prod(1).float(), lambda x: (x > 0).long().prod(1, keepdim=True).float()]
)
def test_a_product_of_truth_values_is_served(code, tmp_path):
    session, rows = exported(code, 2, tmp_path), torch.tensor([[1.0, 1], [1, -1], [-1, 1], [0, 0]])
    (found,) = session.run(None, {"x": rows.numpy()})
    np.testing.assert_array_equal(found, code(rows))


def test_a_product_of_large_integers_is_refused(tmp_path):
    with pytest.raises(NotServable, match="multiplies columns of int64"):
        exported(lambda x: x.long().prod(1).float(), 3, tmp_path)


@pytest.mark.parametrize("small", [1e-8, 1e-12, 1e-30, np.float32(1e-45)])
def test_a_small_number_that_is_added_is_kept(small, tmp_path):
    number = float(small)
    for code in (lambda x: x + number, lambda x: x - number, lambda x: number + x, lambda x: number - x):
        session = exported(code, 2, tmp_path)
        rows = torch.zeros(3, 2)
        (found,) = session.run(None, {"x": rows.numpy()})
        assert (found == code(rows).numpy()).all()
        assert (found != 0).all()


@pytest.mark.parametrize("factor", [1.000009, 1.0000002, 0.999995])
def test_a_factor_near_one_is_kept(factor, tmp_path):
    for code in (lambda x: x * factor, lambda x: factor * x, lambda x: x / factor):
        session = exported(code, 2, tmp_path)
        (found,) = session.run(None, {"x": np.ones((3, 2), np.float32)})
        assert (found == code(torch.ones(3, 2)).numpy()).all()
        assert (found != 1).all()
