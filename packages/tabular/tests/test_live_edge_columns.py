"""Columns of edges in a live graph: a row of an event is that of a request and of a graph built with it."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler
from torch_geometric.nn import GATv2Conv

import hopline
from hopline.engine.answer import Answerer
from hopline.engine.model import StateCachePlan, load_model
from hopline.errors import SchemaMismatch
from hopline.events.decode import Decoder
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.graph.live.codec import decode_changes, encode_changes
from hopline.graph.live.memory import LiveMemory
from hopline.graph.live.plan import make_plan
from hopline.graph.live.preflight import preflight
from hopline.graph.live.view import LiveView
from hopline.graph.live.writer import LiveWriter
from hopline.memory.arena import Arena
from hopline.types import InlineNode, ScoreRequest
from hopline_tabular.encoder import ColumnEncoder
from packages.tabular.tests import payment_graph as shop
from packages.tabular.tests.fraud_graph import ACCOUNTS, MERCHANTS, dense, pairs
from packages.tabular.tests.test_edge_columns import KEY, ROW, Shop, described, new_payments
from packages.tabular.tests.test_preprocess import as_sent, ask
from tests.graph.live.keepers import Kept
from tests.shared_memory import create_shared
from tests.thorough import thorough


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield [Shop(tmp_path_factory.mktemp("world"), turns) for turns in (False, True)]


BOTH = pytest.mark.parametrize("turns", [False, True], ids=["two types", "one type"])
PAID_BY = "merchant__paid_by__account"


class Live:
    """A live graph in memory, the decoder of its events, and a model on it."""

    def __init__(self, world, spare_edges=2_000, caches=True, fd=None):
        self.world, self.graph = world, world.graph
        plan = make_plan(
            self.graph, lineage=self.graph.version, sequence=0, spare_nodes=200, spare_edges=spare_edges,
            num_levels=4,
        )  # fmt: skip
        self.memory = LiveMemory.create(plan, fd)
        self.ids = {name: nodes.ids for name, nodes in self.graph.nodes.items()}
        self.writer = LiveWriter(self.memory, self.graph.schema, self.ids, lambda: 0)
        self.writer.fill(self.graph)
        self.view = LiveView(self.memory, self.graph.schema, self.ids)
        self.decoder = Decoder(self.graph.schema)
        self.answerer = self.reader(caches)

    def reader(self, caches=False):
        own, report = LiveView(self.memory, self.graph.schema, self.ids), self.world.report
        state = StateCachePlan(report.spec, own, 2**24 if caches else 0)
        model = load_model(report.path, report.spec, own, state.build(Arena(state.num_bytes)))
        return Answerer(model, ("logits",), 9_999)

    def send(self, *events):
        """Apply events; the reasons of those that are refused."""
        return self.apply(self.decoder.decode([json.dumps(list(events)).encode()]))

    def apply(self, decoded):
        applied = self.writer.apply(decode_changes(encode_changes(decoded.changes)))
        return [each.reason for each in (*decoded.refused, *applied.rejected)]

    def answers(self, ids):
        return ask(self.answerer, nodes=ids)


def paid(account, merchant, row, **more):
    """Events of a payment: one for each of the graph's own edge types."""
    event = {"op": "add_edge", "columns": row, **more}
    return [
        {**event, "edge_type": KEY, "src": account, "dst": merchant},
        {**event, "edge_type": PAID_BY, "src": merchant, "dst": account},
    ]


def unpaid(account, merchant):
    return [{**each, "op": "remove_edge", "columns": None} for each in paid(account, merchant, None)]


def of(live, events):
    """Those of types that the graph has by themselves."""
    own = live.graph.schema.own_edge_types
    return [event for event in events if event["edge_type"] in own]


numbers = st.none() | st.floats(-1e6, 1e6) | st.sampled_from([0.0, -0.0, 1e-300, 3.4e38])
times = st.none() | st.datetimes(pd.Timestamp("1900-01-01"), pd.Timestamp("2200-01-01"))
ROWS = st.fixed_dictionaries(
    {
        "amount": numbers,
        "currency": st.none() | st.sampled_from([*shop.CURRENCIES, "XXX", "", "é\0x"]),
        "items": st.integers(0, 2**53),
        "online": st.none() | st.booleans(),
        "paid_at": times.map(lambda time: time and pd.Timestamp(time, tz="UTC")),
    }
)
ENDS = st.tuples(st.integers(0, 5), st.integers(0, 3))
STEP = st.lists(st.tuples(ENDS, ROWS | st.just(None)), min_size=1, max_size=6)


