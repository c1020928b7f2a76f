from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.errors import BadRequest
from hopline.transports.score_json import (
    deadline_after,
    decode_score,
    encode_result,
    encode_rows,
    score_request,
)
from hopline.types import ScoreRequest, ScoreResult


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "the body is empty"),
        (b'{"nodes":[1,]}', "byte 12"),
        (b'{"nodes":[1', "truncated"),
        (b'{"nodez":[1]}', "unknown field `nodez`"),
        (b'{"nodes":[true]}', r"\$.nodes\[0\]"),
        (b'{"nodes":[1.5]}', "got `float`"),
        (b'{"nodes":[9223372036854775808]}', "9223372036854775807"),
        (b'{"pairs":[[1]]}', r"\$.pairs\[0\]"),
        (b'{"inline":[{"features":[1,null]}]}', r"inline\[0\].features\[1\]"),
        (b'{"inline":[{"features":[NaN]}]}', "malformed"),
        (b'{"inline":[{"neighbors":[1]}]}', "missing required field `features`"),
        (b'{"inline":[{"features":[1],"colour":1}]}', "unknown field `colour`"),
        (b'{"on_missing":"skip"}', "skip"),
        (b'{"degraded":"perhaps"}', "perhaps"),
        (b"[1]", "array"),
        (b'{"rows":[{"a":1},{"a":[1]}]}', r"got `array` - at `\$.rows\[1\]\['a'\]"),
        (b'{"columns":{"a":[1],"b":["x",{}]}}', r"got `object` - at `\$.columns\['b'\]\[1\]"),
        (b'{"rows":[{"a":9223372036854775808}]}', r"\$.rows\[0\]\['a'\]"),
        (b'{"attributes":{"tier":null}}', "got `null`"),
        (b'{"priority":"urgent"}', "urgent"),
        (b'{"key":7}', r"\$.key"),
        (b'{"nodes":["\xff"]}', "not UTF-8"),
        (b'{"nodes":' + b"[" * 100_000, "JSON|array"),
    ],
)
def test_malformed_bodies_say_what_and_where(body: bytes, text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        decode_score(body)


def test_inline_nodes_name_edge_types_or_leave_them() -> None:
    body = decode_score(
        b'{"inline":[{"features":[1],"neighbors":[3,"x"]},'
        b'{"features":[2],"id":"new","neighbors":{"a__r__b":[4]},"edge_weight":{"a__r__b":[0.5]}}]}'
    )
    first, second = score_request("m", None, body, None, "").inline
    assert first.neighbors == {"": [3, "x"]}
    assert second.neighbors == {"a__r__b": [4]}
    assert second.edge_weight == {"a__r__b": [0.5]}
    assert second.id == "new"


@pytest.mark.parametrize("field", ["neighbors", "edge_weight", "edge_attr"])
def test_an_edge_type_without_a_name_stands_alone(field: str) -> None:
    """It is the node type's only edge type, whose name may not stand beside it with another list."""
    values = {"neighbors": "[4]", "edge_weight": "[1]", "edge_attr": "[[1]]"}[field]
    body = f'{{"inline":[{{"features":[1],"{field}":{{"":{values},"a__r__b":{values}}}}}]}}'
    with pytest.raises(BadRequest, match="has edge type '' and others"):
        score_request("m", None, decode_score(body.encode()), None, "")


def test_rows_and_columns_say_the_same() -> None:
    by_rows = decode_score(b'{"rows":[{"a":1.5,"b":"x"},{"b":null,"a":2}],"key":"k","priority":"high"}')
    request = score_request("m", None, by_rows, None, "")
    by_columns = decode_score(b'{"columns":{"a":[1.5,2],"b":["x",null]},"attributes":{"vip":true}}')
    assert request.columns == score_request("m", None, by_columns, None, "").columns
    assert (request.key, request.priority) == ("k", "high")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"rows":[]}', "rows is empty"),
        (b'{"rows":[{"a":1},{"b":1}]}', r"rows\[1\] has no column 'a'"),
        (b'{"rows":[{"a":1},{"a":1,"b":1}]}', r"rows\[1\] has column 'b'"),
        (b'{"rows":[{"a":1}],"columns":{"a":[1]}}', "either rows or columns"),
    ],
)
def test_ragged_rows_are_named(body: bytes, text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        score_request("m", None, decode_score(body), None, "")


def test_path_and_body_must_agree_on_the_version() -> None:
    body = decode_score(b'{"nodes":[1],"version":"2"}')
    assert score_request("m", "2", body, None, "").version == "2"
    with pytest.raises(BadRequest, match="path has version '1', but the body has '2'"):
        score_request("m", "1", body, None, "")


def test_the_earlier_time_limit_counts() -> None:
    assert deadline_after(None, None, 5.0) is None
    assert deadline_after(100.0, None, 5.0) == 5.1
    assert deadline_after(100.0, b"50", 5.0) == 5.05
    for header in (b"soon", b"-1", b"nan", b"0", b"inf", b"1e400", b"1_000", b"9" * 400):
        with pytest.raises(BadRequest, match="timeout-ms"):
            deadline_after(None, header, 0.0)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_float32_reads_back_exactly(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    assert np.array_equal(np.array(json.loads(encode_rows(array)), dtype=np.float32), array)


def test_float32_is_written_short() -> None:
    assert encode_rows(np.array([[0.1, 0.9]], dtype=np.float32)) == b"[[0.1,0.9]]"


def test_arrays_of_any_layout_are_written_in_order() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert json.loads(encode_rows(array)) == array.tolist()
    assert encode_rows(np.array(["a", "é"])) == '["a","é"]'.encode()
    assert encode_rows(np.array([np.nan, np.inf], dtype=np.float32)) == b"[null,null]"


def test_missing_rows_are_null_and_named() -> None:
    result = ScoreResult(
        "m",
        "1",
        "g",
        {"label": np.array([1, 0]), "probabilities": np.ones((2, 2), np.float32)},
        np.array([False, True]),
        ("stale",),
    )
    answer = json.loads(encode_result(result, ScoreRequest("m", [5, 6])))
    assert answer == {
        "model": "m",
        "version": "1",
        "graph_version": "g",
        "outputs": {"label": [1, None], "probabilities": [[1.0, 1.0], None]},
        "degraded": ["stale"],
        "missing": [6],
    }


#: Field of a result that has a default -> a value, and the fields of the body that tell it.
TOLD = {
    "missing": (np.array([True, False]), {"missing"}),
    "degraded": (("stale_row",), set()),  # `degraded` itself, which is always there
    "timings_ms": ({"queue": 1.0}, set()),  # a header and traces have them
    "parts": ({"gnn": "gnn/1"}, {"parts"}),
    "graph_through_ms": (1, {"graph_age_ms"}),
    "features_age_ms": (7, {"features_age_ms"}),
    "features_until": (7.0, set()),  # for caches on this host
    "as_of": (0, {"as_of"}),
}


def test_every_field_is_reported_where_it_is_the_only_one():
    plain = ScoreResult("m", "1", "g", {"y": np.array([1.0, 2.0], np.float32)})
    optional = ScoreResult.__struct_fields__[-len(ScoreResult.__struct_defaults__) :]
    assert set(optional) == TOLD.keys()

    def body(result):
        return json.loads(encode_result(result, ScoreRequest("m", [5, 6])))

    for name, (value, fields) in TOLD.items():
        found = body(msgspec.structs.replace(plain, **{name: value}))
        assert found.keys() - body(plain).keys() == fields, name
    assert body(msgspec.structs.replace(plain, degraded=("stale_row",)))["degraded"] == ["stale_row"]


@pytest.mark.parametrize("shape", [(70_000,), (3_000, 50), (2, 40_000), (0, 3)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "O"])
def test_a_large_answer_is_encoded_in_slices_as_in_one_piece(shape, dtype):
    values = np.arange(int(np.prod(shape))).reshape(shape)
    array = values.astype(str).astype(object) if dtype == "O" else (values % 3).astype(dtype)
    missing = np.zeros(len(array), bool)
    missing[::7] = True
    assert json.loads(encode_rows(array)) == array.tolist()
    result = ScoreResult("m", "1", "g", {"y": array}, missing)
    request = ScoreRequest("m", nodes=list(range(len(array))))
    wanted = [None if gone else row for gone, row in zip(missing, array.tolist(), strict=True)]
    answer = json.loads(encode_result(result, request))
    assert answer["outputs"]["y"] == wanted
    assert answer["missing"] == np.flatnonzero(missing).tolist()
