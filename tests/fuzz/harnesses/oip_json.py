"""Inference requests over HTTP: JSON with data in it or behind it, held against NumPy."""

from __future__ import annotations

import json

import numpy as np

from hopline.errors import BadRequest
from hopline.transports.oip_json import decode_infer
from tests.fuzz.fed import answered

_MODELS = (b"sage", b"people", b"link", b"table")


def check(data: bytes) -> None:
    """Args: data: a model, how many bytes lie behind the JSON (255: no header says so), and the body."""
    if len(data) < 2:
        return
    body, behind = data[2:], data[1]
    length = None if behind == 255 else b"%d" % (len(body) - behind)
    headers = {} if length is None else {b"inference-header-content-length": length}
    answered(b"/v2/models/%b/infer" % _MODELS[data[0] % len(_MODELS)], body, headers)
    try:
        _, tensors = decode_infer(body, length)
    except BadRequest:
        return
    end = len(body) if length is None else int(length)
    inputs = json.loads(body[:end].decode("utf-8-sig"))["inputs"]
    assert len(inputs) == len(tensors)
    for item, tensor in zip(inputs, tensors, strict=True):
        assert tensor.shape == tuple(item["shape"])
        assert len(tensor.values) == np.prod(item["shape"], dtype=object)
        if item.get("data") is None:
            continue
        expected = np.array(item["data"], object).ravel()
        if isinstance(tensor.values, list):
            assert tensor.values == [text.encode() for text in expected]
        else:
            with np.errstate(over="ignore"):
                assert np.array_equal(tensor.values, expected.astype(tensor.values.dtype), equal_nan=True)
