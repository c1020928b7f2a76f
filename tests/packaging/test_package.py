"""`package` end to end: what it writes, that it agrees with PyG, and that it is all or nothing."""

import dataclasses
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.nn import models

import hopline
from hopline.artifact import ATTENTION_FORMAT, read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import (
    ArtifactCorrupted,
    ArtifactError,
    NotSplittable,
    PackagingError,
    ParityError,
)
from hopline.graph import Graph
from hopline.packaging import export, job
from hopline.packaging.check_graph import CheckGraph
from hopline.types import ScoreRequest
from tests.packaging import full_graph
from tests.packaging.graphs import hetero, homogeneous, relational
from tests.packaging.test_dense import trained, two_layers
from tests.packaging.unsplit import BySourceDegree


def package(model, graph, repository, **options):
    options = {"name": "m", "fanouts": [4], "task": "multiclass", **options}
    return hopline.package(model, graph, repository, **options)


def answers(model, *arguments):
    with torch.no_grad():
        return model.eval()(*arguments).numpy()


def tensors(graph):
    check = CheckGraph.of(graph)
    features = {name: torch.from_numpy(rows) for name, rows in check.features.items()}
    return features, {key: torch.from_numpy(edges.edge_index) for key, edges in check.edges.items()}


def assert_rows_are_bit_equal(report, graph):
    """Alone, and in any batch."""
    check = CheckGraph.of(graph)
    states = full_graph.states(report.path, check)
    for level, stages in enumerate(report.spec.levels):
        for node_type, stage in stages.items():
            if stage.file is None:
                continue
            feeds = full_graph.feeds_of(
                report.path, stage, node_type, check, states[level - 1] if level else {}
            )
            session = full_graph.session(report.path / stage.file)
            full = states[level][node_type]
            for size in (1, 2, 7):
                for start in range(0, len(full), size):
                    stop = min(start + size, len(full))
                    part = full_graph.packed(stage, part_of(stage.inputs, feeds, start, stop))
                    found = session.run(["h"], part)[0][: stop - start]
                    np.testing.assert_array_equal(found, full[start:stop])
    served = Served(report, graph)
    nodes = np.arange(graph.num_nodes)
    together = served(nodes)
    for size in (1, 2, 7):
        for start in range(0, len(nodes), size):
            part = nodes[start : start + size]
            np.testing.assert_array_equal(served(part), together[part])
    np.testing.assert_array_equal(served(nodes[::-1]), together[::-1])


class Served:
    """The engine's answers for nodes of a model of one node type, with all neighbours."""

    def __init__(self, report, graph):
        fanouts = {key: (-1,) * len(given) for key, given in report.spec.fanouts.items()}
        spec = msgspec.structs.replace(report.spec, fanouts=fanouts)
        self.answerer = Answerer(load_model(report.path, spec, graph), ("logits",), 0)

    def __call__(self, nodes):
        (result,) = self.answerer.answer([ScoreRequest("m", nodes=[int(node) for node in nodes])])
        return np.array(result.outputs["logits"])


def part_of(inputs, feeds, start, stop):
    """The inputs of some destinations of all; with rows of edges, one row and one edge more."""
    has_edges = any(item.kind == "nodes" for item in inputs)
    owners = {item.edge_type: feeds[item.name] for item in inputs if item.kind == "owners"}
    found = {}
    for item in inputs:
        array = feeds[item.name]
        if item.kind in full_graph.EDGE_KINDS:
            own = owners[item.edge_type]
            array = array[(own >= start) & (own < stop)]
        else:
            array = array[start:stop]
        if item.kind in ("owners", "nodes"):
            array = array - start
        found[item.name] = full_graph.one_more(array, item, stop - start) if has_edges else array
    return found


