"""Events from JSON and Arrow: what good ones become, what becomes of bad ones, each by itself."""

import json
import math

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.events.decode import Decoder
from hopline.events.payloads import originals
from hopline.graph.live.codec import decode_changes, encode_changes
from hopline.graph.schema import EdgeTypeSchema, GraphSchema, HistorySchema, NodeTypeSchema
from tests.events.events_of_people import PLAIN, SHOP, arrow, events_of
from tests.thorough import thorough

BUY = {
    "op": "add_edge",
    "edge_type": "user__buys__item",
    "src": "ann",
    "dst": 7,
    "time": 5,
    "weight": 0.5,
    "attr": [2.0, 1.0],
}
KNOW = {"op": "add_edge", "edge_type": "user__knows__user", "src": "ann", "dst": "bob"}
SET = {"op": "set_features", "node_type": "user", "node": "ann", "features": [1.0, 2.0, 3.0]}

SET_ITEM = {"op": "set_features", "node_type": "item", "node": 1}


def decode(*events, schema=SHOP, sent_ms=()):
    payloads = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    return Decoder(schema).decode(payloads, sent_ms)


def codes(decoded):
    return [(each.payload, each.index, each.code) for each in decoded.refused]


# What is right

strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
ints = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


def vector(dim, names=()):
    lists = st.lists(floats, min_size=dim, max_size=dim)
    return (
        lists | lists.map(lambda values: dict(reversed(list(zip(names, values, strict=True)))))
        if names
        else lists
    )


buys = st.fixed_dictionaries(
    {
        "op": st.just("add_edge"),
        "edge_type": st.just("user__buys__item"),
        "src": strings,
        "dst": ints,
        "time": ints,
        "weight": st.floats(0, 2.0**100, width=32),
        "attr": vector(2, ("price", "count")),
    }
)
unbuys = st.fixed_dictionaries(
    {"op": st.just("remove_edge"), "edge_type": st.just("user__buys__item"), "src": strings, "dst": ints},
    optional={"time": ints},
)
knows = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["add_edge", "remove_edge"]),
        "edge_type": st.just("user__knows__user"),
        "src": strings,
        "dst": strings,
    }
)
users = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["add_node", "set_features"]),
        "node_type": st.just("user"),
        "node": strings,
        "features": vector(3, ("age", "spent", "visits")),
    }
)
items = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["add_node", "set_features"]),
        "node_type": st.just("item"),
        "node": ints,
        "features": vector(2),
    }
)
removals = st.fixed_dictionaries(
    {"op": st.just("remove_node"), "node_type": st.just("user"), "node": strings}
) | st.fixed_dictionaries({"op": st.just("remove_node"), "node_type": st.just("item"), "node": ints})
#: None stands for an event that is none.
any_events = st.lists(buys | unbuys | knows | users | items | removals | st.none(), max_size=12)


def wanted(event):
    """What is to come out: vectors as lists in the schema's order."""
    event = dict(event)
    for name, names in (("attr", ("price", "count")), ("features", ("age", "spent", "visits"))):
        if isinstance(event.get(name), dict):
            event[name] = [event[name][each] for each in names]
    return event


@settings(max_examples=thorough(50, 200), deadline=None)
@given(st.lists(any_events, max_size=5), st.data())
def test_what_is_written_comes_out_in_order_whatever_is_bad_beside_it(messages, data):
    payloads, good, bad = [], [], []
    for at, events in enumerate(messages):
        texts = [json.dumps({"op": "dance"} if event is None else event) for event in events]
        if len(texts) == 1 and data.draw(st.booleans()):
            payloads.append(texts[0].encode())
        elif len(texts) > 1 and data.draw(st.booleans()):
            payloads.append("\r\n".join(texts).encode())
        else:
            payloads.append(f" [{','.join(texts)}]".encode())
        for index, event in enumerate(events):
            if event is None:
                bad.append((at, index if len(events) > 1 else -1, "malformed"))
            else:
                good.append((at, index, wanted(event)))
    decoded = Decoder(SHOP).decode(payloads)
    assert events_of(decoded.changes) == [event for _, _, event in good]
    assert list(zip(decoded.payload.tolist(), decoded.index.tolist(), strict=True)) == [
        each[:2] for each in good
    ]
    assert codes(decoded) == bad
    # and it can be sent and kept
    assert events_of(decode_changes(encode_changes(decoded.changes))) == [event for _, _, event in good]


