"""Usual entries are written by a shorter way, and read as those of the long way are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hopline.records.entry import Entry, EntryWriter, read_entry
from hopline.records.identity import Identity
from hopline.records.inputs import input_hash, inputs_of
from hopline.records.usual import head_of, identity_json, usual_line
from hopline.types import InlineNode, ScoreRequest, ScoreResult

KNOWN = Identity('ri"sk', "7%b", "snapshot", "a", "", "f", "hopline, onnxruntime", False)
SCORES = hnp.arrays(np.float32, hnp.array_shapes(max_dims=2, max_side=4))
LABELS = hnp.arrays(np.int64, hnp.array_shapes(max_dims=1, max_side=4))
MS = st.floats(0, 1e5).map(lambda ms: round(ms, 3))


def long_way(request, result, latency, ended, inputs):
    line = bytearray()
    entry = Entry(
        request.request_id,
        ended,
        KNOWN.model,
        KNOWN.version,
        KNOWN.graph_version,
        outputs=dict(result.outputs),
        latency_ms=latency,
        input_hash=input_hash(request),
        artifact_hash=KNOWN.artifact_hash,
        preprocessing_hash=KNOWN.preprocessing_hash,
        feature_schema_hash=KNOWN.feature_schema_hash,
        runtime=KNOWN.runtime,
        client=request.client,
        key=request.key,
        inputs=inputs_of(request, lambda: None) if inputs else None,
    )
    EntryWriter(lambda: None).append(entry, line)
    return read_entry(bytes(line))


def same(mine, other):
    for name in mine.__struct_fields__:
        before, after = getattr(mine, name), getattr(other, name)
        if name == "outputs":
            assert before.keys() == after.keys()
            for key in before:
                assert before[key].dtype == after[key].dtype
                assert before[key].shape == after[key].shape
                assert before[key].tobytes() == after[key].tobytes()
        else:
            assert before == after


@given(
    st.builds(
        ScoreRequest,
        st.just("m"),
        nodes=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4)
        | st.lists(st.text(st.characters(codec="utf-8"), max_size=4), min_size=1, max_size=4)
        | hnp.arrays(np.int64, hnp.array_shapes(max_dims=1, max_side=4)),
        request_id=st.text(st.characters(codec="utf-8"), max_size=9),
        client=st.sampled_from(["", "shop %d"]),
        key=st.sampled_from(["", 'customer "17"']),
    ),
    st.dictionaries(st.sampled_from(["probabilities", "label", "x"]), SCORES | LABELS, max_size=3),
    MS,
    MS,
    st.floats(0, 2e9).map(lambda seconds: round(seconds, 6)),
    st.booleans(),
)
def test_both_ways_make_the_same_entry(request, outputs, queue_ms, total_ms, ended, inputs):
    result = ScoreResult("m", "7", "snapshot", outputs)
    stages = {"sample": 0.125, "compute": 3.0}
    head = head_of(identity_json(KNOWN), stages, ended)
    line = usual_line(head, request, result, queue_ms, total_ms, inputs=inputs)
    latency = {"queue": queue_ms, **stages, "total": total_ms}
    if line is None:
        assert any(not np.isfinite(array).all() for array in outputs.values())
        return
    assert line.endswith(b"}\n")
    same(read_entry(line), long_way(request, result, latency, ended, inputs))


USUAL = ScoreRequest("m", nodes=[1])
ANSWER = ScoreResult("m", "7", "s", {"p": np.zeros((1, 2), np.float32)})


@pytest.mark.parametrize(
    ("request_", "result"),
    [
        (USUAL, ScoreResult("m", "7", "s", {"p": np.full(1, np.nan, np.float32)})),
        (USUAL, ScoreResult("m", "7", "s", {"p": np.zeros(1)})),
        (USUAL, ScoreResult("m", "7", "s", {"p": np.zeros(1, np.float16)})),
        (USUAL, ScoreResult("m", "7", "s", {"p": np.zeros(1, bool)})),
        (USUAL, ScoreResult("m", "7", "s", {"p": np.array(["a"], object)})),
        (USUAL, ScoreResult("m", "7", "s", {"p": np.zeros((0, 2), np.float32)})),
        (USUAL, ScoreResult("m", "7", "s", {"p": np.zeros((4000, 2), np.float32)})),
        (USUAL, ScoreResult("m", "7", "s", {"p": np.zeros((2, 3), np.float32).T})),
        (USUAL, ScoreResult("m", "7", "s", ANSWER.outputs, np.array([True]))),
        (USUAL, ScoreResult("m", "7", "s", ANSWER.outputs, None, ("mean_features",))),
        (ScoreRequest("m", nodes=[1], as_of=0), ANSWER),
        (ScoreRequest("m", nodes=[1], outputs=("p",)), ANSWER),
        (ScoreRequest("m", nodes=[1], on_missing="null"), ANSWER),
        (ScoreRequest("m", nodes=[1], degraded="refuse"), ANSWER),
        (ScoreRequest("m", nodes=[1], attributes={"a": 1}), ANSWER),
        (ScoreRequest("m", nodes=[1], is_copy=True), ANSWER),
        (ScoreRequest("m", nodes=(object(),)), ANSWER),
        (ScoreRequest("m", inline=[InlineNode([1.0])]), ANSWER),
        (ScoreRequest("m", pairs=([1], [2])), ANSWER),
        (ScoreRequest("m", columns={"a": [1]}), ANSWER),
    ],
)
def test_what_is_not_usual_goes_the_long_way(request_, result):
    head = head_of(identity_json(KNOWN), {"compute": 1.0}, 1.0)
    assert usual_line(head, request_, result, 0.0, 0.0, inputs=True) is None
