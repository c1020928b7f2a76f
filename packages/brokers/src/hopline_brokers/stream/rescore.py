"""Scores changed nodes again, and publishes results: immediately or on a schedule, at least once.

The version up to which results are published is stored with the positions of the stream. Results that were
not published when the process died are computed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from hopline.brokers.base import Outgoing, Sink
from hopline.errors import BadRequest, DeadlineExceeded, ModelNotReady, Overloaded
from hopline.graph.live.changes import Ids
from hopline.types import ExternalId, ScoreRequest, ScoreResult
from hopline_brokers.stream.clock import Clock
from hopline_brokers.stream.meters import StreamMetrics
from hopline_brokers.stream.writer import ServiceWait

if TYPE_CHECKING:
    from hopline.jobs.targets import ServerTarget
    from hopline_brokers.stream.links import SocketWriter

#: Scoring is retried after these errors as well.
_PASSING = (Overloaded, DeadlineExceeded, ModelNotReady)


class Result(msgspec.Struct, frozen=True):
    """The published result of one node.

    Attributes:
        node_type, node: of the result.
        outputs: output name -> number or numbers.
        graph_version: of the computation; sequence: changes up to this version are included.
        event_time_ms: of the newest included event; 0 if unknown.
        scored_at_ms: when it was computed.
    """

    model: str
    version: str
    graph_version: str
    node_type: str
    node: ExternalId
    outputs: dict[str, Any]
    sequence: int
    event_time_ms: int
    scored_at_ms: int


@dataclass(frozen=True, slots=True)
class RescoreOptions:
    """Settings of a `Rescorer`: nodes and intervals.

    Attributes:
        model: name of the model. node_type: type of the nodes that it scores.
        every_s: seconds between rounds; 0 scores after each batch.
        chunk: nodes in one request.
    """

    model: str
    node_type: str
    every_s: float = 0.0
    chunk: int = 1024


class Rescorer:
    """Keeps the published scores of one model up to date. A `Listener` of the consumer."""

    def __init__(
        self,
        writer: SocketWriter,
        scorer: ServerTarget,
        sink: Sink,
        metrics: StreamMetrics,
        options: RescoreOptions,
        *,
        wait: ServiceWait | None = None,
        clock: Clock = Clock(),  # noqa: B008  (frozen)
    ) -> None:
        self._writer = writer
        self._scorer = scorer
        self._sink = sink
        self._metrics = metrics
        self._options = options
        self._wait = wait or ServiceWait(metrics.waiting, clock.sleep)
        self._clock = clock
        self._key = f"hopline/scored/{options.model}"
        self._changed = asyncio.Event()
        self._latest = 0
        self._newest_ms = 0
        self.scored = 0

    async def open(self, positions: Mapping[str, Any], sequence: int) -> None:
        """Resume after the last published version; the first time, begin at the present version."""
        await self._sink.open()
        self.scored = int(positions.get(self._key, sequence))
        self._latest = sequence
        if self.scored < sequence:
            self._changed.set()

    def positions(self) -> Mapping[str, Any]:
        """The values to store: the version up to which results are published."""
        return {self._key: self.scored}

    def changed(self, sequence: int, newest_ms: int) -> None:
        """Handle a new version."""
        self._latest = max(self._latest, sequence)
        self._newest_ms = newest_ms
        self._metrics.unscored.set(self._latest - self.scored)
        self._changed.set()

    async def run(self) -> None:
        """Score after changes, until cancelled."""
        while True:
            await self._changed.wait()
            if self._options.every_s:
                await self._clock.sleep(self._options.every_s)
            await self.catch_up()

    async def catch_up(self) -> None:
        """Score and publish what changed since the last time."""
        self._changed.clear()
        newest_ms = self._newest_ms
        sequence, affected = await self._wait.until_done(
            "writer", lambda: self._writer.affected(self.scored)
        )
        ids = affected.get(self._options.node_type, ())
        for begin in range(0, len(ids), self._options.chunk):
            await self._score(ids[begin : begin + self._options.chunk], sequence, newest_ms)
        self.scored = sequence
        self._metrics.unscored.set(max(0, self._latest - sequence))

    async def close(self) -> None:
        """Close the sink."""
        await self._sink.close()

    async def _score(self, ids: Ids, sequence: int, newest_ms: int) -> None:
        request = ScoreRequest(self._options.model, ids, on_missing="null")
        answer = await self._wait.until_done("scores", lambda: self._scorer.score(request), _PASSING)
        messages = self._messages(ids, answer, sequence, newest_ms)
        await self._wait.until_done("results", lambda: self._sink.send(messages))
        self._metrics.rescored.inc(len(ids))
        self._metrics.results.inc(len(messages))

    def _messages(self, ids: Ids, answer: ScoreResult, sequence: int, newest_ms: int) -> list[Outgoing]:
        scored_at_ms = int(1e3 * self._clock.now())
        plain: Sequence[Any] = ids.tolist() if isinstance(ids, np.ndarray) else ids
        outputs = {name: values.tolist() for name, values in answer.outputs.items()}
        gone = [False] * len(plain) if answer.missing is None else answer.missing.tolist()
        return [
            Outgoing(
                msgspec.json.encode(
                    Result(
                        answer.model,
                        answer.version,
                        answer.graph_version,
                        self._options.node_type,
                        node,
                        {name: values[row] for name, values in outputs.items()},
                        sequence,
                        newest_ms,
                        scored_at_ms,
                    )
                ),
                key=str(node),
            )
            for row, node in enumerate(plain)
            if not gone[row]
        ]


def read_mode(text: str) -> tuple[Literal["request", "rescore"], float]:
    """`--rescore`: "request", "immediate" or "schedule:SECONDS".

    Raises: BadRequest: the text is not one of them.
    """
    if text == "request":
        return "request", 0.0
    if text == "immediate":
        return "rescore", 0.0
    name, _, seconds = text.partition(":")
    try:
        every_s = float(seconds) if name == "schedule" else 0.0
    except ValueError:
        every_s = 0.0
    if not 0 < every_s < 1e7:
        raise BadRequest(
            f"--rescore {text!r} must be request, immediate or schedule:SECONDS (for example schedule:30)"
        )
    return "rescore", every_s
