"""What goes to a model's own process and comes back is what was put in."""

from datetime import UTC, datetime

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline import errors
from hopline.isolated import wire
from hopline.process.wire import pack_error, unpack_error
from hopline.types import ContextNode, EdgeEdit, Edit, InlineNode, ScoredEdge, ScoreRequest, ScoreResult
from tests.thorough import thorough

REQUESTS = [
    ScoreRequest("m", nodes=[1, 2, 3]),
    ScoreRequest("m", nodes=["a", "b"], outputs=("label", "logits"), as_of=7, on_missing="null"),
    ScoreRequest("m", nodes=[1], as_of=datetime(2011, 3, 13, 7, 6, 40, 5, UTC)),
    ScoreRequest("m", nodes=np.arange(5), request_id="r", degraded="refuse", version="3"),
    ScoreRequest("m", pairs=([1, 2], np.array([3, 4]))),
    ScoreRequest("m", columns={"x": [1.0, None], "y": ["a", "b"], "z": np.array(["c", "d"], object)}),
    ScoreRequest("m", columns={"x": np.array([1, 2], np.float32), "y": np.array(["ä", "bb"])}),
    ScoreRequest("m", attributes={"amount": 3.5, "new": True, "country": "NL"}, key="k", priority="low"),
    ScoreRequest("m", client="c", traceparent="00-1-2-01", tags=("nightly",), min_version="ab+7.cd"),
    ScoreRequest(
        "m",
        inline=[
            InlineNode([1.0, 2.0], {"": [4, 5]}, id="n", edge_attr={"a": np.ones((2, 3))}),
            InlineNode(np.zeros(3, np.float32)),
            InlineNode(columns={"amount": 1.5, "country": None, "active": True, "code": "5411"}),
        ],
        context=(ContextNode(type="shop", features=[1.0], id="s", neighbors={"a__b__shop": [4, "n"]}),),
    ),
    ScoreRequest("m", nodes=[1], node_type="shop", keep=True),
    ScoreRequest("m", pairs=([1], [2]), exclude_seed_edges="reverse"),
    ScoreRequest("m", edits=(Edit(set=ContextNode([1.0], id="s")), Edit(remove_edge=EdgeEdit(1, 2)))),
    ScoreRequest("m", edges=(ScoredEdge("a", 1, {"amount": 1.5}), ScoredEdge("b", 2, None, [1.0]))),
]


def there_and_back(message, decoder):
    (view,) = wire.frames().feed(wire.frame(message))
    return decoder.decode(view)


def same(a, b):
    if isinstance(a, np.ndarray):
        assert isinstance(b, np.ndarray)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    elif isinstance(a, InlineNode):
        for name in InlineNode.__struct_fields__:
            same(getattr(a, name), getattr(b, name))
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            same(one, other)
    else:
        assert a == b


@pytest.mark.parametrize("request_", REQUESTS)
def test_requests_arrive_as_they_were_sent(request_):
    packed = wire.pack_request(request_, 12.5)
    ((number, fields),) = there_and_back(wire.Submit([(7, packed)]), wire.from_server).requests
    found = wire.unpack_request(fields)
    assert number == 7
    assert found.deadline == 12.5
    assert isinstance(found.outputs, tuple)
    for name in ScoreRequest.__struct_fields__:
        if name != "deadline":
            same(getattr(request_, name), getattr(found, name))


def test_floats_of_numpy_keep_their_precision():
    """A column of integers refuses those that may have been rounded."""
    node = InlineNode(columns={"age": np.float32(1.5), "size": np.float16(3)})
    packed = wire.pack_request(ScoreRequest("m", inline=[node]), 1.0)
    ((_, fields),) = there_and_back(wire.Submit([(1, packed)]), wire.from_server).requests
    found = wire.unpack_request(fields).inline[0].columns
    assert found == node.columns
    assert [type(each) for each in found.values()] == [np.float32, np.float16]


