"""The Open Inference Protocol as JSON."""

import pytest

from hopline.transports.oip_json import decode_infer, logged_id


@pytest.mark.parametrize(
    ("sent", "headers", "logged"),
    [
        (None, {}, "ours"),
        ("", {}, "ours"),
        ("theirs", {}, "theirs"),
        ("x" * 1000, {}, "x" * 128),
        ("theirs", {b"x-request-id": b"ours"}, "ours"),
    ],
)
def test_the_log_has_the_id_that_the_caller_sent(sent, headers, logged):
    name = "" if sent is None else f'"id": "{sent}", '
    body = f'{{{name}"inputs": [{{"name": "node_ids", "datatype": "INT64", "shape": [1], "data": [4]}}]}}'
    infer, _ = decode_infer(body.encode(), None)
    assert logged_id(infer, headers, b"x-request-id: ours\r\n") == logged
