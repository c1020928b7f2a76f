"""One encoder with heads for several node types: the oracle is the user's own module on the full graph."""

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from hopline.artifact import HEADS_FORMAT, read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import StateCachePlan, load_model
from hopline.engine.tasks import default_outputs, outputs_of
from hopline.errors import ArtifactError, PackagingError
from hopline.memory.arena import Arena
from hopline.types import InlineNode, ScoreRequest
from tests import packaged
from tests.engine import zoo
from tests.packaging.live_graph import live_view

TASKS = {"user": "binary", "item": "multiclass"}
SIZES = {"user": 80, "item": 60}


class Encoder(zoo.Hetero):
    def forward(self, x_dict, edge_index_dict):
        h = {name: x.relu() for name, x in self.a(x_dict, edge_index_dict).items()}
        return {name: x.relu() for name, x in self.b(h, edge_index_dict).items()}


class Shop(Encoder):
    """A head for each type; that of users has one column without a dimension."""

    def __init__(self):
        super().__init__()
        self.users = nn.Linear(4, 1)
        self.items = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x_dict, edge_index_dict):
        h = super().forward(x_dict, edge_index_dict)
        return {"user": self.users(h["user"]).squeeze(-1), "item": self.items(h["item"])}


class OfTwoDepths(Shop):
    """Users are answered after two layers, items after one, in probabilities."""

    def __init__(self):
        super().__init__()
        self.near = nn.Linear(12, 3)

    def forward(self, x_dict, edge_index_dict):
        first = {name: x.relu() for name, x in self.a(x_dict, edge_index_dict).items()}
        second = self.b(first, edge_index_dict)["user"].relu()
        return {"user": self.users(second), "item": self.near(first["item"]).softmax(-1)}


def package(module, graph, repository, **options):
    options = {"name": "shop", "fanouts": [-1, -1], "task": TASKS, "check_nodes": 40, **options}
    return packaged.package(module.eval(), graph, repository, **options)


def truth(module, graph):
    with torch.no_grad():
        return {name: rows.numpy() for name, rows in module.eval()(*zoo.tensors(graph, "hetero")).items()}


def answerer_of(report, graph, *, caches=False, spec=None):
    spec = spec or read_spec(report.path)
    kept = None
    if caches:
        plan = StateCachePlan(spec, graph, 1 << 26)
        kept = plan.build(Arena(plan.num_bytes))
    return Answerer(load_model(report.path, spec, graph, kept), default_outputs(spec), 1000)


def ask(node_type, nodes=None, **options):
    nodes = list(range(SIZES[node_type])) if nodes is None else nodes
    return ScoreRequest("shop", nodes=nodes, node_type=node_type, **options)


def answers(answerer, *requests):
    found = answerer.answer(requests)
    for each in found:
        if isinstance(each, Exception):
            raise each
    return [each.outputs for each in found]


def assert_right(found, rows, node_type, *, is_probability=False):
    rows = torch.from_numpy(rows).double()
    if node_type == "user":
        np.testing.assert_allclose(found["user_probabilities"], rows.flatten().sigmoid(), atol=1e-4)
        assert list(found) == ["user_probabilities", "user_label"]
        return
    chances = rows if is_probability else rows.softmax(1)
    np.testing.assert_allclose(found["item_probabilities"], chances, atol=1e-4)
    assert list(found) == ["item_probabilities", "item_label"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("kind", [Shop, OfTwoDepths])
def test_each_type_s_answers_are_the_module_s_on_the_full_graph(tmp_path, kind, caches):
    torch.manual_seed(1)
    module, graph = kind(), zoo.heterogeneous()
    answerer = answerer_of(package(module, graph, tmp_path), graph, caches=caches)
    wanted = truth(module, graph)
    for _ in range(2):
        users, items, some = answers(answerer, ask("user"), ask("item"), ask("user", [7, 3, 7]))
        assert_right(users, wanted["user"], "user")
        assert_right(items, wanted["item"], "item", is_probability=kind is OfTwoDepths)
        assert_right(some, wanted["user"][[7, 3, 7]], "user")


@pytest.mark.release
def test_heads_that_are_given_by_node_type(tmp_path):
    module, graph = Encoder(), zoo.heterogeneous()
    heads = {"user": nn.Linear(4, 1), "item": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))}
    report = package(module, graph, tmp_path, head=heads, classes={"item": ["a", "b", "c"]})
    users, items = answers(answerer_of(report, graph), ask("user"), ask("item"))
    with torch.no_grad():
        wanted = {
            name: heads[name](torch.from_numpy(h)).numpy() for name, h in truth(module, graph).items()
        }
    assert_right(users, wanted["user"], "user")
    assert_right(items, wanted["item"], "item")
    assert report.spec.heads[0].outputs[0].classes == ("a", "b", "c")


def test_one_artifact_has_each_stage_once_and_types_share_cached_states(tmp_path):
    graph, module = zoo.heterogeneous(), Shop()
    report = package(module, graph, tmp_path)
    assert report.spec.format == HEADS_FORMAT
    assert [{*stages} for stages in report.spec.levels] == [{"user", "item"}] * 3
    assert sorted(path.name for path in report.path.glob("head*")) == ["head.item.onnx", "head.onnx"]
    answerer = answerer_of(report, graph, caches=True)
    caches = [each for (level, _), each in answerer.model.state_caches.items() if level == 1]
    answers(answerer, ask("user"))
    assert sum(cache.num_hits for cache in caches) == 0
    answers(answerer, ask("item"))
    assert sum(cache.num_hits for cache in caches) > 0


