"""Scores of edges with rows of their own: the oracle is PyG's encoder and the head, on the whole graph."""

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.nn import SAGEConv

from hopline.answering.graph_computer import GraphComputer
from hopline.answering.queued import QueuedVersion
from hopline.config.reader import load_config
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import ArtifactError, BadRequest, NodeNotFound, PackagingError
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.observe.metrics import Metrics
from hopline.types import ContextNode, EdgeEdit, Edit, ScoredEdge, ScoreRequest
from tests.fake_version import hand_in
from tests.packaged import package

USERS, SHOPS, EDGES = 30, 12, 120
PAYS, PAID_BY = ("user", "pays", "shop"), ("shop", "paid_by", "user")


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.convs = nn.ModuleList(SAGEConv((dim, dim), 8) for dim in (4, 4, 8, 8))

    def forward(self, x_dict, edge_index_dict):
        user, shop = x_dict["user"], x_dict["shop"]
        for to_shop, to_user in (self.convs[:2], self.convs[2:]):
            shop, user = (
                to_shop((user, shop), edge_index_dict[PAYS]).relu(),
                to_user((shop, user), edge_index_dict[PAID_BY]).relu(),
            )
        return {"user": user, "shop": shop}


class Decoder(nn.Module):
    """Reads both ends and the edge's own row."""

    def __init__(self, width=2):
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.Sequential(nn.Linear(16 + width, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, h_src, h_dst, edge_attr):
        return self.layers(torch.cat([h_src, h_dst, edge_attr], dim=1))


class World:
    """A packaged model of edges, and what it was made of."""

    def __init__(self, folder):
        rng = np.random.default_rng(0)
        self.users = [f"u{row}" for row in range(USERS)]
        self.x = {
            "user": rng.normal(size=(USERS, 4)).astype(np.float32),
            "shop": rng.normal(size=(SHOPS, 4)).astype(np.float32),
        }
        self.ends = np.stack([rng.integers(0, USERS, EDGES), rng.integers(0, SHOPS, EDGES)])
        self.rows = rng.normal(size=(EDGES, 2)).astype(np.float32)
        self.joined = np.zeros((USERS, SHOPS), np.int64)
        np.add.at(self.joined, tuple(self.ends), 1)
        self.graph = Graph.from_tables(
            {"user": NodeTable(self.x["user"], ids=self.users), "shop": NodeTable(self.x["shop"])},
            {
                PAYS: EdgeTable(self.ends, attr=self.rows, by_row=True),
                PAID_BY: EdgeTable(self.ends[::-1], by_row=True),
            },
        )
        self.encoder, self.head = Encoder().eval(), Decoder().eval()
        self.report = package(
            self.encoder,
            self.graph,
            folder,
            name="payments",
            fanouts=[-1, -1],
            task="binary",
            target=("user", "shop"),
            head=self.head,
        )
        self.answerer = Answerer(
            load_model(self.report.path, self.report.spec, self.graph), ("logits",), 999
        )

    def pyg(self, src, dst, rows, x=None, to_shop=(), to_user=()):
        """Logits of edges, by rows of nodes.

        Args:
            x: features, also of further nodes. to_shop, to_user: further edges, (source, destination) each.
        """
        more = [np.reshape(np.array(each, np.int64), (-1, 2)).T for each in (to_shop, to_user)]
        pays, paid_by = (
            np.concatenate([self.ends, more[0]], 1),
            np.concatenate([self.ends[::-1], more[1]], 1),
        )
        x = {name: torch.tensor(each) for name, each in (x or self.x).items()}
        with torch.no_grad():
            h = self.encoder(x, {PAYS: torch.tensor(pays), PAID_BY: torch.tensor(paid_by)})
            return self.head(h["user"][src], h["shop"][dst], torch.tensor(rows)).numpy()

    def rebuilt(self, x=None, pays=None, paid_by=None, rows=None):
        """An answerer of the same model on a graph that is built again.

        Args:
            x: features. pays, paid_by: edges by (user, shop), [2, E]. rows: attributes of `pays`.
        """
        x, pays = x or self.x, self.ends if pays is None else pays
        graph = Graph.from_tables(
            {"user": NodeTable(x["user"], ids=self.users), "shop": NodeTable(x["shop"])},
            {
                PAYS: EdgeTable(pays, attr=self.rows if rows is None else rows, by_row=True),
                PAID_BY: EdgeTable((self.ends if paid_by is None else paid_by)[::-1], by_row=True),
            },
        )
        return Answerer(load_model(self.report.path, self.report.spec, graph), ("logits",), 999)

    def edges(self, src, dst, rows=None):
        given = [None] * len(src) if rows is None else rows.tolist()
        return tuple(
            ScoredEdge(self.users[a], int(b), attr=row) for a, b, row in zip(src, dst, given, strict=True)
        )

    def ask(self, edges, answerer=None, **options):
        answerer = answerer or self.answerer
        (outcome,) = answerer.answer([ScoreRequest("payments", edges=edges, **options)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("models"))


def test_edges_of_the_graph_and_new_ones_between_known_nodes_get_pygs_scores(world):
    rng = np.random.default_rng(7)
    new = rng.integers(0, USERS, 50), rng.integers(0, SHOPS, 50), rng.normal(size=(50, 2)).astype("f4")
    for src, dst, rows in ((*world.ends, world.rows), new):
        found = world.ask(world.edges(src, dst, rows)).outputs["logits"]
        np.testing.assert_allclose(found, world.pyg(src, dst, rows), atol=1e-4, rtol=1e-4)
    assert world.report.spec.head.edge_type == "user__pays__shop"


def test_the_row_matters_and_two_requests_of_a_batch_keep_theirs(world):
    rows = np.array([[0, 0], [3, -2]], np.float32)
    requests = [ScoreRequest("payments", edges=world.edges([5], [1], rows[at : at + 1])) for at in (0, 1)]
    found = [each.outputs["logits"] for each in world.answerer.answer(requests)]
    np.testing.assert_allclose(np.concatenate(found), world.pyg([5, 5], [1, 1], rows), atol=1e-4)
    assert abs(found[0] - found[1]).item() > 1e-3


def test_wrong_rows_are_refused_by_their_place_and_batch_mates_are_answered(world):
    good = ScoreRequest("payments", edges=world.edges([5], [1], np.ones((1, 2), np.float32)))
    for bad, message in (
        (
            {"attr": [1.0]},
            r"edges\[0\]\.attr: shape \[1\]; edge type 'user__pays__shop' has 2 edge attributes",
        ),
        ({"attr": [1.0, 1e39]}, r"edges\[0\]\.attr\[1\] is inf as float32; it must be finite"),
        ({"attr": [1.0, 16_777_217]}, r"edges\[0\]\.attr: column 1: 16777217.* would become 16777216"),
        ({"columns": {"amount": 1}}, r"edges\[0\]\.columns: the model has no preprocessing .* send `attr`"),
    ):
        request = ScoreRequest("payments", edges=(ScoredEdge("u5", 1, **bad),))
        refused, answered = world.answerer.answer([request, good])
        assert isinstance(refused, BadRequest)
        assert re.search(message, str(refused)), refused
        np.testing.assert_allclose(
            answered.outputs["logits"], world.pyg([5], [1], np.ones((1, 2), np.float32)), atol=1e-4
        )


def test_unknown_ends_are_refused_or_null(world):
    edges = (ScoredEdge("u1", 2, attr=[1.0, 2.0]), ScoredEdge("nobody", 2, attr=[1.0, 2.0]))
    with pytest.raises(NodeNotFound, match="nobody"):
        world.ask(edges)
    found = world.ask(edges, on_missing="null")
    assert found.missing.tolist() == [False, True]
    known = world.pyg([1], [2], np.array([[1, 2]], np.float32))
    np.testing.assert_allclose(found.outputs["logits"][:1], known, atol=1e-4)


def test_the_edge_type_is_found_or_named(world, tmp_path):
    """Another type joins the same nodes; the third has no attributes."""
    same = {
        ("user", name, "shop"): EdgeTable(world.ends, attr=rows, by_row=True)
        for name, rows in (("pays", world.rows), ("visits", world.rows), ("likes", None))
    }
    nodes = {"user": NodeTable(world.x["user"]), "shop": NodeTable(world.x["shop"])}
    graph = Graph.from_tables(nodes, {**same, PAID_BY: EdgeTable(world.ends[::-1], by_row=True)})

    def packaged(edge_type, head=world.head):
        return package(
            world.encoder, graph, tmp_path, name="m", fanouts=[-1, -1], task="binary", check_nodes=20,
            target=("user", "shop"), head=head, edge_type=edge_type,
        )  # fmt: skip

    for wrong in (None, "user__sells__shop", "shop__paid_by__user"):
        with pytest.raises(
            PackagingError, match=r"from 'user' to 'shop'.* scores: user__likes__shop, user__pays__shop"
        ):
            packaged(wrong)
    with pytest.raises(PackagingError, match="'user__likes__shop' has no attributes: build the graph with"):
        packaged("user__likes__shop")
    with pytest.raises(PackagingError, match=r"edge_type: for a head of three arguments"):
        packaged("user__pays__shop", head="dot")
    assert packaged(("user", "visits", "shop")).spec.head.edge_type == "user__visits__shop"


def test_an_artifact_that_contradicts_its_edge_type_is_refused(world):
    spec = world.report.spec
    for edge_type in ("user__visits__shop", "shop__paid_by__user"):
        wrong = msgspec.structs.replace(spec, head=msgspec.structs.replace(spec.head, edge_type=edge_type))
        with pytest.raises(ArtifactError, match=r"is not in graph_schema|do not join"):
            load_model(world.report.path, wrong, world.graph)


def test_an_edge_without_a_row_has_that_of_the_graphs_edge_if_there_is_one(world):
    """The oracle counts the edges of the table."""
    pairs, first, count = np.unique(world.ends, axis=1, return_index=True, return_counts=True)
    once, rows = pairs[:, count == 1], world.rows[first[count == 1]]
    found = world.ask(world.edges(*once)).outputs["logits"]
    np.testing.assert_allclose(found, world.pyg(*once, rows), atol=1e-4, rtol=1e-4)
    twice, none = pairs[:, count > 1][:, 0], np.argwhere(world.joined == 0)[0]
    for ends, number in ((twice, world.joined[tuple(twice)]), (none, 0)):
        with pytest.raises(
            BadRequest, match=rf"edges\[1\]: {number} edges of 'user__pays__shop' join.*`attr`"
        ):
            world.ask((*world.edges(*once[:, :1]), *world.edges(*ends[:, None])))


def test_ends_that_the_request_describes_get_pygs_scores(world):
    """PyG's graph has the new nodes as further rows, which known nodes do not read."""
    rng = np.random.default_rng(11)
    new = {"user": rng.normal(size=(2, 4)).astype("f4"), "shop": rng.normal(size=(1, 4)).astype("f4")}
    users = [
        ContextNode(
            type="user",
            id=f"new-{at}",
            features=new["user"][at].tolist(),
            neighbors={"shop__paid_by__user": shops},
        )
        for at, shops in enumerate(([2, 5], [7]))
    ]
    shop = ContextNode(
        type="shop",
        id="s",
        features=new["shop"][0].tolist(),
        neighbors={"user__pays__shop": ["u3", "u4", "new-0"]},
    )
    context = (shop, *users)
    rows = rng.normal(size=(4, 2)).astype("f4")
    ends = [("new-0", "s"), ("new-1", 4), ("u9", "s"), ("u9", 4)]
    edges = tuple(ScoredEdge(a, b, attr=row) for (a, b), row in zip(ends, rows.tolist(), strict=True))
    x = {name: np.concatenate([world.x[name], new[name]]) for name in new}
    found = world.ask(edges, context=context).outputs["logits"]
    wanted = world.pyg(
        [USERS, USERS + 1, 9, 9],
        [SHOPS, 4, SHOPS, 4],
        rows,
        x,
        to_shop=[(3, SHOPS), (4, SHOPS), (USERS, SHOPS)],
        to_user=[(2, USERS), (5, USERS), (7, USERS + 1)],
    )
    np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=1e-4)
    plain = ScoreRequest("payments", edges=world.edges([5], [1], rows[:1]))
    both = world.answerer.answer([ScoreRequest("payments", edges=edges, context=context), plain])
    np.testing.assert_allclose(both[0].outputs["logits"], wanted, atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(both[1].outputs["logits"], world.pyg([5], [1], rows[:1]), atol=1e-4)
    for wrong, error, message in (
        (ScoredEdge("new-0", "s"), BadRequest, r"edges\[0\]: 0 edges of"),
        (ScoredEdge("new-9", "s", attr=[1.0, 1.0]), NodeNotFound, "new-9"),
        (ScoredEdge("s", "new-0", attr=[1.0, 1.0]), NodeNotFound, "'s'"),
    ):
        with pytest.raises(error, match=message):
            world.ask((wrong,), context=context)


async def test_many_described_ends_are_computed_beside_the_event_loop(world):
    config, threads = load_config(), []
    with ThreadPoolExecutor(1) as executor:
        model = load_model(world.report.path, world.report.spec, world.graph)
        computer = GraphComputer(model, config)
        version = QueuedVersion(computer, config, Metrics().model("payments", "1"), executor)
        run = version.queue._run
        version.queue._run = lambda batch: (threads.append(threading.current_thread()), run(batch))[1]
        row = np.array([[1.0, -1.0]], np.float32)
        for count in (0, 300):
            context = [ContextNode(type="user", id=f"new-{at}", features=[0.0] * 4) for at in range(count)]
            answer = asyncio.get_running_loop().create_future()
            edges = world.edges([3], [2], row)
            request = ScoreRequest("payments", edges=edges, context=context, outputs=["logits"])
            hand_in(version, request, answer.set_result)
            assert ((await answer).outputs["logits"] == world.ask(edges).outputs["logits"]).all()
        await version.join()
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


def test_a_described_end_hides_a_known_node_of_its_id(world):
    row = np.array([[1.0, -1.0]], np.float32)
    edge = (ScoredEdge("u3", 2, attr=row[0].tolist()),)
    context = (ContextNode(type="user", id="u3", features=[5.0, -5.0, 5.0, 0.0]),)
    x = {**world.x, "user": np.concatenate([world.x["user"], [context[0].features]]).astype("f4")}
    found = world.ask(edge, context=context).outputs["logits"]
    np.testing.assert_allclose(found, world.pyg([USERS], [2], row, x), atol=1e-4)
    assert abs(found - world.ask(edge).outputs["logits"]).item() > 1e-3


def test_edits_change_the_states_of_both_ends_and_not_the_row(world):
    """The oracle is PyG on the graph without the edge; its row must be sent then."""
    pairs, count = np.unique(world.ends, axis=1, return_counts=True)
    src, dst = pairs[:, count == 1][:, 0]
    removed = {
        "user__pays__shop": EdgeEdit(world.users[src], int(dst), "user__pays__shop"),
        "shop__paid_by__user": EdgeEdit(int(dst), world.users[src], "shop__paid_by__user"),
    }
    edits = tuple(Edit(remove_edge=each) for each in removed.values())
    row = np.array([[2.0, -1.0]], np.float32)
    found = world.ask(world.edges([src], [dst], row), edits=edits).outputs["logits"]
    stays = ~((world.ends == [[src], [dst]]).all(axis=0))
    ends = torch.tensor(world.ends[:, stays])
    with torch.no_grad():
        h = world.encoder(
            {name: torch.tensor(each) for name, each in world.x.items()},
            {PAYS: ends, PAID_BY: ends.flip(0)},
        )
        wanted = world.head(h["user"][[src]], h["shop"][[dst]], torch.tensor(row)).numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    with pytest.raises(
        BadRequest, match=r"edges\[0\]: 0 edges of 'user__pays__shop' join these nodes, not one"
    ):
        world.ask(world.edges([src], [dst]), edits=edits)
    added = Edit(add_edge=msgspec.structs.replace(removed["user__pays__shop"], edge_attr=[2.0, -1.0]))
    with pytest.raises(BadRequest, match=r"edges\[0\]: 1 edges of .* join these nodes, `if` adds it"):
        world.ask(world.edges([src], [dst]), edits=(*edits, added))


@pytest.mark.parametrize("count", [1, 2])
def test_edits_of_other_edges_and_nodes_leave_the_row_of_an_edge(world, count):
    """Also where the edit is of the same destination, or removes the second of two edges' sources."""
    pairs, counts = np.unique(world.ends, axis=1, return_counts=True)
    (src, dst), other = pairs[:, counts == 1][:, 0], pairs[:, counts == 1][:, 1:]
    near = other[:, other[1] == dst][:, :1] if count == 1 else other[:, :1]
    (far, at), known = near[:, 0], world.ends.T.tolist().index([src, dst])
    edit = Edit(remove_edge=EdgeEdit(world.users[far], int(at), "user__pays__shop"))
    row = world.rows[[known]]
    wanted = world.ask(world.edges([src], [dst], row), edits=(edit,)).outputs["logits"]
    found = world.ask(world.edges([src], [dst]), edits=(edit,)).outputs["logits"]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("how", ["self", "reverse"])
def test_an_edge_is_scored_as_by_a_graph_that_lacks_it(world, how):
    """Bit for bit: each edge alone, all in one request, and among requests that exclude none."""
    some, row = world.ends[:, ::7], np.array([[1.0, -2.0]], np.float32)
    wanted, rows = [], np.repeat(row, some.shape[1], axis=0)
    for src, dst in some.T:
        stays = ~(world.ends == [[src], [dst]]).all(axis=0)
        kept = {"pays": world.ends[:, stays], "rows": world.rows[stays]}
        if how == "reverse":
            kept["paid_by"] = kept["pays"]
        wanted.append(world.ask(world.edges([src], [dst], row), world.rebuilt(**kept)).outputs["logits"])
        alone = world.ask(world.edges([src], [dst], row), exclude_seed_edges=how).outputs["logits"]
        assert (alone == wanted[-1]).all()
    wanted, edges = np.concatenate(wanted), world.edges(*some, rows)
    assert (world.ask(edges, exclude_seed_edges=how).outputs["logits"] == wanted).all()
    plain = [ScoreRequest("payments", edges=edges, exclude_seed_edges=name) for name in ("", how, "none")]
    first, found, last = (each.outputs["logits"] for each in world.answerer.answer(plain))
    assert (found == wanted).all()
    assert (first == last).all()
    assert (first == world.ask(edges).outputs["logits"]).all()
    assert (abs(found - first) > 1e-4).any()


def test_an_edge_without_a_row_has_that_of_the_graph_although_it_is_not_seen(world):
    pairs, first, count = np.unique(world.ends, axis=1, return_index=True, return_counts=True)
    src, dst = pairs[:, count == 1][:, :5]
    given = world.ask(
        world.edges(src, dst, world.rows[first[count == 1][:5]]), exclude_seed_edges="reverse"
    )
    found = world.ask(world.edges(src, dst), exclude_seed_edges="reverse")
    assert (found.outputs["logits"] == given.outputs["logits"]).all()


def test_excluded_edges_beside_ends_that_the_request_describes(world):
    """An edge of a described end has what the request lists; known ones are scored as without it."""
    user = ContextNode(
        type="user", id="new", features=[1.0, 0.0, -1.0, 2.0], neighbors={"shop__paid_by__user": [2, 5]}
    )
    hides = ContextNode(type="user", id="u3", features=[5.0, -5.0, 5.0, 0.0])
    src, dst = world.ends[:, world.ends[0] != 3][:, :4]
    known = world.edges(src, dst, np.ones((4, 2), np.float32))
    own = (ScoredEdge("new", 2, attr=[1.0, 1.0]), ScoredEdge("u3", 2, attr=[1.0, 1.0]))
    options = {"context": (user, hides), "exclude_seed_edges": "reverse"}
    mixed = world.ask(known[:2] + own + known[2:], **options).outputs["logits"]
    alone = world.ask(known, exclude_seed_edges="reverse").outputs["logits"]
    assert (mixed[[0, 1, 4, 5]] == alone).all()
    assert (mixed[2:4] == world.ask(own, context=(user, hides)).outputs["logits"]).all()
    request = ScoreRequest("payments", edges=known[:2] + own + known[2:], **options)
    only_known = ScoreRequest("payments", edges=known, exclude_seed_edges="reverse")
    together = world.answerer.answer([request, only_known, request])
    for one, other in zip((mixed, alone, mixed), together, strict=True):
        assert (one == other.outputs["logits"]).all()


def test_edits_give_the_answers_of_a_graph_that_is_built_with_them(world):
    """Bit for bit, twenty times: removed, added and other rows; alone, with exclusion, and in one batch."""
    rng = np.random.default_rng(23)
    requests, wanted = [], []
    for turn in range(20):
        gone = world.ends[:, rng.integers(EDGES)]
        new = rng.integers(0, USERS), rng.integers(0, SHOPS)
        attr, features = rng.normal(size=2).astype("f4"), rng.normal(size=4).astype("f4")
        user = int(rng.integers(0, USERS))
        edits = [
            Edit(remove_edge=EdgeEdit(world.users[gone[0]], int(gone[1]), "user__pays__shop")),
            Edit(add_edge=EdgeEdit(world.users[new[0]], int(new[1]), "user__pays__shop",
                                   edge_attr=attr.tolist())),
            Edit(set=ContextNode(type="user", id=world.users[user], features=features.tolist())),
        ]  # fmt: skip
        stays = ~(world.ends == gone[:, None]).all(axis=0)
        pays = np.concatenate([world.ends[:, stays], np.array(new)[:, None]], axis=1)
        rows = np.concatenate([world.rows[stays], attr[None]])
        x = {**world.x, "user": world.x["user"].copy()}
        x["user"][user] = features
        how = ("", "self")[turn % 2]
        src, dst = np.array([gone[0], new[0], user]), np.array([gone[1], new[1], 3])
        edges = world.edges(src, dst, rng.normal(size=(3, 2)).astype("f4"))
        right = world.rebuilt(x, pays, rows=rows)
        wanted.append(world.ask(edges, right, exclude_seed_edges=how).outputs["logits"])
        requests.append(ScoreRequest("payments", edges=edges, edits=tuple(edits), exclude_seed_edges=how))
        found = world.ask(edges, edits=tuple(edits), exclude_seed_edges=how).outputs["logits"]
        assert (found == wanted[-1]).all()
    for outcome, right in zip(world.answerer.answer(requests), wanted, strict=True):
        assert (outcome.outputs["logits"] == right).all()


def test_edges_that_are_excluded_are_declared_for_models_of_pairs_only(world, tmp_path):
    def packaged(**options):
        return package(
            world.encoder, world.graph, tmp_path, name="m", fanouts=[-1, -1], check_nodes=20, **options
        )

    with pytest.raises(PackagingError, match=r"exclude_seed_edges: 'both' is not one of none, self, rev"):
        packaged(task="binary", target=("user", "shop"), head=world.head, exclude_seed_edges="both")
    with pytest.raises(PackagingError, match="exclude_seed_edges: for a model of pairs or edges"):
        packaged(task="embedding", target="user", exclude_seed_edges="self")
    spec = packaged(
        task="binary", target=("user", "shop"), head=world.head, exclude_seed_edges="reverse"
    ).spec
    assert (spec.head.exclude_seed_edges, spec.format) == ("reverse", 9)
    assert (world.report.spec.head.exclude_seed_edges, world.report.spec.format) == ("", 8)
