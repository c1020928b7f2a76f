"""What each argument of forward receives: little is guessed, and the report shows the call."""

import inspect
import logging

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData

import hopline
from hopline.artifact import read_spec
from hopline.errors import PackagingError
from hopline.graph import Graph
from hopline.packaging.signature import bind
from tests.graph.unpacked import decompressed
from tests.packaging import full_graph
from tests.packaging.graphs import hetero, homogeneous, relational


def module_of(signature, *parts):
    """A module whose forward has this signature, for example "x, edge_index, h=None"."""
    space = {}
    exec(f"def forward(self, {signature}): pass", space)
    made = type("Net", (nn.Module,), {"forward": space["forward"]})()
    for place, part in enumerate(parts):
        made.add_module(str(place), part)
    return made


def roles_of(signature, graph=None, **options):
    graph = homogeneous() if graph is None else graph
    return bind(module_of(signature), graph.schema, left_out=graph.left_out, **options).roles


@pytest.mark.parametrize(
    ("signature", "roles"),
    [
        ("x, edge_index, h=None", {"x": "features", "edge_index": "edge_index"}),
        ("X, edge_index, H=None, C=None", {"X": "features", "edge_index": "edge_index"}),
        ("x, edge_index, node_feat=None", {"x": "features", "edge_index": "edge_index"}),
        ("x, edge_index, adj=None", {"x": "features", "edge_index": "edge_index"}),
        ("x, edge_index, adj_t=None", {"x": "features", "edge_index": "edge_index"}),
        ("x, edge_index, graph=None", {"x": "features", "edge_index": "edge_index"}),
        ("x, edge_index, batch=None", {"x": "features", "edge_index": "edge_index"}),
        ("x, edge_index, edge_weight=None", {"x": "features", "edge_index": "edge_index"}),
        ("x, edge_index, size=None, flag=False", {"x": "features", "edge_index": "edge_index"}),
        ("edge_index, x=None", {"edge_index": "edge_index", "x": "features"}),
        ("x, adj=None", {"x": "features", "adj": "edge_index"}),
        ("h, edges", {"h": "features", "edges": "edge_index"}),
        ("node_feats, edges", {"node_feats": "features", "edges": "edge_index"}),
        ("x, adj_t", {"x": "features", "adj_t": "adj_t"}),
        ("X, A", {"X": "features", "A": "edge_index"}),
        ("nodes, edge_index", {"nodes": "features", "edge_index": "edge_index"}),
        ("data, x=None", {"data": "data"}),
        ("x, edge_index, batch", {"x": "features", "edge_index": "edge_index", "batch": "batch"}),
        ("*args", {"x": "features", "edge_index": "edge_index"}),
        ("x, edge_index, *args, **kwargs", {"x": "features", "edge_index": "edge_index"}),
    ],
)
def test_an_optional_argument_keeps_its_default_unless_nothing_else_receives_its_role(signature, roles):
    assert roles_of(signature) == roles


@pytest.mark.parametrize(
    ("signature", "given", "message"),
    [
        ("h, x, edges", {}, "'h' and 'x' of Net.forward would both receive the features"),
        ("x, feat, edge_index", {}, "'x' and 'feat' of Net.forward would both receive the features"),
        ("x, pos, edge_index", {"pos": "features"}, r"is kept by its name, .*columns=\[name\]"),
        ("x, edge_index, adj", {}, "'edge_index' and 'adj' of Net.forward would both receive the edges"),
        ("edge_index, x=None, h=None", {}, "'x' and 'h' of Net.forward would both receive the features"),
        ("x, edge_index=None, adj_t=None", {}, "would both receive the edges"),
        ("g, x", {}, r"If 'g' is the edges alone, pass arguments=\{'g': 'edge_index'\}"),
        ("x, edge_index, edge_attr, edge_feat", {}, "would both receive the edge_attr"),
    ],
)
def test_two_arguments_of_one_role_are_refused_with_the_call_to_write(signature, given, message):
    with pytest.raises(PackagingError, match=message):
        roles_of(signature, homogeneous(attr_dim=2), arguments=given)


