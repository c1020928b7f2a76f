"""A computer turns a batch of requests into outcomes: one class for each kind of model.

A computer knows nothing of queues, deadlines, caches or rollouts. `QueuedVersion` gives it batches that
were admitted, and takes care of everything else. A new kind of model is a new computer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from hopline.errors import HoplineError
from hopline.observe.metrics import ModelMetrics
from hopline.scheduling.work import Work, predicted_rows
from hopline.types import AnyArray, ModelInfo, ScoreRequest, ScoreResult

if TYPE_CHECKING:
    from hopline.engine.model import Model
    from hopline.engine.source import Absent, FetchedInputs
    from hopline.scheduling.batcher import Batcher


class Fetch(msgspec.Struct, gc=False):
    """Feature rows that one request lacked.

    Attributes:
        supply: what was fetched for it; None before the first time.
        absent: what it lacked when it was last tried; None while it is in the queue.
        patient_until: when it continues without them; 0 while it has not waited.
        since: when it was last sent for rows, on time.monotonic()'s clock.
        away_s: seconds that it was not in the queue.
    """

    supply: FetchedInputs | None = None
    absent: Absent | None = None
    patient_until: float = 0.0
    since: float = 0.0
    away_s: float = 0.0


class Computer:
    """See the module; methods without a body here are for subclasses to write.

    Args:
        name, version: as answers name them.
        graph_version: id of the snapshot that it reads; "" where it reads no graph.
        row_bytes: working memory for each predicted row.

    Attributes:
        rows_per_seed: predicted rows that one requested row reads.
        predicts: True if `predict` knows more than the number of requested rows.
        fetches: True if requests may lack rows that have to be fetched: their outcome is None then.
    """

    fetches = False
    excludes = False

    def __init__(self, name: str, version: str, graph_version: str = "", row_bytes: int = 64) -> None:
        self.name = name
        self.version = version
        self.graph_version = graph_version
        self.row_bytes = row_bytes
        self.rows_per_seed = 1.0
        self.predicts = False

    def attach(self, queue: Batcher) -> None:
        """Take note of the queue that gives it batches; called once, before `warm_up`."""

    def info(self, versions: tuple[str, ...]) -> ModelInfo:
        """Description of this version for transports; `versions` are all that can be requested."""
        raise NotImplementedError

    def warm_up(self) -> None:
        """Answer made-up requests, so that the first real one finds everything ready; on a thread.

        Raises: HoplineError: it cannot answer; it must not take traffic.
        """
        raise NotImplementedError

    def resolved(self, request: ScoreRequest) -> ScoreRequest:
        """A request with an integer as `as_of`, and the model's own `exclude_seed_edges` if it has none.

        Raises: BadRequest: it is of another unit than the graph's times.
        """
        return request

    def num_seeds(self, request: ScoreRequest) -> int:
        """Check a request; returns how many rows it asks for.

        Raises: BadRequest, RequestTooLarge: it can never be answered.
        """
        raise NotImplementedError

    def predict(self, work: Work) -> None:
        """Set the rows and bytes of a request by what it asks for; if `predicts`, or of inline nodes."""

    def run(self, batch: list[Work]) -> Sequence[ScoreResult | HoplineError | None]:
        """Answer a batch, on the event loop or on a thread, one batch at a time.

        Returns: an outcome for each request; None where it lacks rows that have to be fetched.
        Raises: Exception: the batch failed as a whole; its requests are tried one by one.
        """
        raise NotImplementedError

    def rows_of(self, batch: Sequence[Work]) -> int:
        """Rows that the batch read which has just run."""
        return predicted_rows(batch)

    def larger(self, work: Work) -> None:
        """Remember a request that was larger than predicted."""

    def fetch(self, work: Work, resume: Callable[[Work], object]) -> None:
        """Fetch the rows that a request lacks, then call `resume`; only where `fetches`."""

    def stages(self) -> dict[str, float]:
        """Seconds of the last batch by stage, the same stages each time; {} where they are not measured.

        What is left of the batch's time is its stage "post": answers are split, encoded and sent.
        """
        return {}

    def examples(self, count: int) -> Sequence[ScoreRequest]:
        """Requests that can be answered out of what there is, for pre-flight; at most `count`."""
        return ()

    def preprocessed(self, request: ScoreRequest) -> Mapping[str, AnyArray] | None:
        """Arrays that the model reads of a request, by name, with a row for each of its first rows.

        Called on a thread off the event loop: it only reads.
        """
        return None

    def graph_model(self) -> Model | None:
        """The graph model that it computes with; None where it is of another kind."""
        return None

    def flush(self, metrics: ModelMetrics) -> None:
        """Add what was counted since the last call to the metrics."""

    def release(self) -> None:
        """Release what it holds besides memory."""
