"""Columns of a live graph: a row of an event is that of a request and of a graph that is built with it."""

import json
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hopline.engine.answer import Answerer
from hopline.engine.model import StateCachePlan, load_model
from hopline.errors import NodeNotFound, SchemaMismatch
from hopline.events.decode import Decoder, events_of
from hopline.graph.cell_text import read_text
from hopline.graph.live.codec import decode_changes, encode_changes
from hopline.graph.live.memory import LiveMemory
from hopline.graph.live.plan import make_plan
from hopline.graph.live.preflight import preflight
from hopline.graph.live.view import LiveView
from hopline.graph.live.writer import LiveWriter
from hopline.graph.stored_columns import cell_of
from hopline.jobs.batch.goal import BatchOptions
from hopline.jobs.batch.registry import open_sink
from hopline.jobs.batch.run import BatchRun
from hopline.memory.arena import Arena
from hopline.types import InlineNode, ScoreRequest
from hopline_stores.columns import text_of
from hopline_tabular.encoder import ColumnEncoder
from packages.tabular.tests import fraud_graph as fraud
from packages.tabular.tests.fraud_world import as_sent, ask, fitted_form
from packages.tabular.tests.test_store import TYPES, fetch
from tests.graph.live.keepers import Kept
from tests.shared_memory import create_shared
from tests.thorough import thorough


class Live:
    """A live graph in memory, the decoder of its events, and a model on it."""

    def __init__(self, world, graph=None, spare_nodes=200, caches=True, fd=None):
        self.graph = graph or world.graph
        plan = make_plan(
            self.graph, lineage=self.graph.version, sequence=0, spare_nodes=spare_nodes, spare_edges=500,
            num_levels=4,
        )  # fmt: skip
        self.fd = fd
        self.memory = LiveMemory.create(plan, fd)
        ids = {name: nodes.ids for name, nodes in self.graph.nodes.items()}
        self.writer = LiveWriter(self.memory, self.graph.schema, ids, lambda: 0)
        self.writer.fill(self.graph)
        self.view = LiveView(self.memory, self.graph.schema, ids)
        self.decoder = Decoder(self.graph.schema)
        self.world, report = world, world.report
        own = self.view.another()
        state = StateCachePlan(report.spec, own, 2**24 if caches else 0)
        self.model = load_model(report.path, report.spec, own, state.build(Arena(state.num_bytes)))
        self.answerer = Answerer(self.model, ("logits",), 999)

    def send(self, *events):
        """Apply events; the reasons of those that are refused."""
        decoded = self.decoder.decode([json.dumps(list(events)).encode()])
        applied = self.writer.apply(decode_changes(encode_changes(decoded.changes)))
        return [each.reason for each in (*decoded.refused, *applied.rejected)]

    def answers(self, ids):
        return ask(self.answerer, nodes=ids)


def added(name, row):
    return {"op": "add_node", "node_type": "account", "node": name, "columns": as_sent(row)}


def changed(name, row):
    return {**added(name, row), "op": "set_features"}


numbers = st.none() | st.floats(-1e6, 1e6) | st.sampled_from([0.0, -0.0, 1e-300, 3.4e38])
times = st.none() | st.datetimes(pd.Timestamp("1900-01-01"), pd.Timestamp("2200-01-01"))
ROWS = st.fixed_dictionaries(
    {
        "amount": numbers,
        "country": st.none()
        | st.sampled_from([*fraud.COUNTRIES, "XX", "", " FR ", "DE\u2003", "\t", "é\0x"]),
        "mcc": st.sampled_from(["5411", "5812", "0742 ", "9999", ""]),
        "age": st.integers(0, 2**53),
        "active": st.none() | st.booleans(),
        "opened": times.map(lambda time: time and pd.Timestamp(time, tz="UTC")),
    }
)


def framed(frame, rows, at):
    """The frame of the graph with other rows at some places, and further ones."""
    records = frame.to_dict("records")
    for place, row in zip(at, rows, strict=False):
        records[place] = row
    records += rows[len(at) :]
    kinds = {"amount": "float64", "age": "int64", "opened": "datetime64[us, UTC]"}
    return pd.DataFrame(
        {name: pd.Series([row[name] for row in records], dtype=kinds.get(name, object)) for name in frame}
    )