def test_two_arguments_that_the_user_names_may_receive_the_same():
    given = {"x_src": "features", "x_dst": "features"}
    assert roles_of("x_src, x_dst, edge_index", arguments=given) == {**given, "edge_index": "edge_index"}


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("batch", r"arguments=\{'batch': 'data'\}"),
        ("graph_data", r"arguments=\{'graph_data': 'data'\}"),
        ("batch, entity_table", r"'entity_table'.*arguments=\{'batch': 'data'\}.*a module that passes it"),
        ("a, b", r"arguments=\{'a': 'features', 'b': 'edge_index'\}"),
        ("x, adjs", "forward\\(x, edge_index\\) calls the same layers"),
        ("x, edge_index, batch_size", "'batch_size': .* bookkeeping of a loader"),
        ("x, edge_index, batch, root_n_id", "'root_n_id': .* bookkeeping of a loader"),
        ("x, edge_index, num_sampled_nodes, num_sampled_edges", "'num_sampled_nodes'"),
        ("x, edge_index, edge_time, seed_time", "'edge_time', but the graph has no edge times"),
        (
            "x, edge_index, edge_label_index, edge_label_attr",
            r"\(h_src, h_dst, edge_attr\) also reads each edge's own columns",
        ),
        ("x, y, edge_index", "labels are not known"),
        ("head_index, rel_type, tail_index", "a model of triples"),
        ("x, edge_index, num_nodes", r"write x\.size\(0\)"),
        ("x, hyperedge_index", "make hyperedges a node type"),
        ("z, pos", r"If 'z' is a Data or HeteroData, pass arguments=\{'z': 'data'\}\. arguments"),
        ("x, edge_index, mystery", "'mystery', and nothing of the graph has this name"),
        ("x, edge_index, edge_attr", "the graph has no edge attributes"),
    ],
)
def test_a_signature_that_cannot_be_served_gets_the_way_out(signature, message):
    with pytest.raises(PackagingError, match=message):
        roles_of(signature)


def test_a_second_type_of_edges_is_no_reason_to_pass_an_optional_edge_type():
    with pytest.raises(PackagingError, match=r"several edge types, .*\{'edge_type': 'edge_type'\}; if not"):
        roles_of("x, edge_index, edge_type=None", relational(2))
    given = {"edge_type": "edge_type"}
    assert roles_of("x, edge_index, edge_type=None", relational(2), arguments=given)["edge_type"]


@pytest.mark.parametrize(
    ("signature", "options", "call"),
    [
        ("x, edge_index, h=None", {}, "x=features[6], edge_index=edge_index, h=default"),
        ("x, edge_index, edge_attr", {}, "x=features[6], edge_index=edge_index, edge_attr=edge_attr[1]"),
        (
            "x, edge_index, edge_weight=None",
            {"arguments": {"edge_weight": "edge_attr"}},
            "x=features[6], edge_index=edge_index, edge_weight=edge_attr as weight",
        ),
        ("data", {"arguments": {"data": "data"}}, "data=Data(x[6], edge_index, edge_attr[1])"),
        ("*args", {}, "features[6], edge_index"),
        ("x, edge_index, batch", {}, "x=features[6], edge_index=edge_index, batch=zeros"),
        ("x, edge_index, **kwargs", {}, "x=features[6], edge_index=edge_index, **kwargs=none"),
    ],
)
def test_the_call_is_shown(signature, options, call):
    module = module_of(signature)
    assert bind(module, homogeneous(attr_dim=1).schema, **options).called == f"called as forward({call})"


def test_features_of_several_types_are_shown_by_type():
    module = module_of("x_dict, edge_index_dict, h_dict=None")
    called = bind(module, hetero().schema).called
    assert called.startswith("called as forward(x_dict=features{author[5], paper[6]}, edge_index_dict=")
    assert called.endswith("h_dict=default)")
    called = bind(module_of("data"), hetero().schema, arguments={"data": "data"}).called
    assert called.startswith("called as forward(data=HeteroData(x{author[5], paper[6]}, edge_index")


def test_edge_data_that_layers_do_not_read_is_noted():
    called = bind(pyg.GraphSAGE(6, 8, 2, 3), homogeneous(attr_dim=2).schema).called
    assert "edge_attr=default" in called
    assert "the graph has edge_attr too, which the model's layers do not read" in called


