"""What a transport needs of the service, and nothing more.

`hopline.service.Service` and `hopline.testing.service.FakeService` both are one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hopline.observe.metrics import Metrics
from hopline.types import Deliver, ModelInfo, ScoreRequest, ScoreResult, Ticket


class ScoringService(Protocol):
    """The transport-neutral API.

    A service may also have `reject_early`, which refuses requests unread, `is_pressed`, which tells whether
    others wait for the loop, `preflight`, which is for before the first request, the coroutines `load`,
    `unload`, `begin_rollout` and `decide_rollout`, and `describe_rollout` and `log_id`, as
    `hopline.service.Service` does.
    """

    metrics: Metrics

    def submit(self, request: ScoreRequest, deliver: Deliver) -> Ticket:
        """Hand a request in; `deliver` is called once with its outcome, unless the ticket is cancelled.

        It is called on the event loop, maybe before this returns.

        Raises: HoplineError of any kind; then nothing is delivered.
        """
        ...

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

    def unavailable(self) -> Mapping[str, str]:
        """Models that cannot serve, though others do: name -> why."""
        ...

    def index(self) -> Sequence[Mapping[str, str]]:
        """Every version of every model: {"name", "version", "state", "reason"}."""
        ...

    def statistics(self, name: str) -> Sequence[dict[str, Any]]:
        """Counters for each version, in the form of the protocol's ModelStatistics message."""
        ...
