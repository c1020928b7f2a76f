"""A model version whose answers are a function of the request, delivered when a test decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from hopline.answering.served import Scorer
from hopline.errors import HoplineError
from hopline.scheduling.work import Work
from hopline.types import AnyArray, ModelInfo, ScoreRequest, ScoreResult, TensorInfo

#: "immediately" delivers before `accept` returns, "later" in the next turn of the loop, "held" by `answer`.
When = Literal["immediately", "later", "held"]


class FakeVersion:
    """A `Version` whose answers are computed by a function.

    Args:
        name, version: names in answers.
        kind: kind of model.
        inputs: column name -> datatype, for tabular models.
        outputs: output name -> (datatype, dims beyond the rows).
        function: request -> arrays by output name, one row for each item.
        when: when it answers.
        graph_version: "" for a model without a graph.

    Attributes:
        unknown: unknown node ids.
        asked: every accepted request.
        cancelled: withdrawn requests.
        fails: error in place of answers: raised, or delivered if it does not answer "immediately".
        degraded: fallbacks in answers.
    """

    def __init__(
        self,
        name: str,
        kind: Literal["node", "link", "tabular", "pipeline"],
        inputs: Mapping[str, str],
        outputs: Mapping[str, tuple[str, tuple[int, ...]]],
        function: Callable[[ScoreRequest], Mapping[str, AnyArray]],
        *,
        version: str = "1",
        when: When = "later",
        graph_version: str = "",
    ) -> None:
        self.name = name
        self.version = version
        self.graph_version = graph_version
        self.when = when
        self.unknown: frozenset[Any] = frozenset()
        self.asked: list[Work] = []
        self.cancelled: list[Work] = []
        self.fails: HoplineError | None = None
        self.degraded: tuple[str, ...] = ()
        self._function = function
        own = {"node": ["node_ids"], "link": ["src_ids", "dst_ids"]}.get(kind, [])
        tensors = [TensorInfo(name, "INT64", (-1,)) for name in own]
        if own:
            tensors.append(TensorInfo("as_of", "INT64", (1,), optional=True))
        tensors += [TensorInfo(name, datatype, (-1,)) for name, datatype in inputs.items()]
        self.interface = ModelInfo(
            name,
            (version,),
            version,
            "READY",
            "",
            kind,
            "int" if own else "none",
            tuple(tensors),
            tuple(TensorInfo(name, datatype, (-1, *dims)) for name, (datatype, dims) in outputs.items()),
            tuple(outputs),
            graph_version,
        )

    def accept(self, work: Work) -> None:
        """Accept a request."""
        self.asked.append(work)
        work.holder = self
        if self.when == "immediately":
            if self.fails is not None:
                work.end()
                raise self.fails
            self.answer(work)
        elif self.when == "later":
            asyncio.get_running_loop().call_soon(self.answer, work)

    def reject_early(self) -> None:
        """Nothing to do."""

    def withdraw(self, work: Work) -> None:
        """See `Holder.withdraw`."""
        work.end()
        self.cancelled.append(work)

    def answer(self, work: Work | None = None) -> None:
        """Deliver the outcome of one request, or of all waiting ones."""
        for each in [work] if work is not None else list(self.asked):
            if not each.ended:
                each.finish(self.fails if self.fails is not None else self._result(each.request))

    def _result(self, request: ScoreRequest) -> ScoreResult:
        found = self._function(request)
        missing = np.array([node in self.unknown for node in request.nodes], np.bool_)
        return ScoreResult(
            self.name,
            self.version,
            self.graph_version,
            {name: found[name] for name in request.outputs or self.interface.default_outputs},
            missing if missing.any() else None,
            self.degraded,
        )

    def info(self, versions: tuple[str, ...]) -> ModelInfo:
        """The interface of the version."""
        return self.interface

    def statistics(self) -> dict[str, Any]:
        """None."""
        return {"name": self.name, "version": self.version}

    def warm_up(self) -> None:
        """Nothing to do."""

    @property
    def queued_rows(self) -> int:
        """Number of requests without an outcome."""
        return sum(not each.ended for each in self.asked)

    def close(self, why: str) -> None:
        """Nothing to do."""

    async def join(self) -> None:
        """Nothing to wait for."""

    async def release(self) -> None:
        """Nothing to release."""


def hand_in(scorer: Scorer, request: ScoreRequest, deliver: Callable[[Any], object]) -> Work:
    """Pass a request to a version; return its work. Raises: HoplineError: it was refused immediately."""
    work = Work(request, deliver)
    scorer.accept(work)
    return work