def as_stored(row):
    """A row of a request as it comes out of a store of texts, such as Redis."""
    return {
        name: None if value is None else read_text(TYPES[name], text_of(TYPES[name], value))
        for name, value in row.items()
    }


@settings(max_examples=thorough(4, 12), deadline=None, phases=[Phase.generate])
@given(rows=st.lists(ROWS, min_size=2, max_size=8), cached=st.booleans(), data=st.data())
def test_a_row_of_any_values_is_the_same_inline_in_an_event_a_store_a_batch_and_a_graph_built_with_it(
    world, tmp_path_factory, rows, cached, data
):
    """Bit for bit: stored cells, features, and answers of changed nodes and their neighbours.

    The features are those that the fitted object's own `transform` makes of the frame.
    """
    live = Live(world, caches=cached)
    live.answers(world.ids)
    places = data.draw(st.lists(st.integers(0, 299), max_size=len(rows), unique=True))
    events = [changed(world.ids[place], row) for place, row in zip(places, rows, strict=False)]
    new = [f"new{at}" for at in range(len(rows) - len(places))]
    events += [added(name, row) for name, row in zip(new, rows[len(places) :], strict=True)]
    assert live.send(*events) == []
    ids = [*world.ids, *new]
    frame = framed(world.frame, rows, places)
    graph = fraud.graph_of(frame, fraud.merchants(), ids)
    snapshot = live.view.snapshot()
    assert snapshot.nodes["account"].columns.table.equals(graph.nodes["account"].columns.table)
    fresh = world.answerer(graph)
    features = fresh.model.graph.nodes["account"].features
    sent = [as_sent(row) for row in rows]
    encoded = live.model.encoder.rows(sent)
    at = [*places, *range(len(world.ids), len(ids))]
    assert encoded.tobytes() == features[at].tobytes()
    transformed = fraud.dense(world.fitted["account"].transform(fitted_form(frame))).numpy()
    assert encoded.tobytes() == transformed[at].tobytes()
    stored = {f"a{number}": as_stored(row) for number, row in enumerate(sent)}
    assert fetch(live.model.encoder, stored, list(stored)).values.tobytes() == encoded.tobytes()
    with live.model.graph as view:
        assert view.nodes["account"].features[np.array(at)].tobytes() == encoded.tobytes()
    np.testing.assert_array_equal(live.answers(ids), ask(fresh, nodes=ids))
    one = [ids[at[0]]]
    np.testing.assert_array_equal(live.answers(one), ask(fresh, nodes=one))
    folder = tmp_path_factory.mktemp("batch")
    path = graph.save(folder / "graph").path
    run = BatchRun(world.report.path, path, folder / "work", BatchOptions(outputs=("logits",)))
    run.run(lambda: open_sink(f"npy://{folder / 'out'}"))
    (file,) = (folder / "out").rglob("logits*.npy")
    np.testing.assert_array_equal(np.load(file), ask(fresh, nodes=ids))


def test_answers_after_events_are_pygs_on_the_transformed_frame(world):
    live = Live(world)
    frame = fraud.accounts(20, 77, countries=[*fraud.COUNTRIES, "XX"])
    assert live.send(*(added(f"n{row}", frame.iloc[row]) for row in range(20))) == []
    edges = [
        {"op": "add_edge", "edge_type": "merchant__paid_by__account", "src": row, "dst": f"n{row}"}
        for row in range(20)
    ]
    assert live.send(*edges) == []
    found = live.answers([f"n{row}" for row in range(20)])
    expected = world.pyg(fitted_form(frame), [[row] for row in range(20)])[fraud.ACCOUNTS :]
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