@settings(max_examples=thorough(25, 100), deadline=None)
@given(
    st.lists(st.lists(buys | unbuys | knows | users | items, min_size=1, max_size=8), max_size=4),
    st.booleans(),
)
def test_arrow_says_what_json_says(messages, fixed):
    def table(events):
        rows = [wanted(event) for event in events]
        types = {
            "op": pa.dictionary(pa.int8(), pa.string()) if fixed else pa.string(),
            "edge_type": pa.string(),
            "src": pa.string(),
            "time": pa.int64(),
            "weight": pa.float32(),
            "attr": pa.list_(pa.float32(), 2) if fixed else pa.list_(pa.float64()),
            "node_type": pa.large_string(),
            "features": pa.list_(pa.float64()),
        }
        columns = {name: pa.array([row.get(name) for row in rows], kind) for name, kind in types.items()}
        # one column has one type: ids of both kinds travel in messages of their own
        columns["dst"] = pa.array([row.get("dst") for row in rows])
        columns["node"] = pa.array([row.get("node") for row in rows])
        return arrow(columns)

    alike = []
    for events in messages:
        for kind in (int, str):
            some = [e for e in events if type(e.get("dst", e.get("node"))) is kind]
            if some:
                alike.append(some)
    decoded = Decoder(SHOP).decode([table(events) for events in alike])
    assert codes(decoded) == []
    assert events_of(decoded.changes) == [wanted(event) for events in alike for event in events]


@settings(max_examples=thorough(75, 300), deadline=None)
@given(st.binary(max_size=60) | st.text('[]{},:"\n e1nul', max_size=30).map(str.encode))
def test_anything_may_come(payload):
    good = json.dumps(KNOW).encode()
    decoded = Decoder(SHOP).decode([good, payload, good])
    assert {0, 2} <= set(decoded.payload.tolist())
    assert {each.payload for each in decoded.refused} <= {1}


@settings(max_examples=thorough(50, 200), deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 255), st.booleans())
def test_a_damaged_arrow_stream_takes_nothing_with_it(place, byte, cut):
    payload = bytearray(arrow({"op": ["add_edge"] * 3, "src": [1, 2, 3], "dst": [4, 5, 6]}))
    payload[place % len(payload)] = byte
    if cut:
        del payload[place % len(payload) :]
    good = json.dumps({"op": "add_edge", "src": 1, "dst": 2}).encode()
    decoded = Decoder(PLAIN).decode([good, bytes(payload), good])
    assert {0, 2} <= set(decoded.payload.tolist())


def test_an_empty_id_is_refused_as_it_would_protect_from_nothing():
    for payload in (
        json.dumps([{**KNOW, "id": ""}, KNOW]).encode(),
        arrow({name: [value, value] for name, value in KNOW.items()} | {"id": ["", None]}),
        arrow(
            {name: [value, value] for name, value in KNOW.items()}
            | {"id": pa.array(["", "e"]).dictionary_encode()}
        ),
    ):
        (refused,) = decode(payload).refused
        assert (refused.index, refused.code) == (0, "malformed")
        assert "id is empty; leave it out or send one" in refused.reason


def test_types_may_be_left_out_where_there_is_one():
    decoded = decode(
        {"op": "add_edge", "src": 1, "dst": 2},
        {"op": "set_features", "node": 1, "features": [1, 2]},
        schema=PLAIN,
    )
    assert list(decoded.changes.edges) == ["node__to__node"]
    assert list(decoded.changes.nodes) == ["node"]
    decoded = decode(arrow({"op": ["add_edge"], "src": [1], "dst": [2]}), schema=PLAIN)
    assert decoded.changes.edges["node__to__node"].src.tolist() == [1]


def test_times_of_a_broker_that_are_none_are_unknown():
    """A producer may choose them: the id of a Redis entry is any 64 bits."""
    decoded = decode(KNOW, KNOW, KNOW, KNOW, sent_ms=[2**64 - 1, -5, 7, 2**62])
    assert decoded.changes.event_time_ms.tolist() == [0, 0, 7, 0]


