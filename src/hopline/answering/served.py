"""The interfaces of versions that answer requests, and of recorders of what they answered.

A graph model, a tabular model, a pipeline and a separate process are each a `Version` to the service.
A split between two versions is a `Scorer`. A response cache wraps a version, and is one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from hopline.answering.outcome_counts import OutcomeCounts
from hopline.errors import HoplineError
from hopline.scheduling.work import Work
from hopline.types import AnyArray, ModelInfo, ScoreRequest, ScoreResult

if TYPE_CHECKING:
    from hopline.engine.model import Model


class Scorer(Protocol):
    """Takes the requests to one name: a version, or two of them during a rollout.

    Attributes:
        name, version: as answers and metrics name it.
        graph_version: id of the snapshot that it answers about; "" where it reads no graph.
    """

    name: str
    version: str
    graph_version: str

    def accept(self, work: Work) -> None:
        """Take a request; its outcome is delivered once, on the event loop, maybe before this returns,
        unless it is cancelled.

        Raises: HoplineError: refused immediately; nothing is delivered.
        """
        ...

    def reject_early(self) -> None:
        """Refuse the next request unread, where `accept` would refuse it whatever it says.

        Raises: RateLimited, Overloaded, ModelNotReady.
        """
        ...

    def info(self, versions: tuple[str, ...]) -> ModelInfo:
        """Description for transports; `versions` are all that can be requested."""
        ...


class Version(Scorer, Protocol):
    """One version of a model, which is loaded and unloaded separately."""

    def statistics(self) -> dict[str, Any]:
        """Counters in the form of the protocol's ModelStatistics."""
        ...

    def warm_up(self) -> None:
        """Answer made-up requests, so that the first real one finds everything ready.

        Blocking; called on a thread before any request.

        Raises: HoplineError: it cannot answer; it must not take traffic.
        """
        ...

    @property
    def queued_rows(self) -> int:
        """Predicted rows that wait."""
        ...

    def close(self, why: str) -> None:
        """Take no more requests; those taken still finish."""
        ...

    async def join(self) -> None:
        """Wait until every request taken has its outcome."""
        ...

    async def release(self) -> None:
        """Release memory, files and processes; after `close` and `join`."""
        ...


@runtime_checkable
class SupportsPreflight(Protocol):
    """A version that supports a pre-flight; not all do."""

    def examples(self, count: int) -> Sequence[ScoreRequest]:
        """Requests that it can answer out of what there is."""
        ...

    def preflight(self) -> AbstractContextManager[None]:
        """Nothing is counted, reported or charged meanwhile."""
        ...


@runtime_checkable
class Preprocessing(Protocol):
    """A version that can show what its model reads of a request; not all can."""

    def preprocessed(self, request: ScoreRequest) -> Mapping[str, AnyArray] | None:
        """Arrays by name, a row for each of the request's first rows; None where there are none.

        Called on a thread off the event loop: it only reads, and its data is not changed in place.
        """
        ...


@runtime_checkable
class ReadsGraph(Protocol):
    """A version that may have a graph model in this process; not all can."""

    def graph_model(self) -> Model | None:
        """The model; None where there is none. Only to be read."""
        ...


@runtime_checkable
class CallsModels(Protocol):
    """A version that calls others; its expectations of them can be checked before they change."""

    def check_model(self, info: ModelInfo) -> None:
        """Check that it could call this version of a model in place of the present one.

        Raises: PipelineInvalid: it could not, and why.
        """
        ...


@runtime_checkable
class Compares(Protocol):
    """A version that compares answers where they are computed."""

    def compare(
        self, copies: Sequence[bytes], tolerance: float, on_counts: Callable[[OutcomeCounts], object]
    ) -> None:
        """Answer copies and hold the answers against the outcomes that their callers got.

        Args:
            copies: requests with their outcomes, each as from `isolated.wire.pack_copy`.
            tolerance: difference of scores that does not count.
            on_counts: called once with the counts, which are empty if the process was lost.

        Raises: HoplineError: not now, or not these; `on_counts` is not called.
        """
        ...


class Ran(NamedTuple):
    """Requests that ended together: a batch that ran, or one request that was refused or came too late.

    Attributes:
        served: who answered.
        requests, outcomes: side by side; an outcome of None is not one yet (the request waits for rows).
        queue_s: seconds that each request waited.
        compute_s: of the batch, wall time.
        stages: of the batch: "sample", "compute", "post" -> seconds; empty where they are not measured
            separately.
        ended: time.time().
        away_s: seconds that each request was out of the queue for feature rows; () where none was.
    """

    served: Version
    requests: Sequence[ScoreRequest]
    outcomes: Sequence[ScoreResult | HoplineError | None]
    queue_s: Sequence[float]
    compute_s: float
    stages: Mapping[str, float]
    ended: float
    away_s: Sequence[float] = ()

    def pass_to(self, recorders: Iterable[Recorder]) -> None:
        """Have them recorded; the fault of one recorder costs neither an answer nor other records."""
        for recorder in recorders:
            try:
                recorder.record(self)
            except Exception:  # the boundary of a recorder
                logging.getLogger(__name__).exception("%s recorded nothing", type(recorder).__name__)


class WatchedFiles(Protocol):
    """The files that answers are read from.

    Attributes:
        damage: the error that was found; "" for none so far.
        identity: of the files that were compared last; what was made of an earlier one may be wrong.
    """

    damage: str
    identity: str


class Recorder(Protocol):
    """Gets every finished batch: the prediction log, drift, the gates of a rollout."""

    def record(self, ran: Ran) -> None:
        """Take note; called on the event loop after the answers are out.

        Must cost microseconds, never block and never raise; what it needs later it copies or holds.
        """
        ...
