"""The interface of the service that transports use.

`hopline.service.Service` and `tests.fake_service.FakeService` implement it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hopline.observe.metrics import Metrics
from hopline.types import Deliver, ModelInfo, ScoreRequest, ScoreResult, Ticket


class ScoringService(Protocol):
    """The transport-neutral API.

    A service may also have: `reject_early`, which refuses requests before they are read; `is_pressed`,
    which reports whether other work waits for the loop; `preflight`, which runs before the first request;
    `stream`, which is `submit` with parts of the outcome as they come; the coroutines `load`, `unload`,
    `begin_rollout` and `decide_rollout`; and `describe_rollout` and `log_id`. See
    `hopline.service.Service`.
    """

    metrics: Metrics

    def submit(self, request: ScoreRequest, deliver: Deliver) -> Ticket:
        """Submit a request; `deliver` is called once with its outcome, unless the ticket is cancelled.

        `deliver` is called on the event loop, maybe before this method returns.

        Raises: HoplineError of any kind; then nothing is delivered.
        """
        ...

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Answer one request; may be cancelled at any await.

        Raises: HoplineError of any kind.
        """
        ...

    def check_version(self, request: ScoreRequest) -> None:
        """Check, without waiting, that the live graph has the request's `min_version`.

        Raises: GraphBehind: not yet. BadRequest: `min_version` is no version.
        """
        ...

    def live(self) -> bool:
        """Return True if the process works at all."""
        ...

    def ready(self) -> bool:
        """Return True if requests are accepted."""
        ...

    def model_names(self) -> tuple[str, ...]:
        """Return the names of the served models."""
        ...

    def describe(self, name: str, version: str | None = None) -> ModelInfo:
        """Describe one model version.

        Raises: ModelNotFound.
        """
        ...

    def unavailable(self) -> Mapping[str, str]:
        """Return the models that cannot serve while others do: name -> reason."""
        ...

    def differing(self) -> Mapping[str, str]:
        """Return the versions that other hosts have with another graph or files: "model/unit" -> text."""
        ...

    def index(self) -> Sequence[Mapping[str, str]]:
        """Return every version of every model: {"name", "version", "state", "reason"}."""
        ...

    def statistics(self, name: str) -> Sequence[dict[str, Any]]:
        """Return counters for each version, in the form of the protocol's ModelStatistics message."""
        ...