def test_ids_and_times_are_reported_for_each_event():
    at = 1_700_000_000_123
    decoded = decode(
        {**KNOW, "id": "e-1", "at": at},
        {**KNOW, "id": 17},
        {**KNOW, "at": "2023-11-14T22:13:20.123Z"},
        {**KNOW, "at": "2023-11-14T23:13:20.123+01:00"},
        {**KNOW, "at": "2023-11-14T22:13:20.123"},
        {**KNOW, "at": at + 0.9},
        sent_ms=[1, 2, 3, 4, 5, 6],
    )
    assert list(decoded.changes.event_ids) == ["e-1", "17", "", "", "", ""]
    assert decoded.changes.event_time_ms.tolist() == [at, 2, at, at, at, at]
    assert decode(KNOW).changes.event_time_ms is None
    assert decode(KNOW).changes.event_ids == []


def test_arrow_takes_a_column_for_each_name():
    table = {
        "op": ["add_edge", "set_features"],
        "edge_type": ["user__buys__item", None],
        "node_type": [None, "user"],
        "src": ["ann", None],
        "dst": [7, None],
        "node": [None, "bob"],
        "time": [1, None],
        "weight": [1.5, None],
        "count": [1, None],
        "price": [9.5, None],
        "visits": [None, 3],
        "age": [None, 1],
        "spent": [None, 2.5],
        "id": ["a", "b"],
        "at": pa.array([5, None], pa.timestamp("us", "UTC")).cast(pa.timestamp("ms", "UTC"), safe=False),
    }
    decoded = decode(arrow(table))
    assert codes(decoded) == []
    buy, features = events_of(decoded.changes)
    assert buy["attr"] == [9.5, 1.0]
    assert features["features"] == [1.0, 2.5, 3.0]
    assert list(decoded.changes.event_ids) == ["a", "b"]


# What is wrong

