"""The loop of the watch: collect, judge, publish and save every interval.

A part that fails becomes a gap of that interval; the loop continues. Knows the parts as protocols;
`hopline_mesh.watch.run` connects real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import msgspec

from hopline.errors import HoplineError
from hopline_mesh.changes import Context
from hopline_mesh.errors import SourceUnavailable
from hopline_mesh.incident import Verdict
from hopline_mesh.out.alerts import Alerts
from hopline_mesh.out.between import Between
from hopline_mesh.out.board import Board
from hopline_mesh.out.record import Mark
from hopline_mesh.snapshot import Gap, Snapshot
from hopline_mesh.state.keeper import Keeper
from hopline_mesh.watch.judge import Judge
from hopline_mesh.watch.ticks import Tick, Ticks

logger = logging.getLogger("hopline_mesh")
_T = TypeVar("_T")


class Source(Protocol):
    """A source of snapshots."""

    async def collect(self, now_s: float) -> Snapshot:
        """Return the mesh in the interval that ends now, Unix seconds.

        Raises:
            HoplineError: nothing could be measured; the message gives the reason.
        """


class Watch:
    """One watch.

    Args:
        judge: judges and saves intervals, on a separate thread.
        source: of snapshots.
        context: returns planned changes and troubles at a time (Unix seconds), and gaps.
        board, alerts: get each verdict.
        keeper: writes the state.
        longest_s: maximum time of a collection; below the interval.

    Attributes:
        live: deviations between intervals.
    """

    def __init__(
        self,
        judge: Judge,
        source: Source,
        context: Callable[[float], tuple[Context, tuple[Gap, ...]]],
        board: Board,
        alerts: Alerts,
        keeper: Keeper,
        *,
        longest_s: float = 10.0,
    ) -> None:
        self._judge = judge
        self._source = source
        self._context = context
        self._board = board
        self._alerts = alerts
        self._keeper = keeper
        self._longest_s = longest_s
        self._timed = board.metrics.timed
        #: parts that fail now, so that the log has one line for the start and one for the end
        self._failing: set[str] = set()
        self._noted = True
        self._noted_marks: dict[str, Mark] = {}
        self._failures = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mesh-step")
        self._at_work = asyncio.Lock()
        self.live = Between(judge.live, self._thread, self._at_work)

    async def run(
        self,
        ticks: Ticks,
        stop: asyncio.Event,
        is_enough: Callable[[Verdict], bool] = lambda verdict: False,
    ) -> None:
        """Run until `stop` is set, or until a verdict is enough."""
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), ticks.wait_s())
            except TimeoutError:
                if ticks.wait_s() == 0 and is_enough(await self.interval(ticks.take())):
                    return

    async def interval(self, tick: Tick) -> Verdict:
        """Run one interval, from the collection to the alerts. Never raises."""
        with self._timed("total"):
            gaps = [*_lost_time(tick), *self._keeper.gaps]
            snapshot, context, judged = None, Context(), None
            with self._tolerated("prometheus", gaps), self._timed("collect"):
                snapshot = await self._collect(tick)
            with self._tolerated("kubernetes", gaps):
                context, missing = self._context(tick.wall_s)
                gaps += missing
            if snapshot is not None:
                async with self._at_work:
                    with self._tolerated("detector", gaps), self._timed("step"):
                        judged = await self._on_thread(self._judge.judge, snapshot, context)
            verdict, scores = judged or (Verdict(tick.time_s, "blind", 0.0), None)
            if judged is not None:
                with self._tolerated("measurements"):
                    _check_measured(verdict)
            if verdict.state == "blind" and not verdict.incidents:
                still = tuple(each.incident for each in self._board.open_incidents())
                verdict = msgspec.structs.replace(verdict, incidents=still)
            verdict = msgspec.structs.replace(verdict, gaps=tuple(dict.fromkeys([*verdict.gaps, *gaps])))
            with self._timed("publish"):
                with self._tolerated("board"):
                    self._board.publish(verdict, snapshot, scores, context)
                with self._tolerated("alerts"):
                    loud = tuple(each for each in verdict.incidents if not self._board.is_muted(each.id))
                    await self._alerts.send(msgspec.structs.replace(verdict, incidents=loud))
            if snapshot is not None and judged is not None:
                async with self._at_work:
                    with self._tolerated("state"), self._timed("keep"):
                        await self._keep(snapshot, context, verdict)
                    with self._tolerated("deviations"):
                        await self.live.renew()
                metrics = self._board.metrics
                metrics.state_bytes.set(self._keeper.size_bytes)
                metrics.state_writes_failed.inc(self._keeper.failures - self._failures)
                self._failures = self._keeper.failures
        return verdict

    async def close(self) -> None:
        """Save the state, and stop."""
        try:
            await self._on_thread(self._judge.close)
        except Exception:  # a stop must end in any state
            logger.exception("saving the last state failed")
        self._thread.shutdown(wait=False)
        await asyncio.to_thread(self._keeper.close)

    @contextlib.contextmanager
    def _tolerated(self, what: str, gaps: list[Gap] | None = None) -> Iterator[None]:
        """Make any failure of a part a gap, because the loop must survive it."""
        try:
            yield
        except Exception as error:
            is_expected = isinstance(error, HoplineError)
            reason = str(error) if is_expected else f"{type(error).__name__}: {error}"
            if what not in self._failing:
                logger.warning("%s: %s", what, reason, exc_info=not is_expected)
            self._failing.add(what)
            if gaps is not None:
                gaps.append(Gap(what, reason))
        else:
            if what in self._failing:
                logger.info("%s: works again", what)
            self._failing.discard(what)

    async def _on_thread(self, call: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)

    async def _collect(self, tick: Tick) -> Snapshot:
        try:
            snapshot = await asyncio.wait_for(self._source.collect(tick.wall_s), self._longest_s)
        except TimeoutError:
            raise SourceUnavailable(f"no response within {self._longest_s:g} s") from None
        return dataclasses.replace(snapshot, time_s=tick.time_s)

    async def _keep(self, snapshot: Snapshot, context: Context, verdict: Verdict) -> None:
        await self._on_thread(self._judge.keep, snapshot, context, verdict)
        marked_s, marks = self._board.marks()
        if verdict.incidents or self._noted or marks != self._noted_marks:
            note = {
                "alerts": self._alerts.export(),
                "abnormal": self._judge.abnormal(),
                "marks": msgspec.to_builtins((marked_s, marks)),
            }
            self._noted_marks = marks
            self._keeper.note(note)
            self._noted = bool(verdict.incidents)


def _check_measured(verdict: Verdict) -> None:
    """Raise the reason why a verdict is blind, so that the log has one line when this starts and ends."""
    if verdict.state == "blind":
        raise SourceUnavailable("; ".join(f"{gap.what}: {gap.reason}" for gap in verdict.gaps) or "none")


def _lost_time(tick: Tick) -> list[Gap]:
    """Return gaps for lost time before a tick."""
    gaps = []
    if tick.skipped:
        gaps.append(Gap("interval", f"{tick.skipped} left out: the previous interval took too long"))
    if tick.jump_s:
        which = "forward" if tick.jump_s > 0 else "back"
        gaps.append(Gap("clock", f"the clock was set {which} by {abs(tick.jump_s):.0f} s"))
    return gaps