def test_inline_nodes_that_are_kept_answer_as_pyg_does_on_the_transformed_frame(world):
    live = Live(world)
    frame = fraud.accounts(20, 78, countries=[*fraud.COUNTRIES, "XX"])

    def kept(**more):
        inline = [
            InlineNode(
                id=f"k{row}",
                columns=as_sent(frame.iloc[row]) | more,
                neighbors={"merchant__paid_by__account": [row]},
            )
            for row in range(20)
        ]
        request = ScoreRequest("risk", inline=inline, keep=True)
        events, places = events_of(request, "account", live.decoder.schema, None)
        return places, live.decoder.check(events)

    places, decoded = kept(amount="much")
    assert [places[each.index] for each in decoded.refused] == [f"inline[{at}]" for at in range(20)]
    assert "column 'amount': 'much' instead of a number" in decoded.refused[0].reason
    _, decoded = kept()
    applied = live.writer.apply(decode_changes(encode_changes(decoded.changes)))
    assert (decoded.refused, applied.rejected, applied.num_applied) == ([], [], 40)
    found = live.answers([f"k{row}" for row in range(20)])
    expected = world.pyg(fitted_form(frame), [[row] for row in range(20)])[fraud.ACCOUNTS :]
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


def test_a_neighbours_new_row_changes_the_answers_that_read_it(world):
    live = Live(world)
    before = live.answers(world.ids)
    merchant = {"op": "set_features", "node_type": "merchant", "node": 3}
    columns = {"risk": 7.5, "category": "new", "unread": None}
    assert live.send({**merchant, "columns": columns}) == []
    merchants = fraud.merchants()
    merchants.loc[3, ["risk", "category"]] = [7.5, "new"]
    merchants.loc[3, "unread"] = math.nan
    expected = ask(world.answerer(fraud.graph_of(world.frame, merchants, world.ids)), nodes=world.ids)
    np.testing.assert_array_equal(live.answers(world.ids), expected)
    assert (before != expected).any(axis=1).sum() > 20


ROW = {"amount": 1.5, "country": "JP", "mcc": "5411", "age": 30, "active": True, "opened": None}
WRONG = [
    ({"amount": "much"}, "column 'amount': 'much' instead of a number"),
    ({"amount": [1]}, "column 'amount': [1] instead of a number"),
    ({"amount": True}, "column 'amount': True instead of a number"),
    ({"country": 5}, "column 'country': 5 instead of a string"),
    ({"mcc": {"a": 1}}, "column 'mcc': {'a': 1} instead of a string"),
    ({"age": 1.5}, "column 'age': 1.5 instead of a whole number"),
    ({"age": 2**53 + 2}, "column 'age': 9007199254740994 is beyond"),
    ({"age": 2**53 + 1}, "column 'age': 9007199254740993 is beyond"),
    ({"age": -(2**53) - 1}, "column 'age': -9007199254740993 is beyond"),
    ({"age": 2.0**53}, "column 'age': 9007199254740992.0 is beyond"),
    ({"age": 10**400}, "instead of a whole number"),
    ({"active": 1}, "column 'active': 1 instead of true or false"),
    ({"opened": 1_700_000_000}, "column 'opened': 1700000000 instead of a time in ISO 8601"),
    ({"opened": "yesterday"}, "column 'opened': 'yesterday' instead of a time"),
    (
        {"opened": "2024-01-01T00:00:00.123456789Z"},
        "column 'opened': '2024-01-01T00:00:00.123456789Z' is finer than microseconds",
    ),
    ({"opened": "soon.123456789"}, "column 'opened': 'soon.123456789' instead of a time in ISO 8601"),
    ({"later": 1}, "has no column later; it has amount (float), country (text)"),
]


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("2024-01-31", -3600 * 10**6),
        ("2024-01-31 01:00", 0),
        ("2024-01-31T01:00:00", 0),
        ("2024-01-31t01:00:00z", 0),
        ("2024-01-31T03:00:00.5+02:00", 500_000),
        ("2024-01-31T01:00:00.123456Z", 123_456),
        ("2024-01-31T01:00:00.123456000Z", 123_456),
        ("2024-01-31T01:00:00.120000000000z", 120_000),
    ],
)
def test_a_time_in_iso_8601_is_read_without_loss(text, micros):
    assert cell_of("timestamp", text) == 1_706_662_800_000_000 + micros