BAD_JSON = [
    ("not JSON", b"{nope", "malformed", "JSON is malformed"),
    ("NaN", json.dumps({**SET, "features": [1.0, math.nan, 3.0]}).encode(), "malformed", "JSON has no NaN"),
    ("lone surrogate", json.dumps({**KNOW, "dst": "\ud800"}).encode(), "malformed", "a lone surrogate"),
    ("empty", b"", "malformed", "not an event: empty"),
    ("not UTF-8", b'{"op": "\xff"}', "malformed", "utf-8"),
    ("nested without end", b"[" * 100_000, "malformed", ""),
    ("no op", {"src": 1}, "malformed", "add_edge, remove_edge, add_node, set_features, remove_node"),
    ("unknown op", {**KNOW, "op": "link"}, "malformed", "'link'"),
    ("field misspelt", {**BUY, "wieght": 1}, "malformed", "wieght"),
    ("a field of another operation", {**KNOW, "node": 1}, "malformed", "node"),
    ("a field is missing", {"op": "add_edge", "src": 1}, "malformed", "dst"),
    ("id of no kind", {**KNOW, "src": 1.5}, "malformed", "$.src"),
    ("null in features", {**SET, "features": [1, None, 3]}, "malformed", "$.features[1]"),
    ("too large for a float", json.dumps(SET).encode().replace(b"2.0", b"1e999"), "malformed", "range"),
    ("time is no integer", {**BUY, "time": 1.5}, "malformed", "$.time"),
    ("time beyond 64 bits", {**BUY, "time": 2**63}, "malformed", "64-bit"),
    ("event time in words", {**KNOW, "at": "yesterday"}, "malformed", "$.at"),
    ("event time before 1970", {**KNOW, "at": -1}, "malformed", "ms since 1970"),
    ("event time in ns", {**KNOW, "at": 1_700_000_000_000_000_000}, "malformed", "ms since 1970"),
    ("event time in seconds", {**KNOW, "at": 1_700_000_000}, "malformed", "send 1700000000000"),
    ("event time in seconds, a float", {**KNOW, "at": 1_700_000_000.25}, "malformed", "send 1700000000250"),
    ("event time beyond 64 bits", {**KNOW, "at": 2**70}, "malformed", "ms since 1970"),
    ("unknown edge type", {**KNOW, "edge_type": "user__eats__item"}, "unknown_type", "user__buys__item"),
    ("edge type left out of several", {"op": "add_edge", "src": "a", "dst": "b"}, "unknown_type", "named"),
    ("unknown node type", {**SET, "node_type": "shop"}, "unknown_type", "user, item"),
    ("integer for a string id", {**KNOW, "dst": 5}, "bad_id", "strings here"),
    ("string for an integer id", {**BUY, "dst": "7"}, "bad_id", "integers here"),
    ("id beyond 64 bits", {**BUY, "dst": 2**63}, "bad_id", "64-bit"),
    ("no time", {**BUY, "time": None}, "no_time", "needs a time"),
    ("no weight", {**BUY, "weight": None}, "no_weight", "needs a weight"),
    ("no attributes", {**BUY, "attr": None}, "no_attr", "needs attr"),
    ("negative weight", {**BUY, "weight": -1}, "negative_weight", "built without negative weights"),
    ("weight too large for 32 bits", {**BUY, "weight": 1e39}, "not_finite", "32-bit"),
    ("feature too large for 32 bits", {**SET, "features": [1e39, 0, 0]}, "not_finite", "32-bit"),
    ("no features", {"op": "add_node", "node_type": "user", "node": "x"}, "bad_shape", "3 numbers"),
    ("some features by name", {**SET, "features": {"age": 1}}, "bad_shape", "spent, visits"),
    ("names without any", {**SET_ITEM, "features": {"a": 1.0}}, "bad_shape", "list of 2"),
    ("more features", {**SET, "features": [1, 2, 3, 4]}, "schema_changed", "4 numbers; the graph has 3 ("),
    ("fewer features", {**SET, "features": [1]}, "schema_changed", "visits), in this order"),
    ("other features", {**SET, "features": {"age": 1, "height": 2}}, "schema_changed", "not height"),
    ("more attributes", {**BUY, "attr": [1, 2, 3]}, "schema_changed", "the graph has 2 (price, count)"),
    ("attributes where there are none", {**KNOW, "attr": [1]}, "schema_changed", "the graph has 0"),
    ("a time where there are none", {**KNOW, "time": 1}, "schema_changed", "has no times"),
    ("a weight where there are none", {**KNOW, "weight": 1}, "schema_changed", "has no weights"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("event", "code", "reason"), [pytest.param(*each[1:], id=each[0]) for each in BAD_JSON]
)
def test_a_bad_event_is_refused_by_itself_and_says_why(event, code, reason):
    text = event if isinstance(event, bytes) else json.dumps(event).encode()
    lone = decode(KNOW, text, KNOW)
    (refused,) = lone.refused
    assert (refused.payload, refused.code) == (1, code)
    assert reason in refused.reason
    assert lone.changes.num_events == 2
    assert originals(text, [refused.index]) == [text]
    if isinstance(event, dict):  # in the midst of a list it is found as well
        listed = json.dumps([KNOW, {**event, "id": "x"}, KNOW]).encode()
        decoded = decode(listed)
        (refused,) = decoded.refused
        assert (refused.payload, refused.index, refused.code) == (0, 1, code)
        assert json.loads(originals(listed, [1])[0]) == {**event, "id": "x"}
        assert decoded.index.tolist() == [0, 2]
        assert refused.event_id == (
            ""
            if code == "malformed" and "64-bit" not in refused.reason and "1970" not in refused.reason
            else "x"
        )


def test_a_negative_weight_is_taken_where_weights_may_be_negative():
    buys = msgspec.structs.replace(SHOP.edge_types["user__buys__item"], signed_weight=True)
    schema = GraphSchema(SHOP.node_types, {buys.key: buys})
    found = decode({**BUY, "weight": -2.5}, schema=schema)
    assert not found.refused
    assert found.changes.edges[buys.key].weight.tolist() == [-2.5]


TABLE = {"op": ["add_edge"] * 2, "src": [1, 2], "dst": [3, 4]}
BAD_ARROW = [
    ("a column that the graph has not", {**TABLE, "colour": ["red", "blue"]}, "schema_changed", "colour"),
    ("no op", {"src": [1], "dst": [2]}, "schema_changed", "op is missing"),
    ("floats as ids", {**TABLE, "src": [1.0, 2.0]}, "schema_changed", "src is double"),
    ("weight as text", {**TABLE, "weight": ["1", "2"]}, "schema_changed", "weight is string"),
    ("features of text", {**TABLE, "features": [["a"], ["b"]]}, "schema_changed", "features is list"),
    (
        "both schemas are named",
        {**TABLE, "colour": ["red", "blue"]},
        "schema_changed",
        "features of 'node': 2",
    ),
]


@pytest.mark.parametrize(
    ("table", "code", "reason"), [pytest.param(*each[1:], id=each[0]) for each in BAD_ARROW]
)
def test_an_arrow_message_of_other_columns_is_refused_whole(table, code, reason):
    good = json.dumps({"op": "add_edge", "src": 1, "dst": 2}).encode()
    decoded = decode(good, arrow(table), arrow(TABLE), good, schema=PLAIN)
    (refused,) = decoded.refused
    assert (refused.payload, refused.index, refused.code) == (1, -1, code)
    assert reason in refused.reason
    assert decoded.payload.tolist() == [0, 2, 2, 3]


SET_ROW = {"op": "set_features", "node": 1, "src": None, "dst": None}
BAD_ROWS = [
    ("no op", {"op": None}, "malformed"),
    ("unknown op", {"op": "link"}, "malformed"),
    ("no source", {"src": None}, "bad_id"),
    ("event time before 1970", {"at": -5}, "malformed"),
    ("unknown type", {"edge_type": "a__b__c"}, "unknown_type"),
    ("NaN", {**SET_ROW, "features": [1.0, float("nan")]}, "not_finite"),
    ("a null among numbers", {**SET_ROW, "features": [1.0, None]}, "not_finite"),
    ("three features", {**SET_ROW, "features": [1.0, 2.0, 3.0]}, "schema_changed"),
    ("no features", {**SET_ROW, "op": "add_node"}, "bad_shape"),
    ("a weight", {"weight": 1.0}, "schema_changed"),
]  # fmt: skip


@pytest.mark.parametrize(("bad", "code"), [pytest.param(*each[1:], id=each[0]) for each in BAD_ROWS])
def test_a_bad_row_of_a_table_is_refused_by_itself(bad, code):
    good = {"op": "add_edge", "src": 1, "dst": 2}
    names = dict.fromkeys([*good, *bad])
    rows = [good, {**good, **bad}, good]
    payload = arrow({name: [row.get(name) for row in rows] for name in names})
    decoded = decode(payload, schema=PLAIN)
    assert codes(decoded) == [(0, 1, code)]
    assert decoded.index.tolist() == [0, 2]
    again = pa.ipc.open_stream(originals(payload, [1])[0]).read_all().to_pylist()
    assert repr(again) == repr([{name: rows[1].get(name) for name in names}])


#: As docs/guides/stream.md lists them, for a graph that has everything.
TAKEN = {
    "add_edge": {"src", "dst", "edge_type", "time", "weight", "attr"},
    "remove_edge": {"src", "dst", "edge_type", "time"},
    "add_node": {"node", "node_type", "features"},
    "set_features": {"node", "node_type", "features"},
    "remove_node": {"node", "node_type"},
}
VALUES = {
    "src": "ann",
    "dst": 7,
    "edge_type": "user__buys__item",
    "time": 5,
    "weight": 0.5,
    "attr": [2.0, 1.0],
    "node": "ann",
    "node_type": "user",
    "features": [1.0, 2.0, 3.0],
}


@pytest.mark.parametrize("op", TAKEN)
@pytest.mark.parametrize("field", VALUES)
@pytest.mark.parametrize("null", [False, True])
def test_a_field_that_an_operation_does_not_take_is_refused_in_json_and_arrow_alike(op, field, null):
    """Ignored, the removal of an edge of one weight would be that of all."""
    plain = {"op": op, "id": "e", **{name: VALUES[name] for name in sorted(TAKEN[op])}}
    event = {**plain, field: None if null else VALUES[field]}
    if field in TAKEN[op]:
        assert decode(plain).refused == []
        return
    kinds = {"weight": pa.float32(), "attr": pa.list_(pa.float32()), "features": pa.list_(pa.float32())}
    table = {name: pa.array([plain.get(name), value], kinds.get(name)) for name, value in event.items()}
    if null:
        assert decode(event).refused == []
        assert decode(arrow(table)).refused == []
        return
    (said,) = decode([plain, {**event, "id": "f"}]).refused
    (refused,) = decode(arrow(table)).refused
    assert (refused.index, refused.code, refused.reason) == (1, said.code, said.reason)
    if field == "time" and op in ("add_node", "set_features"):
        assert said.code == "schema_changed"
        assert said.reason == "node type 'user' has no history; this event has a time"
        return
    assert said.code == "malformed"
    assert f"{op} has no field {field!r}; its fields are id, at, " in said.reason
    assert all(name in said.reason.partition("fields are")[2] for name in TAKEN[op])


def test_rows_of_a_type_with_a_history_have_times():
    past = NodeTypeSchema(1, id_kind="string", history=HistorySchema("ms"))
    own = Decoder(GraphSchema({"user": past}, {}))
    row = {"op": "set_features", "node": "ann", "features": [1.0], "time": 1_700_000_000_000}
    wrong = [row | {"time": None}, row | {"time": 1_700_000_000}, row | {"time": 2**63}]
    gone = {"op": "remove_node", "node": "ann"}
    for payload in (
        json.dumps([row, row | {"op": "add_node"}, gone, *wrong[:2]]).encode(),
        arrow({name: [each.get(name) for each in (row, row | {"op": "add_node"}, gone, *wrong[:2])]
               for name in row}),
    ):  # fmt: skip
        found = own.decode([payload])
        nodes = found.changes.nodes["user"]
        assert nodes.time.tolist()[:2] == [1_700_000_000_000] * 2
        assert nodes.remove.tolist() == [False, False, True]
        assert [(each.index, each.code) for each in found.refused] == [(3, "no_time"), (4, "malformed")]
        assert "a row with a history needs a time" in found.refused[0].reason
        assert "looks like one in s; the graph's are in ms" in found.refused[1].reason
    (refused,) = own.decode([json.dumps(wrong[2]).encode()]).refused
    assert "does not fit into a signed 64-bit integer" in refused.reason


def test_a_removal_says_which_edges_it_removes():
    for field, value in (("weight", 0.5), ("attr", [2.0, 1.0])):
        (refused,) = decode({**KNOW, "op": "remove_edge", field: value}).refused
        assert "removes all edges from src to dst, or with time those of that time" in refused.reason


def test_fields_that_an_operation_does_not_take_are_refused_before_its_type_is():
    (said,) = decode({**KNOW, "edge_type": "none", "node": "x"}).refused
    row = {name: [value] for name, value in {**KNOW, "edge_type": "none", "node": "x"}.items()}
    (refused,) = decode(arrow(row)).refused
    assert (refused.code, refused.reason) == (said.code, said.reason)


#: An event of one type with the named values of another: as JSON, and the same as columns.
OTHER_NAMES = [
    ({**KNOW, "attr": {"price": 1.0}}, {**KNOW, "price": 1.0}),
    ({**SET_ITEM, "features": {"age": 1.0}}, {**SET_ITEM, "age": 1.0}),
    ({**SET, "features": {"count": 1.0}}, {**SET, "features": None, "count": 1.0}),
    ({**BUY, "attr": {"visits": 1.0}}, {**BUY, "attr": None, "visits": 1.0}),
]


@pytest.mark.parametrize(("event", "row"), OTHER_NAMES)
def test_named_values_of_another_type_are_refused_in_arrow_as_well(event, row):
    assert [each.code for each in decode(event).refused]
    (refused,) = decode(arrow({name: [value] for name, value in row.items() if value is not None})).refused
    named = next(name for name in row if name not in event)
    assert named in refused.reason


def test_named_values_for_the_types_of_a_graph_are_refused_in_the_words_of_json():
    height = NodeTypeSchema(1, feature_names=("height",))
    schema = GraphSchema({**SHOP.node_types, "shelf": height}, SHOP.edge_types)
    for event, row in (
        ({**SET, "features": {"height": 1.0}}, {**SET, "height": 1.0}),
        ({**SET_ITEM, "features": {"age": 1.0}}, {**SET_ITEM, "age": 1.0}),
        ({**KNOW, "attr": {"price": 1.0}}, {**KNOW, "price": 1.0}),
    ):
        row.pop("features", None)
        (said,) = decode(event, schema=schema).refused
        (refused,) = decode(arrow({name: [value] for name, value in row.items()}), schema=schema).refused
        assert (refused.code, refused.reason) == (said.code, said.reason)


@pytest.mark.parametrize("names", [("price",), ("price", "count")])
def test_a_vector_as_a_list_and_by_name_in_one_row_is_refused(names):
    row = {**BUY, **dict.fromkeys(names, 1.0)}
    both = {name: [value, value, value] for name, value in row.items()}
    both |= {name: pa.array([None, 1.0, None], pa.float32()) for name in names}
    (refused,) = decode(arrow(both)).refused
    assert (refused.index, refused.code) == (1, "bad_shape")
    assert "as a list and by name" in refused.reason


def test_a_column_for_each_name_and_a_list_column_of_nulls_are_read_by_name():
    rows = {**{name: [value] for name, value in BUY.items()}, "price": [9.5], "count": [1.0]}
    rows["attr"] = pa.array([None], pa.list_(pa.float32()))
    decoded = decode(arrow(rows))
    assert codes(decoded) == []
    assert events_of(decoded.changes)[0]["attr"] == [9.5, 1.0]


def test_a_bad_row_beside_lists_of_nulls_can_be_put_aside():
    rows = {"op": ["none", "none"], "features": [[None, None], None]}
    payload = arrow(rows)
    assert codes(decode(payload, schema=PLAIN)) == [(0, 0, "malformed"), (0, 1, "malformed")]
    again = [pa.ipc.open_stream(originals(payload, [at])[0]).read_all().to_pylist() for at in (0, 1)]
    assert again == [[{"op": "none", "features": each}] for each in rows["features"]]


def test_a_pretty_printed_list_is_a_list_and_so_is_one_with_a_bad_event():
    assert decode(json.dumps([KNOW, KNOW], indent=2).encode()).changes.num_events == 2
    assert codes(decode(json.dumps([KNOW, {}], indent=2).encode())) == [(0, 1, "malformed")]
    assert codes(decode(json.dumps({}, indent=2).encode())) == [(0, -1, "malformed")]


def test_parts_of_events_in_two_messages_are_no_event():
    text = json.dumps(KNOW).encode()
    decoded = Decoder(SHOP).decode([text[:20], text[20:], text + text, text])
    assert codes(decoded) == [(0, -1, "malformed"), (1, -1, "malformed"), (2, -1, "malformed")]
    assert decoded.payload.tolist() == [3]


def test_arrow_without_pyarrow_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"hopline\[parquet\]"):
        decode(b"\xff\xff\xff\xff1234")


