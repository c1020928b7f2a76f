"""Calls through a Serve handle, repeated where a replica or its node died meanwhile.

Scoring changes nothing, so a call may be repeated: a request that dies with its replica is sent to another
one. Errors of Hopline itself are not repeated, except those that say when to retry.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from hopline.errors import DeadlineExceeded, HoplineError, Overloaded, Unavailable
from hopline.retry import delays
from hopline.types import ScoreRequest, ScoreResult

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 2.0


class RetryingHandle:
    """A handle of the Hopline deployment.

    Args:
        handle: from `serve.get_deployment_handle` or `serve.run`.
        timeout_s: time for one call with all of its repetitions.
    """

    def __init__(self, handle: Any, timeout_s: float = 60.0) -> None:
        self._handle = handle
        self._timeout_s = timeout_s

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Answer one request.

        Raises: HoplineError: of any kind; DeadlineExceeded: no replica answered in time.
        """
        found: ScoreResult = await self._call("score", request)
        return found

    async def score_many(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult | HoplineError]:
        """The outcome of each request, from one replica.

        Raises: DeadlineExceeded: no replica answered in time.
        """
        found: list[ScoreResult | HoplineError] = await self._call("score_many", list(requests))
        return found

    async def _call(self, method: str, argument: Any) -> Any:
        from ray.exceptions import RayError, RayTaskError
        from ray.serve.exceptions import RayServeException

        end = time.monotonic() + self._timeout_s
        waits = delays(_FIRST_PAUSE_S, _LAST_PAUSE_S, spread=0.5)
        while True:
            wait_s = next(waits)
            try:
                async with asyncio.timeout(max(0.0, end - time.monotonic())):
                    return await getattr(self._handle, method).remote(argument)
            except TimeoutError:
                raise DeadlineExceeded(f"no replica answered within {self._timeout_s:g} s") from None
            except (Overloaded, Unavailable) as error:  # with Ray's wrapper around it, or without
                failed: Exception = error
                wait_s = max(wait_s, error.retry_after_s)
            except RayTaskError as error:  # the replica's own exception
                if isinstance(error.cause, HoplineError):
                    raise error.cause from None
                raise
            except (RayError, RayServeException) as error:  # the replica or its node died
                failed = error
            if time.monotonic() + wait_s >= end:
                raise DeadlineExceeded(
                    f"no replica answered within {self._timeout_s:g} s; the last failure: {failed}"
                )
            await asyncio.sleep(wait_s)