def test_a_time_of_pandas_is_read_without_loss():
    moment = pd.Timestamp("2024-01-31T01:00:00.123456Z")
    assert cell_of("timestamp", moment) == 1_706_662_800_123_456
    with pytest.raises(ValueError, match="finer than microseconds"):
        cell_of("timestamp", moment + pd.Timedelta(1, "ns"))
    assert cell_of("timestamp", pd.NaT) is None


@pytest.mark.sample(6)
@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=lambda each: str(each)[:40])
def test_a_wrong_value_names_column_and_value_and_costs_no_other_event(world, wrong, message):
    live = Live(world)
    bad, good = added("bad", ROW | wrong), added("good", ROW)
    (reason,) = live.send(good, bad, changed("a1", ROW))
    assert message in reason
    assert live.answers(["good", "a1"]).shape == (2, 2)
    with pytest.raises(NodeNotFound, match="bad"):
        live.answers(["bad"])


def test_a_row_without_a_column_or_with_features_is_refused_with_what_the_type_has(world):
    live = Live(world)
    short = {name: value for name, value in ROW.items() if name != "country"}
    for event, message in (
        (added("x", short), "node type 'account': columns without country; it has amount (float)"),
        ({**added("x", ROW), "columns": None}, "columns without amount, country, mcc"),
        ({**added("x", ROW), "features": [1.0]}, "features of 1 numbers; the graph has 0"),
    ):
        (reason,) = live.send(event)
        assert message in reason
    edge = {"op": "add_edge", "edge_type": "account__pays__merchant", "src": "a0", "dst": 1, "columns": ROW}
    (reason,) = live.send(edge)
    assert "edge type 'account__pays__merchant' has no column amount, country" in reason
    assert live.send({**added("x", ROW), "features": None, "src": None}) == []


@pytest.mark.sample(2)
@pytest.mark.parametrize("form", ["s", "ms", "us", "ns", "text"])
def test_a_row_of_arrow_is_the_row_of_json(world, form):
    frame = fraud.accounts(30, 8)
    table = frame.assign(op="add_node", node_type="account", node=[f"x{row}" for row in range(30)])
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    at = arrow.schema.get_field_index("opened")
    times = arrow.column("opened")
    if form == "text":
        texts = [None if each is None else each.isoformat() for each in times.to_pylist()]
        arrow = arrow.set_column(at, "opened", pa.array(texts, pa.string()))
    else:
        arrow = arrow.set_column(at, "opened", times.cast(pa.timestamp(form, "UTC")))
    at = arrow.schema.get_field_index("country")
    arrow = arrow.set_column(at, "country", arrow.column("country").dictionary_encode())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, arrow.schema) as writer:
        writer.write_table(arrow)
    live, other = Live(world), Live(world)
    decoded = live.decoder.decode([sink.getvalue().to_pybytes()])
    assert decoded.refused == []
    live.writer.apply(decoded.changes)
    other.send(*(added(f"x{row}", frame.iloc[row]) for row in range(30)))
    tables = [each.view.snapshot().nodes["account"].columns.table for each in (live, other)]
    assert tables[0].equals(tables[1])
    assert tables[0].num_rows == 330


