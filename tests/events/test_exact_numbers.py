"""Events with integers that float32 would change are refused, by column, in every format."""

import json

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from hopline.events.decode import Decoder
from hopline.graph.schema import EdgeTypeSchema, GraphSchema, NodeTypeSchema
from tests.events.events_of_people import arrow

NEXT = 2**24 + 1
BEYOND = 2**53 + 1  # float64 does not hold it either, and 2**53 is exact
NODE = NodeTypeSchema(2, feature_names=("age", "merchant"))
EDGE = EdgeTypeSchema(
    "node", "to", "node", attr_dim=2, attr_names=("price", "mcc"), has_time=True, has_weight=True
)


def schema(*, node=(), attr=(), weight=False):
    """The graph's schema with columns that may be rounded."""
    edge = msgspec.structs.replace(EDGE, rounded=attr, rounded_weight=weight)
    return GraphSchema({"node": msgspec.structs.replace(NODE, rounded=node)}, {edge.key: edge})


def as_json(events):
    return json.dumps(events).encode()


def as_lines(events):
    return "\n".join(map(json.dumps, events)).encode()


def as_objects(events):
    named = [dict(event) for event in events]
    for event in named:
        for field, names in (("features", NODE.feature_names), ("attr", EDGE.attr_names)):
            if field in event:
                event[field] = dict(zip(names, event[field], strict=True))
    return as_json(named)


def as_table(kind):
    def write(events):
        names = dict.fromkeys(name for event in events for name in event)
        kinds = {"features": pa.list_(kind), "attr": pa.list_(kind), "weight": kind}
        return arrow({n: pa.array([event.get(n) for event in events], kinds.get(n)) for n in names})

    return write


def as_columns(first, second):
    def write(events):
        table = {}
        for event in events:
            flat = {name: value for name, value in event.items() if name not in ("features", "attr")}
            flat |= zip(NODE.feature_names, event.get("features", ()), strict=False)
            flat |= zip(EDGE.attr_names, event.get("attr", ()), strict=False)
            for name in (*event, *NODE.feature_names, *EDGE.attr_names):
                if name not in ("features", "attr"):
                    table.setdefault(name, []).append(flat.get(name))
        kinds = dict.fromkeys(("age", "price"), first) | dict.fromkeys(
            ("merchant", "mcc", "weight"), second
        )
        return arrow({name: pa.array(values, kinds.get(name)) for name, values in table.items()})

    return write


FORMS = {
    "json": as_json,
    "lines": as_lines,
    "objects": as_objects,
    "arrow doubles": as_table(pa.float64()),
    "arrow integers": as_table(pa.int64()),
    "arrow unsigned": as_table(pa.uint64()),
    "columns": as_columns(pa.float64(), pa.int64()),
    "columns of integers": as_columns(pa.int64(), pa.int64()),
    "columns beside float32": as_columns(pa.float32(), pa.int64()),
}


def set_features(merchant, node=1):
    return {"op": "set_features", "node": node, "features": [1, merchant]}


def add_edge(mcc=1, weight=1):
    return {"op": "add_edge", "src": 1, "dst": 2, "time": 5, "weight": weight, "attr": [1, mcc]}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("event", "allowed", "where"),
    [
        (set_features(NEXT), {"node": (1,)}, "features: column 'merchant'"),
        ({**set_features(NEXT), "op": "add_node"}, {"node": (1,)}, "features: column 'merchant'"),
        (add_edge(mcc=NEXT), {"attr": (1,)}, "attr: column 'mcc'"),
        (add_edge(weight=NEXT), {"weight": True}, "weight"),
    ],
    ids=["set", "add", "attr", "weight"],
)
def test_an_integer_that_float32_changes_is_refused_alone(form, event, allowed, where):
    good = add_edge() if "attr" in event else set_features(7, node=2)
    payload = FORMS[form]([good, event, good])
    decoded = Decoder(schema()).decode([payload])
    (refused,) = decoded.refused
    assert (refused.index, refused.code) == (1, "not_exact")
    assert f"{where}: 16777217 would become 16777216" in refused.reason
    assert "--round" in refused.reason
    assert decoded.index.tolist() == [0, 2]
    decoded = Decoder(schema(**allowed)).decode([payload])
    assert not decoded.refused
    (part,) = (*decoded.changes.nodes.values(), *decoded.changes.edges.values())
    kept = part.features if "features" in event else part.weight if where == "weight" else part.attr
    assert kept.reshape(3, -1)[1, -1] == 2**24


@pytest.mark.parametrize("form", [name for name in FORMS if "integers" in name or "columns" in name])
def test_an_integer_of_arrow_beyond_float64_is_refused(form):
    decoded = Decoder(schema()).decode([FORMS[form]([set_features(BEYOND), set_features(2**53)])])
    assert [(each.index, each.code) for each in decoded.refused] == [(0, "not_exact")]
    assert f"{BEYOND} would become {2**53}" in decoded.refused[0].reason


@pytest.mark.parametrize(
    "form", [name for name in FORMS if name not in ("arrow integers", "arrow unsigned")]
)
def test_other_numbers_are_rounded_as_always(form):
    numbers = [0.1, NEXT + 0.5, 1.7e9 + 0.25, 1e30] if "columns" not in form else [2**24, 2**24 + 2, 2**60]
    decoded = Decoder(schema()).decode([FORMS[form]([set_features(number) for number in numbers])])
    assert not decoded.refused
    assert decoded.changes.nodes["node"].features[:, 1].tolist() == np.float32(numbers).tolist()


def test_numbers_that_the_sender_rounded_are_taken():
    table = as_table(pa.float32())([set_features(float(np.float32(NEXT)))])
    assert not Decoder(schema()).decode([table]).refused


def test_a_removal_is_not_read():
    event = {"op": "remove_edge", "src": 1, "dst": 2, "attr": None}
    assert not Decoder(schema()).decode([as_json([event, add_edge()])]).refused
