"""The time of the question as an input: relative times of nodes and of edges, as PyG's loaders give them.

The oracle is the user's module on one subgraph for each seed, with each seed's own time: what PyG's
`NeighborLoader(time_attr=..., input_time=...)` makes with all neighbours.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import softmax

import hopline
from hopline.engine.answer import Answerer
from hopline.engine.model import StateCachePlan, load_model
from hopline.errors import BadRequest, NotSplittable, PackagingError, ParityError
from hopline.graph import Graph
from hopline.memory.arena import Arena
from hopline.types import ContextNode, EdgeEdit, Edit, InlineNode, ScoreRequest
from tests.jobs.batch.conftest import online, score
from tests.packaged import package

DAY, BEGIN = 86_400, 1_500_000_000
TIMED = ("user", "event")
NUM_NODES = {"user": 50, "item": 20, "event": 240}


def hetero():
    rng = np.random.default_rng(0)
    data = HeteroData()
    for name, count in NUM_NODES.items():
        data[name].x = torch.from_numpy(rng.standard_normal((count, 4)).astype("f4"))
    events = np.arange(NUM_NODES["event"])
    data["user"].time = torch.from_numpy(BEGIN + rng.integers(0, 90 * DAY, NUM_NODES["user"]))
    data["event"].time = torch.from_numpy(BEGIN + rng.integers(0, 400 * DAY, len(events)))
    for end, relation in (("user", "by"), ("item", "of")):
        of = rng.integers(0, NUM_NODES[end], len(events))
        data["event", relation, end].edge_index = torch.from_numpy(np.stack([events, of]))
        data[end, f"rev_{relation}", "event"].edge_index = torch.from_numpy(np.stack([of, events]))
    return data


def with_edge_times(num_nodes=60, num_edges=400):
    rng = np.random.default_rng(0)
    return Data(
        x=torch.from_numpy(rng.standard_normal((num_nodes, 4)).astype("f4")),
        edge_index=torch.from_numpy(rng.integers(0, num_nodes, (2, num_edges))),
        edge_attr=torch.from_numpy(rng.standard_normal((num_edges, 2)).astype("f4")),
        edge_time=torch.from_numpy(BEGIN + rng.integers(0, 400 * DAY, num_edges)),
    )


class TemporalEncoder(nn.Module):
    """RelBench's HeteroTemporalEncoder."""

    def __init__(self, node_types, width):
        super().__init__()
        self.encoder_dict = nn.ModuleDict({name: pyg.PositionalEncoding(width) for name in node_types})
        self.lin_dict = nn.ModuleDict({name: nn.Linear(width, width) for name in node_types})

    def forward(self, seed_time, time_dict, batch_dict):
        out_dict = {}
        for node_type, time in time_dict.items():
            rel_time = seed_time[batch_dict[node_type]] - time
            rel_time = rel_time / (60 * 60 * 24)
            out_dict[node_type] = self.lin_dict[node_type](self.encoder_dict[node_type](rel_time))
        return out_dict


class Relational(nn.Module):
    """RelBench's model, without the encoder of tables."""

    def __init__(self, edge_types, width=8, attention=False):
        super().__init__()
        self.encoder = nn.ModuleDict({name: nn.Linear(4, width) for name in NUM_NODES})
        self.temporal_encoder = TemporalEncoder(TIMED, width)

        def conv():
            if attention:
                return pyg.GATConv((width, width), width, add_self_loops=False)
            return pyg.SAGEConv((width, width), width, aggr="sum")

        self.convs = nn.ModuleList(
            pyg.HeteroConv({edge_type: conv() for edge_type in edge_types}, aggr="sum") for _ in range(2)
        )
        self.norms = nn.ModuleList(
            nn.ModuleDict({name: pyg.LayerNorm(width, mode="node") for name in NUM_NODES}) for _ in range(2)
        )
        self.head = nn.Linear(width, 3)

    def forward(self, x_dict, edge_index_dict, seed_time, time_dict, batch_dict):
        x_dict = {name: self.encoder[name](x) for name, x in x_dict.items()}
        for name, rel_time in self.temporal_encoder(seed_time, time_dict, batch_dict).items():
            x_dict[name] = x_dict[name] + rel_time
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x_dict = conv(x_dict, edge_index_dict)
            x_dict = {name: norm[name](x).relu() for name, x in x_dict.items()}
        return self.head(x_dict["user"][: seed_time.size(0)])


class OfBatch(Relational):
    def forward(self, data):
        times = data["user"].seed_time, data.time_dict, data.batch_dict
        return super().forward(data.x_dict, data.edge_index_dict, *times)