def test_wrong_columns_of_arrow_are_refused_by_row_or_as_a_whole(world):
    live = Live(world)

    def sent(frame):
        arrow = pa.Table.from_pandas(frame, preserve_index=False)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, arrow.schema) as writer:
            writer.write_table(arrow)
        return live.decoder.decode([sink.getvalue().to_pybytes()])

    frame = fraud.accounts(3, 8).assign(op="add_node", node_type="account", node=["x", "y", "z"])
    one = sent(frame.assign(age=[1.0, 2.5, 3.0]))
    assert [(each.index, each.code) for each in one.refused] == [(1, "bad_value")]
    assert "column 'age': 2.5 instead of a whole number" in one.refused[0].reason
    assert one.changes.num_events == 2
    (lost,) = {each.reason for each in sent(frame.drop(columns="age")).refused}
    assert "columns without age" in lost
    (foreign,) = sent(frame.assign(amount="1")).refused
    assert (foreign.index, foreign.code) == (-1, "schema_changed")
    assert "amount is string" in foreign.reason or "amount is large_string" in foreign.reason
    merchant = sent(frame.assign(node_type=["account", "merchant", "account"], node=["x", "1", "z"]))
    assert {each.index for each in merchant.refused} >= {1}


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.int64(), [2**53, -(2**53)], [2**53 + 1, -(2**53) - 1, -(2**63)]),
        (pa.uint64(), [2**53], [2**53 + 1, 2**64 - 1]),
        (pa.float64(), [2.0**53 - 1], [2.0**53, -(2.0**53)]),
        (pa.float32(), [2.0**24 - 1, None], [2.0**24, 2.0**24 + 2]),
    ],
    ids=str,
)
def test_integers_of_arrow_that_may_have_been_rounded_are_refused(world, kind, good, bad):
    frame = fraud.accounts(len(good) + 1, 8).assign(op="add_node", node_type="account")
    arrow = pa.Table.from_pandas(
        frame.assign(node=[f"b{row}" for row in frame.index]), preserve_index=False
    )
    at = arrow.schema.get_field_index("age")
    for value in bad:  # each alone: a larger one has all values looked at
        sink = pa.BufferOutputStream()
        table = arrow.set_column(at, "age", pa.array([*good, value], kind))
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        (refused,) = Live(world).decoder.decode([sink.getvalue().to_pybytes()]).refused
        assert refused.index == len(good)
        assert "column 'age'" in refused.reason
        assert "is beyond" in refused.reason


def strict_world(folder):
    """A model whose preprocessing accepts no missing amount and no unseen country."""
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from torch_geometric.nn import GraphSAGE

    import hopline
    from packages.tabular.tests.test_preprocess import loop_graph

    frame = pd.DataFrame({"country": ["DE", "JP", "FR"] * 4, "amount": np.arange(12.0)})
    graph = loop_graph(frame)
    fitted = ColumnTransformer([("a", OneHotEncoder(), ["country"]), ("b", StandardScaler(), ["amount"])])
    fitted.fit(frame)
    report = hopline.package(
        GraphSAGE(4, 8, 2, 2).eval(), graph, folder, name="risk", fanouts=[-1, -1], task="multiclass",
        preprocess={"node": fitted},
    )  # fmt: skip

    class Strict:
        pass

    world = Strict()
    world.graph, world.report = graph, report
    return world


@pytest.mark.release
def test_a_row_that_only_the_preprocessing_refuses_costs_only_the_answers_that_read_it(tmp_path):
    live = Live(strict_world(tmp_path))
    before = live.answers(list(range(12)))
    row = {"country": "XX", "amount": 1.0}
    assert live.send({"op": "set_features", "node": 5, "columns": row}) == []
    good, bad = ScoreRequest("risk", nodes=[1, 2]), ScoreRequest("risk", nodes=[4])
    outcomes = live.answerer.answer([good, bad, good])
    assert isinstance(outcomes[1], SchemaMismatch)
    assert "node 5 of type 'node': column 'country': 'XX' is unknown to the model" in str(outcomes[1])
    for outcome in (outcomes[0], outcomes[2]):
        np.testing.assert_array_equal(outcome.outputs["logits"], before[1:3])
    own = live.view.another()
    again = Answerer(load_model(live.world.report.path, live.world.report.spec, own), ("logits",), 99)
    np.testing.assert_array_equal(ask(again, nodes=[1, 2]), before[1:3])
    assert live.send({"op": "set_features", "node": 5, "columns": {"country": "FR", "amount": 5.0}}) == []
    for each in (live.answerer, again):
        np.testing.assert_array_equal(ask(each, nodes=list(range(12))), before)


@pytest.mark.release
def test_a_graph_of_which_many_rows_are_not_accepted_is_refused_when_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr("hopline.engine.encoders._MOST_REFUSED", 3)
    world = strict_world(tmp_path)
    live = Live(world)
    for node in range(5):
        live.send({"op": "set_features", "node": node, "columns": {"country": "XX", "amount": None}})
    with pytest.raises(SchemaMismatch, match=r"node [0-4] of type 'node': column 'country': 'XX' is"):
        load_model(world.report.path, world.report.spec, live.view.another())