def test_features_of_a_type_without_any_cannot_be_set():
    schema = type(PLAIN)({"node": type(PLAIN.node_types["node"])(0)}, {})
    decoded = decode({"op": "set_features", "node": 1}, {"op": "add_node", "node": 2}, schema=schema)
    assert codes(decoded) == [(0, 0, "schema_changed")]
    assert decoded.changes.nodes["node"].features.shape == (1, 0)
    assert np.asarray(decoded.changes.nodes["node"].ids).tolist() == [2]


@pytest.mark.parametrize(
    ("payload", "places"),
    [
        (b'{"op":"add_edge","src":1,"src":5,"dst":2}', [0]),
        (b'[{"op":"add_edge","src":1,"dst":2},{"op":"add_edge","src":1,"dst":2,"dst":3}]', [1]),
        (
            b'{"op":"add_edge","src":1,"dst":2}\n{"op":"add_edge","src":1,"dst":2,"src":1}\n{}',
            [1, 2],
        ),
        (b'{"op":"set_features","node":1,"features":[1,2],"features":[3,4]}', [0]),
        (b'{"op":"set_features","node":1,"features":{"a":1,"b":2,"a":3}}', [0]),
        (b'{"op":"add_edge","s\\u0072c":5,"src":1,"dst":2}', [0]),
        (b'{"op":"add_edge","src"\t:5,"src"\t:1,"dst":2}', [0]),
        (b'{"op":"add_edge","id":"a","src":1,"dst":2,"id":"b"}', [0]),
        (b'{"op":"add_edge","at":5,"src":1,"dst":2,"at":6}', [0]),
    ],
)
def test_an_event_that_has_a_field_twice_is_refused(payload, places):
    found = Decoder(PLAIN).decode([b'{"op":"add_edge","src":1,"dst":2}', payload])
    assert sorted((each.payload, each.index) for each in found.refused) == [(1, place) for place in places]
    assert any("is repeated" in each.reason for each in found.refused)


