"""The JSON of the repository and of rollouts, as far as it is read before anything is done."""

from __future__ import annotations

import asyncio
from typing import Any

from hopline.errors import HoplineError
from hopline.rollout.rollout import RolloutRequest
from hopline.transports.http_access import named_model
from hopline.transports.lifecycle_requests import LifecycleRequests
from tests.fuzz.fed import answered, check_refusal, runner


class _Service:
    """Takes what is asked of it."""

    async def load(self, model: str, **parameters: Any) -> None:
        assert set(parameters) <= {"version", "graph", "groups", "serve"}

    async def unload(self, model: str, **parameters: Any) -> None:
        assert set(parameters) <= {"version"}

    async def begin_rollout(self, request: RolloutRequest) -> None:
        request.check()

    async def decide_rollout(self, model: str, verb: str, reason: str) -> None:
        assert isinstance(reason, str)


_lifecycle = LifecycleRequests(_Service())


def check(data: bytes) -> None:
    """Args: data: a route in the first byte, and the body."""
    if not data:
        return
    route, body = data[0] % 5, data[1:]
    named_model(body)
    if route == 4:
        answered(b"/v2/repository/index", body)
        return

    async def ask() -> None:
        if route < 2:
            await _lifecycle.change(("load", "unload")[route], "sage", body)
        elif route == 2:
            await _lifecycle.begin(body)
        else:
            await _lifecycle.decide("promote", "sage", body)
        await asyncio.sleep(0)

    try:
        runner.run(ask())
    except HoplineError as error:
        check_refusal(error)
