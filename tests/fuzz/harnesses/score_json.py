"""The JSON of score requests: answered without failure, and read as the standard library reads it."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from hopline.errors import BadRequest
from hopline.transports.score_json import decode_score
from tests.fuzz.fed import answered

_MODELS = (b"sage", b"people", b"link", b"table")


def check(data: bytes) -> None:
    """Args: data: a model in the first byte, and the body."""
    if not data:
        return
    body = data[1:]
    answered(b"/v1/models/%b/score" % _MODELS[data[0] % len(_MODELS)], body)
    try:
        found = decode_score(body)
    except BadRequest:
        return
    expected = json.loads(body.decode("utf-8-sig"), object_pairs_hook=_once)
    assert isinstance(expected, dict)
    for name, value in msgspec.to_builtins(found).items():
        assert same(value, expected.get(name)), (name, value, expected.get(name))


def _once(items: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(items)
    assert len(found) == len(items), f"a name comes twice: {[name for name, _ in items]}"
    return found


def same(found: Any, expected: Any) -> bool:
    """Whether both are the same JSON; what was left out may be read as null, or as nothing at all."""
    if isinstance(found, dict):
        names = {*found, *expected} if isinstance(expected, dict) else set()
        return isinstance(expected, dict) and all(_same_member(found, expected, name) for name in names)
    if isinstance(found, list | tuple):
        is_long = isinstance(expected, list) and len(found) == len(expected)
        return is_long and all(map(same, found, expected))
    if isinstance(found, float) and isinstance(expected, int) and not isinstance(expected, bool):
        try:
            return found == float(expected)
        except OverflowError:
            return math.isinf(found)
    return type(found) is type(expected) and bool(found == expected)


def _same_member(found: dict[str, Any], expected: dict[str, Any], name: str) -> bool:
    if name not in expected:
        return not found[name]
    return name in found and same(found[name], expected[name])
