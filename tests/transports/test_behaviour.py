"""One suite over all transports: the same request has the same outcome whatever carried it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers import RunningServer
from tests.transports.dialects import Ask, Grpc, OipBinary, OipJson, V1Json


@pytest.fixture(scope="module", params=[V1Json, OipJson, OipBinary, Grpc], ids=lambda kind: kind.name)
def dialect(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Any]:
    spoken = request.param(server)
    yield spoken
    spoken.close()


def test_known_nodes_are_scored_in_request_order(dialect: Any) -> None:
    outcome = dialect.ask(Ask(nodes=[42, 7, 42]))
    assert outcome.code == "ok"
    assert outcome.outputs["label"] == [0, 1, 0]
    assert outcome.outputs["probabilities"] == [[0.9, 0.1], [0.1, 0.9], [0.9, 0.1]]


def test_only_requested_outputs_are_answered(dialect: Any) -> None:
    outcome = dialect.ask(Ask(nodes=[6], outputs=["embedding", "logits"]))
    assert outcome.outputs == {"embedding": [[6.0, 3.0, 2.0, 0.0]], "logits": [[-0.0, 0.0]]}


def test_string_ids_are_scored(dialect: Any) -> None:
    assert dialect.ask(Ask("people", nodes=["n3", "n4"])).outputs["label"] == [1, 0]


def test_a_version_can_be_chosen(dialect: Any) -> None:
    assert dialect.ask(Ask(nodes=[1])).version == "2"
    assert dialect.ask(Ask(nodes=[1], version="1")).version == "1"


def test_the_graphs_version_is_reported_and_its_age_where_it_changes(dialect: Any) -> None:
    assert dialect.ask(Ask(nodes=[1])).graph == ("fake-graph", None)
    version, age_ms = dialect.ask(Ask("people", nodes=["n3"])).graph
    assert version == "fake-graph"
    assert 5_000 <= age_ms < 10_000


@pytest.mark.parametrize("as_of", [5, "2011-03-13", "2011-03-13T07:06:40.5+01:00"])
def test_a_time_cut_is_a_number_or_text(dialect: Any, as_of: Any) -> None:
    assert dialect.ask(Ask(nodes=[42], as_of=as_of)).outputs["label"] == [0]


def test_pairs_are_scored_by_link_models(dialect: Any) -> None:
    assert dialect.ask(Ask("link", pairs=[(1, 2), (2, 1)])).outputs["label"] == [1, 0]


def test_inline_nodes_follow_known_nodes(dialect: Any) -> None:
    ask = Ask(nodes=[4], features=[[1, 2, 3], [4, 5, 6]], neighbors=[[1, 2, 3], [4, 5]])
    assert dialect.ask(ask).outputs["label"] == [0, 1, 0]


def test_rows_are_scored_in_request_order(dialect: Any) -> None:
    ask = Ask("table", columns={"amount": [12.5, 4.0], "category": ["ab", "é"]}, outputs=["embedding"])
    assert [row[0] for row in dialect.ask(ask).outputs["embedding"]] == [14.0, 5.0]


def test_key_priority_and_attributes_reach_the_service(dialect: Any) -> None:
    ask = Ask("table", columns={"amount": [1], "category": [""]}, outputs=["embedding"])
    ask.key, ask.priority, ask.attributes = "abc", "high", {"tier": "gold", "age": 7, "vip": True}
    assert dialect.ask(ask).outputs["embedding"][0][0] == 1 + 30 + 100 + 3000


def test_unknown_nodes_are_null_where_requested(dialect: Any) -> None:
    outcome = dialect.ask(Ask(nodes=[7, -1], on_missing="null"))
    assert outcome.outputs == {"probabilities": [[0.1, 0.9], None], "label": [1, None]}


@pytest.mark.parametrize(
    ("ask", "code", "text"),
    [
        (Ask(nodes=[1, -5, 2_000_000]), "node_not_found", "-5, 2000000"),
        (Ask("people", nodes=["n1", "nobody"]), "node_not_found", "nobody"),
        (Ask("absent", nodes=[1]), "model_not_found", "there are: sage"),
        (Ask(nodes=[1], version="9"), "model_not_found", "there are 1, 2"),
        (Ask(nodes=[1], outputs=["colour"]), "bad_request", "'colour'"),
        (Ask(pairs=[(1, 2)]), "bad_request", "takes nodes"),
        (Ask("link", nodes=[1]), "bad_request", "pairs"),
        (Ask("people", nodes=[1]), "bad_request", "string ids"),
        (Ask("people", nodes=["n" + "2" * 400]), "node_not_found", "unknown node"),
        (Ask(nodes=["n1"]), "bad_request", "integer ids"),
        (Ask(), "bad_request", "at least one"),
        (Ask(nodes=list(range(5000))), "request_too_large", "5000 nodes in one request; at most 4096"),
        (Ask(features=[[1, 2]]), "bad_request", "3 finite numbers"),
        (Ask("busy", nodes=[1]), "overloaded", "queue is full"),
        (Ask("loading", nodes=[1]), "model_not_ready", "weights are being read"),
        (Ask("broken", nodes=[1]), "internal", "request id"),
        (Ask("slow", nodes=[1], as_of=5000, timeout_ms=20), "deadline_exceeded", "deadline"),
        (Ask(nodes=[1], timeout_ms=-1), "bad_request", "positive number"),
        (Ask(nodes=[1], on_missing="zero"), "bad_request", "zero"),
        (Ask(nodes=[1], as_of="soon"), "bad_request", "ISO 8601 such as '2011-03-13T07:06:40Z'"),
        (Ask(columns={"amount": [1.0]}), "bad_request", "'amount'"),
        (Ask("table", columns={"amount": [1.0]}), "bad_request", "'category'"),
        (Ask(nodes=[1], priority="urgent"), "bad_request", "urgent"),
        (Ask(nodes=[1], attributes={"tier": ["gold"]}), "bad_request", "array"),
    ],
)
def test_wrong_requests_have_the_same_clear_error(dialect: Any, ask: Ask, code: str, text: str) -> None:
    outcome = dialect.ask(ask)
    assert outcome.code == code
    assert text in outcome.text
    assert "secret" not in outcome.text


def test_the_server_lives_on_after_unexpected_exceptions(dialect: Any, server: RunningServer) -> None:
    for _ in range(3):
        assert dialect.ask(Ask("broken", nodes=[1])).code == "internal"
    assert dialect.ask(Ask(nodes=[1])).code == "ok"
    assert any("secret detail" in line for line in server.log)  # the log has what the caller has not
