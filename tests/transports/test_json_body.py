"""JSON bodies: text as clients write it, names that come twice, messages that say what would be right."""

from __future__ import annotations

import codecs
import json
from typing import Any

import httpx
import pytest

from hopline.errors import BadRequest
from hopline.transports.oip_json import decode_infer
from hopline.transports.score_json import decode_score, score_request
from tests.servers import RunningServer

INPUT = '{"name":"node_ids","datatype":"INT64","shape":[1],"data":[42]}'


def test_a_byte_order_mark_is_ignored() -> None:
    assert decode_score(codecs.BOM_UTF8 + b'{"nodes":[42]}').nodes == [42]
    marked = codecs.BOM_UTF8 + f'{{"inputs":[{INPUT}]}}'.encode()
    for length in (None, b"%d" % len(marked)):
        assert decode_infer(marked, length)[1][0].ids().tolist() == [42]


def test_several_byte_order_marks_are_refused() -> None:
    for count in (2, 1_000_000):
        with pytest.raises(BadRequest, match="several byte order marks; send one at most"):
            decode_score(codecs.BOM_UTF8 * count + b'{"nodes":[42]}')


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings_of_text_are_named(encoding: str) -> None:
    with pytest.raises(BadRequest, match="UTF-16 or UTF-32; send JSON as UTF-8"):
        decode_score('{"nodes":[42]}'.encode(encoding))


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("application/json; charset=utf-8", '{"nodes":["né"]}'.encode(), 404),
        ('application/json;charset="UTF8"', '{"nodes":["né"]}'.encode(), 404),
        ("application/json; charset=iso-8859-1", b'{"nodes":["n1"]}', 200),
        ("application/json; charset=iso-8859-1", '{"nodes":["nÃ©"]}'.encode(), 400),
        ("application/json; charset=utf-16", '{"nodes":["n1"]}'.encode("utf-16"), 400),
        ("application/json; charset=utf-16", b'{"nodes":["n1"]}', 400),
        ("application/json; charset=UTF-32LE", b'{"nodes":["n1"]}', 400),
        ("application/json; charset=utf-8; charset=utf-16", b'{"nodes":["n1"]}', 400),
        ("application/json; charset=utf-8; charset=utf-8", b'{"nodes":["n1"]}', 400),
        ("application/json; Charset=utf-16", '{"nodes":["nÃ©"]}'.encode(), 400),
        ("application/json; charset = utf-8, text/plain; CHARSET=latin1", b'{"nodes":["n1"]}', 400),
        ('application/json; x="a"; xcharset=utf-16', '{"nodes":["né"]}'.encode(), 404),
        ("application/x-www-form-urlencoded", b'{"nodes":["n1"]}', 200),
        ("", b'{"nodes":["n1"]}', 200),
    ],
)
def test_the_content_type_counts_for_its_charset_only(
    server: RunningServer, content_type: str, body: bytes, status: int
) -> None:
    url = f"{server.url}/v1/models/people/score"
    answer = httpx.post(url, content=body, headers={"content-type": content_type} if content_type else {})
    assert answer.status_code == status
    if status == 400:
        assert "charset" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        '{"nodes":[1],"nodes":[2]}',
        '{"nodes" : [1], "nodes" : [2]}',
        '{"nodes"\n:[1],"nodes"\n:[2]}',
        '{"nodes"  :[1],"n\\u006fdes"\t:[2]}',
        '{"outputs":["label"],"nodes":[1],"as_of":5,"as_of":null}',
        '{"rows":[{"a":1,"b":2},{"a":1,"a":2,"b":3}]}',
        '{"columns":{"a":[1],"a":[2]}}',
        '{"nodes":[1],"attributes":{"tier":"gold","tier":"silver"}}',
        '{"inline":[{"features":[1]},{"features":[1],"features":[2]}]}',
    ],
)
def test_a_name_that_comes_twice_is_refused(body: str) -> None:
    with pytest.raises(BadRequest, match=r"'(nodes|as_of|a|tier|features)' is repeated in one object"):
        decode_score(body.encode())


@pytest.mark.parametrize(
    "body",
    [
        {"rows": [{"nodes": 'a "nodes": b', "key": ':":'}, {"nodes": "x", "key": "y"}]},
        {"nodes": ['"nodes"', '"nodes":', ":"], "attributes": {"nodes": "nodes", "key": "key"}},
    ],
)
def test_a_name_in_values_or_in_other_objects_is_no_repetition(body: dict[str, Any]) -> None:
    decode_score(json.dumps(body).encode())
    decode_score(json.dumps(body, separators=(",", ":")).encode())


@pytest.mark.parametrize(
    "body",
    [
        f'{{"inputs":[{INPUT}],"inputs":[]}}',
        f'{{"inputs":[{INPUT[:-1]},"data":[7]}}]}}',
        f'{{"inputs":[{INPUT}],"outputs":[],"outputs":[]}}',
        f'{{"inputs":[{INPUT}],"\\u0069nputs":[]}}',
        f'{{"inputs":[{INPUT[:-1]},"name":"node_ids"}}]}}',
        f'{{"inputs":[{INPUT[:-1]},"parameters":{{"binary_data":true,"binary_data":false}}}}]}}',
        f'{{"inputs":[{INPUT}],"parameters":{{"on_missing":"null","on_missing":"error"}}}}',
        f'{{"inputs":[{INPUT}],"outputs":[{{"name":"label","name":"logits"}}]}}',
        f'{{"inputs":[{INPUT}],"id":"1","id":"2"}}',
    ],
)
def test_a_name_that_comes_twice_in_an_inference_request_is_refused(body: str) -> None:
    with pytest.raises(BadRequest, match="is repeated in one object"):
        decode_infer(body.encode(), None)


