"""Payments by their ids, over every wire, and on a live graph; the oracle is the same payment by its ends
and columns, or PyG."""

import asyncio
import json
from itertools import pairwise
from types import SimpleNamespace

import httpx
import numpy as np
import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hopline.errors import BadRequest, EdgeNotFound, GraphError
from hopline.graph import EdgeFile, EdgeTable, Graph, NodeTable
from hopline.jobs.targets import ServerTarget
from hopline.types import ScoredEdge, ScoreRequest
from hopline_drift.log_reader import LogReader
from hopline_drift.replay import replay
from packages.tabular.tests import payment_graph as shop
from packages.tabular.tests import test_scored_edges as wires
from packages.tabular.tests.fraud_graph import pairs
from packages.tabular.tests.fraud_world import as_sent
from packages.tabular.tests.test_live_edge_columns import KEY, Live, paid, unpaid
from packages.tabular.tests.test_scored_edges import WIRES, World, by_client, by_json
from tests.servers import running
from tests.thorough import thorough

COUNT = 900
IDS = [f"p-{at}é" for at in range(COUNT)]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield World(tmp_path_factory.mktemp("world"), payment=IDS)


server = wires.server


@WIRES
def test_every_wire_scores_a_payment_by_its_id(world, server, wire):
    """Also of parallel payments, and beside payments that are described."""
    at = np.arange(0, COUNT, 25)
    edges = [{"id": IDS[row]} for row in at]
    np.testing.assert_allclose(wire(server, edges), world.pyg(at), atol=1e-4, rtol=1e-4)
    described = [{**each, "columns": cut(each["columns"])} for each in world.edges(at[:2])]
    mixed = [described[0], edges[5], described[1]]
    np.testing.assert_allclose(wire(server, mixed), world.pyg(at[[0, 5, 1]]), atol=1e-4, rtol=1e-4)


def cut(row):
    return {name: value for name, value in row.items() if name != "payment"}


@WIRES
def test_every_wire_names_the_ids_that_are_unknown(world, server, wire):
    edges = [{"id": IDS[3]}, {"id": "p-none"}, {"id": 17}]
    if wire is by_client:
        with pytest.raises(EdgeNotFound, match=r"2 of 3 edge ids are not.*'p-none', 17") as found:
            wire(server, edges)
        assert found.value.missing == ("p-none", 17)
    else:
        assert "2 of 3 edge ids are not in graph" in wire(server, edges)