class Cell(nn.Module):
    """As PyG Temporal's cells: the hidden state has the width of the features."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = pyg.SAGEConv(6, 6), nn.Linear(6, 3)

    def forward(self, X, edge_index, H=None):
        z = self.conv(X, edge_index)
        return self.out(z if H is None else torch.tanh(z) * H)


def answers_of(model, graph):
    """The module's own, called on the whole graph by position."""
    edges = graph.edges["node__to__node"]
    targets = torch.repeat_interleave(torch.arange(40), torch.from_numpy(edges.indptr.copy()).diff())
    with torch.no_grad():
        return model(
            torch.from_numpy(graph.node().features.copy()),
            torch.stack([torch.from_numpy(edges.indices.astype("int64")), targets]),
        )


def test_answers_are_those_of_the_call_without_the_hidden_state(tmp_path):
    graph, model = homogeneous(), Cell().eval()
    report = hopline.package(model, graph, tmp_path, name="m", fanouts=[-1], task="multiclass")
    want = answers_of(model, graph)
    torch.testing.assert_close(torch.from_numpy(full_graph.logits(report.path, graph)), want)
    called = "called as forward(X=features[6], edge_index=edge_index, H=default)"
    assert report.notes[0] == called
    assert read_spec(report.path).called == called


def test_the_call_of_a_head_is_shown_by_position(tmp_path):
    class Item(nn.Module):
        def forward(self, item, user):
            return (item * user).sum(-1)

    report = hopline.package(
        Answers(lambda h, e: h), homogeneous(), tmp_path, name="m", fanouts=[-1], task="binary", head=Item()
    )
    assert report.notes[0].endswith("; the head as forward(item=source node, user=destination node)")

    class Triple(nn.Module):
        def forward(self, h_src, relation, h_dst, weight):
            return (h_src * relation * h_dst).sum(-1) * weight

    with pytest.raises(PackagingError, match="has 4 arguments; a head has h, or h_src and h_dst"):
        hopline.package(
            Answers(lambda h, e: h),
            homogeneous(),
            tmp_path,
            name="n",
            fanouts=[-1],
            task="binary",
            head=Triple(),
        )


def columns(**more):
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, 30, (2, 100), generator=generator)
    return Data(x=torch.randn(30, 6, generator=generator), edge_index=edge_index, **more)


def test_columns_that_the_graph_leaves_out_are_known_to_it_and_its_copies(tmp_path, caplog):
    data = columns(
        pos=torch.zeros(30, 3), y=torch.zeros(30), country=["DE"] * 30, currency=torch.zeros(100),
        train_mask=torch.zeros(30) > 0, name="whole graph", scale=torch.tensor(2.0),
        edge_time=torch.zeros(100),
    )  # fmt: skip
    with caplog.at_level(logging.INFO, "hopline.graph"):
        graph = Graph.from_pyg(data)
    want = {
        "node": ("y", "pos", "country", "train_mask"),
        "node__to__node": ("currency",),
        "": ("name", "scale"),
    }
    assert graph.left_out == want
    warned = {record.args[1] for record in caplog.records if record.levelno == logging.WARNING}
    assert warned == {"pos", "country", "currency"}
    assert {record.args[1] for record in caplog.records} == warned | {"y", "train_mask", *want[""]}
    saved = graph.save(tmp_path / "graph")
    for copy in (
        saved, Graph.open(tmp_path / "graph"), saved.compressed(), decompressed(saved.compressed()),
        saved.subgraph([0, 1, 2]), saved.with_features_as("float16"),
    ):  # fmt: skip
        assert copy.left_out == want
    plain = Graph.from_pyg(columns(edge_time=torch.zeros(100)))
    assert plain.left_out == {}
    assert plain.version == graph.version


