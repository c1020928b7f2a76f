"""The same inputs have the same hash, however they came, and others another one; both are kept whole."""

import json
import struct
from datetime import UTC, datetime

import msgspec
import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.records.entry import Entry, EntryWriter, read_entry
from hopline.records.inputs import input_hash, inputs_of
from hopline.request_fields import FIELDS
from hopline.transports.oip import request_from_tensors
from hopline.transports.oip_json import decode_infer
from hopline.transports.score_json import decode_score, score_request
from hopline.transports.tensors import decode_raw, decode_values
from hopline.types import ContextNode, EdgeEdit, Edit, InlineNode, ScoredEdge, ScoreRequest

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
IDS = st.lists(INT64, min_size=1, max_size=5) | st.lists(st.text(max_size=5), min_size=1, max_size=5)


def rest():
    return None


def from_json(body):
    return score_request("m", None, decode_score(orjson.dumps(body)), None, "")


def from_tensors(*tensors):
    return request_from_tensors("m", "", tensors, (), {}, "")


def from_oip_json(inputs):
    _, tensors = decode_infer(json.dumps({"inputs": inputs}).encode(), None)
    return from_tensors(*tensors)


def byte_strings(texts):
    return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)


@given(IDS)
def test_ids_of_every_transport_hash_alike(ids):
    forms = [from_json({"nodes": ids}), ScoreRequest("other", nodes=tuple(ids), version="3", client="c")]
    if isinstance(ids[0], int):
        array = np.array(ids, np.int64)
        forms.append(ScoreRequest("m", nodes=array))
        forms.append(from_tensors(decode_raw("node_ids", "INT64", [len(ids)], array.tobytes())))
        forms.append(from_tensors(decode_raw("node_ids", "INT64", [len(ids), 1], array.tobytes())))
        data = {"name": "node_ids", "datatype": "INT64", "shape": [len(ids)], "data": ids}
        forms.append(from_oip_json([data]))
    else:
        forms.append(from_tensors(decode_raw("node_ids", "BYTES", [len(ids)], byte_strings(ids))))
        forms.append(from_tensors(decode_values("node_ids", "BYTES", [len(ids)], ids)))
        forms.append(ScoreRequest("m", nodes=np.array(ids, object)))
    assert len({input_hash(form) for form in forms}) == 1


@given(
    st.lists(
        st.tuples(st.lists(FLOAT32, min_size=3, max_size=3), st.lists(INT64, max_size=3)),
        min_size=1,
        max_size=3,
    )
)
def test_inline_nodes_of_every_transport_hash_alike(nodes):
    rows = np.array([features for features, _ in nodes], np.float32)
    ids = np.array([node for _, neighbors in nodes for node in neighbors], np.int64)
    counts = np.array([len(neighbors) for _, neighbors in nodes], np.int64)
    as_json = from_json(
        {"inline": [{"features": features, "neighbors": neighbors} for features, neighbors in nodes]}
    )
    as_tensors = from_tensors(
        decode_raw("features", "FP32", rows.shape, rows.tobytes()),
        decode_raw("neighbors", "INT64", ids.shape, ids.tobytes()),
        decode_raw("neighbor_counts", "INT64", counts.shape, counts.tobytes()),
    )
    in_python = ScoreRequest(
        "m", inline=[InlineNode(features, {"": neighbors}) for features, neighbors in nodes]
    )
    assert input_hash(as_json) == input_hash(as_tensors) == input_hash(in_python)


@given(
    st.lists(st.floats(-(2**24), 2**24, width=32), min_size=1, max_size=4),
    st.lists(st.text(max_size=4), min_size=1, max_size=4),
)
def test_columns_hash_alike_as_lists_and_arrays_in_any_order(amounts, categories):
    decimals = [float(np.format_float_positional(np.float32(value), unique=True)) for value in amounts]
    forms = [
        {"amount": decimals, "category": categories},
        {"category": np.array(categories, object), "amount": np.array(amounts, np.float32)},
        {"category": tuple(categories), "amount": np.array(amounts, np.float64)[:, None]},
    ]
    assert len({input_hash(ScoreRequest("m", columns=columns)) for columns in forms}) == 1


