"""From broker to graph: poll, decode, apply, write dead letters, acknowledge.

A batch carries the positions up to which the batch *before* it was completed, dead letters included, and
the positions of its end. So after a crash between any two steps, a restart resumes where everything
before is safe. Messages of the last batch are read again: the writer has judged them already, and is only
asked for their outcome (`outcomes.py`). Nothing is lost, and nothing is applied twice or out of order; a
dead letter may be repeated. While no messages come, the positions of the last batch are written alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hopline.brokers.base import Message, Source
from hopline.errors import Unavailable
from hopline.events.decode import Decoder
from hopline.events.parts import choose
from hopline.graph.live.changes import Applied, Changes, Rejected
from hopline_brokers.stream.batch import Batch, Naming, Upserts, as_sets, read_batch
from hopline_brokers.stream.clock import Clock
from hopline_brokers.stream.dead_letters import DeadLetters, StreamStopped
from hopline_brokers.stream.intake import Intake
from hopline_brokers.stream.meters import StreamMetrics
from hopline_brokers.stream.outcomes import (
    Outcome,
    Redelivered,
    end_of,
    nothing_since,
    positions_of_sources,
    probe,
)
from hopline_brokers.stream.writer import ServiceWait, Standing

if TYPE_CHECKING:
    from hopline_brokers.stream.links import SocketWriter
    from hopline_brokers.stream.rescore import Rescorer

logger = logging.getLogger("hopline.stream")

#: Seconds without messages after which the last positions are written alone.
_IDLE_S = 0.05
#: The source pauses for this multiple of the time between batches, so that it is polled when one begins;
#: but no longer than the second number, in seconds.
_PAUSE, _LONGEST_PAUSE_S = 1.25, 0.025
#: Seconds between two confirmations that the graph is up to date.
_CONFIRM_S = 0.25
#: Codes of events that are sent again when there is room.
_FOR_ROOM = frozenset({"full", "unknown_node"})


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Options of following a stream.

    Attributes:
        max_batch: messages of one batch at most.
        max_wait_ms: between the beginnings of two batches, unless one is full; 0 never waits. The first
            batch after a pause starts immediately, so that batches fill only on a busy stream.
        on_unknown_node: "add" creates missing nodes that edges name, with features of zero.
        on_schema_change: "stop" ends the stream before the first event of another schema.
        once: end when the broker has no more.
        features_elsewhere: features are in a feature store, and events bring none.
        names_versions: the place in the stream names the versions of the graph; see `batch.py`.
    """

    max_batch: int = 10_000
    max_wait_ms: float = 0.0
    on_unknown_node: Literal["reject", "add"] = "reject"
    on_schema_change: Literal["dead-letter", "stop"] = "dead-letter"
    once: bool = False
    names_versions: bool = False
    features_elsewhere: bool = False


