import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.answering.response_cache import content_key
from hopline.types import ContextNode, EdgeEdit, Edit, InlineNode, ScoredEdge, ScoreRequest

VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text("ab\x00é", max_size=3)
)
LISTS = st.lists(VALUES, max_size=3)
REQUESTS = st.builds(
    ScoreRequest,
    st.just("m"),
    nodes=st.lists(st.integers(0, 3) | st.sampled_from("ab"), max_size=3),
    columns=st.none() | st.dictionaries(st.sampled_from("ab"), LISTS, max_size=2),
    pairs=st.none()
    | st.tuples(st.lists(st.integers(0, 2), max_size=2), st.lists(st.integers(0, 2), max_size=2)),
    outputs=st.sampled_from([(), ("logits",), ("logits", "label")]),
    as_of=st.none() | st.integers(0, 2),
    on_missing=st.sampled_from(["error", "null"]),
    degraded=st.sampled_from(["allow", "refuse"]),
)


def exact(value):
    """Python's 1 == 1.0 == True, and nan != nan; here types and bits count."""
    if isinstance(value, float):
        return ("nan",) if math.isnan(value) else ("float", value.hex())
    if isinstance(value, list | tuple):
        return tuple(exact(each) for each in value)
    if isinstance(value, dict):
        return ("dict", *((name, exact(value[name])) for name in sorted(value)))
    return type(value).__name__, value


def content(request):
    return exact(
        [
            request.nodes,
            request.columns,
            request.pairs,
            request.outputs,
            request.as_of,
            request.on_missing,
            request.degraded,
        ]
    )


@given(REQUESTS, REQUESTS)
def test_keys_are_equal_exactly_where_contents_are(one, other):
    assert (content_key(one) == content_key(other)) == (content(one) == content(other))


def test_caller_and_time_are_no_part_of_it():
    plain = ScoreRequest("m", [1])
    same = ScoreRequest(
        "m", [1], version="2", deadline=1.0, request_id="r", key="k", priority="high", client="c",
        traceparent="t", attributes={"country": "DE"},
    )  # fmt: skip
    assert content_key(plain) == content_key(same)


def test_the_order_of_columns_means_nothing():
    assert content_key(ScoreRequest("m", columns={"a": [1], "b": [2]})) == content_key(
        ScoreRequest("m", columns={"b": [2], "a": [1]})
    )


def test_ids_in_an_array_are_those_in_a_list():
    for ids in ([], [1], list(range(500))):
        key = content_key(ScoreRequest("m", np.array(ids, np.int64)))
        assert key == content_key(ScoreRequest("m", ids))
    assert len(key) < 64  # its digest


def test_arrays_differ_by_type_shape_and_bits():
    values = [
        np.zeros(2, np.float32),
        np.zeros(2, np.float64),
        -np.zeros(2, np.float32),
        np.zeros(4, np.float32),
        np.zeros((2, 2), np.float32),
        np.array(["a", "b"]),
        np.array(["a", "b"], object),
        np.array(["a", "c"], object),
        [0.0, 0.0],
    ]
    keys = {content_key(ScoreRequest("m", columns={"a": value})) for value in values}
    assert len(keys) == len(values)
    assert None not in keys


def test_edges_and_their_rows_are_content():
    edges = [(1, 2), (2, 1), ("1", 2), (1, 2, {"amount": 1}), (1, 2, {"amount": 2}), (1, 2, None, [1.0])]
    keys = {content_key(ScoreRequest("m", edges=(ScoredEdge(*edge),))) for edge in edges}
    assert len(keys - {None}) == len(edges)


def test_described_nodes_are_content():
    def key(**node):
        return content_key(ScoreRequest("m", inline=[InlineNode(**{"features": [1.0], **node})]))

    keys = {
        key(),
        key(features=[2.0]),
        key(features=np.ones(1, np.float32)),
        key(neighbors={"": [1]}),
        key(neighbors={"": ["1"]}),
        key(id=1),
        key(edge_weight={"": [0.5]}),
        key(features=(), columns={"amount": 1.0}),
        key(features=(), columns={"amount": "1.0"}),
        key(features=(), columns={"amount": None}),
    }
    assert len(keys) == 10


@pytest.mark.parametrize("nodes", [[2**70], ["\ud800"], [object()], range(3)])
def test_what_has_no_key_is_reported(nodes):
    assert content_key(ScoreRequest("m", nodes)) is None


#: Fields that do not change what one version of a model answers, and why.
NOT_CONTENT = {
    "model": "a cache belongs to one version of one model",
    "version": "a cache belongs to one version of one model",
    "deadline": "how long the caller waits",
    "request_id": "names the request in logs",
    "tags": "labels for the prediction log",
    "attributes": "chose the version",
    "key": "chose the version",
    "priority": "the place in the queue",
    "client": "who asks; what one may not ask was refused before",
    "traceparent": "names the request in traces",
    "is_copy": "nobody gets the answer",
    "keep": "a model gets the request with ids in place of inline nodes",
}
#: Of each other field, a value that asks for something else than `PLAIN` does.
PLAIN = ScoreRequest("m", [1, 2], deadline=5.0)
OTHERS = {
    "nodes": [2, 1],
    "inline": [InlineNode(features=[1.0])],
    "pairs": ([1], [2]),
    "outputs": ("label",),
    "as_of": 7,
    "on_missing": "null",
    "degraded": "refuse",
    "columns": {"amount": [1.0]},
    "min_version": "9c1f0b7e52d4a386+7",
    "context": (ContextNode(type="shop"),),
    "exclude_seed_edges": "self",
    "edits": (Edit(remove_edge=EdgeEdit(1, 2)),),
    "node_type": "shop",
    "edges": (ScoredEdge(1, 2),),
}


@pytest.mark.parametrize("field", ScoreRequest.__struct_fields__)
def test_each_field_is_part_of_the_key_or_says_why_not(field):
    """A field that the key forgot would be answered with another request's answer."""
    assert (field in OTHERS) != (field in NOT_CONTENT), f"say in this test what {field!r} means for the key"
    if field in OTHERS:
        assert content_key(msgspec.structs.replace(PLAIN, **{field: OTHERS[field]})) != content_key(PLAIN)