def test_whole_numbers_are_the_same_in_every_type():
    forms = [
        [1, 0],
        [1.0, 0.0],
        [1.0, -0.0],
        [True, False],
        np.array([1, 0], np.uint8),
        np.array([1.0, 0.0]),
    ]
    assert len({input_hash(ScoreRequest("m", columns={"a": form})) for form in forms}) == 1


def test_a_null_is_a_nan():
    forms = [[1.5, None], np.array([1.5, np.nan], np.float32), [1.5, float("nan")]]
    assert len({input_hash(ScoreRequest("m", columns={"a": form})) for form in forms}) == 1


OTHERS = [
    ScoreRequest("m", nodes=[1, 2]),
    ScoreRequest("m", nodes=[2, 1]),
    ScoreRequest("m", nodes=[12]),
    ScoreRequest("m", nodes=["1", "2"]),
    ScoreRequest("m", nodes=["12"]),
    ScoreRequest("m", nodes=[1, 2], on_missing="null"),
    ScoreRequest("m", nodes=[1, 2], as_of=3),
    ScoreRequest("m", nodes=[1, 2], as_of=datetime(2011, 3, 13, tzinfo=UTC)),
    ScoreRequest("m", nodes=[1, 2], outputs=("logits",)),
    ScoreRequest("m", nodes=[1, 2], node_type="shop"),
    ScoreRequest("m", nodes=[1, 2], attributes={"country": "NL"}),
    ScoreRequest("m", nodes=[1, 2], attributes={"country": "N"}),
    ScoreRequest("m", pairs=([1], [2])),
    ScoreRequest("m", pairs=([2], [1])),
    ScoreRequest("m", nodes=[1], inline=[InlineNode([2.0])]),
    ScoreRequest("m", inline=[InlineNode([2.0], {"": [1]})]),
    ScoreRequest("m", inline=[InlineNode([2.0], {"a": [1]})]),
    ScoreRequest("m", inline=[InlineNode([2.0], {"": [1]}, edge_weight={"": [0.5]})]),
    ScoreRequest("m", inline=[InlineNode([2.0], {"": [1]}, id=1)]),
    ScoreRequest("m", inline=[InlineNode([2.0], {"": [1]}, id="1")]),
    ScoreRequest("m", nodes=[1], context=(ContextNode(type="shop"),)),
    ScoreRequest("m", nodes=[1], context=(ContextNode(type="bank"),)),
    ScoreRequest("m", nodes=[1], context=(ContextNode(type="shop"), ContextNode(type="shop"))),
    ScoreRequest("m", pairs=([1], [2]), exclude_seed_edges="self"),
    ScoreRequest("m", pairs=([1], [2]), exclude_seed_edges="reverse"),
    ScoreRequest("m", nodes=[1], edits=(Edit(remove_edge=EdgeEdit(1, 2)),)),
    ScoreRequest("m", nodes=[1], edits=(Edit(add_edge=EdgeEdit(1, 2)),)),
    ScoreRequest("m", nodes=[1], edits=(Edit(set=ContextNode([1.0], id=1)),)),
    ScoreRequest("m", nodes=[1], edits=(Edit(set=ContextNode([2.0], id=1)),)),
    ScoreRequest("m", edges=(ScoredEdge(1, 2),)),
    ScoreRequest("m", edges=(ScoredEdge(2, 1),)),
    ScoreRequest("m", edges=(ScoredEdge(1, 2), ScoredEdge(1, 2))),
    ScoreRequest("m", edges=(ScoredEdge(1, 2, {"a": 1}),)),
    ScoreRequest("m", edges=(ScoredEdge(1, 2, {"a": 2}),)),
    ScoreRequest("m", edges=(ScoredEdge(1, 2, {"b": 1}),)),
    ScoreRequest("m", edges=(ScoredEdge(1, 2, attr=[1.0]),)),
    ScoreRequest("m", columns={"a": [1, 2]}),
    ScoreRequest("m", columns={"b": [1, 2]}),
    ScoreRequest("m", columns={"a": ["1", "2"]}),
    ScoreRequest("m", columns={"a": [1, 2.5]}),
    ScoreRequest("m", columns={"a": [16_777_217, 2]}),
    ScoreRequest("m", columns={"a": [16_777_216, 2]}),
    ScoreRequest("m", columns={"a": [1], "b": [2]}),
    ScoreRequest("m", columns={"a": [None, 2.0]}),
    ScoreRequest("m", columns={"a": [None, "2"]}),
]


