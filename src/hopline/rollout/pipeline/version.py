"""A pipeline that takes requests: checked when it is made, and then one `Run` for each of them.

It has no queue: the models below it have theirs, in which the requests of concurrent runs are batched.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hopline.config.schema import Config
from hopline.errors import (
    BadRequest,
    DeadlineExceeded,
    HoplineError,
    Overloaded,
    PipelineInvalid,
    Unavailable,
)
from hopline.observe.metrics import Metrics, ModelMetrics
from hopline.rollout.counted import CountedVersion
from hopline.rollout.limits import ModelLimits
from hopline.rollout.pipeline.ask import ModelStep, Resolver, refuse_nesting
from hopline.rollout.pipeline.check import check_pipeline
from hopline.rollout.pipeline.plan import info_of
from hopline.rollout.pipeline.run import Run
from hopline.rollout.pipeline.spec import PipelineSpec, read_pipeline
from hopline.rollout.queued import bucket_of, take
from hopline.rollout.served import Ran, Recorder
from hopline.types import Deliver, ModelInfo, ScoreRequest, ScoreResult, Ticket

_NO_STEPS: Mapping[str, float] = {}


class PipelineVersion(CountedVersion):
    """A `Served` whose answers come from others.

    Args:
        spec: of the file, with the name and version that it is served as.
        resolve: (model, version or None for the one that serves) -> who answers; asked for each request.
        config: limits.
        metrics: of this pipeline's own name and version.
        recorders: are told of every request.
        limits: rate, concurrency, timeout and priority; None takes those of `config`.
        clock: of deadlines, seconds.

    Raises:
        PipelineInvalid: a cycle, a mismatch, an unknown name, a model that is not served.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        resolve: Resolver,
        config: Config,
        metrics: ModelMetrics,
        recorders: Sequence[Recorder] = (),
        limits: ModelLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        def describe(model: str, version: str | None) -> ModelInfo:
            served = resolve(model, version)
            return served.info((served.version,))

        limits = limits or ModelLimits.of(config)
        if limits.isolate:
            raise PipelineInvalid(
                f"pipeline {spec.name}/{spec.version}: isolate: a pipeline runs beside the server; isolate "
                "the models that it asks"
            )
        if limits.cache_bytes:
            raise PipelineInvalid(
                f"pipeline {spec.name}/{spec.version}: cache_bytes: its models change while the pipeline "
                "stays; let the models keep their answers"
            )
        self.plan = check_pipeline(spec, describe, resolve, config.limits.max_nodes_per_request)
        super().__init__(spec.name, spec.version, self.plan.graph_version, config, metrics, recorders)
        self.spec = spec
        self._clock = clock
        self._default_timeout_s = limits.timeout_ms / 1e3
        self._max_timeout_s = config.limits.max_timeout_ms / 1e3
        self._max_concurrency = limits.max_concurrency
        self._priority = limits.priority
        self._bucket = bucket_of(limits, config.worker.count)
        self._step_seconds = {step.id: metrics.stage(f"step:{step.id}") for step in self.plan.steps}
        self._closed = ""
        self._num_running = 0
        self._idle: asyncio.Event | None = None

    def submit(self, request: ScoreRequest, deliver: Deliver) -> Ticket:
        """Begin a run; `deliver` is called with its outcome, maybe before this returns.

        Raises:
            BadRequest, RequestTooLarge: it can never be answered.
            RateLimited, DeadlineExceeded, Overloaded, Unavailable, ModelNotReady: not now.
        """
        try:
            now = self._clock()
            deadline = self._admitted(request, now)
            values = self.plan.reader.read(request, len(self.plan.steps))
            if self._bucket is not None:
                take(self._bucket, now)
        except HoplineError as error:
            self.outcome(error.code)
            self._told(request, error, 0.0, _NO_STEPS)
            raise
        priority = self._priority if request.priority == "normal" else request.priority
        asked = msgspec.structs.replace(request, deadline=deadline, priority=priority)
        run = Run(self.plan, asked, deliver, values, self._ended, self._clock)
        self._num_running += 1
        run.start()
        return run

    def _admitted(self, request: ScoreRequest, now: float) -> float:
        """The deadline of a request that may be tried; its rows are `InputReader`'s to check."""
        if self._closed:
            raise Unavailable(self._closed)
        plan = self.plan
        for name in request.outputs:
            if name not in plan.outputs:
                raise BadRequest(
                    f"output {name!r} is unknown; pipeline {self.name!r} has {', '.join(plan.outputs)}"
                )
        if request.as_of is not None and not plan.takes_time:
            raise BadRequest(f"as_of: no model of pipeline {self.name!r} reads times; leave as_of out")
        refuse_nesting(self.name, request)
        if self._max_concurrency and self._num_running >= self._max_concurrency:
            raise Overloaded(
                f"{self._num_running} requests are under way; the limit is {self._max_concurrency} "
                "(max_concurrency)"
            )
        if request.deadline is None:
            return now + self._default_timeout_s
        if request.deadline <= now:
            raise DeadlineExceeded("the request's deadline had passed when it arrived")
        return min(request.deadline, now + self._max_timeout_s)

    def info(self, versions: tuple[str, ...]) -> ModelInfo:
        """Inputs as declared, outputs as computed, and the models below."""
        return info_of(self.plan, self.spec, versions)

    def warm_up(self) -> None:
        """Nothing: its models are warm, and its expressions were tried when it was checked."""

    def check_model(self, info: ModelInfo) -> None:
        """Whether a version that may come to serve under its name would do for this pipeline.

        Raises:
            PipelineInvalid: a step asks this model and would not fit; the message names both.
        """
        for step in self.plan.steps:
            if isinstance(step, ModelStep) and step.follows(info.name):
                try:
                    step.question_for(info)
                except PipelineInvalid as error:
                    raise PipelineInvalid(
                        f"{info.name}/{info.version} does not fit step {step.id!r} of pipeline "
                        f"{self.name}/{self.version}: {error}"
                    ) from None

    @property
    def queued_rows(self) -> int:
        """None: requests wait in the queues of the models below."""
        return 0

    @property
    def num_running(self) -> int:
        """Requests under way."""
        return self._num_running

    def close(self, why: str) -> None:
        """Take no more requests; those taken still finish."""
        self._closed = why

    async def join(self) -> None:
        """Wait until every request taken has its outcome."""
        while self._num_running:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    async def release(self) -> None:
        """Nothing is held but memory."""

    def _ended(self, run: Run, outcome: ScoreResult | HoplineError | None) -> None:
        self._num_running -= 1
        if not self._num_running and self._idle is not None:
            self._idle.set()
            self._idle = None
        if outcome is None:
            self.outcome("cancelled")
            return
        elapsed = self._clock() - run.started
        self.outcome(outcome.code if isinstance(outcome, HoplineError) else "ok")
        for step, seconds in run.seconds.items():
            self._step_seconds[step].observe(seconds)
        self._note(1, (0.0,), elapsed, _NO_STEPS)
        self._told(run.request, outcome, elapsed, run.seconds)

    def _told(
        self,
        request: ScoreRequest,
        outcome: ScoreResult | HoplineError,
        elapsed: float,
        steps: Mapping[str, float],
    ) -> None:
        """As `_tell`, but steps run beside each other: their times are no shares of the whole."""
        if not self._recorders:
            return
        served: Any = self
        ran = Ran(served, (request,), (outcome,), (0.0,), elapsed, steps, time.time())
        for recorder in self._recorders:
            recorder.record(ran)

    def _cpu_s(self) -> float:
        """None of its own worth charging: the models below are charged for theirs."""
        return 0.0


def load_pipeline(
    folder: Path,
    name: str,
    version: str,
    resolve: Resolver,
    config: Config,
    metrics: Metrics,
    recorders: Sequence[Recorder] = (),
    limits: ModelLimits | None = None,
) -> PipelineVersion:
    """Read, check and make ready the pipeline in a version's folder.

    Args:
        folder: that holds pipeline.toml.
        name, version: that it is served as.
        resolve, config, recorders, limits: see `PipelineVersion`.
        metrics: of the server.

    Raises:
        PipelineInvalid: whatever is wrong with it, models that are not served included.
    """
    spec = msgspec.structs.replace(read_pipeline(folder), name=name, version=version)
    return PipelineVersion(spec, resolve, config, metrics.model(name, version), recorders, limits)