def test_columns_of_each_type_of_hetero_data_are_named():
    data = HeteroData()
    data["user"].x, data["user"].pe, data["item"].num_nodes = torch.zeros(4, 2), torch.zeros(4, 3), 5
    data["user"].time, data["user", "buys", "item"].time = torch.arange(4), torch.arange(2)
    data["user", "buys", "item"].edge_index = torch.tensor([[0, 1], [2, 3]])
    data["user", "buys", "item"].edge_label = torch.zeros(2)
    assert Graph.from_pyg(data).left_out == {"user": ("pe", "time"), "user__buys__item": ("edge_label",)}


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("x, edge_index, pe", r"needs 'pe', but the graph does not have the data\.pe of its nodes"),
        (
            "x, edge_index, pe=None",
            r"'pe' of Net\.forward is optional, and .*pass arguments=\{'pe': None\}",
        ),
        (
            "x, edge_index, currency=None",
            r"data\.edge_attr = torch\.cat\(\[data\.edge_attr, data\.currency\]",
        ),
        ("x, edge_index, y=None", "labels and masks of the split are not known"),
        ("node_feat, edge_index", r"data\.node_feat of its nodes"),
        ("x, edge_index, edge_index2=None", "Other edges are a further edge type, in a HeteroData"),
    ],
)
def test_an_argument_of_the_name_of_a_column_that_the_graph_leaves_out_is_refused(signature, message):
    data = columns(
        pe=torch.zeros(30, 2), y=torch.zeros(30), currency=torch.zeros(100), node_feat=torch.zeros(30, 6),
        edge_index2=torch.zeros(2, 7, dtype=torch.long),
    )  # fmt: skip
    graph = Graph.from_pyg(data)
    with pytest.raises(PackagingError, match=message):
        roles_of(signature, graph)
    name = list(inspect.signature(module_of(signature).forward).parameters)[-1]
    if signature.endswith("=None"):
        assert name not in roles_of(signature, graph, arguments={name: None})