def test_every_field_of_a_request_is_among_those_tried():
    defaults = ScoreRequest("m")
    names = ScoreRequest.__struct_fields__
    tried = {
        name
        for each in REQUESTS
        for name in names
        if repr(getattr(each, name)) != repr(getattr(defaults, name))
    }
    assert set(ScoreRequest.__struct_fields__) - tried <= {"model", "deadline", "is_copy"}


def test_results_arrive_as_they_were_sent():
    result = ScoreResult(
        "m", "1", "g",
        {
            "embedding": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32),
            "label": np.array([1, 2, 3]),
            "empty": np.zeros((0, 4), np.float16),
            "text": np.array(["a", "bcd"]),
            "strided": np.arange(10)[::2],
        },
        missing=np.array([True, False, True]),
        degraded=("stale",),
        timings_ms={"queue": 1.5},
    )  # fmt: skip
    tell = there_and_back(
        wire.Ended([(1, wire.pack_result(result))], [], [wire.Batch([1], 0.5, {"compute": 0.25})]),
        wire.from_model,
    )
    found = wire.unpack_result(tell.results[0][1])
    for name in ScoreResult.__struct_fields__:
        same(getattr(result, name), getattr(found, name))
    assert isinstance(found.degraded, tuple)
    assert all(array.flags.writeable and array.flags.aligned for array in found.outputs.values())
    assert tell.batches == [wire.Batch([1], 0.5, {"compute": 0.25})]


def kinds(base):
    yield base
    for child in base.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from kinds(child)


@pytest.mark.parametrize("kind", list(kinds(errors.HoplineError)), ids=lambda kind: kind.__name__)
def test_errors_keep_class_text_and_what_they_carry(kind):
    error = kind("what was wrong")
    for name, value in (("retry_after_s", 7.25), ("missing", (1, "b")), ("differences", ("x", "y"))):
        if hasattr(error, name):
            setattr(error, name, value)
    tell = there_and_back(wire.Ended([], [(3, pack_error(error))], []), wire.from_model)
    found = unpack_error(tell.errors[0][1])
    assert type(found) is kind
    assert str(found) == "what was wrong"
    assert found.code == error.code
    assert vars(found) == vars(error)


def test_an_error_that_only_the_model_knows_is_a_failure_of_its_runtime():
    found = unpack_error(("Elsewhere", "text", {}))
    assert type(found) is errors.RuntimeFailure
    assert str(found) == "Elsewhere: text"


def test_numpy_ids_of_an_error_arrive_as_numbers():
    error = errors.NodeNotFound("absent", [np.int64(3)])
    tell = there_and_back(wire.Ended([], [(3, pack_error(error))], []), wire.from_model)
    assert unpack_error(tell.errors[0][1]).missing == (3,)


@settings(max_examples=thorough(50, 200))
@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(1, 50), min_size=1))
def test_messages_are_whole_however_the_stream_is_cut(payloads, cuts):
    stream = b"".join(len(data).to_bytes(4, "little") + data for data in payloads)
    frames, found, at, turn = wire.frames(), [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        found += [bytes(view) for view in frames.feed(stream[at : at + size])]
        at, turn = at + size, turn + 1
    assert found == payloads


@pytest.mark.parametrize("value", [object(), 1 << 70, print])
def test_what_cannot_be_sent_is_refused_where_it_is_sent(value):
    with pytest.raises((TypeError, OverflowError, NotImplementedError)):
        wire.frame(wire.Submit([(1, wire.pack_request(ScoreRequest("m", columns={"x": [value]}), 1.0))]))


def test_rows_are_counted_without_the_model():
    counts = [wire.num_items(request) for request in REQUESTS]
    assert counts == [3, 2, 1, 5, 2, 2, 2, 1, 1, 3, 1, 1, 1, 2]


def test_garbage_is_no_message():
    with pytest.raises(msgspec.MsgspecError):
        wire.from_model.decode(b"\xc1garbage")