@pytest.fixture(scope="module")
def sage(tmp_path_factory):
    torch.manual_seed(0)
    repository = tmp_path_factory.mktemp("repository")
    graph, model = homogeneous(), models.GraphSAGE(6, 8, 2, 3)
    steps = []
    report = package(
        model,
        graph,
        repository,
        name="sage",
        fanouts=[10, 5],
        salt=7,
        max_degree=100,
        classes=["a", "b", "c"],
        progress=lambda step, done: steps.append((step, done)),
    )
    return model, graph, report, steps


def test_packagings_in_threads_run_one_after_the_other(tmp_path):
    """Each traces, and so replaces functions of the process, while it alone may."""
    graph = homogeneous()
    with ThreadPoolExecutor(2) as threads:
        made = [
            threads.submit(package, models.GraphSAGE(6, 8, 1, 4).eval(), graph, tmp_path / name, name=name)
            for name in "ab"
        ]
        for each in made:
            assert each.result().spec.parity["max_abs_diff"] < 1e-4


def test_artifact_holds_all_that_a_server_needs(sage):
    _, graph, report, _ = sage
    spec = read_spec(report.path)
    assert spec == report.spec
    assert report.path.parts[-2:] == ("sage", "1")
    assert (spec.num_layers, spec.opset, spec.salt, spec.max_degree) == (2, export.OPSET, 7, 100)
    assert spec.fanouts == {"node__to__node": (10, 5)}
    assert (spec.fanout("node__to__node", 2), spec.fanout("node__to__node", 1)) == (10, 5)
    assert spec.classes == ("a", "b", "c")
    assert spec.graph_schema["node_types"]["node"]["feature_dim"] == 6
    assert set(spec.files) == {"layers/1.node.onnx", "layers/2.node.onnx"}
    assert {"hopline", "torch", "torch-geometric", "onnxruntime"} <= set(spec.producer)
    assert spec.levels[0]["node"].file is None
    assert spec.parity["max_abs_diff"] <= 1e-4
    assert spec.parity["check_nodes"]["node"] > graph.num_nodes  # strangers beside the real nodes
    assert set(spec.parity["served"]) == {"logits", "probabilities", "label"}
    assert [line.name for line in report.stages] == ["0.node", "1.node", "2.node"]
    assert report.num_bytes > 0


def test_files_hold_no_path_of_this_machine(sage):
    report = sage[2]
    for file in report.path.rglob("*"):
        if file.is_file():
            assert str(report.path.parents[4]).encode() not in file.read_bytes()
            assert b"site-packages" not in file.read_bytes()


def test_a_sage_layer_is_one_gemm_whose_weight_is_an_initializer(sage):
    report = sage[2]
    model = onnx.load(report.path / "layers" / "1.node.onnx")
    gemms = [node for node in model.graph.node if node.op_type == "Gemm"]
    assert report.spec.levels[1]["node"].packed
    # One of the layer itself; the narrow last layer, lifted below, has two more.
    assert gemms[0].name == "packed"
    assert {node.input[1] for node in gemms} <= {item.name for item in model.graph.initializer}


def test_oracle_equals_pyg_and_rows_are_bit_equal(sage):
    model, graph, report, _ = sage
    features, edges = tensors(graph)
    logits = full_graph.logits(report.path, graph)
    expected = answers(model, features["node"], edges["node__to__node"])
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    assert_rows_are_bit_equal(report, graph)


def test_progress_names_every_step(sage):
    steps = sage[3]
    finished = [step for step, done in steps if done == 1.0]
    stages = ["writing stage 0 of node", "writing stage 1 of node", "writing stage 2 of node"]
    assert finished == [job.MODULE, job.TRACE, *stages, job.COMPARE]
    assert [step for step, done in steps if done == 0.0] == finished


