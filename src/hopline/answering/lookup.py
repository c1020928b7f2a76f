"""Precomputed answers before the queue: known nodes are looked up, new and changed ones are computed.

A request that is wholly a look-up (`DirectAnswers`) is answered here and never queued. Rows that are not in
memory are read on a thread first; the request then continues as the others do.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from hopline.answering.counted_version import CountedVersion
from hopline.answering.graph_computer import GraphComputer
from hopline.answering.precomputed_files import replaced
from hopline.answering.served import Ran, Recorder
from hopline.engine.fallbacks import STALE_ROW
from hopline.engine.final_rows import Cold, FinalRows
from hopline.engine.model import Model
from hopline.engine.precomputed import FOUND, no_counts
from hopline.errors import BadRequest, DeadlineExceeded, HoplineError
from hopline.observe.metrics import Counter
from hopline.scheduling.work import Work
from hopline.types import IdArray, ScoreRequest, ScoreResult

log = logging.getLogger(__name__)

#: Answers whose times are added to the metrics together.
_TOGETHER = 256
#: Seconds between looks whether a file has been replaced.
_LOOK_S = 2.0
#: Nodes of the largest request that is answered so; larger ones are batches of their size.
MAX_NODES = 256


class DirectAnswers:
    """Answers from precomputed rows, given in the turn of the request.

    Args:
        precomputed: node type -> rows of the file.
        model: what they are rows of.
        name, version: as answers have them.
        default_outputs, output_names: of the model.

    Attributes:
        counts: rows by outcome.
        seconds: of the answers since they were last taken.
    """

    def __init__(
        self,
        precomputed: Mapping[str, FinalRows],
        model: Model,
        name: str,
        version: str,
        default_outputs: tuple[str, ...],
        output_names: tuple[str, ...],
    ) -> None:
        self.counts = no_counts()
        self.seconds: list[float] = []
        self._precomputed = precomputed
        graph: Any = model.graph
        self._live: Any = None
        if getattr(graph, "is_live", False):  # the computer pins its own versions, perhaps on a thread
            graph = self._live = graph.another()
        self._graph = graph
        head = model.spec.head
        self._is_link = head.kind == "link"
        self._types = (head.node_type, head.dst_node_type or head.node_type)
        self._rows = precomputed.get(head.node_type)
        self._index = graph.nodes[head.node_type].ids
        self._clock = model.clock if model.spec.reads_times else None
        self._name = name
        self._version = version
        self._default_outputs = default_outputs
        self._output_names = frozenset(output_names)

    def answer(self, request: ScoreRequest, is_read: bool = False) -> ScoreResult | list[Cold] | None:
        """The answer; a list of what a disk has to be asked for first; None: it is no whole look-up.

        Args:
            request: of present, known nodes or of pairs of them, as far as can be seen.
            is_read: its rows were read from the disk.
        """
        if self._live is None:
            return self._answer(request, is_read)
        with self._live:
            return self._answer(request, is_read)

    def close(self) -> None:
        """No more answers."""
        if self._live is not None:
            self._live.close()

    def _answer(self, request: ScoreRequest, is_read: bool) -> ScoreResult | list[Cold] | None:
        try:
            if self._is_link:
                return None if (ends := request.ends) is None or is_read else self._cold_pairs(ends)
            if request.ends is not None or not len(request.nodes):
                return None
            ids = self._index.lookup(request.nodes)
        except BadRequest:
            return None  # the general path reports it
        rows, names = self._rows, request.outputs or self._default_outputs
        if rows is None or (request.outputs and not self._output_names.issuperset(names)):
            return None
        if rows.is_stale and request.degraded == "refuse":
            return None
        cold = None if is_read else rows.cold(names, ids)
        if cold is not None:
            return [cold]
        key: IdArray | slice
        if ids.shape[0] == 1:
            row = int(ids[0])
            if row < 0 or not rows.holds(row):
                return None
            key = slice(row, row + 1)
        else:
            if ids.shape[0] > MAX_NODES or ids.min() < 0 or not rows.good(ids).all():
                return None
            key = ids
        return ScoreResult(
            self._name,
            self._version,
            self._graph.version,
            rows.outputs(names, key),
            None,
            (STALE_ROW,) if rows.is_stale else (),
            graph_through_ms=0 if self._live is None else self._live.through_ms,
            as_of=None if rows.is_stale else self._clock,
        )

    def _cold_pairs(self, pairs: Sequence[Any]) -> list[Cold] | None:
        """Pairs are for the head to compute; what it needs of the disk is read before."""
        found = []
        for node_type, external in zip(self._types, pairs, strict=False):
            rows = self._precomputed.get(node_type)
            if rows is not None and len(external):
                ids = self._graph.nodes[node_type].ids.lookup(external)
                cold = rows.cold(("embedding",), ids)
                if cold is not None:
                    found.append(cold)
        return found or None


RowsByType = Mapping[str, FinalRows]


class LookUp:
    """The look-up of one version; see the module.

    Args:
        version: counts what is a look-up.
        enqueue: queues what is not wholly one.
        computer: of that version; takes the rows of requests that are look-ups in part.
        precomputed: node type -> final rows.
        rows_total: outcome -> counter of rows.
        executor: has threads that wait for disks.
        recorders: as for the version.
        max_nodes: of one request.
    """

    def __init__(
        self,
        version: CountedVersion,
        enqueue: Callable[[Work], object],
        computer: GraphComputer,
        precomputed: RowsByType,
        rows_total: Callable[[str], Counter],
        executor: Executor,
        recorders: Sequence[Recorder],
        max_nodes: int,
    ) -> None:
        self._version = version
        self._enqueue = enqueue
        self._computer = computer
        self._rows_total = rows_total
        self._executor = executor
        self._recorders = recorders
        self._max_nodes = max_nodes
        self._direct: DirectAnswers | None = None
        self._precomputed: RowsByType = {}
        #: Requests whose rows are read from a disk.
        self._reading: dict[Work, tuple[asyncio.TimerHandle, asyncio.Future[None]]] = {}
        self._following: asyncio.Task[None] | None = None
        #: What recorders get after this turn of the loop.
        self._pending: tuple[list[ScoreRequest], list[ScoreResult | HoplineError | None], list[float]] = (
            [], [], [],
        )  # fmt: skip
        self._use(precomputed)

    def takes(self, work: Work) -> bool:
        """Answer a request, or read its rows first; False where it is not wholly a look-up.

        Raises: HoplineError: it is refused.
        """
        request = work.request
        if (
            self._direct is None
            or not request.reads_present
            or request.columns is not None
            or request.node_type
            or request.is_copy
            or self._version.admission.closed
            or len(request.nodes) > self._max_nodes
            or (request.deadline is not None and request.deadline <= time.monotonic())
        ):
            return False
        cold = self._answered(work)
        if cold:
            self._read(work, cold)
        return cold is not None

    def _answered(self, work: Work, is_read: bool = False) -> Sequence[Cold] | None:
        """Answer a request; what has to be read first, or None where it is not wholly a look-up."""
        direct, version = self._direct, self._version
        if direct is None:
            return None
        began = time.perf_counter()
        result = direct.answer(work.request, is_read)
        if type(result) is not ScoreResult:
            assert result is None or isinstance(result, list)
            return result
        if version.is_in_preflight:
            work.finish(result)
            return ()
        if version.admission.has_rate:
            try:
                version.admission.pay()
            except HoplineError as error:
                version.refuse(work, error)
                raise
        seconds = time.perf_counter() - began
        direct.counts[FOUND] += len(work.request.nodes)
        direct.seconds.append(seconds)
        work.finish(result)
        if result.degraded:
            version.count_fallbacks((result,))
        if len(direct.seconds) >= _TOGETHER:
            version.flush_metrics()
        if self._recorders:
            self._report_later(work.request, result, seconds)
        return ()

    # Rows on a disk

    def _read(self, work: Work, cold: Sequence[Cold]) -> None:
        """Have rows read, then continue."""
        version = self._version
        try:
            version.admission.admit(work)
        except HoplineError as error:
            version.refuse(work, error)
            raise
        work.holder = self
        loop = asyncio.get_running_loop()
        timer = loop.call_later(max(0.0, work.deadline - time.monotonic()), self._expire, work)
        reading = loop.run_in_executor(self._executor, _read_all, cold)
        self._reading[work] = timer, reading
        reading.add_done_callback(functools.partial(self._arrived, work))

    def withdraw(self, work: Work) -> None:
        """As `Holder.withdraw`."""
        self._stop_reading(work)
        work.end()
        self._version.outcome("cancelled")

    def _arrived(self, work: Work, done: asyncio.Future[None]) -> None:
        is_read = not done.cancelled() and done.exception() is None
        if not done.cancelled() and not is_read:
            log.error("precomputed rows cannot be read: %s", done.exception())  # they are computed instead
        if work not in self._reading:
            return
        self._stop_reading(work)
        work.holder = None
        try:
            if self._answered(work, is_read) != ():
                self._enqueue(work)
        except HoplineError as error:
            work.report(error)

    def _expire(self, work: Work) -> None:
        self._stop_reading(work)
        error = DeadlineExceeded("the request's deadline passed while its rows were read from the disk")
        self._version.outcome(error.code)
        work.finish(error)
        self._version.late(work, error)

    def _stop_reading(self, work: Work) -> None:
        timer, reading = self._reading.pop(work)
        timer.cancel()
        reading.cancel()  # takes no thread where it has not begun

    # Files

    def follow(self, reopen: Callable[[], RowsByType]) -> None:
        """Take up files that replace those in use, from now on; `reopen` is called on a thread."""
        self._following = asyncio.ensure_future(self._follow(reopen))

    async def stop(self) -> None:
        """Follow no files any more."""
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._following

    def release(self) -> None:
        """Close the files; after `stop`."""
        direct, self._direct = self._direct, None
        if direct is not None:
            direct.close()
        self._precomputed = self._computer.answerer.rows = {}

    def _use(self, precomputed: RowsByType) -> None:
        self.count()
        before, self._direct = self._direct, None
        if before is not None:
            before.close()
        computer = self._computer
        self._precomputed = precomputed
        computer.answerer.rows = precomputed
        if precomputed:
            self._direct = DirectAnswers(
                precomputed,
                computer.model,
                computer.name,
                computer.version,
                computer.default_outputs,
                computer.output_names,
            )

    async def _follow(self, reopen: Callable[[], RowsByType]) -> None:
        name = f"{self._computer.name}/{self._computer.version}"
        while True:
            await asyncio.sleep(_LOOK_S)
            if not replaced(self._precomputed):
                continue
            try:
                precomputed = await asyncio.to_thread(reopen)
            except HoplineError as error:
                log.error("%s keeps the precomputed answers that it has: %s", name, error)
                await asyncio.sleep(30 * _LOOK_S)
                continue
            self._use(precomputed)
            log.info("%s has new precomputed answers", name)

    # Counts

    def count(self) -> None:
        """Bring rows and times into the metrics."""
        direct = self._direct
        if direct is None:
            return
        for counts in (direct.counts, self._computer.answerer.row_counts):
            for outcome, count in counts.items():
                if count:
                    counts[outcome] -= count
                    self._rows_total(outcome).inc(count)
        seconds, direct.seconds = direct.seconds, []
        if seconds:
            self._version.note_looked_up(seconds)

    def flush(self) -> None:
        """Report answers to recorders."""
        requests, outcomes, times = self._pending
        if not requests:
            return
        self._pending = ([], [], [])
        mean_s = sum(times) / len(times)
        stages = {"lookup": mean_s}
        served: Any = self._version  # it is `Version`
        ran = Ran(served, requests, outcomes, [0.0] * len(requests), mean_s, stages, time.time())
        ran.pass_to(self._recorders)

    def _report_later(self, request: ScoreRequest, result: ScoreResult, seconds: float) -> None:
        requests, outcomes, times = self._pending
        if not requests:
            asyncio.get_running_loop().call_soon(self.flush)
        requests.append(request)
        outcomes.append(result)
        times.append(seconds)


def _read_all(cold: Sequence[Cold]) -> None:
    for each in cold:
        each.read_ahead()