class Attention(pyg.MessagePassing):
    """TGAT's attention: keys and values read the age of an edge."""

    def __init__(self, width, out, edge):
        super().__init__(aggr="add")
        self.query, self.key, self.value = nn.Linear(width, out), nn.Linear(width + edge, out), None
        self.value = nn.Linear(width + edge, out)

    def forward(self, x, edge_index, edge_attr):
        return self.propagate(edge_index, x=x, edge_attr=edge_attr)

    def message(self, x_i, x_j, edge_attr, index, ptr, size_i):
        rows = torch.cat([x_j, edge_attr], dim=-1)
        weight = softmax((self.query(x_i) * self.key(rows)).sum(-1), index, ptr, size_i)
        return weight.view(-1, 1) * self.value(rows)


class Ages(nn.Module):
    """Messages with the age of each edge; the first layer reads them, or not."""

    def __init__(self, first=True):
        super().__init__()
        self.age = nn.Linear(1, 6)
        self.first, self.reads = Attention(4, 8, 8 if first else 2), first
        self.second, self.out = Attention(8, 8, 8), nn.Linear(8, 1)

    def forward(self, x, edge_index, edge_attr, edge_time, seed_time, batch):
        age = seed_time[batch[edge_index[1]]] - edge_time
        rows = torch.cat([edge_attr, self.age(age.view(-1, 1).float() / DAY).cos()], dim=-1)
        h = self.first(x, edge_index, rows if self.reads else edge_attr).relu()
        return self.out(self.second(h, edge_index, rows).relu())[: seed_time.size(0)]


def subgraphs(data, target, seeds, times, hops=2, windows=None):
    """Arguments of `Relational` for one subgraph for each seed, of the rows that exist at its time."""
    nodes, batch = {name: [] for name in data.node_types}, {name: [] for name in data.node_types}
    edges, place = {key: ([], []) for key in data.edge_types}, {}

    def placed(name, node, seed):
        if (name, node, seed) not in place:
            place[name, node, seed] = len(nodes[name])
            nodes[name].append(node)
            batch[name].append(seed)
        return place[name, node, seed]

    front = [(target, seed, number) for number, seed in enumerate(seeds)]
    for each in front:
        placed(*each)
    for hop in range(hops):
        found = []
        for source, relation, destination in data.edge_types:
            index = data[source, relation, destination].edge_index.numpy()
            for name, node, seed in front:
                for other in index[0][index[1] == node].tolist() if name == destination else ():
                    if "time" in data[source] and data[source].time[other] > times[seed]:
                        continue
                    window = (windows or {}).get((source, relation, destination), (None,) * hops)[hop]
                    if window is not None and data[source].time[other] <= times[seed] - window:
                        continue
                    found += [] if (source, other, seed) in place else [(source, other, seed)]
                    ends = edges[source, relation, destination]
                    ends[0].append(placed(source, other, seed))
                    ends[1].append(place[name, node, seed])
        front = list(dict.fromkeys(found))
    chosen = {name: torch.tensor(each, dtype=torch.long) for name, each in nodes.items()}
    return (
        {name: data[name].x[each] for name, each in chosen.items()},
        {key: torch.tensor(each, dtype=torch.long).reshape(2, -1) for key, each in edges.items()},
        torch.tensor(times),
        {name: data[name].time[chosen[name]] for name in TIMED},
        {name: torch.tensor(each, dtype=torch.long) for name, each in batch.items()},
    )


def cut(data, model, seed, time, keep=None):
    """The answer of `Ages` for one seed, on the edges until then; the seed is the first node."""
    keep = data.edge_time <= time if keep is None else keep & (data.edge_time <= time)
    count = data.num_nodes
    order = torch.tensor([seed, *(node for node in range(count) if node != seed)])
    number = torch.empty(count, dtype=torch.long)
    number[order] = torch.arange(count)
    columns = number[data.edge_index[:, keep]], data.edge_attr[keep], data.edge_time[keep]
    with torch.no_grad():
        return model(data.x[order], *columns, torch.tensor([time]), torch.zeros(count, dtype=torch.long))[0]


def asked(answerer, seeds, times):
    requests = [
        ScoreRequest("m", nodes=[seed], as_of=time) for seed, time in zip(seeds, times, strict=True)
    ]
    outcomes = answerer.answer(requests)
    return np.concatenate([outcome.outputs["logits"] for outcome in outcomes]), outcomes