@pytest.mark.release
def test_sampled_answers_of_both_types_are_those_of_a_package_for_one(tmp_path):
    """The same sampler; a linear map may be computed on the other side of a sum in one of them."""
    graph, module = zoo.heterogeneous(), Shop()
    both = answerer_of(package(module, graph, tmp_path / "both", fanouts=[3, 2]), graph, caches=True)
    for name in TASKS:
        report = package(
            module, graph, tmp_path / name, fanouts=[3, 2], task={name: TASKS[name]}, name="shop"
        )
        alone = answerer_of(report, graph)
        mixed = [ask("item", [5]), ask("user", [9]), ask(name), ask("item", [1, 2])]
        np.testing.assert_allclose(
            answers(both, *mixed)[2][f"{name}_probabilities"],
            answers(alone, ScoreRequest("shop", nodes=list(range(SIZES[name]))))[0][
                f"{name}_probabilities"
            ],
            rtol=1e-6,
        )


def test_a_node_of_the_request_is_answered_by_the_head_of_its_type(tmp_path):
    module, graph = Shop(), zoo.heterogeneous()
    answerer = answerer_of(package(module, graph, tmp_path), graph)
    x, edges = zoo.tensors(graph, "hetero")
    new = torch.randn(1, 7)
    into = torch.tensor([[4, 8], [60, 60]])
    buys = ("user", "buys", "item")
    with torch.no_grad():
        out = module(
            x | {"item": torch.cat([x["item"], new])}, edges | {buys: torch.cat([edges[buys], into], 1)}
        )
    inline = [InlineNode(new[0].tolist(), {"user__buys__item": [4, 8]})]
    (found,) = answers(answerer, ask("item", [2], inline=inline))
    assert_right(found, out["item"][[2, 60]].numpy(), "item")


@pytest.mark.release
def test_a_live_graph_answers_for_both_types(tmp_path):
    module, graph = Shop(), zoo.heterogeneous()
    report = package(module, graph, tmp_path)
    users, items = answers(answerer_of(report, live_view(graph)), ask("user"), ask("item"))
    wanted = truth(module, graph)
    assert_right(users, wanted["user"], "user")
    assert_right(items, wanted["item"], "item")


def test_outputs_are_those_of_the_type(tmp_path):
    module, graph = Shop(), zoo.heterogeneous()
    report = package(module, graph, tmp_path)
    tensors = {name: output.tensor for name, output in outputs_of(report.spec).items()}
    assert tensors["user_probabilities"].shape == (-1,)
    assert tensors["item_probabilities"].shape == (-1, 3)
    assert tensors["logits"].shape == (-1, -1)
    assert default_outputs(report.spec) == (
        "user_probabilities", "user_label", "item_probabilities", "item_label",
    )  # fmt: skip
    (found,) = answers(answerer_of(report, graph), ask("item", [3], outputs=("item_label", "embedding")))
    assert list(found) == ["item_label", "embedding"]


class InATuple(Shop):
    def forward(self, x_dict, edge_index_dict):
        return tuple(super().forward(x_dict, edge_index_dict).values())


class Swapped(Encoder):
    def forward(self, x_dict, edge_index_dict):
        h = super().forward(x_dict, edge_index_dict)
        return {"user": h["item"][:, :1], "item": h["user"]}


class Repeated(Shop):
    def forward(self, x_dict, edge_index_dict):
        out = super().forward(x_dict, edge_index_dict)
        return out | {"item": out["item"] + x_dict["item"].mean()}


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (Shop, {"target": "user"}, "task names node types .*without target="),
        (Shop, {"task": {"user": "binary", "itm": "binary"}}, r"\(user\): .*which itm is not \(item, user"),
        (InATuple, {}, r"returns 2 values: .* several node types return a dict by type, \{'user': "),
        (Swapped, {}, "^the model's answer has rows of node type 'item', not of node type 'user'$"),
        (Shop, {"task": {**TASKS, "risk": "binary"}}, "all its names are node types"),
        (Shop, {"task": {**TASKS, "user": {"a": "binary"}}}, "'user' has one value.*once for each type"),
        (Shop, {"task": {**TASKS, "user": "multiclass"}}, "output 'user': task 'multiclass' needs"),
        (Encoder, {"head": {"user": nn.Linear(4, 1)}}, "head= names user, and task= names user, item"),
        (Encoder, {"head": "dot"}, "a model of pairs has one output"),
        (Repeated, {}, "cannot be served node by node"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_with_the_way_out(tmp_path, module, options, message):
    with pytest.raises(PackagingError, match=message):
        package(module(), zoo.heterogeneous(), tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_an_artifact_whose_heads_contradict_its_levels_is_refused(tmp_path):
    graph = zoo.heterogeneous()
    report = package(Shop(), graph, tmp_path)
    (head,) = report.spec.heads
    for wrong in (
        msgspec.structs.replace(head, node_type="user"),
        msgspec.structs.replace(head, node_type="shop"),
        msgspec.structs.replace(head, output_dim=9),
        msgspec.structs.replace(head, kind="link"),
    ):
        with pytest.raises(ArtifactError, match="contradicts itself"):
            load_model(report.path, msgspec.structs.replace(report.spec, heads=(wrong,)), graph)


@pytest.mark.release
def test_statistics_of_all_nodes_are_constants_of_all_heads(tmp_path):
    module, graph = Repeated(), zoo.heterogeneous()
    report = package(module, graph, tmp_path, freeze=True)
    users, items = answers(answerer_of(report, graph), ask("user"), ask("item"))
    wanted = truth(module, graph)
    assert_right(users, wanted["user"], "user")
    assert_right(items, wanted["item"], "item")
    assert report.spec.frozen