class Table:
    """Payments as a list, which events change: a removal removes all between two nodes."""

    def __init__(self, frame):
        self.frame = frame
        self.rows = [
            (int(a), int(m), row) for a, m, row in zip(*pairs(), frame.to_dict("records"), strict=True)
        ]

    def graph(self, turns):
        kinds = {"amount": "float64", "items": "int64", "paid_at": "datetime64[us, UTC]"}
        frame = pd.DataFrame(
            {
                name: pd.Series([row[name] for _, _, row in self.rows], dtype=kinds.get(name, object))
                for name in self.frame
            }
        )
        ends = [np.array([row[end] for row in self.rows]) for end in (0, 1)]
        return shop.graph_of(frame, turns, ends=ends)


def assert_same(found, graph):
    """The lists and rows of two graphs are equal."""
    for key, edges in graph.edges.items():
        np.testing.assert_array_equal(found.edges[key].indices, edges.indices)
        if edges.columns is not None:
            assert found.edges[key].columns.table.equals(edges.columns.table)


@pytest.mark.sample(1)
@BOTH
@settings(max_examples=thorough(3, 10), deadline=None, phases=[Phase.generate])
@given(steps=st.lists(STEP, min_size=1, max_size=4), cached=st.booleans())
def test_after_any_events_the_graph_is_the_one_that_is_built_of_the_rows(worlds, turns, steps, cached):
    """Bit for bit: stored cells, attributes, and answers."""
    world = worlds[turns]
    live, table = Live(world, caches=cached), Table(world.frame)
    live.answers(world.ids)
    for step in steps:
        events = []
        for (account, merchant), row in step:
            if row is None:
                if any((a, m) == (account, merchant) for a, m, _ in table.rows):
                    table.rows = [each for each in table.rows if each[:2] != (account, merchant)]
                    events += unpaid(f"a{account}", merchant)
            else:
                table.rows.append((account, merchant, row))
                events += paid(f"a{account}", merchant, as_sent(row))
        assert live.send(*of(live, events)) == []
    graph = table.graph(turns)
    assert_same(live.view.snapshot(), graph)
    fresh = world.answerer(graph)
    with live.answerer.model.graph as view:
        for key, edges in fresh.model.graph.edges.items():
            own = view.edges[key]
            assert own.attr[own.positions()].tobytes() == edges.attr.tobytes()
    np.testing.assert_array_equal(live.answers(world.ids), ask(fresh, nodes=world.ids))
    order = np.lexsort([[row[end] for row in table.rows] for end in (0, 1)])
    rows, attr = [table.rows[at][2] for at in order], fresh.model.graph.edges[KEY].attr
    sent = live.answerer.model.encoders[KEY].rows([as_sent(row) for row in rows])
    assert sent.tobytes() == attr.tobytes()
    wanted = dense(world.fitted.transform(shop.fitted_form(pd.DataFrame(rows)))).numpy()
    np.testing.assert_allclose(attr, wanted, rtol=1e-6, atol=1e-6)
    again = LiveWriter(live.memory, live.graph.schema, live.ids, lambda: 0)
    again.attach()
    live.writer = again
    assert live.send(*of(live, paid("a0", 0, ROW))) == []
    table.rows.append((0, 0, ROW | {"paid_at": pd.Timestamp(ROW["paid_at"])}))
    assert_same(live.view.snapshot(), table.graph(turns))


@BOTH
def test_answers_after_events_are_pygs_on_the_transformed_rows(worlds, turns):
    world = worlds[turns]
    live, (account, merchant) = Live(world), pairs()
    more = shop.payments(60, 8, ["EUR", "XXX"])
    ends = np.arange(60), np.arange(60) % MERCHANTS
    events = [
        event
        for at, row in enumerate(more.to_dict("records"))
        for event in of(live, paid(f"a{ends[0][at]}", int(ends[1][at]), as_sent(row)))
    ]
    assert live.send(*events) == []
    frame = pd.concat([world.frame, more], ignore_index=True)
    both = np.concatenate([account, ends[0]]), np.concatenate([merchant, ends[1]])
    expected = world.pyg(frame, ends=both)
    np.testing.assert_allclose(live.answers(world.ids), expected, atol=1e-4, rtol=1e-4)