@pytest.mark.parametrize(
    "read",
    [
        lambda data: data.pos,
        lambda data: data.pe,
        lambda data: data["pe"],
        lambda data: getattr(data, "pe", None),
        lambda data: data.pe if "pe" in data else data.x,
        lambda data: data.get("pe"),
        lambda data: data.pe if hasattr(data, "pe") else data.x,
        lambda data: data.clone().pe,
    ],
    ids=["property", "attribute", "item", "getattr", "in", "get", "hasattr", "clone"],
)
def test_a_model_of_data_that_reads_a_left_out_column_is_refused(read, tmp_path):
    class OfData(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.SAGEConv(6, 3)

        def forward(self, data):
            extra = read(data)
            return self.conv(data.x if extra is None else data.x + extra, data.edge_index)

    graph = Graph.from_pyg(columns(pos=torch.ones(30, 6), pe=torch.ones(30, 6)))
    with pytest.raises(PackagingError, match=r"forward reads data\.(pos|pe), but the graph does not have"):
        hopline.package(OfData(), graph, tmp_path, name="m", fanouts=[-1], task="multiclass")


class Answers(nn.Module):
    def __init__(self, answer):
        super().__init__()
        self.conv, self.answer = pyg.SAGEConv(6, 6), answer

    def forward(self, x, edge_index):
        return self.answer(self.conv(x, edge_index), edge_index)


@pytest.mark.parametrize(
    ("answer", "task", "message"),
    [
        (
            lambda h, e: h.view(-1, 2, 3),
            "multiclass",
            r"answers \[n, 2, 3\], .* one softmax over all 6 columns",
        ),
        (lambda h, e: h @ h.T, "multiclass", r"column for each node, as a @ b\.T does.*head='dot'"),
        (lambda h, e: h.pow(2).mean(), "regression", "it returned one number, such as a loss"),
        (
            lambda h, e: h[e[0]] + h[e[1]],
            "multiclass",
            r"one for each edge.*head=, a module of \(h_src, h_dst\)",
        ),
    ],
    ids=["tasks", "pairs", "loss", "edges"],
)
def test_an_answer_that_is_no_row_of_each_node_is_named(answer, task, message, tmp_path):
    with pytest.raises(PackagingError, match=message):
        hopline.package(Answers(answer), homogeneous(), tmp_path, name="m", fanouts=[-1], task=task)


@pytest.mark.release
def test_several_dimensions_are_columns_for_other_tasks(tmp_path):
    for version, (answer, task) in enumerate(
        [
            (lambda h, e: h.view(-1, 2, 3), "multilabel"),
            (lambda h, e: h.view(-1, 2, 3).softmax(-1), "regression"),
            (lambda h, e: h.view(-1, 1, 6), "multiclass"),
        ]
    ):
        report = hopline.package(
            Answers(answer),
            homogeneous(),
            tmp_path,
            name="m",
            version=str(version),
            fanouts=[-1],
            task=task,
        )
        assert report.spec.head.output_dim == 6


def test_a_failing_call_is_shown_with_the_remedy(tmp_path):
    class Matrix(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(6, 3)

        def forward(self, x, adj):
            return torch.spmm(adj, self.lin(x))

    class Codes(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.conv = nn.Embedding(40, 6), pyg.SAGEConv(6, 3)

        def forward(self, x, edge_index):
            return self.conv(self.emb(x.long()), edge_index)

    options = {"name": "m", "fanouts": [-1], "task": "multiclass"}
    with pytest.raises(PackagingError, match=r"adj=edge_index\), of which adj is a guess.*SimpleConv"):
        hopline.package(Matrix(), homogeneous(), tmp_path, **options)
    numbers = Graph.from_pyg(Data(x=torch.arange(30), edge_index=columns().edge_index))
    with pytest.raises(PackagingError, match=r"has two dimensions, \[n, 1\], .*write x\.view\(-1\)"):
        hopline.package(Codes(), numbers, tmp_path, **options)


def test_a_type_without_nodes_is_named(tmp_path):
    data = HeteroData()
    data["user"].x, data["ghost"].x = torch.zeros(5, 6), torch.zeros(0, 2)
    data["user", "to", "user"].edge_index = torch.tensor([[0, 1], [1, 2]])
    data["ghost", "of", "user"].edge_index = torch.zeros(2, 0, dtype=torch.long)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.SAGEConv(6, 3)

        def forward(self, x_dict, edge_index_dict):
            return self.conv(x_dict["user"], edge_index_dict["user", "to", "user"])

    with pytest.raises(PackagingError, match="node type 'ghost' has no nodes"):
        hopline.package(
            Model(),
            Graph.from_pyg(data),
            tmp_path,
            name="m",
            fanouts=[-1],
            task="multiclass",
            target="user",
        )


class Far(nn.Module):
    """As GPR-GNN: ten hops, of which the last ones count little."""

    def __init__(self):
        super().__init__()
        self.lin, self.conv = nn.Linear(6, 3), pyg.SimpleConv(aggr="mean")

    def forward(self, x, edge_index):
        h = out = self.lin(x)
        for _ in range(10):
            h = self.conv(h, edge_index)
            out = out + 0.01 * h
            h = 0.5 * h
        return out


@pytest.mark.parametrize("hops", [1, 5])
def test_the_number_of_hops_is_named_at_once_though_the_last_ones_count_little(hops, tmp_path):
    with pytest.raises(PackagingError, match="the model has 10 message-passing layers"):
        hopline.package(
            Far(),
            homogeneous(),
            tmp_path,
            name="m",
            fanouts=[-1] * hops,
            task="multiclass",
        )


@pytest.mark.sample(1)
@pytest.mark.parametrize(("count", "teleport"), [(10, 0.1), (8, 0.3)])
def test_a_last_hop_that_is_only_a_degree_is_counted(count, teleport, tmp_path):
    class Propagates(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.propagate = nn.Linear(6, 3), pyg.APPNP(count, teleport)

        def forward(self, x, edge_index):
            return self.propagate(self.lin(x), edge_index)

    torch.manual_seed(0)
    graph = homogeneous(num_nodes=150, num_edges=450)
    options = {"name": "m", "fanouts": [-1] * count, "task": "multiclass"}
    # A stage reads degrees of the graph.
    assert hopline.package(Propagates(), graph, tmp_path, **options).spec.num_layers == count


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.SAGEConv(6, 3)

    def forward(self, x, edge_index, scale=None, *, edge_attr=None):
        return self.conv(x, edge_index)


class PositionalOnly(Scaled):
    def forward(self, x, edge_index, /):
        return self.conv(x, edge_index)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", [Scaled, PositionalOnly])
def test_hooks_of_the_model_receive_arguments_as_a_caller_gives_them(kind, tmp_path):
    model, graph = kind().eval(), homogeneous()
    model.register_forward_pre_hook(lambda _, given: (given[0] * 2, *given[1:]) if given else None)
    report = hopline.package(model, graph, tmp_path, name="m", fanouts=[-1], task="multiclass")
    want = answers_of(model, graph)
    torch.testing.assert_close(torch.from_numpy(full_graph.logits(report.path, graph)), want)
