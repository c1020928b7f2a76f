"""Fields of a request mean the same over every transport, and the log keeps them as they came."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pytest

from hopline.brokers.base import Message
from hopline.client.wire import score_body
from hopline.errors import BadRequest
from hopline.isolated.wire import pack_request, unpack_request
from hopline.jobs.targets import _options
from hopline.records.inputs import Inputs, inputs_of
from hopline.request_fields import FIELDS, LOGGED, RequestField, default_of
from hopline.transports import oip
from hopline.transports.lifecycle_requests import change_parameters
from hopline.transports.oip import request_from_tensors
from hopline.transports.score_json import decode_score, score_request
from hopline.types import ContextNode, EdgeEdit, Edit, ScoredEdge, ScoreRequest
from hopline_brokers.queue_answers import request_of

#: name -> (as JSON has it, as a parameter of the protocol has it, as the request has it)
SAID: dict[str, tuple[Any, Any, Any]] = {
    "outputs": (["logits", "label"], None, ("logits", "label")),
    "as_of": ("2011-03-13", "2011-03-13", datetime(2011, 3, 13, tzinfo=UTC)),
    "on_missing": ("null", "null", "null"),
    "degraded": ("refuse", "refuse", "refuse"),
    "attributes": (
        {"country": "DE", "new": True},
        '{"country":"DE","new":true}',
        {"country": "DE", "new": True},
    ),
    "key": ("caller 7", "caller 7", "caller 7"),
    "priority": ("high", 1, "high"),
    "tags": (["nightly", "é"], '["nightly","é"]', ("nightly", "é")),
    "min_version": ("9c1f0b7e52d4a386+7", "9c1f0b7e52d4a386+7", "9c1f0b7e52d4a386+7"),
    "node_type": ("shop", "shop", "shop"),
    "keep": (True, True, True),
    "edges": (
        [
            {"from": "a", "to": 9, "columns": {"amount": 5, "new": None}},
            {"from": "b", "to": 1, "attr": [0.5]},
        ],
        '[{"from":"a","to":9,"columns":{"amount":5,"new":null}},{"from":"b","to":1,"attr":[0.5]}]',
        (ScoredEdge("a", 9, {"amount": 5, "new": None}), ScoredEdge("b", 1, attr=[0.5])),
    ),
    "exclude_seed_edges": ("reverse", "reverse", "reverse"),
    "context": (
        [{"type": "shop", "features": [1.5], "id": "s", "neighbors": {"a__b__shop": [1, "t"]}}],
        '[{"type":"shop","features":[1.5],"id":"s","neighbors":{"a__b__shop":[1,"t"]}}]',
        (ContextNode(type="shop", features=[1.5], id="s", neighbors={"a__b__shop": [1, "t"]}),),
    ),
    "edits": (
        [{"add_edge": {"from": 1, "to": "t", "time": 5}}, {"set": {"id": 3, "columns": {"a": None}}}],
        '[{"add_edge":{"from":1,"to":"t","time":5}},{"set":{"id":3,"columns":{"a":null}}}]',
        (Edit(add_edge=EdgeEdit(1, "t", time=5)), Edit(set=ContextNode(id=3, columns={"a": None}))),
    ),
}
BAD: dict[str, tuple[Any, ...]] = {
    "on_missing": ("nothing", 1, True),
    "degraded": ("", 0),
    "attributes": ({"a": [1]}, "[1]", 5),
    "key": (5, ""),
    "priority": ("urgent", -1, 0.5),
    "tags": ([1], ["a"] * 17, ["x" * 65], [""], 5),
    "min_version": (7, ""),
    "node_type": (5, ""),
    "keep": ("true", 1, {}),
    "edges": ([{"from": 1}], [{"src": 1, "to": 2}], [{"from": 1, "to": 2, "attr": ["a"]}], [[1, 2]], 5),
    "exclude_seed_edges": ("", "all", True),
    "context": ([{"kind": "shop"}], [{"features": ["a"]}], [{"neighbors": [1]}], 5),
    "if": ([{}], [{"remove_edge": {"from": 1}}], [{"set": {"id": 1}, "add_edge": {"from": 1, "to": 2}}], 5),
}
NAMED = pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)


def test_this_test_knows_every_field() -> None:
    assert set(SAID) == {field.name for field in FIELDS} <= set(ScoreRequest.__struct_fields__)


def over_http(body: dict[str, Any]) -> ScoreRequest:
    return score_request("m", None, decode_score(json.dumps({"nodes": [1], **body}).encode()), None, "r")


@NAMED
def test_json_the_protocol_and_brokers_say_the_same(field: RequestField) -> None:
    as_json, parameter, wanted = SAID[field.name]
    assert getattr(over_http({field.sent_name: as_json}), field.name) == wanted
    payload = json.dumps({"model": "m", "nodes": [1], field.sent_name: as_json}).encode()
    message = Message(payload, key=b"", headers={}, partition="0", position="1")
    assert getattr(request_of(message, 1000), field.name) == wanted
    if field.is_parameter:
        request = request_from_tensors("m", "", (), (), {field.sent_name: parameter}, "r")
        assert getattr(request, field.name) == wanted


@NAMED
def test_nothing_and_null_are_the_default(field: RequestField) -> None:
    for body in ({}, {field.sent_name: None}):
        assert getattr(over_http(body), field.name) == default_of(field)


@pytest.mark.parametrize("field", LOGGED, ids=lambda field: field.name)
def test_a_replay_sends_the_logged_fields_that_the_request_sets(field: RequestField) -> None:
    plain = ScoreRequest("m", [1], version="3")
    assert _options(plain) == {"version": "3"}
    value = SAID[field.name][2]
    assert _options(msgspec.structs.replace(plain, **{field.name: value})) == {
        "version": "3",
        field.name: value,
    }


@pytest.mark.parametrize("name", [field.sent_name for field in FIELDS if field.is_parameter])
def test_the_protocols_docstring_names_every_parameter(name: str) -> None:
    assert f"`{name}`" in str(oip.__doc__)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_what_is_no_value_of_a_field_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(BadRequest, match=name):
        over_http({name: value})
    parameter = json.dumps(value) if isinstance(value, dict | list) else value
    with pytest.raises(BadRequest, match=name):
        request_from_tensors("m", "", (), (), {name: parameter}, "r")


def test_an_empty_version_or_id_is_refused_wherever_it_may_be_left_out() -> None:
    with pytest.raises(BadRequest, match="version"):
        over_http({"version": ""})
    message = Message(b'{"model": "m", "nodes": [1], "min_version": ""}', b"", {}, "0", "1")
    with pytest.raises(BadRequest, match="min_version"):
        request_of(message, 1000)
    for verb, name in (("load", "version"), ("unload", "version"), ("load", "graph")):
        with pytest.raises(BadRequest, match=f"{name}.* is empty; leave it out"):
            change_parameters(verb, {name: ""})
    with pytest.raises(BadRequest, match="timeout"):
        request_from_tensors("m", "", (), (), {"timeout_ms": ""}, "r")


@NAMED
def test_a_models_own_process_gets_it(field: RequestField) -> None:
    request = ScoreRequest("m", [1], **{field.name: SAID[field.name][2]})
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(pack_request(request, 1.0)))
    if field.name != "as_of":  # an integer by then
        assert getattr(unpack_request(sent), field.name) == SAID[field.name][2]


@NAMED
def test_the_log_keeps_it_or_says_that_it_does_not(field: RequestField) -> None:
    request = ScoreRequest("m", [1], **{field.name: SAID[field.name][2]})
    kept = msgspec.json.decode(msgspec.json.encode(inputs_of(request, lambda: None)), type=Inputs)
    again = kept.request("m", None)
    wanted = SAID[field.name][2] if field.is_logged else default_of(field)
    assert getattr(again, field.name) == wanted


def test_the_client_sends_edits_as_if() -> None:
    edit = Edit(add_edge=EdgeEdit(1, 2))
    for given in (edit, {"add_edge": {"from": np.int64(1), "to": 2}}):
        assert score_body([1], None, None, edits=[given])["if"] == [{"add_edge": {"from": 1, "to": 2}}]


def test_the_client_sends_tags() -> None:
    assert score_body([1], None, None, tags=["nightly"])["tags"] == ["nightly"]