def test_columns_survive_the_log_a_snapshot_and_a_restart(world, tmp_path):
    frame = fraud.accounts(12, 5, countries=["NZ", "é", ""])
    decoder = Decoder(world.graph.schema)

    def changes(events):
        return decoder.decode([json.dumps(events).encode()]).changes

    first = Kept(tmp_path / "live", world.graph)
    first.apply(changes([added(f"k{row}", frame.iloc[row]) for row in range(6)]))
    assert first.snapshot() is not None
    first.apply(changes([added(f"k{row}", frame.iloc[row]) for row in range(6, 12)]))
    first.apply(changes([changed("k0", frame.iloc[11]), changed("a7", frame.iloc[0])]))
    wanted = first.view.snapshot()
    first.close()
    again = Kept(tmp_path / "live", world.graph)
    assert again.num_replayed == 2
    found = again.view.snapshot()
    again.close()
    assert found.version == wanted.version
    rows = [*frame.to_dict("records")]
    rows[0] = rows[11]
    frames = framed(world.frame, [frame.to_dict("records")[0], *rows], [7])
    ids = [*world.ids, *(f"k{row}" for row in range(12))]
    table = fraud.graph_of(frames, fraud.merchants(), ids).nodes["account"].columns.table
    assert found.nodes["account"].columns.table.equals(table)


def test_texts_beyond_the_room_are_refused_and_nothing_else_is_lost(world):
    live = Live(world, spare_nodes=1)
    rows = [ROW | {"country": f"a text of many letters, number {row} " * 4} for row in range(3)]
    reasons = [reason for row in rows for reason in live.send(changed("a0", row))]
    assert reasons
    assert all("memory is used up" in reason for reason in reasons)
    assert live.send(changed("a1", ROW)) == []
    live.answers(world.ids)


def test_processes_that_share_the_memory_share_the_features_and_make_each_row_once(world, monkeypatch):
    rows = []
    encode = ColumnEncoder.encode

    def counted(self, columns, count):
        rows.append(count)
        return encode(self, columns, count)

    monkeypatch.setattr(ColumnEncoder, "encode", counted)
    live = Live(world, fd=create_shared())
    assert sum(rows) == fraud.ACCOUNTS + fraud.MERCHANTS

    def another():
        """As another process has it: the memory is mapped again."""
        memory = LiveMemory.attach(live.fd)
        ids = {name: nodes.ids for name, nodes in world.graph.nodes.items()}
        view = LiveView(memory, world.graph.schema, ids)
        return Answerer(load_model(world.report.path, world.report.spec, view), ("logits",), 99)

    rows.clear()
    other = another()
    assert rows == []
    np.testing.assert_array_equal(ask(other, nodes=world.ids), live.answers(world.ids))
    assert live.send(changed("a5", ROW), added("new", ROW)) == []
    rows.clear()
    ids = [*world.ids, "new"]
    np.testing.assert_array_equal(ask(other, nodes=ids), live.answers(ids))
    assert sum(rows) == 2
    assert live.send(changed("a5", world.frame.iloc[5])) == []
    np.testing.assert_array_equal(live.answers(["a5"]), ask(world.answerer(), nodes=["a5"]))
    fresh = Live(world, fd=create_shared())
    np.testing.assert_array_equal(fresh.answers(world.ids), ask(world.answerer(), nodes=world.ids))


def test_a_preflight_of_a_graph_with_columns(world):
    preflight(world.graph.schema, num_levels=3, reads_degrees=True)


def test_inline_nodes_of_a_live_graph_read_columns_that_events_set(world):
    live = Live(world)
    assert live.send(added("n", ROW)) == []
    edge = {"op": "add_edge", "edge_type": "merchant__paid_by__account", "src": 2, "dst": "n"}
    assert live.send(edge) == []
    node = InlineNode(columns=ROW, neighbors={"": [2]})
    both = ask(live.answerer, nodes=["n"], inline=[node])
    np.testing.assert_allclose(both[0], both[1], atol=1e-5)