def test_colons_in_values_of_an_inference_request_are_no_repetition() -> None:
    text = json.dumps(
        {"inputs": [{"name": "a", "datatype": "BYTES", "shape": [2], "data": ['": ', '" :":']}]}
    )
    (tensor,) = decode_infer(text.encode(), None)[1]
    assert tensor.ids() == ['": ', '" :":']


def test_null_is_as_good_as_absent() -> None:
    fields = (
        "inline",
        "pairs",
        "outputs",
        "as_of",
        "on_missing",
        "timeout_ms",
        "version",
        "degraded",
        "rows",
    )
    fields += ("columns", "attributes", "key", "priority")
    body = json.dumps({"nodes": [1], **dict.fromkeys(fields)}).encode()
    usual = score_request("m", None, decode_score(b'{"nodes":[1]}'), None, "r")
    assert score_request("m", None, decode_score(body), None, "r") == usual
    text = f'{{"inputs":[{INPUT[:-1]},"parameters":null}}],"id":null,"outputs":null,"parameters":null}}'
    infer, tensors = decode_infer(text.encode(), None)
    assert (infer.id, len(tensors)) == (None, 1)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('{"nodes":"n1"}', r'at `\$.nodes`; expected a list: \["n1"\]'),
        ('{"nodes":42}', r"expected a list: \[42\]"),
        ('{"outputs":"label","nodes":[1]}', r'expected a list: \["label"\]'),
        ('{"inline":[{"features":1.5}]}', r"\$.inline\[0\].features`; expected a list: \[1.5\]"),
        ('{"rows":{"a":1}}', r"got `object` - at `\$.rows`; expected a list"),
        ('{"inline":[{"features":[1],"neighbors":"7"}]}', r'neighbors`; expected a list: \["7"\]'),
        ('{"pairs":[1,2]}', r"at `\$.pairs\[0\]`$"),
        ("[1,2]", r'got `array`; send \{"nodes": \[42\]\}'),
        ('{"nodes":[42.0]}', "an id is an integer without decimal point and exponent, or a string"),
        ('{"nodes":[1e3]}', "an id is an integer without decimal point and exponent"),
        ('{"nodes":[true]}', r"got `bool` - at `\$.nodes\[0\]"),
        ('{"nodes":[[1]]}', r"got `array` - at `\$.nodes\[0\]"),
        ('{"nodes":[9223372036854775808]}', "<= 9223372036854775807.*64 bits is a string"),
        (
            '{"node":[1]}',
            r"unknown field `node` \(did you mean 'nodes'\?\); known fields are nodes, inline",
        ),
        (
            '{"inline":[{"feature":[1]}]}',
            r"did you mean 'features'\?\); known fields are features, neighbors",
        ),
        ('{"nodes":[1],"on_missing":"zero"}', "'zero' - at .*; known are 'error', 'null'"),
        ('{"nodes":[1],"degraded":"no"}', "known are 'allow', 'refuse'"),
        ('{"nodes":[1],"priority":"urgent"}', "known are 'high', 'low', 'normal'"),
        ('{"nodes":[NaN]}', r"not valid JSON: .*\(byte 10\): JSON has no NaN"),
        ('{"nodes":[1,-Infinity]}', "not valid JSON: .*: JSON has no NaN and no Infinity"),
        ('{"nodes":[x],"id":"NaN"}', r"not valid JSON: .*\(byte 10\)$"),
        ('{"nodes":["\\ud800"]}', "not valid JSON: a string has a lone surrogate"),
        ('{"nodes":["\\uD8FFx\\n"]}', "not valid JSON: a string has a lone surrogate"),
        ('{"nodes":["\\udc00"]}', "not valid JSON: a string has a lone surrogate"),
        ('{"nodes":["\\ud800", "and more text"]}', "not valid JSON: a string has a lone surrogate"),
        ('{"nodes":["\\ud83d\\ude00"', "not valid JSON: Input data was truncated"),
        ('{"nodes":["\\\\ud800"', "not valid JSON: Input data was truncated"),
        ('{"nodes":["\\ud8', "not valid JSON: Input data was truncated"),
        ("", 'the body is empty; send JSON such as {"nodes": '),
    ],
)
def test_messages_say_what_would_be_right(body: str, text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        decode_score(body.encode())


@pytest.mark.parametrize(
    "body", [b'{"on_missing":"%b"}', b'{"%b":1}', b'{"nodes":"%b"}', b'{"as_of":"%b"}']
)
def test_messages_do_not_grow_with_what_was_sent(body: bytes) -> None:
    with pytest.raises(BadRequest) as error:
        score_request("m", None, decode_score(body % (b"x" * 100_000)), None, "r")
    assert len(str(error.value)) < 600


def test_messages_of_inference_requests_say_what_would_be_right() -> None:
    with pytest.raises(BadRequest, match=r"did you mean 'inputs'\?\); known fields are inputs, id"):
        decode_infer(b'{"input":[]}', None)
    with pytest.raises(BadRequest, match="the inference request is empty; send JSON such as"):
        decode_infer(b"", None)
    with pytest.raises(BadRequest, match=r"\$.inputs\[0\]`; known fields are name, datatype"):
        decode_infer(b'{"inputs":[{"typ":1}]}', None)
