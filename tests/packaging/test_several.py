"""Models with several outputs: the oracle is the user's own module on the full graph in PyG."""

import dataclasses
import itertools
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data

import hopline
from hopline.artifact import OUTPUTS_FORMAT, read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import StateCachePlan, load_model
from hopline.engine.tasks import default_outputs, outputs_of
from hopline.errors import ArtifactError, PackagingError
from hopline.graph import Graph
from hopline.memory.arena import Arena
from hopline.types import ScoreRequest
from tests.packaging.graphs import hetero, homogeneous
from tests.packaging.test_package import tensors

TASKS = {"fraud": "binary", "amount": "regression", "kind": "multiclass", "tags": "multilabel"}
WIDTHS = {"fraud": 1, "amount": 2, "kind": 3, "tags": 4}
#: Of every size: an error of a small output must not pass beside a large one.
SCALES = {"fraud": 1.0, "amount": 1e4, "kind": 0.1, "tags": 1.0}


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = pyg.SAGEConv(6, 16), pyg.SAGEConv(16, 8)

    def forward(self, x, edge_index):
        return self.b(self.a(x, edge_index).relu(), edge_index).relu()


class Tasks(Encoder):
    """Two layers, and a head for each task; the first head has one column without a dimension."""

    def __init__(self, names=tuple(TASKS)):
        super().__init__()
        self.heads = nn.ModuleDict({f"to_{name}": nn.Linear(8, WIDTHS[name]) for name in names})

    def forward(self, x, edge_index):
        h = super().forward(x, edge_index)
        found = {name[3:]: head(h) * SCALES[name[3:]] for name, head in self.heads.items()}
        return found | ({"fraud": found["fraud"].squeeze(-1)} if "fraud" in found else {})


@dataclasses.dataclass
class Answers:
    fraud: Tensor
    amount: Tensor
    kind: Tensor
    tags: Tensor


class Named(NamedTuple):
    fraud: Tensor
    amount: Tensor
    kind: Tensor
    tags: Tensor


class AsDataclass(Tasks):
    def forward(self, x, edge_index):
        return Answers(**super().forward(x, edge_index))


class AsNamedTuple(Tasks):
    def forward(self, x, edge_index):
        return Named(**super().forward(x, edge_index))


class AsTuple(Tasks):
    def forward(self, x, edge_index):
        return tuple(super().forward(x, edge_index).values())