class Consumer:
    """Follows one source into one graph.

    Args:
        listener: called after each batch; None if nothing follows the graph's changes.
        on_current: called once, when the graph has all that the broker has.
        clock: the wall clock, and waiting.

    Attributes:
        stopping: set by `stop`.
    """

    def __init__(
        self,
        source: Source,
        writer: SocketWriter,
        dead_letters: DeadLetters,
        metrics: StreamMetrics,
        options: StreamOptions,
        *,
        listener: Rescorer | None = None,
        on_current: Callable[[], Awaitable[object]] | None = None,
        clock: Clock = Clock(),  # noqa: B008  (frozen)
    ) -> None:
        self._is_first = source.is_first
        self._writer = writer
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._options = options
        self._wait = ServiceWait(metrics.waiting, clock.sleep)
        self._listener = listener
        self._clock = clock
        pause_s = min(_PAUSE * options.max_wait_ms / 1e3, _LONGEST_PAUSE_S)
        self._naming: Naming | None = None
        self._on_current: Callable[[], Awaitable[object]] | None = on_current
        on_gap = Naming.lost if options.names_versions else None
        self.intake = Intake(source, options.max_batch, metrics, pause_s, on_gap)
        self._done: dict[str, Any] = {}
        self._durable: dict[str, Any] = {}
        self._redelivered = Redelivered({})
        #: Messages of a span that is not over.
        self._held: list[Message] = []
        self._upserts: Upserts | None = None
        self._newest_ms = 0
        self._confirmed_s = 0.0
        self._took_s = -math.inf
        self.stopping = asyncio.Event()

    def stop(self) -> None:
        """Stop taking messages; those that were taken are finished."""
        self.stopping.set()

    async def run(self, standing: Standing | None = None) -> None:
        """Follow the source until `stop` is called.

        Args:
            standing: of the writer, if it is known.
        Raises: StreamStopped: an event at which the stream must stop. HoplineError: a failure that
            waiting does not fix.
        """
        if standing is None:
            standing = await self._wait.until_done("writer", self._writer.standing)
        decoder = Decoder(standing.schema, features_elsewhere=self._options.features_elsewhere)
        self._done = dict(positions_of_sources(standing.positions))
        self._durable = dict(standing.positions)
        if self._options.names_versions:
            self._naming = Naming(standing.positions, self._is_first, self._options.max_wait_ms)
        self._redelivered = Redelivered(standing.positions)
        if self._options.on_unknown_node == "add":
            self._upserts = Upserts(standing.schema)
        await self._dead_letters.open()
        await self.intake.open(self._done)
        try:
            while not self.stopping.is_set():
                messages = await self._next_spans()
                if messages:
                    await self._process(messages, decoder)
                    if self.intake.has_taken_backlog(len(self._held)):
                        await self._is_current()
                else:
                    await self.commit()
                    if self.intake.is_dry:
                        await self._is_current()
                        if self._options.once:
                            break
                        await self._confirm()
            await self.intake.stop()
            held, self._held = self._held, []
            await self._process(held, decoder)
            while rest := await self.intake.take(0):
                await self._process(rest, decoder)
            await self.commit()
        finally:
            await self.intake.close()
            await self._dead_letters.close()

    async def commit(self) -> None:
        """Make the positions of completed messages durable, unless they are."""
        positions = self._positions()
        if any(self._durable.get(name) != position for name, position in positions.items()):
            await self._apply(Changes(positions=positions))

    async def _is_current(self) -> None:
        if self._on_current is not None:
            await self._wait.until_done("writer", self._on_current)
            self._on_current = None

    async def _confirm(self) -> None:
        """Confirm at intervals that the graph has all events of the broker: answers report its age."""
        now = self._clock.now()
        if now - self._confirmed_s >= _CONFIRM_S:
            self._confirmed_s = now
            await self._apply(Changes())

    async def _next(self) -> list[Message]:
        take = asyncio.ensure_future(self.intake.take(_IDLE_S, self._linger_s()))
        stopping = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait((take, stopping), return_when=asyncio.FIRST_COMPLETED)
            if take.done():
                if taken := take.result():
                    self._took_s = time.monotonic()
                return taken
            return []  # its messages are taken when the intake has stopped
        finally:
            for task in (take, stopping):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def _next_spans(self) -> list[Message]:
        """As `_next`; if the stream names versions, batches end where spans of time end."""
        if self._naming is None:
            return await self._next()
        if len(self._held) < self._options.max_batch:
            self._held += await self._next()
        count, left_s = self._naming.complete(self._held, 1e3 * self._clock.now())
        if not count and self._held:
            await self._clock.sleep(left_s)
            self._held += await self.intake.take(0)
            count, _ = self._naming.complete(self._held, 1e3 * self._clock.now())
            count = count or len(self._held)
        found, self._held = self._held[:count], self._held[count:]
        return found

    def _linger_s(self) -> float:
        return self._took_s + self._options.max_wait_ms / 1e3 - time.monotonic()

    async def _process(self, messages: Sequence[Message], decoder: Decoder) -> None:
        """Process messages in their order, in as many batches as they need."""
        again, messages = self._redelivered.split(messages)
        if again:
            batch = read_batch(again, decoder)
            await self._finish(batch, await self._recall(batch))
        if not messages:
            return
        if self._naming is not None:
            self._naming.check(messages)
        rest, foreign = read_batch(messages, decoder), None
        while rest.messages and foreign is None:
            count = len(rest.messages) if self._naming is None else self._naming.repeats(rest)
            if self._upserts is not None:  # later messages add the node again
                count = rest.until_removal(count)
            if self._options.on_schema_change == "stop":
                foreign = rest.first_foreign(count)
            batch, rest = rest.split(count if foreign is None else foreign[0])
            if batch.messages:
                await self._finish(batch, await self._apply_batch(batch))
        if foreign is not None:
            await self.commit()
            raise StreamStopped(f"events of another schema: {foreign[1]}")

    async def _apply_batch(self, batch: Batch) -> Outcome:
        """Apply a batch, once: if the writer's answer is lost, first find out what became of it."""
        changes, outcome = batch.changes, Outcome(batch.changes.num_events)
        if not changes.num_events and self._naming is None:
            return outcome
        started = time.perf_counter()
        if self._upserts is not None:
            await self._add_nodes(changes, self._upserts)
            self._upserts.forget(changes)
            changes = as_sets(changes)
        names = {} if self._naming is None else self._naming.stored(batch)
        changes = replace(changes, positions={**self._positions(), **end_of(batch.messages), **names})
        is_sent = False

        async def apply() -> Applied | None:
            nonlocal is_sent
            if is_sent and Redelivered((await self._writer.standing()).positions).holds(batch.messages):
                return None
            is_sent = True
            (answer,) = await self._writer.apply([changes])
            return answer

        answer = await self._wait.until_done("writer", apply)
        self._is_durable(changes.positions)
        if answer is not None:
            outcome.take(answer)
        else:
            outcome = await self._recall(batch)
            outcome.applied, outcome.duplicate = outcome.duplicate, outcome.applied
        if outcome.first("full") is not None:
            await self._apply_when_room(batch, changes, outcome)
        self._metrics.apply_seconds.observe(time.perf_counter() - started)
        self._metrics.batch_events.observe(changes.num_events)
        return outcome

    async def _recall(self, batch: Batch) -> Outcome:
        """The outcome of events that the writer judged: events that it knows are in the graph."""
        outcome = Outcome(batch.changes.num_events)
        if batch.changes.num_events:
            answer = await self._apply(probe(batch.changes))
            reason = "the writer rejected it when it first came; the reason was lost in a crash"
            rejected = [Rejected(each.order, "rejected", reason) for each in answer.rejected]
            outcome.take(replace(answer, rejected=rejected))
        return outcome

    async def _apply_when_room(self, batch: Batch, changes: Changes, outcome: Outcome) -> None:
        """Retry events for which the graph had no room, until it has."""
        positions = {**self._positions(), **nothing_since(self._done, batch.messages)}
        # after a crash they are judged again
        await self._apply(Changes(positions=positions))

        async def again() -> None:
            wanted = np.zeros(changes.num_events, np.bool_)
            wanted[[at for at, each in outcome.rejected.items() if each.code in _FOR_ROOM]] = True
            answer = await self._apply(replace(choose(changes, wanted), positions=positions))
            outcome.take(answer, np.flatnonzero(wanted))
            _check_room(outcome.rejected.values())

        await self._wait.until_done("room", again)

    async def _add_nodes(self, changes: Changes, upserts: Upserts) -> None:
        nodes = replace(upserts.missing(changes), positions=self._positions())
        if not nodes.num_events:
            return

        async def add() -> Applied:
            answer = await self._apply(nodes)
            _check_room(answer.rejected)
            return answer

        answer = await self._wait.until_done("room", add)
        if all(each.code == "node_exists" for each in answer.rejected):
            upserts.remember(nodes)

    async def _finish(self, batch: Batch, outcome: Outcome) -> None:
        """Complete a batch after applying: count outcomes, and write dead letters."""
        self._metrics.outcomes(outcome.counts())
        times = batch.changes.event_time_ms
        if times is not None:
            self._metrics.late.inc(int(np.count_nonzero((times > 0) & (times < self._newest_ms))))
            self._newest_ms = max(self._newest_ms, int(times.max()))
            self._metrics.visible(times[outcome.applied], 1e3 * self._clock.now())
        letters = batch.letters(outcome.rejected.values())
        if letters:
            await self._wait.until_done("dead letters", lambda: self._dead_letters.write(letters))
            self._metrics.outcomes(Counter(each.code for each in batch.refused))
        self._done |= batch.positions
        if outcome.sequence and self._listener is not None:
            self._listener.changed(outcome.sequence, self._newest_ms)

    async def _apply(self, changes: Changes) -> Applied:
        (answer,) = await self._wait.until_done("writer", lambda: self._writer.apply([changes]))
        self._is_durable(changes.positions)
        return answer

    def _is_durable(self, positions: Mapping[str, Any]) -> None:
        self._durable |= positions
        self.intake.acknowledge(positions_of_sources(positions))

    def _positions(self) -> dict[str, Any]:
        others = {} if self._listener is None else self._listener.positions()
        return {**self._done, **nothing_since(self._done), **others}


def _check_room(rejected: Iterable[Rejected]) -> None:
    """Raise Unavailable if the graph had no room for an event."""
    full = min(
        (each for each in rejected if each.code == "full"), key=lambda each: each.order, default=None
    )
    if full is not None:
        raise Unavailable(full.reason)
