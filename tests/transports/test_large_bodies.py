"""Bodies that are read beside the loop, and what no request needs, refused before anything is built."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import struct
from typing import Any

import pytest

from hopline.errors import (
    MAX_QUOTED,
    MAX_TEXT,
    BadRequest,
    HoplineError,
    NodeNotFound,
    RequestTooLarge,
    public_text,
    quoted,
)
from hopline.transports import http_bodies, oip_json, score_json
from hopline.transports.compression import decompress
from hopline.transports.http_bodies import check_json, check_score
from hopline.transports.http_errors import error_response
from hopline.transports.lifecycle_requests import change_parameters, checked_path
from hopline.transports.oip import request_from_tensors
from hopline.transports.tensors import decode_json, decode_raw, tensor_head
from tests.transports.http_rig import Host, eventually, gone, post
from turnserve.compression import PIECE_BYTES, sent_bytes

PADDING = b" " * 70_000
INFER = b'{"inputs":[{"name":"node_ids","datatype":"INT64","shape":[2],"data":[1,2]}]}'


def infer(body: bytes, headers: bytes = b"") -> bytes:
    return post(body, b"sage", headers).replace(b"/v1/models/sage/score", b"/v2/models/sage/infer", 1)


@pytest.mark.parametrize("encoding", ["", "gzip"])
@pytest.mark.parametrize("ask", [post, infer])
async def test_a_large_body_is_answered_as_a_small_one(host: Host, ask: Any, encoding: str) -> None:
    small = b'{"nodes":[1,2]}' if ask is post else INFER
    client = await host.connect()
    client.send(ask(small))
    expected = json.loads((await client.answer())[2])
    large = small + PADDING
    headers = b"content-encoding: gzip\r\n" if encoding else b""
    # Two at a time, with one behind them that is not read beside the loop: answers come in order.
    body = gzip.compress(large) if encoding else large
    client.send(ask(body, headers=headers) * 2 + ask(b"no"))
    for _ in range(2):
        status, _, answer = await client.answer()
        assert (status, json.loads(answer)) == (200, expected)
    assert (await client.answer())[0] == 400


async def test_a_large_body_is_read_beside_the_loop(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    on_loop = []
    count = http_bodies.json_scan.count

    def watched(text: bytes) -> Any:
        try:
            asyncio.get_running_loop()
            on_loop.append(True)
        except RuntimeError:
            on_loop.append(False)
        return count(text)

    monkeypatch.setattr(http_bodies.json_scan, "count", watched)
    client = await host.connect()
    for body in (b'{"nodes":[1]}', b'{"nodes":[1]}' + PADDING):
        client.send(post(body))
        assert (await client.answer())[0] == 200
    assert on_loop == [False]


async def test_a_large_score_request_is_decoded_beside_the_loop(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopline.transports.http.decode_score", lambda *_, **__: pytest.fail("on the loop"))
    client = await host.connect()
    client.send(post(b'{"nodes":[1]}' + PADDING))
    assert (await client.answer())[0] == 200


NODE = b'{"features":[0.5,1.5,2.5],"neighbors":[%b]}' % b",".join([b"7"] * 50)


@pytest.mark.parametrize(
    ("name", "item"), [(b"inline", NODE), (b"rows", b'{"a":1,"b":"%b"}' % (b"x" * 90))]
)
def test_other_threads_run_while_nodes_and_rows_of_a_body_are_decoded(
    monkeypatch: pytest.MonkeyPatch, name: bytes, item: bytes
) -> None:
    body = b'{"%b":[%b],"key":"a"}' % (name, b",".join([item] * 4096))
    expected = score_json.decode_score(body)
    pauses: list[float] = []
    monkeypatch.setattr(score_json.time, "sleep", pauses.append)
    found = score_json.decode_large(body)
    assert score_json.score_request("m", None, found, None, "") == score_json.score_request(
        "m", None, expected, None, ""
    )
    for field in set(expected.__struct_fields__) - {"inline"}:
        assert getattr(found, field) == getattr(expected, field)
    assert len(pauses) > len(body) // (2 * PIECE_BYTES)


def test_an_inline_node_with_edge_types_named_and_not_is_refused_in_a_large_body_too() -> None:
    node = b'{"features":[0.5],"neighbors":{"":[1],"a__to__b":[2]}}'
    with pytest.raises(BadRequest, match="has edge type '' and others"):
        score_json.score_request(
            "m", None, score_json.decode_large(b'{"inline":[%b]}' % b",".join([node] * 4096)), None, ""
        )


@pytest.mark.parametrize(
    "body",
    [
        b'{"inline":[%b,{"features":[1,null]}]}' % NODE,
        b'{"inline":[{"features":[1],"colour":1}]}',
        b'{"inline":[null]}',
        b'{"inline":[{"features":[1],"id":"\xff"}]}',
        b'{"inline":7}',
        b'{"rows":[{"a":[1]}]}',
        b'{"rows":[{"a":1},[]]}',
        b'{"rows":[%b]}' % (b"[" * 5000),
        b'{"nodes":[1.5]}',
        b'{"inline":[],"colour":1}',
        b'{"inline":[{"features":[1]}',
        b"",
    ],
)
def test_a_large_body_is_refused_as_a_small_one(body: bytes) -> None:
    with pytest.raises(BadRequest) as small:
        score_json.decode_score(body)
    with pytest.raises(BadRequest) as large:
        score_json.decode_large(body)
    assert (str(large.value), large.value.param) == (str(small.value), small.value.param)


async def test_a_client_that_goes_while_its_body_is_read_withdraws_it(host: Host) -> None:
    client = await host.connect()
    client.send(post(b'{"nodes":[1],"as_of":60000}' + PADDING, b"slow"))
    await eventually(lambda: host.service.num_waiting == 1)
    client.close()
    await gone(host)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"nodes":[%b]}' % b",".join([b"1"] * 5000), "5000 nodes in one request; at most 4096"),
        (b'{"inline":[%b]}' % b",".join([b'{"features":[]}'] * 5000), "5000 nodes in one request"),
        (b'{"nodes":[%b],"inline":[{"features":[1]}]}' % b",".join([b"1"] * 4096), "4097 nodes"),
        (b'{"rows":[%b]}' % b",".join([b'{"a":1}'] * 5000), "5000 rows in one request"),
        (b'{"pairs":[%b]}' % b",".join([b"[1,2]"] * 5000), "5000 pairs in one request"),
    ],
)
async def test_more_than_a_request_may_have_is_refused_before_it_is_decoded(
    host: Host, monkeypatch: pytest.MonkeyPatch, body: bytes, text: str
) -> None:
    for name in ("http.decode_score", "http_bodies.decode_large"):
        monkeypatch.setattr(f"hopline.transports.{name}", lambda *_, **__: pytest.fail("decoded"))
    client = await host.connect()
    client.send(post(body + PADDING))
    status, _, answer = await client.answer()
    assert (status, json.loads(answer)["error"]["code"]) == (413, "request_too_large")
    assert text in json.loads(answer)["error"]["message"]


async def test_a_name_that_comes_twice_in_a_large_body_is_refused(host: Host) -> None:
    client = await host.connect()
    client.send(post(b'{"nodes":[1],"key":"a","\\u006bey":"b"}' + PADDING))
    status, _, answer = await client.answer()
    assert (status, b"field 'key' is repeated" in answer) == (400, True)


@pytest.mark.parametrize("unit", [b"0", b'{"a":1}', b'""', b"[]", b"9" * 300, b'"\\u0041"'])
def test_a_compressed_body_has_its_senders_share(unit: bytes) -> None:
    text = b'{"rows":[%b]}' % b",".join([unit] * (2**20 // len(unit)))
    body = decompress("gzip", gzip.compress(text), 2**26)
    assert sent_bytes(body) < 10_000
    with pytest.raises(RequestTooLarge, match="in parts, without compression"):
        check_json({}, body)
    count = 2**18 // (4 if unit == b"[]" else len(unit))
    check_json({}, b'{"rows":[%b]}' % b",".join([unit] * count))  # sent uncompressed


def _wide(count: int) -> bytes:
    return b"{%b}" % b",".join(b'"c%d":1' % number for number in range(count))


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b'{"rows":[{"x":1},%b]}' % _wide(4097), "4097 names in one object"),
        (b'{"rows":[{"x":1}],"attributes":%b}' % _wide(4097), "4097 names in one object"),
        (b'{"inputs":[%b]}' % b",".join([b"{}"] * 4097), "4097 inputs"),
        (b'{"inputs":[],"outputs":[%b]}' % b",".join([b"{}"] * 4097), "4097 outputs"),
    ],
)
def test_more_tensors_and_names_than_any_model_has_are_refused_before_they_are_built(
    body: bytes, what: str
) -> None:
    with pytest.raises(RequestTooLarge, match=f"holds {what}; at most 4096 are allowed"):
        check_json({}, body)
    check_json({}, b'{"rows":[%b,%b]}' % (_wide(4096), _wide(4096)))


def test_columns_are_counted_before_they_are_built() -> None:
    check = check_score(50)
    columns = b'{"columns":{"a":[%b],"b":[1]}}'
    check({}, columns % b",".join([b"1"] * 50))
    with pytest.raises(RequestTooLarge, match="51 rows in one request; at most 50 are allowed"):
        check({}, columns % b",".join([b'"x"'] * 51))


@pytest.mark.sample(2)
@pytest.mark.parametrize("unit", [b"0", b'{"a":1}', b'""', b"[]", b'"%b"' % (b"x" * 10_000)])
def test_a_body_that_was_not_compressed_has_the_share_of_a_mebibyte(unit: bytes) -> None:
    rows = (unit + b",") * (2**26 // len(unit))  # a list of as many units takes 14 s to join
    text = b'{"rows":[%b]}' % rows.removesuffix(b",")
    with pytest.raises(RequestTooLarge, match="at most 2097152 are allowed"):
        check_json({}, text)


def test_texts_of_a_request_that_was_not_compressed_are_bounded() -> None:
    count = 2**18
    for more, fits in ((0, True), (1, False)):
        described = {"name": "a", "datatype": "BYTES", "shape": [count + more]}
        described["parameters"] = {"binary_data_size": 4 * (count + more)}
        text = json.dumps({"inputs": [described]}).encode()
        body = text + bytes(4 * (count + more))
        with contextlib.nullcontext() if fits else pytest.raises(RequestTooLarge, match="BYTES values"):
            oip_json.decode_infer(body, b"%d" % len(text))


def test_a_body_that_compresses_well_is_read() -> None:
    rows = [{"features": [0.0] * 1433, "neighbors": list(range(20))} for _ in range(60)]
    body = decompress("gzip", gzip.compress(json.dumps({"inline": rows}).encode()), 2**26)
    assert len(body) > 25 * sent_bytes(body)
    check_score(4096)({}, body)
    assert len(score_json.decode_score(body, is_counted=True).inline or ()) == 60


def test_a_body_does_not_become_larger_than_its_senders_share() -> None:
    with pytest.raises(
        RequestTooLarge, match=r"compressed and is larger than 4194304 bytes once decompressed"
    ):
        decompress("gzip", gzip.compress(bytes(2**23)), 2**26)
    assert len(decompress("gzip", gzip.compress(bytes(2**22)), 2**26)) == 2**22


@pytest.mark.parametrize(("datatype", "item"), [("BYTES", b"\0\0\0\0"), ("INT8", b"\1")])
def test_tensors_of_a_compressed_request_have_their_senders_share(datatype: str, item: bytes) -> None:
    count = 2 * 2**20 // len(item)
    described = {"name": "a", "datatype": datatype, "shape": [count]}
    described["parameters"] = {"binary_data_size": count * len(item)}
    text = json.dumps({"inputs": [described]}).encode()
    body = decompress("gzip", gzip.compress(text + item * count), 2**26)
    with pytest.raises(RequestTooLarge, match="values; at most"):
        oip_json.decode_infer(body, b"%d" % len(text))


# Values that no request needs


@pytest.mark.parametrize(
    "shape", [[1] * 100_000, [2**40] * 300, [2**60, 2**60], [-1], [], [2**62], [0, 2**62]]
)
def test_shapes_that_no_request_can_fill_are_refused(shape: list[int]) -> None:
    with pytest.raises(BadRequest, match=r"dimensions|larger than any request") as told:
        tensor_head("a", "INT64", shape)
    assert len(str(told.value)) < 2 * MAX_QUOTED


def test_rows_of_no_values_are_none() -> None:
    with pytest.raises(BadRequest, match=r"\[n, features\]"):
        decode_raw("features", "FP32", [1000, 0], b"").rows()
    assert decode_raw("features", "FP32", [0, 3], b"").rows().shape == (0, 3)


def test_data_that_is_nested_deeper_than_its_shape_is_refused() -> None:
    deep = b"[" * 900 + b"1" + b"]" * 900
    for text in (b"[%b,%b]" % (b",".join([b"1"] * 20_000), deep), deep, b"[" * 100_000):
        with pytest.raises(BadRequest, match=r"nested|data: "):
            decode_json("a", "INT64", [20_001, 1], text)


@pytest.mark.parametrize("digits", [20, 5000, 100_000])
@pytest.mark.parametrize("name", ["priority", "timeout", "timeout_ms", "as_of"])
def test_integers_beyond_any_use_are_refused_as_parameters(name: str, digits: int) -> None:
    inputs = [decode_raw("node_ids", "INT64", [1], struct.pack("<q", 1))]
    values: list[Any] = [-(10 ** min(digits, 4000))]
    if not name.startswith("timeout"):  # any time is one
        values.append("9" * digits)
    for value in values:
        with pytest.raises(BadRequest) as told:
            request_from_tensors("m", "", inputs, (), {name: value}, "r")
        assert len(str(told.value)) < 2 * MAX_QUOTED


@pytest.mark.parametrize(
    "body",
    [
        b'{"nodes":[%b]}' % (b"9" * 5000),
        b'{"nodes":[1],"timeout_ms":%b}' % (b"9" * 5000),
        b'{"nodes":[1],"as_of":%b}' % (b"9" * 5000),
        b'{"nodes":' + b"[" * 60_000,
        b'{"columns":{"a":[[' + b"[" * 60_000,
        b'{"nodes":["\0"]}',
        b"\0" * 100,
    ],
)
async def test_numbers_and_nesting_beyond_any_use_are_the_callers_fault(host: Host, body: bytes) -> None:
    client = await host.connect()
    client.send(post(body))
    assert (await client.answer())[0] == 400
    client.send(infer(INFER.replace(b"[1,2]", b"[%b]" % (b"9" * 5000))))
    assert (await client.answer())[0] == 400
    client.send(infer(INFER, b"inference-header-content-length: %b\r\n" % (b"9" * 5000)))
    status, _, answer = await client.answer()
    assert (status, len(answer) < 400) == (400, True)


# Error texts


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10**6,
        b"x" * 10**6,
        [1] * 10**6,
        ["x" * 1000] * 5,
        {"a": 1},
        10**5000,
        "'" * 300,
        [[[1]]],
        None,
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_quoted_value_is_short(value: Any) -> None:
    assert len(quoted(value)) <= MAX_QUOTED
    nested: Any = value
    for _ in range(2000):
        nested = [nested]
    assert len(quoted(nested)) <= MAX_QUOTED


@pytest.mark.parametrize("value", ["a", "it's", 7, 1.5, None, True, [1, 2], ["a"], b"a", (1, 2)])
def test_short_values_are_quoted_as_they_are(value: Any) -> None:
    assert quoted(value) == repr(list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize(
    "sent", ["x" * 10_000, "x y " * 5000, "\\" * 10_000, "é" * 10_000, "x'" * 999, "'\"" * 999]
)
def test_a_text_of_any_error_quotes_little(sent: str) -> None:
    text = public_text(f"the model's column {sent!r} is unknown; known are a, b")
    assert len(text) < 2 * MAX_QUOTED
    assert text.endswith("; known are a, b")
    usual = f"column 'a' is unknown; the model's are {', '.join(map(repr, range(200)))}"
    assert public_text(usual) == usual
    for worst in ("'", "x'", "\\", "' ", "x " * 100, "x" * 199 + " ", "`'\""):
        assert len(public_text(worst * (10**6 // len(worst)))) <= MAX_TEXT


async def test_answers_do_not_echo_what_was_sent(host: Host) -> None:
    client = await host.connect()
    long = b"x" * 60_000
    for body in (
        b'{"nodes":[1],"version":"%b"}' % long,
        b'{"nodes":[1],"outputs":["%b"]}' % long,
        b'{"nodes":[1],"priority":"%b"}' % long,
        b'{"columns":{"%b":[1]}}' % long,
        b'{"nodes":["%b"]}' % long,
        b'{"%b":1}' % long,
    ):
        client.send(post(body))
        status, _, answer = await client.answer()
        assert status in (400, 404)
        assert len(answer) < 1000


def test_errors_of_any_kind_are_shortened() -> None:
    assert len(error_response(HoplineError("x" * 10**6)).body) < 1000
    assert len(error_response(NodeNotFound("unknown", ["x" * 10**6, 7])).body) < 1000


async def test_changes_of_models_are_small(host: Host) -> None:
    client = await host.connect()
    for path in (b"/v2/repository/index", b"/v1/rollouts", b"/v2/repository/models/sage/load"):
        client.send(post(b"{}" + PADDING).replace(b"/v1/models/sage/score", path, 1))
        status, _, answer = await client.answer()
        assert (status, b"not their content" in answer) == (413, True)


@pytest.mark.parametrize("name", ["a\0b", "a" * 256, "é" * 128, "a\nb", "/a" * 600])
def test_names_that_no_file_can_have_are_refused(name: str) -> None:
    for parameters in ({"version": name}, {"graph": name}, {"groups": ["a", name]}, {"groups": name}):
        with pytest.raises(BadRequest, match="a name must be printable"):
            change_parameters("load", dict(parameters))
    with pytest.raises(BadRequest, match="model is "):
        checked_path("model", name)
    assert checked_path("graph", "s3://bucket/a b/é") == "s3://bucket/a b/é"
