"""What a transport needs of the service, and nothing more.

`hopline.service.Service` and `hopline.testing.service.FakeService` both are one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from hopline.observe.metrics import Metrics
from hopline.types import ModelInfo, ScoreRequest, ScoreResult

#: Hands in a request. A future that is already done means the answer took no wait; cancelling the
#: future withdraws the request. May raise a HoplineError at once.
Submit: TypeAlias = "Callable[[ScoreRequest], asyncio.Future[ScoreResult]]"


class ScoringService(Protocol):
    """The transport-neutral API.

    A service may also have `score_now(request) -> asyncio.Future[ScoreResult]`, which spares a task
    for each request, and coroutines `load(name)` and `unload(name)`.
    """

    metrics: Metrics

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Answer one request; may be cancelled at any await.

        Raises: HoplineError of any kind.
        """
        ...

    def live(self) -> bool:
        """Whether the process works at all."""
        ...

    def ready(self) -> bool:
        """Whether requests are accepted."""
        ...

    def model_names(self) -> tuple[str, ...]:
        """Names of the models that are served."""
        ...

    def describe(self, name: str, version: str | None = None) -> ModelInfo:
        """One model version.

        Raises: ModelNotFound.
        """
        ...

    def statistics(self, name: str) -> Sequence[dict[str, Any]]:
        """Counters for each version, in the form of the protocol's ModelStatistics message."""
        ...


def submitter(service: ScoringService) -> Submit:
    """The cheapest way to hand requests to `service`: its own futures, else a task each."""
    own: Submit | None = getattr(service, "score_now", None)
    if own is not None:
        return own
    loop = asyncio.get_running_loop()

    def submit(request: ScoreRequest) -> asyncio.Future[ScoreResult]:
        return loop.create_task(service.score(request))

    return submit
