"""A pipeline that takes requests: checked when it is made, and then one `Run` for each of them.

It has no queue: the models below it have theirs, in which the requests of concurrent runs are batched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hopline.answering.counted_version import CountedVersion
from hopline.answering.limits import ModelLimits
from hopline.answering.queued import admission_of
from hopline.answering.served import Ran, Recorder
from hopline.config.schema import Config
from hopline.errors import (
    BadRequest,
    HoplineError,
    PipelineInvalid,
)
from hopline.observe.metrics import Metrics, ModelMetrics
from hopline.scheduling.work import Work
from hopline.types import ModelInfo, ScoreRequest, ScoreResult
from hopline_pipelines.check import check_pipeline
from hopline_pipelines.model_step import ModelStep, Resolver, refuse_nesting
from hopline_pipelines.run import Run
from hopline_pipelines.spec import PipelineSpec, read_pipeline

_NO_STEPS: Mapping[str, float] = {}


class PipelineVersion(CountedVersion):
    """A `Version` whose answers come from others.

    Args:
        spec: of the file, with the name and version that it is served as.
        resolve: see `Resolver`; called for each request.
        config: limits.
        metrics: of this pipeline's own name and version.
        recorders: get every request.
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
                f"pipeline {spec.name}/{spec.version}: isolate: a pipeline runs in the server; isolate "
                "the models that it calls"
            )
        if limits.cache_bytes:
            raise PipelineInvalid(
                f"pipeline {spec.name}/{spec.version}: cache_bytes: a pipeline caches no answers, since "
                "they depend on which versions of its models serve; set cache_bytes for those models"
            )
        self.plan = check_pipeline(spec, describe, resolve, config.limits.max_nodes_per_request)
        super().__init__(spec.name, spec.version, self.plan.graph_version, config, metrics, recorders)
        self.spec = spec
        self._clock = clock
        self.admission = admission_of(f"{spec.name}/{spec.version}", limits, config, clock=clock)
        self._priority = limits.priority
        self._step_seconds = {step.id: metrics.stage(f"step:{step.id}") for step in self.plan.steps}

    def accept(self, work: Work) -> None:
        """As `Scorer.accept`: begins a run.

        Raises:
            BadRequest, RequestTooLarge: it can never be answered.
            RateLimited, DeadlineExceeded, Overloaded, Unavailable, ModelNotReady: not now.
        """
        request = work.request
        try:
            self._check(request)
            self.admission.admit(work)
            values = self.plan.reader.read(request, len(self.plan.steps))
            self.admission.pay()
        except HoplineError as error:
            work.end()
            self.outcome(error.code)
            self._record(request, error, 0.0, _NO_STEPS)
            raise
        priority = self._priority if request.priority == "normal" else request.priority
        bounded = msgspec.structs.replace(request, deadline=work.deadline, priority=priority)
        Run(self.plan, work, bounded, values, self._ended, self._clock).start()

    def reject_early(self) -> None:
        """Does nothing: only the steps decide which models get a request."""

    def _check(self, request: ScoreRequest) -> None:
        """Checks that need no rows; `InputReader` checks those."""
        for name in sorted({*request.outputs} - {*self.plan.outputs}):
            raise BadRequest(
                f"output {name!r} is unknown; pipeline {self.name!r} has {', '.join(self.plan.outputs)}"
            )
        unread = request.as_of is not None and not self.plan.takes_time
        if request.edits or request.exclude_seed_edges or unread:
            name = "as_of" if unread else "if" if request.edits else "exclude_seed_edges"
            raise BadRequest(f"{name}: pipeline {self.name!r} passes it to no model; leave {name} out")
        refuse_nesting(self.name, request)

    def info(self, versions: tuple[str, ...]) -> ModelInfo:
        """Inputs as declared, outputs as computed, and the models below."""
        return self.plan.info(self.spec, versions)

    def warm_up(self) -> None:
        """Nothing: its models are warm, and its expressions were tried when it was checked."""

    def check_model(self, info: ModelInfo) -> None:
        """Check that the pipeline's steps accept this version's inputs and outputs.

        Raises:
            PipelineInvalid: a step calls this model and would not fit; the message names both.
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

    async def release(self) -> None:
        """Nothing is held but memory."""

    def _ended(self, run: Run, outcome: ScoreResult | HoplineError | None) -> None:
        if outcome is None:
            self.outcome("cancelled")
            return
        elapsed = self._clock() - run.started
        self.outcome(outcome.code if isinstance(outcome, HoplineError) else "ok")
        self.count_fallbacks((outcome,))
        for step, seconds in run.seconds.items():
            self._step_seconds[step].observe(seconds)
        self._note(1, (0.0,), elapsed, _NO_STEPS)
        self._record(run.request, outcome, elapsed, run.seconds)

    def _record(
        self,
        request: ScoreRequest,
        outcome: ScoreResult | HoplineError,
        elapsed: float,
        steps: Mapping[str, float],
    ) -> None:
        """Record a request. Steps run in parallel: their times are not shares of the whole."""
        if not self._recorders:
            return
        served: Any = self
        Ran(served, (request,), (outcome,), (0.0,), elapsed, steps, time.time()).pass_to(self._recorders)

    def _cpu_s(self) -> float:
        """0: the models below are charged for their own time."""
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