class Decoder(nn.Module):
    """A part without convolutions that answers a dictionary."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 8)
        self.heads = nn.ModuleList(nn.Linear(8, width) for width in WIDTHS.values())

    def forward(self, h):
        h = self.hidden(h).relu()
        return {name: head(h) for name, head in zip(WIDTHS, self.heads, strict=True)}


class ByDecoder(Encoder):
    def __init__(self):
        super().__init__()
        self.decoder = Decoder()

    def forward(self, x, edge_index):
        return self.decoder(super().forward(x, edge_index))


class ByLevel(Encoder):
    """An output of each layer, and one that is an activation."""

    def __init__(self):
        super().__init__()
        self.near, self.far = nn.Linear(16, 1), nn.Linear(8, 3)

    def forward(self, x, edge_index):
        first = self.a(x, edge_index).relu()
        second = self.b(first, edge_index).relu()
        return {"fraud": torch.sigmoid(self.near(first)), "kind": self.far(second).softmax(-1)}


def package(module, graph, repository, **options):
    options = {"name": "m", "fanouts": [4, 4], "task": TASKS, **options}
    return hopline.package(module.eval(), graph, repository, **options)


def truth(module, graph, target="node", names=tuple(TASKS)):
    """Output name -> float64 rows by the module on the whole graph."""
    features, edges = tensors(graph)
    with torch.no_grad():
        (edge_index,) = edges.values()
        out = module.eval()(features[target], edge_index)
    if dataclasses.is_dataclass(out):
        out = vars(out)
    elif isinstance(out, tuple):
        out = dict(zip(names, out, strict=True))
    return {name: rows.reshape(len(rows), -1).double() for name, rows in out.items()}


def full(report):
    spec = read_spec(report.path)
    return msgspec.structs.replace(
        spec, fanouts=dict.fromkeys(spec.fanouts, (-1,) * len(next(iter(spec.fanouts.values()))))
    )


def served(report, graph, *, caches=False, outputs=(), nodes=None, spec=None):
    spec = spec or full(report)
    kept = None
    if caches:
        plan = StateCachePlan(spec, graph, 1 << 26)
        kept = plan.build(Arena(plan.num_bytes))
    model = load_model(report.path, spec, graph, kept)
    answerer = Answerer(model, default_outputs(spec), 1000)
    count = graph.nodes[spec.head.node_type].num_nodes
    nodes = list(range(count)) if nodes is None else nodes
    found = []
    for _ in range(2 if caches else 1):
        (result,) = answerer.answer([ScoreRequest("m", nodes=nodes, outputs=outputs)])
        if isinstance(result, Exception):
            raise result
        found.append(result.outputs)
    return found[-1]


def assert_as_the_module(found, rows, tasks=TASKS, probabilities=()):
    """Each output by the definition of its task."""
    for name, task in tasks.items():
        logits, is_probability = rows[name], name in probabilities
        if task == "regression":
            np.testing.assert_allclose(found[f"{name}_logits"], logits, rtol=1e-4, atol=1e-4)
            continue
        chances = logits
        if not is_probability:
            chances = logits.softmax(1) if task == "multiclass" else logits.sigmoid()
        given = found[f"{name}_probabilities"]
        assert given.shape == ((len(logits),) if task == "binary" else tuple(logits.shape))
        np.testing.assert_allclose(given.reshape(len(logits), -1), chances, atol=1e-4)
        label = found[f"{name}_label"]
        clear = (chances - 0.5).abs() > 1e-3
        if task == "multiclass":
            best = chances.topk(2, dim=1).values
            clear = (best[:, 0] - best[:, 1]) > 1e-3
            assert (label == chances.argmax(1).numpy())[clear.numpy()].all()
        else:
            right = label.reshape(len(logits), -1) == (chances >= 0.5).numpy()
            assert right[clear.numpy()].all()
        assert label.dtype == np.int64


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", [Tasks, AsDataclass, AsNamedTuple, AsTuple, ByDecoder])
def test_each_output_is_the_module_s_on_the_full_graph(tmp_path, kind):
    module, graph = kind(), homogeneous()
    report = package(module, graph, tmp_path)
    for caches in (False, True):
        assert_as_the_module(served(report, graph, caches=caches), truth(module, graph))


@pytest.mark.release
def test_one_artifact_computes_shared_levels_once(tmp_path):
    """Stages, state and rows are those of the encoder; only the head's columns are all outputs'."""
    module, graph = Tasks(), homogeneous()
    report = package(module, graph, tmp_path / "several")
    alone = hopline.package(
        Encoder().eval(), graph, tmp_path / "alone", name="m", fanouts=[4, 4], task="multiclass",
        head=nn.Linear(8, 3).eval(),
    )  # fmt: skip
    assert report.spec.levels == alone.spec.levels
    assert report.spec.head.output_dim == sum(WIDTHS.values())
    found = served(report, graph, outputs=("embedding", "logits"))
    with torch.no_grad():
        h = Encoder.forward(module, *one_type(graph))
    np.testing.assert_allclose(found["embedding"], h, atol=1e-4, rtol=1e-4)
    rows = torch.cat(list(truth(module, graph).values()), 1)
    np.testing.assert_allclose(found["logits"], rows, rtol=1e-4, atol=1e-4)


def one_type(graph):
    features, edges = tensors(graph)
    return (*features.values(), *edges.values())


@pytest.mark.sample(1)
@pytest.mark.parametrize("as_dict", [True, False])
def test_heads_for_several_tasks_over_one_encoder(tmp_path, as_dict):
    module, graph = Encoder(), homogeneous()
    heads = {"fraud": nn.Linear(8, 1), "kind": nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))}
    tasks = {name: TASKS[name] for name in heads}
    report = package(
        module, graph, tmp_path, task=tasks, head=heads if as_dict else nn.ModuleDict(heads).eval(),
    )  # fmt: skip
    with torch.no_grad():
        h = module(*one_type(graph))
        rows = {name: head(h).double() for name, head in heads.items()}
    found = served(report, graph)
    assert list(found) == ["fraud_probabilities", "fraud_label", "kind_probabilities", "kind_label"]
    assert_as_the_module(found, rows, tasks)


@pytest.mark.release
def test_outputs_of_two_layers_that_are_probabilities(tmp_path):
    module, graph = ByLevel(), homogeneous()
    tasks = {"fraud": "binary", "kind": "multiclass"}
    report = package(module, graph, tmp_path, task=tasks)
    found = served(report, graph)
    assert_as_the_module(found, truth(module, graph), tasks, probabilities=tasks)


class Pooled(Encoder):
    def __init__(self):
        super().__init__()
        self.toxic, self.weight = nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x, edge_index, batch):
        h = pyg.global_mean_pool(super().forward(x, edge_index), batch)
        return self.toxic(h), self.weight(h)


@pytest.mark.release
def test_a_model_of_graphs_answers_several_outputs(tmp_path):
    module = Pooled().eval()
    edges = [torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])[:, : 2 * (size - 1)] for size in (1, 2, 3) * 8]
    data = [Data(x=torch.randn(each.shape[1] // 2 + 1, 6), edge_index=each) for each in edges]
    graph = Graph.from_pyg(data)
    tasks = {"toxic": "binary", "weight": "regression"}
    report = package(module, graph, tmp_path, task=tasks)
    found = served(report, graph, nodes=list(range(len(data))), spec=report.spec)
    batch = Batch.from_data_list(data)
    with torch.no_grad():
        toxic, weight = module(batch.x, batch.edge_index, batch.batch)
    np.testing.assert_allclose(found["toxic_probabilities"], toxic.sigmoid().flatten(), atol=1e-4)
    np.testing.assert_allclose(found["weight_logits"], weight, atol=1e-4)


class Typed(nn.Module):
    """Answers for each node type, in one of two orders."""

    def __init__(self, outside):
        super().__init__()
        self.outside = outside
        self.conv = pyg.HeteroConv(
            {
                ("paper", "cites", "paper"): pyg.SAGEConv(6, 8),
                ("author", "writes", "paper"): pyg.SAGEConv((5, 6), 8),
                ("paper", "by", "author"): pyg.SAGEConv((6, 5), 8),
            }
        )
        self.field, self.cited = nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x_dict, edge_index_dict):
        h = {name: rows.relu() for name, rows in self.conv(x_dict, edge_index_dict).items()}
        if self.outside:
            return {
                name: {"field": self.field(each), "cited": self.cited(each)} for name, each in h.items()
            }
        return {
            "field": {name: self.field(each) for name, each in h.items()},
            "cited": {name: self.cited(each) for name, each in h.items()},
        }


@pytest.mark.sample(1)
@pytest.mark.parametrize("outside", [True, False])
def test_one_of_several_node_types(tmp_path, outside):
    module, graph = Typed(outside).eval(), hetero()
    tasks = {"field": "multiclass", "cited": "regression"}
    report = package(module, graph, tmp_path, task=tasks, target="author", fanouts=[4])
    features, edges = tensors(graph)
    with torch.no_grad():
        out = module(features, {tuple(key.split("__")): each for key, each in edges.items()})
    rows = out["author"] if outside else {name: each["author"] for name, each in out.items()}
    assert_as_the_module(served(report, graph), {k: v.double() for k, v in rows.items()}, tasks)


def test_outputs_that_task_does_not_name_are_noted(tmp_path):
    module, graph = Tasks(), homogeneous()
    report = package(module, graph, tmp_path, task={"kind": "multiclass"})
    assert any("fraud, amount, tags" in note for note in report.notes)
    assert_as_the_module(served(report, graph), truth(module, graph), {"kind": "multiclass"})


@pytest.mark.release
def test_some_values_of_a_tuple_by_their_numbers(tmp_path):
    module, graph = AsTuple(), homogeneous()
    report = package(module, graph, tmp_path, task={"output_2": "multiclass", "output_0": "binary"})
    rows = truth(module, graph)
    found = served(report, graph)
    assert_as_the_module(
        found,
        {"output_2": rows["kind"], "output_0": rows["fraud"]},
        {"output_2": "multiclass", "output_0": "binary"},
    )


@pytest.mark.release
def test_every_combination_of_outputs_can_be_requested(tmp_path):
    module, graph = Tasks(), homogeneous()
    report = package(module, graph, tmp_path)
    names = tuple(outputs_of(report.spec))
    everything = served(report, graph, outputs=names)
    for pair in itertools.combinations(names, 2):
        found = served(report, graph, outputs=pair, nodes=[3, 0, 3])
        for name in pair:
            np.testing.assert_array_equal(found[name], everything[name][[3, 0, 3]])


@pytest.mark.release
def test_classes_of_each_output(tmp_path):
    report = package(Tasks(), homogeneous(), tmp_path, classes={"kind": ["a", "b", "c"]})
    (kind,) = [each for each in report.spec.head.outputs if each.name == "kind"]
    assert kind.classes == ("a", "b", "c")
    assert report.spec.format == OUTPUTS_FORMAT


class Broken(Tasks):
    """A small output is wrong by more than the tolerance in stages only: it reads other rows."""

    def forward(self, x, edge_index):
        found = super().forward(x, edge_index)
        found["kind"] = found["kind"] + 0.05 * x.mean(0).sum()
        return found


def test_a_small_output_that_mixes_rows_is_found_beside_a_large_one(tmp_path):
    with pytest.raises(PackagingError, match=r"node by node|mixes rows|depend"):
        package(Broken(), homogeneous(), tmp_path)


class One(Encoder):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 3)

    def forward(self, x, edge_index):
        return self.out(super().forward(x, edge_index))


class ThreeDimensions(Tasks):
    def forward(self, x, edge_index):
        return {
            **super().forward(x, edge_index),
            "kind": super().forward(x, edge_index)["kind"].unsqueeze(1),
        }


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (Tasks, {"task": "binary"}, "task={'amount': 'binary'}"),
        (AsTuple, {"task": "binary"}, "4 values.*output_0"),
        (One, {}, "returned is Tensor.*head="),
        (Tasks, {"task": {"fraud": "binary", "fruad": "binary"}}, "fruad, and returned is fraud, amount"),
        (AsNamedTuple, {"task": {f"x{n}": "regression" for n in range(4)}}, "x3, and returned is fraud"),
        (Tasks, {"task": {"a b": "binary"}}, "'a b'.*letters"),
        (Tasks, {"task": {}}, "is not one of multiclass"),
        (Tasks, {"task": {"kind": "binary"}}, "output 'kind': task 'binary' needs 1 output column"),
        (Tasks, {"classes": {"kind": ["a"]}}, "output 'kind': 1 class names for 3"),
        (Tasks, {"classes": ["a", "b", "c"]}, "output 'fraud': 3 class names for 1"),
        (Tasks, {"classes": {"knid": ["a", "b", "c"]}}, "'knid'"),
        (Tasks, {"output": {"kind": "probabilities"}}, "output 'kind': output='probabilities'"),
        (Encoder, {"head": "dot"}, "once for each of its tasks"),
        (Encoder, {"head": {"fraud": nn.Linear(8, 1)}, "task": "binary"}, "gives each its task"),
        (ThreeDimensions, {}, r"output 'kind' is \[.*, 1, 3\]"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_with_the_way_out(tmp_path, module, options, message):
    with pytest.raises(PackagingError, match=message):
        package(module(), homogeneous(), tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_an_artifact_whose_outputs_do_not_cover_its_columns_is_refused(tmp_path):
    graph = homogeneous()
    report = package(Tasks(), graph, tmp_path)
    head = report.spec.head
    for outputs in (head.outputs[:-1], head.outputs[::-1], ()):
        spec = msgspec.structs.replace(report.spec, head=msgspec.structs.replace(head, outputs=outputs))
        with pytest.raises(ArtifactError, match="contradicts itself"):
            load_model(report.path, spec, graph)


def test_a_single_output_is_written_as_before(tmp_path):
    report = package(One(), homogeneous(), tmp_path, task="multiclass")
    assert report.spec.format == 1
    assert b"outputs" not in (report.path / "model.json").read_bytes()
