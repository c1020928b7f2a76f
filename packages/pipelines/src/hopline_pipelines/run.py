"""A checked pipeline, its steps, and one request's way through them.

The requested outputs of a run want their steps, and these want the steps that they read; a step that is not
wanted never begins. Steps that wait for nothing begin immediately, so that independent models compute at
the same time. There is no task and no queue: a model's answer calls the run, which calls the steps that
waited for it.
"""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hopline.answering.served import Scorer
from hopline.errors import HoplineError, RuntimeFailure
from hopline.scheduling.work import Work
from hopline.types import AnyArray, ModelInfo, ScoreRequest, ScoreResult, TensorInfo
from hopline_pipelines.compile import Expression
from hopline_pipelines.inputs import InputReader
from hopline_pipelines.spec import PipelineSpec
from hopline_pipelines.values import Values, ValueType

log = logging.getLogger("hopline.pipelines")

_KINDS = {"BYTES": "string", "FP64": "number", "INT64": "integer", "BOOL": "boolean"}
_IDLE, _WAITING, _RUNNING, _DONE, _FAILED = range(5)
#: Represents the run itself among those that wait for a step.
_ROOT = -1


@dataclass(frozen=True, slots=True)
class StepHead:
    """Base of all steps.

    Attributes:
        id: of the file.
        index: its place in an order in which every step comes after those it reads.
        deps: places of the steps that must have succeeded before it begins.
        outputs: outputs that other steps may read.
    """

    id: str
    index: int
    deps: tuple[int, ...] = ()
    outputs: Mapping[str, ValueType] = field(default_factory=dict)

    def with_outputs(self, outputs: Mapping[str, ValueType]) -> StepHead:
        """The same step with other outputs."""
        return replace(self, outputs=outputs)


class Step:
    """One step of a loaded pipeline.

    Args:
        head: its id, place, dependencies and outputs.

    A step holds nothing of a run: many runs use it at the same time.
    """

    kind = ""

    def __init__(self, head: StepHead) -> None:
        self.id = head.id
        self.index = head.index
        self.deps = head.deps
        self.outputs = dict(head.outputs)

    def begin(self, run: Run) -> None:
        """Start; ends by `run.finish` or `run.fail`, now or later.

        Raises: HoplineError: it failed.
        """
        raise NotImplementedError  # abstract

    def receive(self, run: Run, dep: int, error: HoplineError | None) -> None:
        """A step that this one waits for has ended."""
        if not run.is_waiting(self.index):
            return
        if error is not None:
            run.fail(self.index, error)
            return
        run.pending[self.index] -= 1
        if not run.pending[self.index]:
            run.begin(self)


@dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline that was checked: its steps, and the outputs that read them. All runs share it.

    Attributes:
        name, version: of the pipeline.
        reader: of requests.
        steps: each after those it reads.
        outputs: name -> what is answered.
        wanted: output name -> places of the steps that it reads.
        default_outputs: for requests that name none.
        inputs: description of its inputs for transports.
        id_kind: of the node ids that requests name.
        takes_time: True if some step takes `as_of`.
        graph_version: snapshots that its models answered about when it was loaded.
        models: names of all models below it, those of pipelines inside it included.
    """

    name: str
    version: str
    reader: InputReader
    steps: tuple[Step, ...]
    outputs: Mapping[str, Expression]
    wanted: Mapping[str, tuple[int, ...]]
    default_outputs: tuple[str, ...]
    inputs: tuple[TensorInfo, ...]
    id_kind: Literal["int", "string", "none"]
    takes_time: bool
    graph_version: str
    models: tuple[str, ...]

    def roots(self, outputs: Sequence[str]) -> tuple[int, ...]:
        """Places of the steps that these outputs read; none named means the default ones."""
        return tuple(
            dict.fromkeys(step for name in outputs or self.default_outputs for step in self.wanted[name])
        )

    def info(self, spec: PipelineSpec, versions: tuple[str, ...]) -> ModelInfo:
        """Description for transports: inputs as declared, outputs as computed, and the models below."""
        return ModelInfo(
            name=self.name,
            versions=versions,
            version=self.version,
            state="READY",
            reason="",
            kind="pipeline",
            id_kind=self.id_kind,
            inputs=self.inputs,
            outputs=tuple(
                TensorInfo(name, each.type.datatype, (-1, *each.type.dims))
                for name, each in self.outputs.items()
            ),
            default_outputs=self.default_outputs,
            graph_version=self.graph_version,
            properties={
                "description": spec.description,
                "models": list(self.models),
                "steps": {step.id: step.kind for step in self.steps},
                "attributes": {
                    name: _KINDS[kind.datatype] for name, kind in self.reader.attributes.items()
                },
            },
        )


class Run:
    """A request under way; to its sender, a `Ticket`.

    Args:
        plan: the pipeline.
        request: with its deadline set.
        values: of its inputs.
        ended: is called with (run, outcome) after the outcome is out; None for a withdrawn run.
        clock: seconds, monotonic.

    Attributes:
        request, values: see above.
        pending: for each step, how many of those it waits for have not ended.
        notes: for each step, what it remembers between its beginning and its end.
        rows: for each step, the rows that it is to compute; None for all.
        seconds: step id -> how long it took.
    """

    __slots__ = (
        "_began",
        "_clock",
        "_degraded",
        "_deliver",
        "_errors",
        "_graphs",
        "_is_notifying",
        "_missing",
        "_news",
        "_num_roots",
        "_on_end",
        "_parts",
        "_plan",
        "_states",
        "_waiters",
        "_work",
        "_works",
        "notes",
        "pending",
        "request",
        "rows",
        "seconds",
        "started",
        "values",
    )

    def __init__(
        self,
        plan: Plan,
        work: Work,
        request: ScoreRequest,
        values: Values,
        ended: Callable[[Run, ScoreResult | HoplineError | None], object],
        clock: Callable[[], float],
    ) -> None:
        count = len(plan.steps)
        self.request = request
        self.values = values
        self.pending = [0] * count
        self.notes: list[Any] = [None] * count
        self.rows: list[NDArray[np.int64] | None] = [None] * count
        self.seconds: dict[str, float] = {}
        self.started = clock()
        self._plan = plan
        self._work = work
        work.holder = self
        self._on_end = ended
        self._clock = clock
        self._states = [_IDLE] * count
        self._waiters: list[list[int]] = [[] for _ in range(count)]
        self._errors: dict[int, HoplineError] = {}
        self._began = [0.0] * count
        self._works: dict[int, Work] = {}
        self._news: deque[tuple[int, int, HoplineError | None]] = deque()
        self._is_notifying = False
        self._num_roots = 0
        self._missing: NDArray[np.bool_] | None = None
        self._degraded: list[tuple[int, str]] = []
        self._parts: dict[int, str] = {}
        self._graphs: dict[int, str] = {}

    # What the version calls

    def start(self) -> None:
        """Begin the steps that the requested outputs read."""
        roots = self._plan.roots(self.request.outputs)
        self._num_roots = len(roots)
        if not roots:
            self._answer()
        for root in roots:
            self.want(root, _ROOT)

    def withdraw(self, work: Work) -> None:
        """As `Holder.withdraw`: withdraws all requests to models too."""
        self._close()
        self._on_end(self, None)

    # What steps call

    @property
    def pipeline(self) -> str:
        """Name of the pipeline."""
        return self._plan.name

    def want(self, index: int, by: int) -> None:
        """Have a step begin unless it has; `by` is notified when it ends, maybe before this returns."""
        state = self._states[index]
        if state in (_DONE, _FAILED):
            self._notify(by, index, self._errors.get(index))
            return
        self._waiters[index].append(by)
        if state != _IDLE:
            return
        self._states[index] = _WAITING
        step = self._plan.steps[index]
        self.pending[index] = len(step.deps)
        if not step.deps:
            self.begin(step)
        for dep in step.deps:
            if self._states[index] != _WAITING or self._ended:
                return  # one of them has failed
            self.want(dep, index)

    def is_waiting(self, index: int) -> bool:
        """True if a step has not begun."""
        return self._states[index] == _WAITING and not self._ended

    def is_running(self, index: int) -> bool:
        """True if a step has begun and not ended."""
        return self._states[index] == _RUNNING and not self._ended

    def begin(self, step: Step) -> None:
        """Start a step whose inputs are ready."""
        self._states[step.index] = _RUNNING
        self._began[step.index] = self._clock()
        self._guarded(step, step.begin, self)

    def call(
        self,
        step: Step,
        served: Scorer,
        request: ScoreRequest,
        take: Callable[[Run, ScoreResult], None],
        otherwise: Callable[[Run, HoplineError], bool] = lambda run, error: False,
    ) -> None:
        """Request a model's answer for a step; `take` gets it.

        `otherwise` gets an error that comes instead, and returns True if the step has an answer anyway.

        Raises: HoplineError: it refused immediately.
        """
        index = step.index

        def deliver(outcome: ScoreResult | HoplineError) -> None:
            self._works.pop(index, None)
            if self._ended:
                return
            if isinstance(outcome, HoplineError):
                if not otherwise(self, outcome):
                    self.fail(index, named(step.id, outcome))
                return
            self._parts[index] = f"{outcome.model}/{outcome.version}"
            if outcome.graph_version:
                self._graphs[index] = outcome.graph_version
            for fallback in outcome.degraded:
                self._degraded.append((index, fallback))
            self._guarded(step, take, self, outcome)

        work = Work(request, deliver)
        served.accept(work)
        if self._ended:
            work.cancel()
        elif self._states[index] == _RUNNING:
            self._works[index] = work

    def finish(self, index: int, outputs: dict[str, AnyArray]) -> None:
        """A step has its outputs."""
        if self._ended:
            return
        self._states[index] = _DONE
        self.values.of[index] = outputs
        self.seconds[self._plan.steps[index].id] = self._clock() - self._began[index]
        for by in self._waiters[index]:
            self._notify(by, index, None)

    def fail(self, index: int, error: HoplineError) -> None:
        """A step has none: those who wait for it fail too, unless they can do without."""
        if self._ended or self._states[index] == _FAILED:
            return
        self._states[index] = _FAILED
        self._errors[index] = error
        for by in self._waiters[index]:
            self._notify(by, index, error)

    def degrade(self, index: int, fallback: str) -> None:
        """The answer used a fallback because of a step."""
        self._degraded.append((index, fallback))

    def miss(self, index: int, rows: NDArray[np.bool_]) -> None:
        """Rows of a step (bool, as many as it computes) have no value."""
        if self._missing is None:
            self._missing = np.zeros(self.values.num_rows, np.bool_)
        chosen = self.rows[index]
        if chosen is None:
            self._missing |= rows
        else:
            self._missing[chosen[rows]] = True

    # Inside

    def _notify(self, by: int, index: int, error: HoplineError | None) -> None:
        """Notify a waiting step; further ones come after it, not nested: chains would be too deep."""
        self._news.append((by, index, error))
        if self._is_notifying:
            return
        self._is_notifying = True
        while self._news and not self._ended:
            self._notify_next(*self._news.popleft())
        self._is_notifying = False

    def _notify_next(self, by: int, index: int, error: HoplineError | None) -> None:
        if by != _ROOT:
            step = self._plan.steps[by]
            self._guarded(step, step.receive, self, index, error)
        elif error is not None:
            self._end(error)
        else:
            self._num_roots -= 1
            if not self._num_roots:
                self._answer()

    def _guarded(self, step: Step, function: Callable[..., object], *arguments: Any) -> None:
        """Whatever goes wrong in a step is that step's failure."""
        try:
            function(*arguments)
        except HoplineError as error:
            self.fail(step.index, named(step.id, error))
        except Exception as error:  # the boundary: only this run must end
            log.exception("step %r of pipeline %r failed", step.id, self.pipeline)
            failure = RuntimeFailure(f"the pipeline failed: {type(error).__name__}: {error}")
            self.fail(step.index, named(step.id, failure))

    def _answer(self) -> None:
        try:
            outcome: ScoreResult | HoplineError = self._result()
        except Exception as error:  # the boundary, as above
            log.exception("outputs of pipeline %r could not be computed", self.pipeline)
            outcome = RuntimeFailure(f"the pipeline failed: {type(error).__name__}: {error}")
        self._end(outcome)

    def _result(self) -> ScoreResult:
        plan, values = self._plan, self.values
        outputs = {}
        with np.errstate(all="ignore"):
            for name in self.request.outputs or plan.default_outputs:
                outputs[name] = np.ascontiguousarray(plan.outputs[name].rows(values))
        if self._missing is not None:
            outputs = {name: blanked(array, self._missing) for name, array in outputs.items()}
        steps = plan.steps
        return ScoreResult(
            plan.name,
            plan.version,
            _joined(self._graphs, ","),
            outputs,
            self._missing,
            tuple(dict.fromkeys(name for _, name in sorted(self._degraded, key=lambda each: each[0]))),
            {name: seconds * 1e3 for name, seconds in self.seconds.items()},
            {steps[index].id: part for index, part in sorted(self._parts.items())},
        )

    def _end(self, outcome: ScoreResult | HoplineError) -> None:
        self._close()
        self._work.report(outcome)
        self._on_end(self, outcome)

    def _close(self) -> None:
        self._work.end()
        works, self._works = self._works, {}
        for work in works.values():
            work.cancel()

    @property
    def _ended(self) -> bool:
        return self._work.ended


def named(step: str, error: HoplineError) -> HoplineError:
    """The same error with the step's name before its message."""
    found = copy.copy(error)
    found.args = (f"step {step!r}: {error}", *error.args[1:])
    return found


def blanked(array: AnyArray, missing: NDArray[np.bool_]) -> AnyArray:
    """Rows without a value: NaN, -1, no text. False stays False."""
    blank: dict[str, Any] = {"f": np.nan, "i": -1, "O": ""}
    if array.dtype.kind not in blank:
        return array
    array = array.copy()
    array[missing] = blank[array.dtype.kind]
    return array


def _joined(texts: dict[int, str], between: str) -> str:
    found: Sequence[str] = tuple(dict.fromkeys(texts[index] for index in sorted(texts)))
    return found[0] if len(found) == 1 else between.join(found)
