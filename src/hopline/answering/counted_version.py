"""The base of every version that counts outcomes, times and cost, and reports its batches."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import add, mul
from typing import Any

from hopline.answering.served import Ran, Recorder
from hopline.config.schema import Config
from hopline.errors import HoplineError
from hopline.observe.metrics import ModelMetrics
from hopline.scheduling.admission import Admission
from hopline.scheduling.work import Work
from hopline.types import ScoreRequest, ScoreResult

#: Batches whose figures are added to the metrics together.
_RAN_TOGETHER = 64
_UNMEASURED: Mapping[str, float] = {}


class CountedVersion:
    """A version that counts what it answers.

    Attributes:
        admission: of its requests; set by the subclass.
    """

    admission: Admission

    def __init__(
        self,
        name: str,
        version: str,
        graph_version: str,
        config: Config,
        metrics: ModelMetrics,
        recorders: Sequence[Recorder],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.version = version
        self.graph_version = graph_version
        self._metrics = metrics
        self._clock = clock
        self._recorders = recorders  # the owner of the list may add to it and remove from it
        self._ran: list[tuple[Any, ...]] = []
        self._prices = config.cost
        self._is_on_gpu = config.compute.device != "cpu"
        self._charged_s = 0.0
        self.is_in_preflight = False
        self.num_ok = self.num_failed = self.num_batches = 0
        self.success_s = self.queue_s = self.sample_s = self.post_s = 0.0
        self.last_inference_ms = 0

    def close(self, why: str) -> None:
        """Take no more requests; those taken still finish."""
        self.admission.closed = why

    async def join(self) -> None:
        """Wait until every request taken has its outcome."""
        await self.admission.join()

    def statistics(self) -> dict[str, Any]:
        """Counters in the form of the protocol's ModelStatistics."""
        self.flush_metrics()
        success = {"count": self.num_ok, "ns": int(self.success_s * 1e9)}
        queue = {"count": self.num_ok, "ns": int(self.queue_s * 1e9)}
        return {
            "name": self.name,
            "version": self.version,
            "last_inference": self.last_inference_ms,
            "inference_count": self.num_ok,
            "execution_count": self.num_batches,
            "inference_stats": {
                "success": success,
                "fail": {"count": self.num_failed, "ns": 0},
                "queue": queue,
                "compute_input": {"count": self.num_ok, "ns": int(self.sample_s * 1e9)},
                "compute_infer": {
                    "count": self.num_ok,
                    "ns": int((self.success_s - self.sample_s - self.post_s) * 1e9),
                },
                "compute_output": {"count": self.num_ok, "ns": int(self.post_s * 1e9)},
            },
        }

    @contextlib.contextmanager
    def preflight(self) -> Iterator[None]:
        """Nothing is counted, reported or charged meanwhile."""
        self.is_in_preflight = True
        try:
            yield
        finally:
            self.is_in_preflight = False
            self._charged_s = self._cpu_s()

    def outcome(self, code: str, count: int = 1) -> None:
        """Count ended requests."""
        if self.is_in_preflight:
            return
        if code == "ok":
            self.num_ok += count
        else:
            self.num_failed += count
        if count:
            self._metrics.outcome(code, count)

    def count_fallbacks(self, outcomes: Iterable[object]) -> None:
        """Count the answers among these outcomes that used a fallback."""
        for outcome in outcomes:
            if isinstance(outcome, ScoreResult) and outcome.degraded and not self.is_in_preflight:
                self._metrics.degraded(outcome.degraded)

    def flush_metrics(self) -> None:
        """Bring the batches that ran since into the metrics: together they cost a third of one by one."""
        if not self._ran:
            return
        ran, self._ran = self._ran, []
        metrics = self._metrics
        stages, gpu_s = ran[0][4], 0.0
        if stages:
            columns = dict(zip(stages, zip(*[each[4].values() for each in ran], strict=True), strict=True))
            columns["post"] = tuple([each[2] - sum(each[4].values()) for each in ran])
            for name, seconds in columns.items():
                metrics.stage(name).observe_all(seconds)
            counts = [each[0] for each in ran]
            self.sample_s += sum(map(mul, counts, columns.get("sample", ())))
            self.post_s += sum(map(mul, counts, columns["post"]))
            if self._is_on_gpu:
                gpu_s = sum(columns.get("compute", ()))
        else:
            metrics.compute.observe_all([each[2] for each in ran])
        metrics.batch_rows.observe_all([each[0] for each in ran])
        waited = [seconds for each in ran for seconds in each[1]]
        whole = [seconds + each[2] for each in ran for seconds in each[1]]
        if away := [seconds for each in ran for seconds in each[5]]:  # of all of them, or of none
            whole = list(map(add, whole, away))
        metrics.queue.observe_all(waited)
        metrics.total.observe_all(whole)
        self.queue_s += sum(waited)
        self.success_s += sum([each[0] * each[2] for each in ran])
        self.num_batches += len(ran)
        self.last_inference_ms = int(ran[-1][3] * 1e3)
        used_s = self._cpu_s()
        metrics.charge(self._prices, used_s - self._charged_s, gpu_s)
        self._charged_s = used_s

    def note_looked_up(self, seconds: Sequence[float]) -> None:
        """Count requests that were answered out of precomputed rows, by what each took."""
        count, used_s = len(seconds), sum(seconds)
        metrics = self._metrics
        metrics.total.observe_all(seconds)
        metrics.stage("lookup").observe_all(seconds)
        metrics.queue.observe_all([0.0] * count)
        metrics.charge(self._prices, used_s)
        self.outcome("ok", count)
        self.num_batches += count
        self.success_s += used_s
        self.last_inference_ms = int(time.time() * 1e3)

    def _cpu_s(self) -> float:
        """Processor seconds that computing took since the version was made."""
        raise NotImplementedError  # abstract

    def _note(
        self,
        num_items: int,
        queue_s: Sequence[float],
        compute_s: float,
        stages: Mapping[str, float],
        away_s: Sequence[float] = (),
    ) -> None:
        """Count a batch; `stages` have none for what is left, "post"."""
        if self.is_in_preflight:
            return
        if self._ran and self._ran[-1][4].keys() != stages.keys():  # rows were looked up, or were not
            self.flush_metrics()
        self._ran.append((num_items, queue_s, compute_s, time.time(), stages, away_s))
        if len(self._ran) >= _RAN_TOGETHER:
            self.flush_metrics()

    def refuse(self, work: Work, error: HoplineError) -> None:
        """Count a request that is refused immediately; the caller raises the error."""
        work.end()
        self.outcome(error.code)
        self._report([work.request], [error], [0.0], 0.0)

    def late(self, work: Work, error: HoplineError) -> None:
        """Record a request that was admitted and ended with an error, in no batch."""
        self._report([work.request], [error], [self._clock() - work.entered], 0.0)

    def _report(
        self,
        requests: Sequence[ScoreRequest],
        outcomes: Sequence[ScoreResult | HoplineError | None],
        queue_s: Sequence[float],
        compute_s: float,
        stages: Mapping[str, float] = _UNMEASURED,
        away_s: Sequence[float] = (),
    ) -> None:
        if not self._recorders or self.is_in_preflight:
            return
        stages = stages and {**stages, "post": compute_s - sum(stages.values())}
        served: Any = self  # subclasses are `Version`
        ran = Ran(served, requests, outcomes, queue_s, compute_s, stages, time.time(), away_s)
        ran.pass_to(self._recorders)
