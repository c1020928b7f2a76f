"""Large answers that are encoded at the same time: their memory."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

import numpy as np
import pytest

from hopline.config.reader import load_config
from hopline.errors import Overloaded
from hopline.testing.service import FakeService
from hopline.transports.body_threads import encode_large
from hopline.transports.budget import Budget
from hopline.transports.grpc import INFERENCE, GrpcApp
from hopline.transports.http import HttpApp
from hopline.transports.http_messages import Pending, Request, Response
from hopline.types import Deliver, ScoreRequest, ScoreResult, Ticket
from tests.transports.grpc_rig import endpoint_of
from tests.transports.http2_rig import Client, Served
from tests.transports.http_rig import SCORE, eventually
from tests.transports.test_grpc_call import infer_request

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
