"""Large answers that are encoded at the same time: their memory."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any, cast

import numpy as np
import orjson
import pytest

from hopline.config.reader import load_config
from hopline.errors import Overloaded
from hopline.transports import http_waiting, platform_routes, score_json
from hopline.transports.body_threads import LoopShare, encode_large
from hopline.transports.grpc import INFERENCE, GrpcApp
from hopline.transports.http import HttpApp
from hopline.transports.score_json import SLICE_VALUES
from hopline.types import Deliver, ScoreRequest, ScoreResult, Ticket
from tests.fake_service import FakeService
from tests.transports.grpc_rig import endpoint_of
from tests.transports.http2_rig import Client, Served
from tests.transports.http_rig import SCORE, eventually
from tests.transports.test_grpc_call import infer_request
from turnserve.budget import Budget
from turnserve.http1.messages import Pending, Request, Response

_SCORE = "/v1/models/sage/score"
_NUM_VALUES = 100_000
#: Room for two answers of so many values in JSON, not for three.
_ROOM = 5 * _NUM_VALUES * 12 // 2


def _large() -> ScoreResult:
    rows = np.zeros((_NUM_VALUES // 4, 4), np.float32)
    return ScoreResult("sage", "2", "g", {"embedding": rows}, None, (), {})


class Large(FakeService):
    """Answers every request at once, with many values."""

    def submit(self, request: ScoreRequest, deliver: Deliver) -> Ticket:
        deliver(_large())
        return super().submit(request, lambda outcome: None)


async def test_an_answer_reserves_its_memory_until_it_is_encoded() -> None:
    budget, go_on = Budget(_ROOM), threading.Event()
    first, second = (encode_large(budget, _large(), lambda: go_on.wait(5)) for _ in range(2))
    with pytest.raises(Overloaded, match=r"server\.max_pending_bytes"):
        await encode_large(budget, _large(), lambda: b"")
    assert _NUM_VALUES * 11 * 2 < budget.used <= _ROOM
    go_on.set()
    await asyncio.gather(first, second)
    assert budget.used == 0
    assert await encode_large(budget, _large(), lambda: b"third") == b"third"


async def test_an_answer_that_cannot_be_encoded_returns_its_memory() -> None:
    def fail() -> bytes:
        raise ValueError("no")

    budget = Budget(_ROOM)
    with pytest.raises(ValueError, match="no"):
        await encode_large(budget, _large(), fail)
    assert budget.used == 0


async def test_an_answer_alone_is_encoded_whatever_its_estimate() -> None:
    assert await encode_large(Budget(1000), _large(), lambda: b"short") == b"short"


async def test_http_answers_beyond_the_budget_are_refused_before_they_are_encoded() -> None:
    config = load_config()
    budget = Budget(_ROOM)
    app = HttpApp(Large(config), config)
    app.budget = budget
    requests = [Request(b"POST", b"/v1/models/sage/score", {}, SCORE) for _ in range(3)]
    answers = [cast(Pending, app(request)) for request in requests]
    await eventually(lambda: all(answer.response is not None for answer in answers))
    responses = [cast(Response, answer.response) for answer in answers]
    assert [response.status for response in responses] == [200, 200, 503]
    assert b"server.max_pending_bytes" in responses[2].body
    assert len(responses[0].body) > _NUM_VALUES * 4
    assert budget.used == 0


async def test_grpc_answers_beyond_the_budget_are_refused_before_they_are_encoded() -> None:
    budget = Budget(_ROOM)
    served = Served()
    served.endpoint = endpoint_of(GrpcApp(Large(load_config())), budget=budget)
    client = Client(served)
    request = infer_request([1]).SerializeToString()
    numbers = [client.call(f"/{INFERENCE}/ModelInfer", request) for _ in range(3)]
    client.exchange()
    await eventually(lambda: client.exchange() or all(client.answers[number].ended for number in numbers))
    assert [client.answers[number].status for number in numbers] == [0, 0, 8]  # RESOURCE_EXHAUSTED
    assert "server.max_pending_bytes" in client.answers[numbers[2]].text
    assert budget.used == 0


def _of(num_values: int) -> ScoreResult:
    return ScoreResult("sage", "2", "g", {"embedding": np.zeros((num_values // 4, 4), np.float32)})


async def test_answers_that_end_together_are_encoded_on_the_loop_only_up_to_a_share() -> None:
    """A batch of 4,096 rows ends in one callback, whether it answers one request or sixty."""
    share, medium = LoopShare(), _of(SLICE_VALUES // 4)
    assert [share.fits(medium) for _ in range(6)] == [True] * 4 + [False] * 2
    assert share.fits(_of(8))
    await asyncio.sleep(0)
    assert share.fits(medium)
    assert not share.fits(_of(SLICE_VALUES + 4))


@pytest.mark.parametrize("target", [_SCORE, "/invocations", "/v2/models/sage/infer"])
async def test_every_route_encodes_a_large_answer_on_a_thread(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    for kind in (http_waiting.Scoring, http_waiting.Inferring, platform_routes.Predicting):

        def respond(self: object, result: ScoreResult, respond: Any = kind.respond) -> Response:
            threads.append(threading.current_thread().name)
            found: Response = respond(self, result)
            return found

        monkeypatch.setattr(kind, "respond", respond)
    config = load_config(overrides={"server.predict_route": "/invocations", "models.names": "sage"})
    service = Large(config)
    await service.start()
    monkeypatch.setattr(service, "model_names", lambda: ("sage",))
    app = HttpApp(service, config)
    bodies = {_SCORE: {"nodes": [1]}, "/invocations": {"instances": [1]}}
    tensor = {"name": "node_ids", "datatype": "INT64", "shape": [1], "data": [1]}
    body = json.dumps(bodies.get(target, {"inputs": [tensor]})).encode()
    answer = cast(Pending, app(Request(b"POST", target.encode(), {}, body)))
    await eventually(lambda: answer.response is not None)
    assert answer.response is not None
    assert answer.response.status == 200
    assert all(name.startswith("bodies") for name in threads)
    assert threads


def test_predictions_are_encoded_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoder holds the interpreter lock: not for more than a slice of the rows."""
    sizes: list[int] = []
    plain = orjson.dumps

    def dumps(rows: list[object], option: int = 0) -> bytes:
        sizes.append(len(rows))
        return plain(rows, option=option)

    monkeypatch.setattr(score_json.orjson, "dumps", dumps)
    rng = np.random.default_rng(0)
    outputs: dict[str, Any] = {
        "label": rng.integers(0, 9, 30_000),
        "probabilities": rng.random((30_000, 3)).astype(np.float32),
        "name": np.array(["a", "b"] * 15_000),
    }
    missing = np.arange(30_000) % 11 == 0
    result = ScoreResult("m", "1", "g", outputs, missing)
    found = json.loads(score_json.encode_predictions(result))
    num_encoded = len(sizes)
    wanted = json.loads(score_json.encode_result(result, ScoreRequest("m", range(30_000))))["outputs"]
    rows = zip(*wanted.values(), strict=True)
    assert found["predictions"] == [dict(zip(wanted, row, strict=True)) for row in rows]
    assert max(sizes[:num_encoded]) * len(outputs) <= SLICE_VALUES


def test_predictions_say_which_fallbacks_were_used() -> None:
    result = ScoreResult("m", "1", "g", {"label": np.array([1, 0])}, degraded=("stale_row",))
    found = json.loads(score_json.encode_predictions(result))
    assert found == {"predictions": [{"label": 1}, {"label": 0}], "degraded": ["stale_row"]}