def test_names_of_fields_in_values_are_no_repetition():
    names = {"features": {"age": 1, "spent": 2, "visits": 3}, "node": '"src"', "node_type": "user"}
    event = json.dumps({"op": "add_node", "id": '"node"', **names}).encode()
    assert Decoder(SHOP).decode([event, event]).refused == []
    inner = json.dumps(
        {"op": "add_edge", "src": "src", "dst": "dst", "edge_type": "user__knows__user", "id": "op"}
    )
    assert Decoder(SHOP).decode([inner.encode()]).refused == []


def dated(unit):
    """The simplest graph, with times."""
    edge = EdgeTypeSchema("node", "to", "node", has_time=True, time_unit=unit)
    return GraphSchema({"node": NodeTypeSchema(0)}, {"node__to__node": edge})


def on_edge(time, fields="json"):
    if fields == "json":
        return json.dumps({"op": "add_edge", "src": 1, "dst": 2, "time": time}).encode()
    return arrow({"op": ["add_edge"], "src": [1], "dst": [2], "time": pa.array([time], fields)})


@pytest.mark.parametrize("fields", ["json", "int64", "uint64"])
def test_a_time_of_another_unit_than_the_graphs_is_refused(fields):
    seconds = 1_300_000_000
    for unit, power in (("s", 0), ("ms", 1), ("us", 2), ("ns", 3)):
        for other in range(4):
            found = Decoder(dated(unit)).decode([on_edge(seconds * 1000**other, fields)])
            if other == power:
                assert found.refused == []
            else:
                assert f"the graph's are in {unit}" in found.refused[0].reason
        assert Decoder(dated("")).decode([on_edge(seconds * 1000**power, fields)]).refused == []
        for early in (0, 5, 1_000_000):
            assert Decoder(dated(unit)).decode([on_edge(early, fields)]).refused == []