def moments(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.choice(BEGIN + 20 * DAY * np.arange(1, 21), count).tolist()


@pytest.fixture(scope="module")
def events():
    return hetero()


@pytest.fixture(scope="module")
def graph_of_events(events):
    return Graph.from_pyg(events, node_time="time", time_unit="s")


@pytest.fixture(scope="module")
def edges():
    return with_edge_times()


@pytest.fixture(scope="module")
def graph_of_edges(edges):
    return Graph.from_pyg(edges, time_unit="s")


@pytest.mark.sample(1)
@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize("of_batch", [False, True])
def test_ages_of_rows_are_those_of_a_subgraph_for_each_seed(
    tmp_path, events, graph_of_events, attention, of_batch
):
    torch.manual_seed(0)
    model = (OfBatch if of_batch else Relational)(events.edge_types, attention=attention).eval()
    report = hopline.package(
        model, graph_of_events, tmp_path, name="m", fanouts=[-1, -1], task="multiclass", target="user"
    )
    answerer = Answerer(load_model(report.path, report.spec, graph_of_events), ("logits",), 100)
    seeds = np.random.default_rng(1).integers(0, NUM_NODES["user"], 80).tolist()
    times = moments(80)
    found, outcomes = asked(answerer, seeds, times)
    with torch.no_grad():
        wanted = Relational.forward(model, *subgraphs(events, "user", seeds, times)).numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert [outcome.as_of for outcome in outcomes] == times
    latest = int(max(events[name].time.max() for name in TIMED))
    found, outcomes = asked(answerer, seeds, [None] * 80)
    with torch.no_grad():
        wanted = Relational.forward(model, *subgraphs(events, "user", seeds, [latest] * 80)).numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert {outcome.as_of for outcome in outcomes} == {latest}, "now is the graph's latest time"


@pytest.mark.sample(1)
@pytest.mark.parametrize("first", [True, False])
def test_ages_of_edges_are_those_of_a_graph_that_is_cut_for_each_seed(
    tmp_path, edges, graph_of_edges, first
):
    torch.manual_seed(0)
    model = Ages(first).eval()
    report = hopline.package(model, graph_of_edges, tmp_path, name="m", fanouts=[-1, -1], task="binary")
    plan = StateCachePlan(report.spec, graph_of_edges, 1 << 22)
    caches = plan.build(Arena(plan.num_bytes))
    served = load_model(report.path, report.spec, graph_of_edges, caches)
    answerer = Answerer(served, ("logits",), 100)
    seeds, times = np.random.default_rng(1).integers(0, 60, 40).tolist(), moments(40)
    latest = int(edges.edge_time.max())
    for _ in range(2):  # the second time, states of the latest time are cached
        found, _ = asked(answerer, seeds, [None] * 40)
        wanted = torch.stack([cut(edges, model, seed, latest) for seed in seeds])
        np.testing.assert_allclose(found, wanted, atol=1e-4)
        found, _ = asked(answerer, seeds, times)
        wanted = torch.stack([cut(edges, model, *each) for each in zip(seeds, times, strict=True)])
        np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert sum(cache.num_hits for cache in caches.values()) > 0


def test_an_edit_that_removes_an_edge_keeps_the_times_of_the_others(tmp_path, edges, graph_of_edges):
    torch.manual_seed(0)
    model = Ages().eval()
    report = package(model, graph_of_edges, tmp_path, name="m", fanouts=[-1, -1], task="binary")
    answerer = Answerer(load_model(report.path, report.spec, graph_of_edges), ("logits",), 100)
    source, destination = edges.edge_index[:, 5].tolist()
    edit = Edit(remove_edge=EdgeEdit(src=source, dst=destination))
    time = BEGIN + 380 * DAY
    (outcome,) = answerer.answer([ScoreRequest("m", nodes=[destination], edits=(edit,), as_of=time)])
    keep = (edges.edge_index[0] != source) | (edges.edge_index[1] != destination)
    wanted = cut(edges, model, destination, time, keep)
    np.testing.assert_allclose(outcome.outputs["logits"][0], wanted, atol=1e-4)
    neighbors = {"": (1, 2)}
    (outcome,) = answerer.answer(
        [ScoreRequest("m", inline=(InlineNode([0.0] * 4, neighbors, edge_attr={"": ([0.0] * 2,) * 2}),))]
    )
    assert isinstance(outcome, BadRequest)
    assert "a request cannot change the graph for it, with or without times" in str(outcome)


@pytest.mark.release
def test_nodes_with_times_are_not_described_by_requests(tmp_path, events, graph_of_events):
    model = Relational(events.edge_types).eval()
    options = {"fanouts": [-1, -1], "task": "multiclass", "target": "user"}
    report = package(model, graph_of_events, tmp_path, name="m", **options)
    answerer = Answerer(load_model(report.path, report.spec, graph_of_events), ("logits",), 100)
    (outcome,) = answerer.answer([ScoreRequest("m", inline=(InlineNode([0.0] * 7, {}),))])
    assert isinstance(outcome, BadRequest)
    assert "have times" in str(outcome)


class OfOthers(Ages):
    """Reads the latest time of all seeds of a batch."""

    def forward(self, x, edge_index, edge_attr, edge_time, seed_time, batch):
        latest = seed_time.max().expand(seed_time.size(0))
        return super().forward(x, edge_index, edge_attr, edge_time, latest, batch)


class Absolute(nn.Module):
    """Neighbours' times as integers."""

    def __init__(self):
        super().__init__()
        self.conv = pyg.SimpleConv(aggr="sum")
        self.lin = nn.Linear(4, 2)

    def forward(self, x, edge_index, time, seed_time, batch):
        age = seed_time[batch] - time
        here, there = age[edge_index[1]], age[edge_index[0]]
        newer = (there < here).float()
        return self.lin(self.conv(x, edge_index, newer))


def test_times_of_other_seeds_are_refused(tmp_path, graph_of_edges):
    with pytest.raises((NotSplittable, ParityError), match="forward reads it in another way"):
        hopline.package(OfOthers(), graph_of_edges, tmp_path, name="m", fanouts=[-1, -1], task="binary")


class ByNode(nn.Module):
    """Takes `seed_time` for a time of each node."""

    def __init__(self):
        super().__init__()
        self.conv, self.time = pyg.GINEConv(nn.Linear(4, 2), edge_dim=1), nn.Linear(1, 1)

    def forward(self, x, edge_index, edge_time, seed_time):
        age = (seed_time[edge_index[1]] - edge_time).float().view(-1, 1)
        return self.conv(x, edge_index, self.time(age / DAY).cos())


def test_a_seed_time_that_is_read_by_node_is_refused_with_the_form_to_write(tmp_path, edges):
    data = edges.clone()
    del data.edge_attr
    with pytest.raises(PackagingError, match=r"seed_time\[batch\]"):
        hopline.package(ByNode(), Graph.from_pyg(data), tmp_path, name="m", fanouts=[-1], task="embedding")


def test_times_that_neighbours_read_as_integers_are_refused(tmp_path, edges):
    data = edges.clone()
    data.time = torch.from_numpy(BEGIN + np.arange(edges.num_nodes) * DAY)
    del data.edge_time
    graph = Graph.from_pyg(data, node_time="time")
    with pytest.raises(NotSplittable, match="a time of 64 bits that neighbours read"):
        hopline.package(Absolute(), graph, tmp_path, name="m", fanouts=[-1], task="embedding")


def test_a_graph_without_times_is_refused(tmp_path, edges):
    data = edges.clone()
    del data.edge_time
    graph = Graph.from_pyg(data)
    with pytest.raises(PackagingError, match="the graph has no edge times"):
        hopline.package(Ages(), graph, tmp_path, name="m", fanouts=[-1, -1], task="binary")


class Optional(Ages):
    def forward(self, x, edge_index, edge_attr, edge_time, batch, seed_time=None):
        assert seed_time is not None
        return super().forward(x, edge_index, edge_attr, edge_time, seed_time, batch)


@pytest.mark.release
def test_an_optional_seed_time_is_questioned(tmp_path, graph_of_edges):
    options = {"name": "m", "fanouts": [-1, -1], "task": "binary"}
    with pytest.raises(PackagingError, match=r"arguments=\{'seed_time': 'seed_time'\}; if not"):
        hopline.package(Optional(), graph_of_edges, tmp_path, **options)
    report = hopline.package(
        Optional(), graph_of_edges, tmp_path, arguments={"seed_time": "seed_time"}, **options
    )
    assert report.spec.reads_times


@pytest.mark.parametrize("threads", [1, 3])
def test_a_batch_run_is_for_the_latest_time_of_the_graph(tmp_path, edges, threads):
    graph = Graph.from_pyg(edges, time_unit="s").save(tmp_path / "graph")
    options = {"name": "m", "fanouts": [-1, -1], "task": "binary"}
    report = package(Ages(), graph, tmp_path / "models", **options)
    outputs = ("logits", "embedding")
    found = score(report.path, graph, tmp_path / "out", outputs=outputs, threads=threads)
    for output, values in online(report.path, graph).items():
        assert (found[output] == values).all(), output


def test_a_batch_run_since_an_earlier_one_moves_all_rows_to_the_latest_time(tmp_path, edges):
    before = Graph.from_pyg(edges, time_unit="s").save(tmp_path / "before")
    later = edges.clone()
    later.edge_time = later.edge_time.clone()
    later.edge_time[later.edge_time.argmax()] += 90 * DAY
    after = Graph.from_pyg(later, time_unit="s").save(tmp_path / "after")
    report = package(Ages(), before, tmp_path / "models", name="m", fanouts=[-1, -1], task="binary")
    score(report.path, before, tmp_path / "first", outputs=("logits", "embedding"), keep=True)
    outputs = ("logits", "embedding")
    found = score(report.path, after, tmp_path / "out", outputs=outputs, since=tmp_path / "first.run")
    for output, values in online(report.path, after).items():
        assert (found[output] == values).all(), output


def test_windows_leave_out_older_edges_by_hop_and_edge_type(tmp_path, events, graph_of_events):
    torch.manual_seed(0)
    model = Relational(events.edge_types).eval()
    by, back = ("event", "by", "user"), ("user", "rev_by", "event")
    given = {by: "90d", back: [None, 60 * DAY]}
    options = {"fanouts": [-1, -1], "task": "multiclass", "target": "user", "windows": given}
    report = hopline.package(model, graph_of_events, tmp_path, name="m", **options)
    assert report.spec.windows == {
        "event__by__user": (90 * DAY,) * 2,
        "user__rev_by__event": (-1, 60 * DAY),
    }
    answerer = Answerer(load_model(report.path, report.spec, graph_of_events), ("logits",), 100)
    seeds, times = np.random.default_rng(1).integers(0, NUM_NODES["user"], 60).tolist(), moments(60)
    windows = {by: (90 * DAY,) * 2, back: (None, 60 * DAY)}
    latest = int(max(events[name].time.max() for name in TIMED))
    for asked_for, at in ((times, times), ([None] * 60, [latest] * 60)):
        found, outcomes = asked(answerer, seeds, asked_for)
        with torch.no_grad():
            wanted = model(*subgraphs(events, "user", seeds, at, windows=windows)).numpy()
        np.testing.assert_allclose(found, wanted, atol=1e-4)
        assert [outcome.as_of for outcome in outcomes] == at
    with torch.no_grad():
        without = model(*subgraphs(events, "user", seeds, at)).numpy()
    assert np.abs(found - without).max() > 1e-2


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ({"item__rev_of__event": "30d"}, "no edge type with times that the model reads"),
        ({"event__by__user": ["30d"]}, "1 for 2 layers"),
        ({"event__by__user": "a month"}, "such as '30d'"),
        ({"event__by__user": -5}, "at least 0"),
    ],
)
def test_wrong_windows_are_refused(tmp_path, events, graph_of_events, windows, message):
    model = Relational(events.edge_types).eval()
    options = {"fanouts": [-1, -1], "task": "multiclass", "target": "user", "windows": windows}
    with pytest.raises(PackagingError, match=message):
        hopline.package(model, graph_of_events, tmp_path, name="m", **options)


def test_requests_with_their_own_edges_are_refused_by_a_model_with_windows(tmp_path, graph_of_edges):
    model = pyg.SAGEConv(4, 2).eval()
    options = {"fanouts": [-1], "task": "multiclass", "windows": {"node__to__node": "30d"}}
    report = package(model, graph_of_edges, tmp_path, name="m", **options)
    answerer = Answerer(load_model(report.path, report.spec, graph_of_edges), ("logits",), 100)
    added = [Edit(add_edge=EdgeEdit(src=1, dst=2, time=time)) for time in (None, BEGIN)]
    row = Edit(set=ContextNode(id=1, features=[0.0] * 4))
    asked_for = [{"inline": (InlineNode([0.0] * 4, {"": (1, 2)}),)}]
    asked_for += [{"nodes": [2], "edits": (edit,)} for edit in (*added, row)]
    for request in asked_for:  # the same words for all: none of them is a way out of another one
        (outcome,) = answerer.answer([ScoreRequest("m", **request)])
        assert isinstance(outcome, BadRequest)
        assert "windows of time, and a request cannot change the graph" in str(outcome)
        assert "with or without times of edges" in str(outcome)
        assert "ask a model packaged without windows=" in str(outcome)