def test_a_changed_file_is_noticed_when_read(sage, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(sage[2].path, copy)
    file = copy / "layers" / "1.node.onnx"
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(ArtifactCorrupted):
        full_graph.states(copy, sage[1])


@pytest.mark.release
def test_an_existing_version_is_refused_and_replaced_only_on_request(sage):
    model, graph, report, _ = sage
    repository = report.path.parents[1]
    with pytest.raises(PackagingError, match="exists"):
        package(model, graph, repository, name="sage", fanouts=[1, 1])
    assert read_spec(report.path) == report.spec
    again = package(model, graph, repository, name="sage", fanouts=[1, 1], version="2")
    replaced = package(model, graph, repository, name="sage", fanouts=[2, 2], version="2", overwrite=True)
    assert again.path == replaced.path
    assert read_spec(again.path).fanouts == {"node__to__node": (2, 2)}
    assert sorted(entry.name for entry in again.path.parent.iterdir()) == ["1", "2"]


def test_the_gate_trips_on_a_tampered_weight_and_leaves_nothing(tmp_path, monkeypatch):
    def tampered(module, inputs, widths, path):
        packed = export.export_stage(module, inputs, widths, path)
        if path.name == "2.node.onnx":
            model = onnx.load(path)
            weight = model.graph.initializer[0]
            values = numpy_helper.to_array(weight).copy()
            values.flat[0] += 0.01
            weight.CopyFrom(numpy_helper.from_array(values, weight.name))
            onnx.save(model, path)
        return packed

    monkeypatch.setattr(job, "export_stage", tampered)
    with pytest.raises(ParityError, match=r"served \w+ of node \d+ .*differ from the module's"):
        package(two_layers(pyg.GCNConv(6, 4), pyg.GCNConv(4, 3)), homogeneous(), tmp_path, fanouts=[1, 1])
    assert list(tmp_path.iterdir()) == []


def test_only_artifacts_with_attention_need_the_format_that_has_it(tmp_path):
    assert package(pyg.SAGEConv(6, 4), homogeneous(), tmp_path / "a").spec.format == 1
    report = package(pyg.GATConv(6, 4), homogeneous(), tmp_path / "b")
    assert report.spec.format == ATTENTION_FORMAT == read_spec(report.path).format


def test_attention_with_edge_attributes_is_bit_equal_in_every_batch(tmp_path):
    graph = homogeneous(attr_dim=2)
    model = trained(pyg.GATv2Conv(6, 4, heads=2, edge_dim=2))
    report = package(model, graph, tmp_path)
    assert_rows_are_bit_equal(report, graph)


class AttributesByCode(nn.Module):
    """An attention over attributes that the model computes: rows of edges."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x, edge_index, edge_attr):
        return self.conv(x, edge_index, edge_attr.tanh())


@pytest.mark.sample(1)
@pytest.mark.parametrize("conv", [pyg.GATConv, pyg.GATv2Conv, pyg.TransformerConv])
def test_a_neighbour_that_is_not_a_number_reaches_only_the_nodes_that_attend_to_it(tmp_path, conv):
    right = homogeneous()
    report = package(conv(6, 4, heads=2), right, tmp_path)
    assert any(item.attention for item in report.spec.levels[1]["node"].inputs)
    check = CheckGraph.of(right)
    edges, features = check.edges["node__to__node"], check.features["node"].copy()
    features[0] = np.nan
    nodes = dataclasses.replace(right.nodes["node"], features=features)
    wrong = Graph(right.schema, {"node": nodes}, right.edges)
    reads_first = np.zeros(right.num_nodes, np.bool_)
    reads_first[edges.destinations[edges.indices == 0]] = True
    reads_first[0] = True
    before, after = (Served(report, graph)(np.arange(right.num_nodes)) for graph in (right, wrong))
    assert np.isfinite(before).all()
    assert np.isnan(after[reads_first]).all()
    np.testing.assert_array_equal(after[~reads_first], before[~reads_first])


@pytest.mark.sample(1)
@pytest.mark.parametrize("conv", [pyg.GATConv, pyg.GATv2Conv, pyg.TransformerConv])
def test_a_package_for_a_gpu_has_attention_in_its_stages_and_answers_the_same(tmp_path, conv):
    graph, model = homogeneous(attr_dim=2), trained(conv(6, 4, heads=2, edge_dim=2))
    kernel = package(model, graph, tmp_path / "cpu")
    blocks = package(model, graph, tmp_path / "cuda", device="cuda")
    kinds = [
        {item.kind for level in report.spec.levels for stage in level.values() for item in stage.inputs}
        for report in (kernel, blocks)
    ]
    assert "attend" in kinds[0]
    assert "attend" not in kinds[1]
    ids = np.arange(graph.num_nodes)
    np.testing.assert_allclose(Served(blocks, graph)(ids), Served(kernel, graph)(ids), atol=1e-5)


def test_what_fills_up_a_call_never_leaks_even_if_it_is_not_a_number(tmp_path):
    graph = homogeneous(attr_dim=2)
    report = package(AttributesByCode(pyg.TransformerConv(6, 4, edge_dim=2)), graph, tmp_path)
    check = CheckGraph.of(graph)
    stage = report.spec.levels[1]["node"]
    below = full_graph.states(report.path, check)[0]
    feeds = full_graph.feeds_of(report.path, stage, "node", check, below)
    (name,) = (item.name for item in stage.inputs if item.kind == "edge_attr")
    session = full_graph.session(report.path / stage.file)
    before = session.run(["h"], feeds)[0]
    feeds[name] = feeds[name].copy()
    feeds[name][-1] = np.nan
    np.testing.assert_array_equal(session.run(["h"], feeds)[0], before)
    owner = next(feeds[item.name] for item in stage.inputs if item.kind == "owners")[0]
    feeds[name][0] = np.nan
    after = session.run(["h"], feeds)[0]
    assert np.isnan(after[owner]).all()
    np.testing.assert_array_equal(np.delete(after, owner, 0), np.delete(before, owner, 0))


@pytest.mark.release
def test_jumping_knowledge_by_lstm_and_a_trailing_linear(tmp_path):
    graph, model = homogeneous(), models.GIN(6, 8, 2, 3, jk="lstm", norm="BatchNorm")
    report = package(trained(model), graph, tmp_path, fanouts=[2, 2])
    assert report.spec.head.file == "head.onnx"  # the embedding is what the last Linear reads
    assert report.spec.levels[2]["node"].state_dim == 8
    features, edges = tensors(graph)
    expected = answers(model, features["node"], edges["node__to__node"])
    np.testing.assert_allclose(full_graph.logits(report.path, graph), expected, atol=1e-4)


def test_relations_become_one_reduction_each(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.RGCNConv(6, 3, 3, num_bases=2)

        def forward(self, x, edge_index, edge_type):
            return self.conv(x, edge_index, edge_type)

    report = package(
        Model(), relational(3), tmp_path, fanouts={("node", f"r{r}", "node"): [r] for r in range(3)}
    )
    reductions = [item.edge_type for item in report.spec.levels[1]["node"].inputs if item.kind == "reduce"]
    assert reductions == ["node__r0__node", "node__r1__node", "node__r2__node"]
    assert report.spec.fanouts == {f"node__r{r}__node": (r,) for r in range(3)}


def test_a_sigmoid_at_the_end_is_left_to_the_server(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.lin = pyg.SAGEConv(6, 8), nn.Linear(8, 1)

        def forward(self, x, edge_index):
            return self.lin(self.conv(x, edge_index).relu()).squeeze(-1).sigmoid()

    graph, features_and_edges = homogeneous(), tensors(homogeneous())
    model = Model()
    report = package(model, graph, tmp_path, task="binary")
    logits = full_graph.logits(report.path, graph)
    assert logits.shape == (graph.num_nodes, 1)
    expected = answers(model, features_and_edges[0]["node"], features_and_edges[1]["node__to__node"])
    np.testing.assert_allclose(1 / (1 + np.exp(-logits[:, 0])), expected, atol=1e-5)
    assert report.spec.parity["served"].keys() == {"probabilities", "label", "embedding"}


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(11, 1)

    def forward(self, h_src, h_dst):
        return self.lin(torch.cat([h_src, h_dst], dim=-1)).squeeze(-1)


class Bipartite(nn.Module):
    def __init__(self, paper=6, author=5):
        super().__init__()
        keys = [("paper", "cites", "paper"), ("author", "writes", "paper")]
        self.paper = pyg.HeteroConv({key: pyg.SAGEConv((-1, -1), paper) for key in keys})
        self.author = pyg.SAGEConv((6, 5), author)

    def forward(self, x_dict, edge_index_dict):
        author = self.author((x_dict["paper"], x_dict["author"]), edge_index_dict["paper", "by", "author"])
        return {"paper": self.paper(x_dict, edge_index_dict)["paper"], "author": author}


@pytest.mark.release
def test_link_heads_score_pairs_of_two_types(tmp_path):
    graph = hetero()
    features, edges = tensors(graph)
    keyed = {tuple(key.split("__")): value for key, value in edges.items()}
    with pytest.warns(UserWarning, match="author"):
        model, equal = Bipartite(), Bipartite(author=6)
    for each in (model, equal):
        with torch.no_grad():
            each(features, keyed)  # initialises the lazy layers
    decoder = Decoder()
    options = {"task": "binary", "target": ("author", "paper")}
    report = package(model, graph, tmp_path, head=decoder, **options)
    head = report.spec.head
    assert (head.kind, head.node_type, head.dst_node_type, head.output_dim) == (
        "link",
        "author",
        "paper",
        1,
    )
    pairs = np.array([0, 3, 29]), np.array([5, 0, 39])
    with torch.no_grad():
        states = model(features, keyed)
        expected = decoder(states["author"][pairs[0]], states["paper"][pairs[1]]).numpy()
    np.testing.assert_allclose(full_graph.logits(report.path, graph, pairs)[:, 0], expected, atol=1e-5)

    with pytest.raises(PackagingError, match="equal width"):
        package(model, graph, tmp_path, version="2", head="dot", **options)
    report = package(equal, graph, tmp_path, version="3", head="dot", **options)
    with torch.no_grad():
        states = equal(features, keyed)
        expected = (states["author"][pairs[0]] * states["paper"][pairs[1]]).sum(1).numpy()
    np.testing.assert_allclose(full_graph.logits(report.path, graph, pairs)[:, 0], expected, atol=1e-4)


def test_a_large_graph_is_checked_on_a_sample(tmp_path):
    graph = homogeneous(num_nodes=3000, num_edges=20000)
    report = package(pyg.SAGEConv(6, 3), graph, tmp_path, check_nodes=200)
    assert 200 < report.spec.parity["check_nodes"]["node"] < 1000
    assert report.spec.parity["check_edges"]["node__to__node"] > 0


def test_what_cannot_be_split_is_refused_with_its_place(tmp_path):
    with pytest.raises(NotSplittable, match="index_put"):
        package(BySourceDegree(6, 3), homogeneous(), tmp_path, fanouts=[3, 3])
    assert not list(tmp_path.iterdir())


@pytest.mark.sample(16)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fanouts": [10, 5]}, "2 fanouts .* 1 message-passing layers.*seed-outward"),
        ({"fanouts": {"node__to__node": [10, 5]}}, "2 fanouts"),
        ({"fanouts": {"other": [10]}}, "no fanouts for edge type 'node__to__node'"),
        ({"fanouts": [-2]}, "fanouts: must be at least -1; -1 for all neighbours; got -2"),
        ({"fanouts": [2.0]}, "fanouts: must be an integer; -1 for all neighbours; got 2.0"),
        ({"fanouts": [True]}, "fanouts: must be an integer.* got True"),
        ({"fanouts": -1}, r"fanouts: a list with one number for each layer, such as \[10, 5\]; got -1"),
        ({"fanouts": "10"}, "fanouts: a list with one number for each layer.* got '10'"),
        ({"fanouts": {"node__to__node": 5}}, "fanouts of 'node__to__node': a list .* got 5"),
        ({"task": "binary"}, "1 output column.*has 3"),
        ({"classes": ["a"]}, "1 class names for 3"),
        ({"name": "../up"}, "model name"),
        ({"version": ""}, "version"),
        ({"sampling": "recent"}, "edge times"),
        ({"sampling": "weighted"}, "edge weights"),
        ({"sampling": "best"}, "uniform, recent, weighted"),
        ({"max_degree": 0}, "max_degree: must be at least 1; got 0"),
        ({"max_degree": 2.5}, "max_degree: must be an integer; got 2.5"),
        ({"salt": "x"}, "salt: must be an integer; got 'x'"),
        ({"check_nodes": 0}, "check_nodes: must be at least 1; got 0"),
        ({"check_nodes": "x"}, "check_nodes: must be an integer; got 'x'"),
        ({"classes": 3}, "classes: a list of names; got 3"),
        ({"classes": "abc"}, "classes: a list of names; got 'abc'"),
        ({"classes": ["a", 2, "c"]}, "classes: a list of names; number 2 is 2"),
        ({"classes": ["a", "b", "a"]}, "classes: 'a' is there twice"),
        ({"target": 5}, "target: a node type, or a pair of them; got 5"),
        ({"arguments": ["x"]}, r"arguments: argument name -> what it receives; got \['x'\]"),
        ({"relations": "node__to__node"}, "relations: a list of names; got 'node__to__node'"),
        ({"target": "user"}, "'user' is not a node type"),
        ({"head": nn.Linear(4, 2)}, "head fails on"),
        ({"head": nn.BatchNorm1d(3).train(), "task": "regression"}, None),
        ({"arguments": {"z": "features"}}, "no argument 'z'"),
        ({"relations": ["node__x__node"]}, "not an edge type"),
    ],
    ids=str,
)
def test_bad_arguments_are_explained(options, message, tmp_path):
    if message is None:
        assert package(pyg.SAGEConv(6, 3), homogeneous(), tmp_path, **options).spec.head.file == "head.onnx"
        return
    with pytest.raises(PackagingError, match=message):
        package(pyg.SAGEConv(6, 3), homogeneous(), tmp_path, **options)
    assert not list(tmp_path.rglob("model.json"))


def test_numbers_of_numpy_are_arguments(tmp_path):
    five = np.int64(5)
    given = {"fanouts": np.array([5]), "max_degree": five, "salt": five, "check_nodes": five}
    spec = package(pyg.SAGEConv(6, 3), homogeneous(), tmp_path, **given).spec
    assert (spec.fanouts, spec.max_degree, spec.salt) == ({"node__to__node": (5,)}, 5, 5)


def test_two_columns_for_a_binary_task_hint_at_multiclass(tmp_path):
    with pytest.raises(PackagingError, match="multiclass"):
        package(pyg.SAGEConv(6, 2), homogeneous(), tmp_path, task="binary")


def test_the_oracle_needs_no_torch():
    code = "import tests.packaging.full_graph, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_file_that_the_runtime_cannot_load_is_refused(tmp_path, monkeypatch):
    def refuse(path, *_):
        raise ArtifactError(f"{path}: ONNX Runtime cannot load it: no kernel for GatherND")

    monkeypatch.setattr("hopline.runtimes.onnx.session", refuse)
    model, graph = pyg.SAGEConv(6, 3), homogeneous()
    with pytest.raises(NotSplittable, match="no kernel for GatherND"):
        hopline.package(model, graph, tmp_path, name="n", fanouts=[-1], task="embedding")