def test_a_time_of_64_unsigned_bits_is_refused():
    for time in (2**63, 2**64 - 1):
        for fields in ("json", "uint64"):
            (refused,) = Decoder(dated("")).decode([on_edge(time, fields)]).refused
            assert "does not fit into a signed 64-bit integer" in refused.reason
    assert Decoder(dated("")).decode([on_edge(2**63 - 1, "uint64")]).refused == []


def test_a_byte_order_mark_is_ignored():
    event = b'{"op":"add_edge","src":1,"dst":2}'
    for payload, count in ((event, 1), (b"[%b,%b]" % (event, event), 2), (event + b"\r\n" + event, 2)):
        found = Decoder(PLAIN).decode([b"\xef\xbb\xbf" + payload])
        assert (found.changes.num_events, found.refused) == (count, [])


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ('{"op":"add_edge","src":1,"dst":2}'.encode("utf-16"), "send JSON as UTF-8"),
        (b" ", "not an event: empty"),
        (
            b'{"op":"add_edge","source":1,"dst":2}',
            "add_edge has no field 'source'; its fields are id, at, src, dst, edge_type,",
        ),
    ],
)
def test_what_is_no_event_says_what_would_be_one(payload, text):
    (refused,) = Decoder(PLAIN).decode([payload]).refused
    assert text in refused.reason


@pytest.mark.parametrize(
    "payload",
    [
        b'{"op":"add_edge","colour":1,"src',
        b'{"op":"add_edge","node":1,"src":1,}',
        b'{"op":"add_edge","node":1,"op":"none"}',
        b'{"op":"none","node":1,"op":"add_edge"}',
        b'{"op":"add_edge","node":1,"op":5}',
        b'{"op":"add_edge","src":1,"dst":2,"":1}',
        b'{"op":"add_edge","src":1,"dst":2,"":null}',
    ],
)
def test_an_event_with_several_faults_is_refused_for_one_of_them(payload):
    (refused,) = Decoder(PLAIN).decode([payload]).refused
    assert refused.code == "malformed"
    assert refused.reason.startswith("not an event: ")


def test_a_moment_of_1970_is_one():
    event = {"op": "add_edge", "src": 1, "dst": 2, "at": "1970-02-01T00:00:00Z"}
    found = Decoder(PLAIN).decode([json.dumps(event).encode()])
    assert found.changes.event_time_ms.tolist() == [31 * 86_400_000]