def test_unknown_ids_are_null_on_request_and_named(world, server):
    body = {"edges": [{"id": "x"}, {"id": IDS[3]}], "on_missing": "null", "outputs": ["logits"]}
    answer = httpx.post(f"{server.url}/v1/models/risk/score", json=body).json()
    assert answer["outputs"]["logits"][0] is None
    np.testing.assert_allclose(answer["outputs"]["logits"][1:], world.pyg([3]), atol=1e-4)
    assert answer["missing"] == ["x"]
    answer = httpx.post(f"{server.url}/v1/models/risk/score", json=body | {"on_missing": "error"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "edge_not_found"
    assert answer.json()["error"]["missing"] == ["x"]


@pytest.mark.parametrize("how", ["self", "reverse"])
def test_a_payment_that_does_not_see_itself_is_that_by_its_ends(world, server, how):
    at = np.arange(5, 60)
    described = [{**each, "columns": cut(each["columns"])} for each in world.edges(at)]
    by_ends = by_json(server, described, exclude_seed_edges=how)
    by_id = by_json(server, [{"id": IDS[row]} for row in at], exclude_seed_edges=how)
    np.testing.assert_array_equal(by_id, by_ends)
    assert (np.abs(by_id - world.pyg(at)) > 1e-4).any()


def test_wrong_forms_are_refused_by_name(world, server):
    for edge, message in (
        ({"id": IDS[0], "from": "a1"}, "an edge has `from` and `to`, or only an `id`"),
        ({"id": IDS[0], "columns": {"amount": 1.0}}, "or only an `id`"),
        ({"from": "a1"}, "an edge has `from` and `to`"),
        ({"id": 1.5}, "edges[0].id"),
    ):
        answer = httpx.post(f"{server.url}/v1/models/risk/score", json={"edges": [edge]})
        assert answer.status_code == 400
        assert message in answer.text, answer.text


def test_the_command_line_scores_payments_by_id(world, server):
    found = wires.typed("score", "risk", IDS[5], "--edges", "--output", "logits", "--url", server.url)
    assert found.exit_code == 0, found.output
    assert all(f"{value:.4g}" in found.output for value in by_json(server, [{"id": IDS[5]}])[0])


@pytest.mark.release
def test_a_replay_of_payments_by_id_gives_the_same_answers(world, server, tmp_path):
    log = tmp_path / "log"
    with running(wires.SERVICE, **world.settings(prediction_log__path=log)) as found:
        for at in range(9):
            by_json(found, [{"id": IDS[at]}, {"id": IDS[at + 20]}])

    async def compared():
        async with ServerTarget(server.url) as target:
            return await replay(LogReader(log), target)

    report = asyncio.run(compared())
    assert report.all_identical
    assert report.compared == 9


def small(ids, **options):
    frame = pd.DataFrame({"amount": np.arange(len(ids), dtype=float), "pid": ids})
    ends = np.arange(len(ids)), np.zeros(len(ids), np.int64)
    table = EdgeTable(ends, columns=frame, id="pid", **options)
    return Graph.from_tables({"node": NodeTable(num_nodes=9)}, {("node", "to", "node"): table})


def test_an_id_that_is_missing_or_repeated_is_refused_when_the_graph_is_built():
    for ids, message in (
        (["a", None, "c"], "in column 'pid': one is missing"),
        (["a", "", "c"], "one is missing"),
        (["a", "b", "a"], "'a' is repeated"),
        ([7, 8, 7], "'7' is repeated"),
    ):
        with pytest.raises(GraphError, match=message):
            small(ids)
    with pytest.raises(GraphError, match="its reverse would have the same"):
        small(["a", "b"], undirected=True)
    with pytest.raises(GraphError, match="it is one of `columns`"):
        Graph.from_tables(
            {"node": NodeTable(num_nodes=2)}, {("node", "to", "node"): EdgeTable(([0], [1]), id="pid")}
        )


def test_ids_survive_saving_packing_and_subgraphs(tmp_path):
    """A dictionary is the oracle: id -> (source, destination, amount)."""
    rng = np.random.default_rng(3)
    ids = [f"{'é' * (at % 3)}{at}" for at in rng.permutation(300)]
    frame = pd.DataFrame({"amount": rng.normal(size=300), "pid": ids})
    ends = rng.integers(0, 40, (2, 300))
    table = EdgeTable((ends[0], ends[1]), columns=frame, id="pid")
    graph = Graph.from_tables({"node": NodeTable(num_nodes=40)}, {("node", "to", "node"): table})
    saved = graph.save(tmp_path / "graph")
    assert saved.version == graph.version
    assert saved.schema.edge_types["node__to__node"].id_column == "pid"
    rows = np.r_[5:25]
    part = graph.subgraph(rows)
    for each, shift in ((graph, 0), (saved, 0), (saved.compressed(), 0), (part, 5)):
        edges = each.edge()
        wanted = {
            name: (a - shift, b - shift, amount)
            for name, a, b, amount in zip(ids, *ends.tolist(), frame["amount"], strict=True)
            if each is not part or {a, b} <= set(rows.tolist())
        }
        positions, owners = edges.located([*wanted, "none"])
        assert positions[-1] == -1
        amounts = edges.columns.frame()["amount"].to_numpy()
        sources = edges.indices[positions[:-1]].tolist()
        found = zip(sources, owners[:-1].tolist(), amounts[positions[:-1]], strict=True)
        assert dict(zip(wanted, found, strict=True)) == wanted
        assert edges.ids.external(positions[:-1]) == [*wanted]


def test_files_and_the_command_line_name_the_column_of_ids(tmp_path):
    path = tmp_path / "pays.csv"
    path.write_text("src,dst,pid,amount\na,b,007,1\nb,a,8,2\n")
    edge_type = ("user", "pays", "user")
    graph = Graph.from_parquet(None, {edge_type: EdgeFile(path, columns=["amount"], id="pid")})
    assert graph.edge().located(["007", 8, 7])[0].tolist() == [1, 0, -1]
    words = ["graph", "build", f"user:pays:user={path}", "--column", "user:pays:user=*"]
    found = wires.typed(*words, "--id", "user:pays:user=pid", "--out", str(tmp_path / "graph"))
    assert found.exit_code == 0, found.output
    built = Graph.open(tmp_path / "graph")
    assert built.edge().located(["007", 8, 7])[0].tolist() == [1, 0, -1]
    columns = built.schema.edge_types["user__pays__user"].columns
    assert [column.name for column in columns] == ["pid", "amount"]


def test_a_graph_without_ids_is_named():
    graph = Graph.from_edges(([0], [1]))
    with pytest.raises(BadRequest, match=r"edges of 'node__to__node' have no ids: name them by `from`"):
        graph.edge().located(["a"])


@pytest.mark.release
def test_a_batch_reads_a_table_of_ids_and_names_edges_by_them(world, tmp_path):
    pd.DataFrame({"id": [IDS[700], IDS[5]]}).to_csv(tmp_path / "some.csv", index=False)
    pd.DataFrame({"id": [IDS[700], "x"]}).to_csv(tmp_path / "wrong.csv", index=False)
    common = ["batch", "--model", "risk", "--graph", str(world.folder / "graph"), "--outputs", "logits"]
    common += ["--repository", str(world.folder / "models"), "--exclude-seed-edges", "none", "--edges"]
    for source, wanted in ((tmp_path / "some.csv", [700, 5]), ("all", None)):
        found = wires.typed(*common, str(source), "--to", str(tmp_path / f"{bool(wanted)}.parquet"))
        assert found.exit_code == 0, found.output
        table = pd.read_parquet(tmp_path / f"{bool(wanted)}.parquet")
        at = [IDS.index(name) for name in table["id"]]
        assert at == wanted if wanted else sorted(at) == [*range(COUNT)]
        np.testing.assert_allclose(np.stack(table["logits"]), world.pyg(at), atol=1e-4, rtol=1e-4)
    found = wires.typed(*common, str(tmp_path / "wrong.csv"), "--to", str(tmp_path / "out.parquet"))
    assert "1 of 2 edge ids are not in graph" in found.output


# Live


def ask(live, ids, **options):
    request = ScoreRequest("risk", edges=tuple(ScoredEdge(id=each) for each in ids), **options)
    (outcome,) = live.answerer.answer([request])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome.outputs["logits"]


def payment(at, name, account="a0", merchant=0):
    row = as_sent(shop.payments(60, seed=6).iloc[at].to_dict()) | {"payment": name}
    return paid(account, merchant, row)[0]


@pytest.mark.release
def test_a_payment_of_an_event_is_scored_by_its_id_and_a_taken_id_is_refused(world):
    live = Live(world)
    with pytest.raises(EdgeNotFound):
        ask(live, ["new"])
    assert live.send(payment(0, "new")) == []
    graph = live.view.snapshot()
    fresh = Live(SimpleNamespace(graph=graph, report=world.report))
    np.testing.assert_array_equal(ask(live, ["new", *IDS[:50]]), ask(fresh, ["new", *IDS[:50]]))
    for name in ("new", IDS[4]):
        (reason,) = live.send(payment(1, name))
        assert reason == f"an edge of {KEY!r} has the id {name!r}; remove it first"
    (reason,) = live.send(payment(1, None))
    assert "column 'payment': each edge has an id" in reason
    assert live.send(unpaid("a0", 0)[0]) == []
    with pytest.raises(EdgeNotFound):
        ask(live, ["new"])
    assert live.send(payment(2, "new", "a3", 1)) == []
    assert ask(live, ["new"]).shape == (1, 2)


def test_an_id_that_is_freed_and_taken_again_in_one_batch_is_that_of_the_last_edge(world):
    live = Live(world)
    assert live.send(payment(0, "z", "a2", 1), unpaid("a2", 1)[0], payment(1, "z", "a1", 0)) == []
    with live.answerer.model.graph as view:
        positions, owners = view.edges[KEY].located(["z"])
        assert (view.edges[KEY].indices[positions].tolist(), owners.tolist()) == ([1], [0])
    (reason,) = live.send(payment(2, "z"))
    assert "has the id 'z'" in reason


@pytest.mark.parametrize("batches", [[3], [1, 2], [2, 1]])
def test_removing_a_node_frees_the_ids_of_its_edges(batches, world):
    live = Live(world)
    removal = {"op": "remove_node", "node_type": "account", "node": "a2"}
    events = [payment(0, "z", "a2", 1), removal, payment(1, "z", "a1", 0)]
    for size in batches:
        assert live.send(*events[:size]) == []
        del events[:size]
    with live.answerer.model.graph as view:
        positions, owners = view.edges[KEY].located(["z"])
        assert (view.edges[KEY].indices[positions].tolist(), owners.tolist()) == ([1], [0])


NAMES = st.sampled_from(["x", "y", "z"])
ENDS = st.tuples(st.integers(0, 2), st.integers(0, 1))
EVENTS = st.lists(st.tuples(ENDS, NAMES | st.none()), min_size=1, max_size=14)


@settings(max_examples=thorough(4, 12), deadline=None, phases=[Phase.generate])
@given(events=EVENTS, cuts=st.lists(st.integers(1, 13), max_size=4))
def test_which_ids_are_taken_does_not_depend_on_batches(world, events, cuts):
    """Adding and removing in any batches: a dictionary of who has an id is the oracle."""
    live, taken, wanted = Live(world), {}, []
    start = {(int(a), int(m)) for a, m in zip(*pairs(), strict=True)}
    for (account, merchant), name in events:
        if name is None:
            gone = [each for each, ends in taken.items() if ends == (account, merchant)]
            wanted.append(bool(gone) or (account, merchant) in start)
            start.discard((account, merchant))
            for each in gone:
                del taken[each]
        else:
            wanted.append(name not in taken)
            taken.setdefault(name, (account, merchant))
    sent = [
        unpaid(f"a{account}", merchant)[0] if name is None else payment(at, name, f"a{account}", merchant)
        for at, ((account, merchant), name) in enumerate(events)
    ]
    ends, refused = sorted({*[cut for cut in cuts if cut < len(sent)], 0, len(sent)}), 0
    for first, last in pairwise(ends):
        refused += len(live.send(*sent[first:last]))
    assert refused == len(wanted) - sum(wanted)
    with live.answerer.model.graph as view:
        edges = view.edges[KEY]
        positions, owners = edges.located(["x", "y", "z"])
        for name, at, owner in zip("xyz", positions.tolist(), owners.tolist(), strict=True):
            found = (int(edges.indices[at]), owner) if at >= 0 else None
            assert found == taken.get(name)
    graph = live.view.snapshot()
    known = graph.edges[KEY].located([*taken, "none"])[0]
    assert (known[:-1] >= 0).all()
    assert known[-1] == -1


def test_ids_survive_the_end_of_the_writer(world):
    live = Live(world)
    assert live.send(payment(0, "new")) == []
    dropped = live.decoder.decode([json.dumps([unpaid("a0", 0)[0], payment(1, "new", "a9", 3)]).encode()])
    live.writer.prepare(dropped.changes)
    live.writer.drop()
    assert ask(live, ["new"]).shape == (1, 2)
    (reason,) = live.send(payment(1, "new", "a9", 3))
    assert "has the id 'new'" in reason