def test_other_inputs_have_other_hashes():
    assert len({input_hash(request) for request in OTHERS}) == len(OTHERS)


#: Options that may change the answer, but only choose between answers to the same inputs.
NOT_HASHED = {"degraded", "min_version"}
OTHER_VALUES = {
    "outputs": ("logits",), "as_of": 3, "on_missing": "null", "context": (ContextNode(type="shop"),),
    "node_type": "shop", "exclude_seed_edges": "self",
    "edits": (Edit(remove_edge=EdgeEdit(1, 2)),), "edges": (ScoredEdge(1, 2),),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", sorted({field.name for field in FIELDS if field.changes_answer} - NOT_HASHED)
)
def test_an_option_that_changes_the_answer_changes_the_hash(name):
    assert name in OTHER_VALUES, "give another value of the new option, or a reason why it is not hashed"
    plain = ScoreRequest("m", nodes=[1])
    assert input_hash(plain) != input_hash(ScoreRequest("m", nodes=[1], **{name: OTHER_VALUES[name]}))


#: Options with which earlier rows may answer: what is returned of them, and for which nodes.
OF_ROWS = NOT_HASHED | {"outputs", "on_missing", "node_type", "exclude_seed_edges"}


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_an_option_that_changes_what_is_computed_is_not_answered_with_earlier_rows(name):
    assert ScoreRequest("m", nodes=[1]).reads_present
    assert ScoreRequest("m", nodes=[1], **{name: OTHER_VALUES[name]}).reads_present == (name in OF_ROWS)


@pytest.mark.parametrize("nodes", [[1, "a"], [2**70], [True], [None], [1.5], ["\ud800"]])
def test_ids_that_no_graph_has_are_hashed_as_well(nodes):
    assert len(input_hash(ScoreRequest("m", nodes=nodes))) == 32


@given(
    st.builds(
        ScoreRequest,
        st.just("m"),
        nodes=IDS.map(lambda ids: np.array(ids) if isinstance(ids[0], int) else ids),
        inline=st.lists(
            st.builds(
                InlineNode,
                st.lists(FLOAT32, min_size=2, max_size=2).map(lambda row: np.array(row, np.float32))
                | st.lists(st.floats(width=32), min_size=2, max_size=2).map(
                    lambda row: np.array(row, np.float32)
                ),
                st.dictionaries(st.sampled_from(["", "a__b__c"]), IDS, max_size=2),
                st.none() | INT64 | st.text(max_size=3),
            ),
            max_size=2,
        ),
        pairs=st.none() | st.tuples(IDS, IDS),
        columns=st.none()
        | st.fixed_dictionaries(
            {
                "x": st.lists(st.floats(width=32), min_size=1, max_size=3).map(
                    lambda row: np.array(row, np.float32)
                ),
                "t": st.lists(st.text(max_size=3), max_size=3),
            }
        ),
        as_of=st.none() | INT64,
        outputs=st.sampled_from([(), ("logits",), ("label", "logits")]),
        on_missing=st.sampled_from(["error", "null"]),
        attributes=st.none() | st.dictionaries(st.text(max_size=3), st.booleans() | FLOAT32, max_size=2),
    )
)
def test_inputs_are_kept_so_that_the_same_request_comes_out(request):
    line = bytearray()
    EntryWriter(rest).append(Entry("r", 1.0, "m", "1", inputs=inputs_of(request, rest)), line)
    kept = read_entry(bytes(line)).inputs
    again = kept.request("m", None)
    assert input_hash(again) == input_hash(request)
    for node, before in zip(again.inline, request.inline, strict=True):
        features = np.asarray(node.features, np.float32)
        assert features.tobytes() == np.asarray(before.features, np.float32).tobytes()
    assert msgspec.to_builtins(inputs_of(again, rest)) == msgspec.to_builtins(kept)
