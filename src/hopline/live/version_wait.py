"""Requests that name the version of the live graph that they need at least.

A request waits until this host has the version, but not longer than its deadline or
`live.min_version_wait_ms`. After that it is refused with `GraphBehind`: another host may have the version.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from hopline.errors import BadRequest, GraphBehind, HoplineError, Overloaded
from hopline.graph.live.memory import LiveMemory
from hopline.graph.live.version import (
    NO_OFFSET,
    PLAIN,
    GraphVersion,
    StreamOffset,
    read_version,
    version_name,
)
from hopline.observe.metrics import Metrics
from hopline.scheduling.work import Work
from hopline.types import ScoreResult

#: Seconds between looks at the version while requests wait.
_LOOK_S = 0.001
#: Requests that may wait at the same time in a worker.
_MAX_WAITING = 10_000


def checked(deliver: Callable[[Any], object], wanted: GraphVersion) -> Callable[[Any], object]:
    """A receiver that gets `GraphBehind` in place of an answer from an earlier version."""
    return partial(_deliver, deliver, wanted)


def _deliver(deliver: Callable[[Any], object], wanted: GraphVersion, outcome: object) -> None:
    if isinstance(outcome, ScoreResult):
        outcome = _refusal(outcome.graph_version, wanted) or outcome
    deliver(outcome)


def _refusal(found: str, wanted: GraphVersion) -> HoplineError | None:
    """Why an answer is not of the wanted version, or a later one; None if it is."""
    if not found:
        return BadRequest("min_version: this model reads no graph; leave min_version out")
    # a pipeline may read several graphs
    versions = [read_version(each, "graph_version") for each in found.split(",")]
    same = [each for each in versions if each.lineage == wanted.lineage]
    if same and all(_reaches(each.offset, wanted.offset) for each in same):
        return None
    return _behind(found, wanted)


def _reaches(offset: StreamOffset, wanted: StreamOffset) -> bool:
    return not wanted.is_named or offset.reaches(wanted) is True


def _behind(found: str, wanted: GraphVersion) -> GraphBehind:
    name = version_name(wanted.lineage, 0, wanted.offset)
    return GraphBehind(
        f"this server has graph version {found}, the request needs {name}; ask another server"
    )


class VersionWait:
    """Holds requests until the live graph has the version that they need."""

    def __init__(
        self, memory: LiveMemory, accept: Callable[[Work], object], wait_s: float, metrics: Metrics
    ) -> None:
        self._memory = memory
        self._accept = accept
        self._wait_s = wait_s
        self._waiting: dict[Work, tuple[GraphVersion, float]] = {}
        self._task: asyncio.Task[None] | None = None
        count = metrics.counter(
            "hopline_graph_min_version_total", "Requests with min_version by what came of it.", ("outcome",)
        )
        self._there, self._waited, self._refused = (count(each) for each in ("there", "waited", "refused"))

    def submit(self, work: Work, wanted: GraphVersion) -> None:
        """Hand a request on, now or when the graph has its version.

        Raises: HoplineError: it was refused immediately.
        """
        if self._is_there(wanted):
            self._there.inc()
            self._accept(work)
            return
        now = time.monotonic()
        until = now + self._wait_s
        if work.request.deadline is not None:
            until = min(until, work.request.deadline)
        if wanted.lineage != self._memory.plan.lineage or until <= now:
            self._refused.inc()
            raise self._behind(wanted)
        if len(self._waiting) >= _MAX_WAITING:
            raise Overloaded(f"{_MAX_WAITING} requests wait for a version of the graph")
        work.holder = self
        self._waiting[work] = wanted, until
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._look())

    def check(self, wanted: GraphVersion) -> None:
        """See whether a request would be handed on now. Raises: GraphBehind."""
        if not self._is_there(wanted):
            raise self._behind(wanted)

    def withdraw(self, work: Work) -> None:
        """As `Holder.withdraw`."""
        self._waiting.pop(work, None)
        work.end()

    async def close(self) -> None:
        """Refuse what waits."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        for work, (wanted, _) in list(self._waiting.items()):
            self._refuse(work, self._behind(wanted))
        self._waiting.clear()

    async def _look(self) -> None:
        while self._waiting:
            await asyncio.sleep(_LOOK_S)
            now = time.monotonic()
            for work, (wanted, until) in list(self._waiting.items()):
                if work not in self._waiting:  # withdrawn by what another one's outcome led to
                    continue
                if self._is_there(wanted):
                    del self._waiting[work]
                    self._hand_on(work)
                elif now >= until:
                    del self._waiting[work]
                    self._refuse(work, self._behind(wanted))

    def _hand_on(self, work: Work) -> None:
        self._waited.inc()
        work.holder = None
        try:
            self._accept(work)
        except HoplineError as error:
            work.ended = True
            work.report(error)

    def _refuse(self, work: Work, error: HoplineError) -> None:
        self._refused.inc()
        work.finish(error)

    def _newest(self) -> StreamOffset:
        """The newest version's place in the stream, or this host's count."""
        version, offset = self._memory.newest()
        if offset.is_named:
            return offset
        return StreamOffset(PLAIN, version) if version else NO_OFFSET

    def _is_there(self, wanted: GraphVersion) -> bool:
        if wanted.lineage != self._memory.plan.lineage:
            return False
        return _reaches(self._newest(), wanted.offset)

    def _behind(self, wanted: GraphVersion) -> GraphBehind:
        version, offset = self._memory.newest()
        return _behind(version_name(self._memory.plan.lineage, version, offset), wanted)
