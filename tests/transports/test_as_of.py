"""`as_of` as clients write it, over every protocol."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

from hopline.errors import BadRequest
from hopline.transports.oip import request_from_tensors
from hopline.transports.rows import read_as_of
from hopline.transports.score_json import decode_score, score_request
from hopline.transports.tensors import Tensor, decode_values, tensor_from_array
from hopline.types import ScoreRequest

MOMENT = datetime(2011, 3, 13, 7, 6, 40, tzinfo=UTC)
NODES = tensor_from_array("node_ids", np.array([1]))


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (1_300_000_000, 1_300_000_000),
        (1.3e9, 1_300_000_000),
        (-5.0, -5),
        ("2011-03-13T07:06:40Z", MOMENT),
        ("2011-03-13t07:06:40z", MOMENT),
        ("2011-03-13 07:06:40", MOMENT),
        ("2011-03-13T07:06:40+00:00", MOMENT),
        ("2011-03-13T12:36:40+0530", MOMENT),
        ("2011-03-12T23:06:40-08:00", MOMENT),
        ("2011-03-13T07:06Z", MOMENT.replace(second=0)),
        ("2011-03-13", MOMENT.replace(hour=0, minute=0, second=0)),
        ("2011-03-13T07:06:40.25Z", MOMENT.replace(microsecond=250_000)),
        ("2011-03-13T07:06:40.123456000Z", MOMENT.replace(microsecond=123_456)),
    ],
)
def test_numbers_and_iso_8601_are_read(value: Any, want: Any) -> None:
    found = read_as_of(value)
    assert found == want
    assert type(found) is type(want)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "expected an integer"),
        (2.0**53, "below 2\\^53"),
        (float("inf"), "expected an integer"),
        (float("nan"), "expected an integer"),
        ("1300000000", "a number as text"),
        ("20110313", "a number as text"),
        ("yesterday", "ISO 8601 such as '2011-03-13T07:06:40Z'"),
        ("", "ISO 8601"),
        ("13.03.2011", "ISO 8601"),
        ("03/13/2011", "ISO 8601"),
        ("2011-03", "ISO 8601"),
        ("2011-02-30", "day is out of range"),
        ("2011-03-13T25:00:00Z", "hour must be in"),
        ("2011-03-13T07:06:40.1234567Z", "finer than microseconds"),
    ],
)
def test_what_is_no_time_is_refused(value: Any, text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        read_as_of(value)


def by_json(literal: str) -> ScoreRequest:
    return score_request("m", None, decode_score(b'{"nodes":[1],"as_of":%b}' % literal.encode()), None, "r")


def by_oip(*tensors: Tensor, **parameters: Any) -> ScoreRequest:
    return request_from_tensors("m", "", [NODES, *tensors], (), parameters, "r")


@pytest.mark.parametrize(
    ("literal", "want"),
    [("1300000000", 1_300_000_000), ("1.3e9", 1_300_000_000), ('"2011-03-13T07:06:40Z"', MOMENT)],
)
def test_json_has_numbers_and_text(literal: str, want: Any) -> None:
    assert by_json(literal).as_of == want
    assert by_oip(as_of=json.loads(literal)).as_of == want


@pytest.mark.parametrize(
    "literal", ["1.5", "true", "[5]", '"5"', "9007199254740992.0", "9223372036854775808"]
)
def test_other_json_is_refused(literal: str) -> None:
    with pytest.raises(BadRequest, match="as_of"):
        by_json(literal)
    if literal != "9223372036854775808":
        with pytest.raises(BadRequest, match="as_of"):
            by_oip(as_of=json.loads(literal))


@pytest.mark.parametrize(
    ("tensor", "want"),
    [
        (("INT64", [1], [1_300_000_000]), 1_300_000_000),
        (("UINT64", [1, 1], [1_300_000_000]), 1_300_000_000),
        (("FP64", [1], [1.3e9]), 1_300_000_000),
        (("BYTES", [1], ["2011-03-13T07:06:40Z"]), MOMENT),
    ],
)
def test_tensors_have_numbers_and_text(tensor: Any, want: Any) -> None:
    assert by_oip(decode_values("as_of", *tensor)).as_of == want


def test_other_tensors_are_refused() -> None:
    for tensor, text in (
        (("INT64", [2], [1, 2]), "has 2 values"),
        (("FP64", [1], [1.5]), "not whole numbers"),
        (("FP32", [1], [1.3e9]), "below 16777216"),
        (("BOOL", [1], [True]), "expected INT64"),
        (("BYTES", [1], ["soon"]), "ISO 8601"),
    ):
        with pytest.raises(BadRequest, match=text):
            by_oip(decode_values("as_of", *tensor))
    with pytest.raises(BadRequest, match="both an input and a parameter"):
        by_oip(decode_values("as_of", "INT64", [1], [1]), as_of=1)


def test_a_time_zone_is_kept_as_a_moment() -> None:
    there = timezone(timedelta(hours=-8))
    assert read_as_of("2011-03-12T23:06:40-08:00") == datetime(2011, 3, 12, 23, 6, 40, tzinfo=there)
