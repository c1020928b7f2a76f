"""A step that sends a request to a model, made of the run's values, and takes the answer.

The model is looked up for each request, since what serves under a name changes while the pipeline stays.
A version that was not seen before is held against what the pipeline was checked with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.answering.served import Scorer
from hopline.errors import DeadlineExceeded, HoplineError, ModelNotReady, PipelineInvalid, RuntimeFailure
from hopline.types import AnyArray, ExternalIds, ModelInfo, ScoreRequest, ScoreResult
from hopline_pipelines.compile import Expression
from hopline_pipelines.fallbacks import filled
from hopline_pipelines.run import Run, Step, StepHead
from hopline_pipelines.values import DTYPES

#: (model, version) -> what answers; None is the version that serves now.
#: Raises ModelNotFound, ModelNotReady, Unavailable.
Resolver: TypeAlias = Callable[[str, str | None], Scorer]


@dataclass(frozen=True, slots=True)
class Feed:
    """Source of one column of a model.

    Attributes:
        name: of the column.
        source: what is computed for it.
        part: which column of the source's [n, d]; None for all of an [n].
        datatype: that the model declares.
    """

    name: str
    source: Expression
    part: int | None
    datatype: str


@dataclass(frozen=True, slots=True)
class Question:
    """Request of a step to a model.

    Attributes:
        nodes: True for the request's own nodes, or what gives ids.
        pairs: True for the request's own pairs, or what gives both sides.
        columns: of a tabular model.
        fill, timeout_s: see `ModelStepSpec`.
        takes_time: True if the model takes `as_of`.
        is_pipeline: True if it is one itself, and reads attributes.
    """

    nodes: bool | Expression = False
    pairs: bool | tuple[Expression, Expression] = False
    columns: tuple[Feed, ...] = ()
    fill: float | None = None
    timeout_s: float | None = None
    takes_time: bool = False
    is_pipeline: bool = False


class Lineage(dict[str, Any]):
    """Attributes handed to a pipeline inside a pipeline, with the names of those around it."""

    around: tuple[str, ...] = ()


class ModelStep(Step):
    """A step that sends a request to a model.

    Args:
        head: see `Step`.
        model, version: that answers.
        resolve: finds the version that answers.
        question_for: the request to a model with this interface. Raises PipelineInvalid: the model does
            not fit.
        clock: that deadlines are on.

    Attributes:
        requested: names of the outputs that others read; set once all steps are known.
        question_for: see above.
    """

    kind = "model"

    def __init__(
        self,
        head: StepHead,
        model: str,
        version: str | None,
        resolve: Resolver,
        question_for: Callable[[ModelInfo], Question],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(head)
        self.requested: tuple[str, ...] = ()
        self._model = model
        self._version = version
        self._resolve = resolve
        self.question_for = question_for
        self._clock = clock
        self._questions: WeakKeyDictionary[Scorer, Question] = WeakKeyDictionary()

    def follows(self, model: str) -> bool:
        """True if it requests the version of a model that serves now."""
        return self._model == model and self._version is None

    def begin(self, run: Run) -> None:
        """Send the request."""
        served = self._resolve(self._model, self._version)
        question = self._questions.get(served) or self._first_question(served)
        request = self._request(run, question)

        def take(run: Run, result: ScoreResult) -> None:
            self._take(run, question, result)

        run.call(self, served, request, take, self.otherwise)

    def otherwise(self, run: Run, error: HoplineError) -> bool:
        """Take something else where the model fails; whether there is anything."""
        return False

    def _first_question(self, served: Scorer) -> Question:
        try:
            found = self.question_for(served.info((served.version,)))
        except PipelineInvalid as error:
            raise ModelNotReady(
                f"version {served.version!r} of model {served.name!r} does not fit the pipeline: {error}"
            ) from None
        self._questions[served] = found
        return found

    def _request(self, run: Run, question: Question) -> ScoreRequest:
        request, rows = run.request, run.rows[self.index]
        deadline = request.deadline
        if question.timeout_s is not None:
            own = self._clock() + question.timeout_s
            deadline = own if deadline is None else min(own, deadline)
        if deadline is not None and deadline <= self._clock():
            raise DeadlineExceeded()
        attributes = request.attributes
        if question.is_pipeline:
            attributes = Lineage(attributes or {})
            attributes.around = (*getattr(request.attributes, "around", ()), run.pipeline)
        fills = question.fill is not None and request.degraded == "allow"
        return msgspec.structs.replace(
            request,
            model=self._model,
            version=self._version,
            nodes=_nodes(question, run, rows),
            inline=_inline(request, rows) if question.nodes is True else (),
            pairs=_pairs(question, run, rows),
            columns=_columns(question, run, rows),
            outputs=self.requested,
            as_of=request.as_of if question.takes_time else None,
            on_missing="null" if fills else request.on_missing,
            deadline=deadline,
            attributes=attributes,
        )

    def _take(self, run: Run, question: Question, result: ScoreResult) -> None:
        rows = run.rows[self.index]
        expected = run.values.num_rows if rows is None else len(rows)
        outputs = {}
        for name in self.requested:
            array = result.outputs.get(name)
            if array is None or len(array) != expected:
                found = "no" if array is None else len(array)
                raise RuntimeFailure(
                    f"model {result.model!r} answered {found} rows of {name!r}; {expected} were requested"
                )
            outputs[name] = array
        if result.missing is not None:
            if question.fill is None or run.request.degraded == "refuse":
                run.miss(self.index, result.missing)
            else:
                run.degrade(self.index, filled(self.id))
                for name, array in outputs.items():
                    outputs[name] = array.copy()
                    outputs[name][result.missing] = question.fill
        run.finish(self.index, outputs)


def refuse_nesting(name: str, request: ScoreRequest) -> None:
    """Raises ModelNotReady where a request for pipeline `name` comes from that pipeline itself.

    At load this shows as far as models are known; what serves under a name may change later.
    """
    around: tuple[str, ...] = getattr(request.attributes, "around", ())
    if name in around:
        raise ModelNotReady(f"pipelines nest themselves: {' → '.join((*around, name))}")


def _nodes(question: Question, run: Run, rows: NDArray[np.int64] | None) -> ExternalIds:
    nodes = question.nodes
    if isinstance(nodes, Expression):
        return _ids(nodes, run, rows)
    if not nodes:
        return ()
    given = run.request.nodes
    return given if rows is None else _some(given, rows[rows < len(given)])


def _pairs(
    question: Question, run: Run, rows: NDArray[np.int64] | None
) -> tuple[ExternalIds, ExternalIds] | None:
    pairs = question.pairs
    if isinstance(pairs, tuple):
        return _ids(pairs[0], run, rows), _ids(pairs[1], run, rows)
    given = run.request.pairs
    if not pairs or given is None:
        return None
    return given if rows is None else (_some(given[0], rows), _some(given[1], rows))


def _columns(question: Question, run: Run, rows: NDArray[np.int64] | None) -> dict[str, AnyArray] | None:
    feeds = question.columns
    if not feeds:
        return None
    found = {}
    computed: dict[int, AnyArray] = {}  # a wide value feeds many columns
    with np.errstate(all="ignore"):
        for feed in feeds:
            array = computed.get(id(feed.source))
            if array is None:
                array = feed.source.rows(run.values)
                if rows is not None:
                    array = array[rows]
                computed[id(feed.source)] = array
            if feed.part is not None:
                array = array[:, feed.part]
            dtype = DTYPES[feed.datatype]
            found[feed.name] = array if array.dtype == dtype else array.astype(dtype)
    return found


def _ids(source: Expression, run: Run, rows: NDArray[np.int64] | None) -> ExternalIds:
    array = source.rows(run.values)
    if rows is not None:
        array = array[rows]
    return array.tolist() if array.dtype.kind == "O" else array.astype(np.int64, copy=False)


def _some(ids: ExternalIds, rows: NDArray[np.int64]) -> ExternalIds:
    if isinstance(ids, np.ndarray):
        return ids[rows]
    return [ids[row] for row in rows.tolist()]


def _inline(request: ScoreRequest, rows: NDArray[np.int64] | None) -> Sequence[Any]:
    if rows is None or not request.inline:
        return request.inline
    first = len(request.nodes)
    return [request.inline[row - first] for row in rows.tolist() if row >= first]
