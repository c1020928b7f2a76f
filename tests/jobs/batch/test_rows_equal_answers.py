"""A batch run is the online computation in another order: equal bit for bit."""

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from hopline.artifact import read_spec
from hopline.engine.model import Model
from hopline.engine.schema import fitted
from hopline.graph import Graph
from hopline.jobs.batch.needed_rows import needed_levels
from hopline.jobs.batch.rows import with_all_neighbors
from hopline.packaging import package
from tests.engine import zoo
from tests.jobs.batch.conftest import computed, online, score

NODE_MODELS = ["sage", "plain", "gcn", "gat", "mixed", "aggregated", "general", "hetero", "learned"]


@pytest.mark.sample(6)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", NODE_MODELS)
def test_all_rows_are_the_online_answers(cases, tmp_path, name, threads):
    case = cases[name]
    outputs = ("logits", "embedding", "probabilities", "label")
    found = score(case.folder, case.graph, tmp_path / "out", outputs=outputs, threads=threads)
    for output, values in online(case.folder, case.graph, outputs).items():
        assert (found[output] == values).all(), output


@pytest.mark.parametrize("name", NODE_MODELS)
def test_exact_rows_are_pyg_on_the_full_graph(cases, tmp_path, name):
    case = cases[name]
    found = score(case.folder, case.graph, tmp_path / "out", outputs=("logits",), exact=True)
    np.testing.assert_allclose(found["logits"], case.oracle(), atol=1e-4, rtol=1e-4)


def test_a_link_model_gives_the_embeddings_that_its_scores_are_made_of(cases, tmp_path):
    case = cases["link"]
    found = score(case.folder, case.graph, tmp_path / "out", exact=True)
    np.testing.assert_allclose(found["embedding"], case.oracle(), atol=1e-4, rtol=1e-4)


class TwoTowers(nn.Module):
    """Users and items meet in the head."""

    def __init__(self):
        super().__init__()
        self.a = zoo.HeteroConv(
            {
                ("user", "buys", "item"): zoo.SAGEConv((5, 7), 6),
                ("item", "bought_by", "user"): zoo.SAGEConv((7, 5), 6),
            },
            aggr="sum",
        )

    def forward(self, x_dict, edge_index_dict):
        return self.a(x_dict, edge_index_dict)


def test_a_link_model_between_two_types_writes_a_table_for_each(tmp_path):
    torch.manual_seed(2)
    graph = zoo.heterogeneous().save(tmp_path / "graph")
    module = TwoTowers().eval()
    report = package(
        module, graph, tmp_path / "r", name="two", fanouts=[-1], task="binary", head="dot",
        target=("user", "item"), check_nodes=40,
    )  # fmt: skip
    with torch.no_grad():
        truth = module(*zoo.tensors(graph, "hetero"))
    for node_type in ("user", "item"):
        found = score(report.path, graph, tmp_path / "out", part=node_type)
        np.testing.assert_allclose(found["embedding"], truth[node_type].numpy(), atol=1e-4)
    assert found.report.tables == ("user", "item")


@pytest.mark.parametrize("name", [*NODE_MODELS, "link"])
def test_rows_brought_together_give_the_same_bits_as_rows_where_they_lie(cases, name):
    case = cases[name]
    spec = with_all_neighbors(read_spec(case.folder))
    graph = fitted(case.folder, spec, case.graph)
    below = {t: np.array(n.features) for t, n in graph.nodes.items()}
    for level, types in enumerate(needed_levels(spec, graph)):
        if not types:
            continue
        states = {}
        for node_type in types:
            raw = np.array(graph.nodes[node_type].features)
            at, ids = (level, node_type), np.arange(len(raw))
            rows = [
                computed(case.folder, spec, graph, at, ids, below, raw, edges) for edges in (0, 64, 4096)
            ]
            assert (rows[0] == rows[1]).all()
            assert (rows[0] == rows[2]).all()
            states[node_type] = rows[0]
        below = below | states if level == 0 else states  # features, where a type has no stage


def test_any_span_of_rows_can_be_computed_apart(cases):
    """What an engine on other machines calls."""
    case = cases["plain"]
    spec = read_spec(case.folder)
    states = np.array(case.graph.nodes["node"].features)
    for level in (1, 2, 3):
        out = np.empty((zoo.N, spec.levels[level]["node"].state_dim), np.float32)
        for begin, end in ((70, zoo.N), (0, 1), (1, 70)):
            ids, below = np.arange(begin, end), {"node": states}
            out[begin:end] = computed(case.folder, spec, case.graph, (level, "node"), ids, below)
        states = out
    model = Model(case.folder, spec, case.graph)
    assert (states == model.final_states({"node": np.arange(zoo.N)})["node"]).all()


def test_some_nodes_are_scored_in_the_order_of_the_file_and_alone(cases, tmp_path):
    case = cases["sage"]
    rows = [17, 3, 119, 3, 40]
    ids = [f"n{row}" for row in rows]
    found = score(case.folder, case.graph, tmp_path / "out", outputs=("logits",), nodes=ids)
    distinct = [17, 3, 119, 40]
    assert (found["logits"] == online(case.folder, case.graph, ("logits",), distinct)["logits"]).all()
    assert bytes(found["id_blob"]).decode() == "n17n3n119n40"
    assert found.report.duplicates == 1
    assert found.report.rows == 4
    assert found.report.levels[-1].computed == 4  # and nobody else's
    assert found.report.levels[0].computed < zoo.N


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_narrow_features_are_widened(tmp_path, dtype):
    torch.manual_seed(1)
    wide = zoo.homogeneous(4)
    edges = wide.edges[zoo.EDGE]
    destinations = np.repeat(np.arange(zoo.N), np.diff(edges.indptr))
    features = np.array(wide.nodes["node"].features)
    graph = Graph.from_edges((edges.indices, destinations), features, feature_dtype=dtype)
    graph = graph.save(tmp_path / "graph")
    report = package(
        zoo.Plain().eval(), graph, tmp_path / "r", name="p", fanouts=[4, 3, 5], task="multiclass"
    )
    found = score(report.path, graph, tmp_path / "out", outputs=("logits",))
    assert (found["logits"] == online(report.path, graph, ("logits",))["logits"]).all()


def test_a_table_has_the_ids_and_says_what_it_is(cases, tmp_path):
    case = cases["hetero"]
    found = score(case.folder, case.graph, tmp_path / "out", outputs=("state", "label"))
    assert (found["id"] == np.arange(80)).all()
    told = msgspec.json.decode((tmp_path / "out" / "table.json").read_bytes())
    assert told["graph_version"] == case.graph.version
    assert told["columns"] == ["state", "label"]
    assert found["state"].shape == (80, 4)
    assert found["label"].dtype == np.int64