WRONG = [
    ({"amount": "much"}, "column 'amount': 'much' instead of a number"),
    ({"currency": 5}, "column 'currency': 5 instead of a string"),
    ({"items": 1.5}, "column 'items': 1.5 instead of a whole number"),
    ({"online": 1}, "column 'online': 1 instead of true or false"),
    ({"paid_at": 1_700_000_000}, "column 'paid_at': 1700000000 instead of a time in ISO 8601"),
    ({"later": 1}, f"edge type '{KEY}' has no column later; it has amount (float), currency (text)"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=lambda each: str(each)[:30])
def test_a_wrong_value_names_column_and_value_and_costs_no_other_event(worlds, wrong, message):
    live = Live(worlds[1])
    before = live.view.snapshot().num_edges
    (reason,) = live.send(*(event for row in (ROW, ROW | wrong, ROW) for event in paid("a1", 2, row)[:1]))
    assert message in reason
    assert live.view.snapshot().num_edges == before + 4


def test_an_edge_without_a_column_or_with_numbers_is_refused_with_what_the_type_has(worlds):
    live = Live(worlds[1])
    short = {name: value for name, value in ROW.items() if name != "currency"}
    event = paid("a1", 2, ROW)[0]
    for wrong, message in (
        ({"columns": short}, f"edge type '{KEY}': columns without currency; it has amount (float)"),
        ({"columns": None}, "columns without amount, currency, items"),
        ({"attr": [1.0]}, "attr of 1 numbers; the graph has 0"),
        ({"op": "remove_edge"}, "remove_edge has no field 'columns'"),
    ):
        (reason,) = live.send(event | wrong)
        assert message in reason
    assert live.send({**event, "attr": None}) == []


def test_rows_of_arrow_are_the_rows_of_json(worlds):
    frame = shop.payments(30, 8)
    table = frame.assign(op="add_edge", edge_type=KEY, src=[f"a{row}" for row in range(30)], dst=range(30))
    live, other = Live(worlds[1]), Live(worlds[1])
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    short = live.decoder.decode([stream(arrow.drop_columns("paid_at"))]).refused
    assert {each.reason.partition(";")[0] for each in short} == {
        f"edge type '{KEY}': columns without paid_at"
    }
    wrong = live.decoder.decode([stream(pa.Table.from_pandas(table.assign(items=1.5)))]).refused
    assert {each.code for each in wrong} == {"schema_changed"} or "'items': 1.5" in wrong[0].reason
    assert live.apply(live.decoder.decode([stream(arrow)])) == []
    events = [paid(f"a{at}", at, as_sent(row))[0] for at, row in enumerate(frame.to_dict("records"))]
    assert other.send(*events) == []
    gone = pa.table({"op": ["remove_edge"], "edge_type": [KEY], "src": ["a3"], "dst": [3]})
    assert live.apply(live.decoder.decode([stream(gone)])) == []
    assert other.send(unpaid("a3", 3)[0]) == []
    tables = [each.view.snapshot().edges[KEY].columns.table for each in (live, other)]
    assert tables[0].equals(tables[1])
    assert len(tables[0]) == 900 + 30 - 1 - sum(np.all(np.transpose(pairs()) == [3, 3], axis=1))


def stream(table):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@BOTH
def test_rows_survive_the_log_a_snapshot_and_a_restart(worlds, turns, tmp_path):
    world = worlds[turns]
    decoder, table = Decoder(world.graph.schema), Table(world.frame)
    frame = shop.payments(12, 5, ["NZD", "é", ""])

    def changes(first, last):
        events = []
        for at in range(first, last):
            table.rows.append((at, at, frame.to_dict("records")[at]))
            events += paid(f"a{at}", at, as_sent(frame.iloc[at]))
        own = [event for event in events if event["edge_type"] in world.graph.schema.own_edge_types]
        return decoder.decode([json.dumps(own).encode()]).changes

    first = Kept(tmp_path / "live", world.graph)
    first.apply(changes(0, 6))
    assert first.snapshot() is not None
    first.apply(changes(6, 12))
    first.close()
    again = Kept(tmp_path / "live", world.graph)
    assert again.num_replayed == 1
    found = again.view.snapshot()
    again.close()
    assert_same(found, table.graph(turns))


@pytest.mark.release
def test_slots_of_removed_edges_are_used_again_and_a_pinned_version_keeps_its_rows(worlds):
    """Many times as many edges as there is room for rows, and a reader that stays behind."""
    live = Live(worlds[1], spare_edges=10)
    room = live.memory.plan.edges[KEY].rows
    behind = live.reader()
    with behind.model.graph:
        kept = ask(behind, nodes=["a0", "a1"])
    batch = [paid("a0", 0, ROW | {"amount": float(at)})[0] for at in range(4_000)]
    for number in range(room // 4_000 + 4):
        assert live.send(*batch) == []
        if number == 3:
            behind.model.graph.__enter__()
            pinned = ask(behind, nodes=["a0", "a1"])
        if number == 10:
            np.testing.assert_array_equal(ask(behind, nodes=["a0", "a1"]), pinned)
            behind.model.graph.__exit__()
        assert live.send(unpaid("a0", 0)[0]) == []
    gone = [each for each in Table(worlds[1].frame).rows if each[:2] != (0, 0)]
    table = Table(worlds[1].frame)
    table.rows = gone
    expected = ask(worlds[1].answerer(table.graph(True)), nodes=worlds[1].ids)
    np.testing.assert_array_equal(live.answers(worlds[1].ids), expected)
    assert (kept != pinned).any()


def test_processes_share_the_rows_and_make_each_once_for_both_directions(worlds, monkeypatch):
    rows, encode = [], ColumnEncoder.encode

    def counted(self, columns, count):
        rows.append(count)
        return encode(self, columns, count)

    monkeypatch.setattr(ColumnEncoder, "encode", counted)
    live = Live(worlds[1], fd=create_shared())
    assert sum(rows) == len(worlds[1].frame)
    rows.clear()
    other = live.reader()
    assert live.send(paid("a5", 7, ROW)[0]) == []
    np.testing.assert_array_equal(ask(other, nodes=worlds[1].ids), live.answers(worlds[1].ids))
    assert sum(rows) == 1


def test_a_graph_is_full_where_no_row_is_left(worlds):
    live = Live(worlds[1], spare_edges=1)
    room = live.memory.plan.edges[KEY].rows - len(worlds[1].frame)
    event, reasons = paid("a0", 0, ROW)[0], []
    for begin in range(0, room + 1, 8_000):
        reasons += live.send(*[event] * min(8_000, room + 1 - begin))
    assert reasons
    assert "memory is used up" in reasons[0]
    assert live.writer.filled > 0.9


def test_a_preflight_of_edges_with_columns(worlds):
    for world in worlds:
        preflight(world.graph.schema, num_levels=3, reads_degrees=True)


def test_unseen_nodes_of_a_live_graph_describe_their_edges(worlds):
    live, (ends, frame) = Live(worlds[0]), new_payments()
    expected = ask(worlds[0].answerer(), inline=described(ends, frame, 100))
    np.testing.assert_allclose(ask(live.answerer, inline=described(ends, frame, 100)), expected, atol=1e-6)
    assert live.send({"op": "add_node", "node_type": "account", "node": "n", "features": [1.0] * 3}) == []
    assert live.send(paid("n", 2, ROW)[1]) == []
    node = InlineNode([1.0] * 3, {"": [2]}, edge_attr={"": [ROW]})
    both = ask(live.answerer, nodes=["n"], inline=[node])
    np.testing.assert_allclose(both[0], both[1], atol=1e-6)
    assert len(worlds[0].ids) == ACCOUNTS


def test_a_row_that_only_the_preprocessing_refuses_costs_only_the_answers_that_read_it(tmp_path):
    frame = pd.DataFrame({"amount": np.arange(12.0)})
    ends = np.arange(12), np.roll(np.arange(12), 1)
    graph = Graph.from_tables(
        {"node": NodeTable(np.ones((12, 2)))}, {("node", "to", "node"): EdgeTable(ends, columns=frame)}
    )
    net = Gated().eval()
    report = hopline.package(
        net, graph, tmp_path, name="risk", fanouts=[-1], task="multiclass",
        preprocess={("node", "to", "node"): StandardScaler().fit(frame)},
    )  # fmt: skip

    class Strict:
        pass

    world = Strict()
    world.graph, world.report = graph, report
    live = Live(world)
    before = live.answers(list(range(12)))
    edge = {"op": "add_edge", "src": 1, "dst": 4}
    assert live.send({**edge, "columns": {"amount": None}}) == []
    good, bad = ScoreRequest("risk", nodes=[1, 2]), ScoreRequest("risk", nodes=[4])
    outcomes = live.answerer.answer([good, bad, good])
    assert isinstance(outcomes[1], SchemaMismatch)
    assert "an edge of type 'node__to__node': column 'amount'" in str(outcomes[1])
    for outcome in (outcomes[0], outcomes[2]):
        np.testing.assert_array_equal(outcome.outputs["logits"], before[1:3])
    np.testing.assert_array_equal(ask(live.reader(), nodes=[1, 2]), before[1:3])
    assert live.send({**edge, "op": "remove_edge"}) == []
    np.testing.assert_array_equal(live.answers(list(range(12))), before)


class Gated(torch.nn.Module):
    """One layer that reads the rows of edges."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = GATv2Conv(2, 2, edge_dim=1, add_self_loops=False)

    def forward(self, x, edge_index, edge_attr):
        return self.conv(x, edge_index, edge_attr)
