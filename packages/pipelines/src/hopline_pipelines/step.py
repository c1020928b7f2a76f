"""A step of a loaded pipeline: what it waits for, and how it is notified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hopline.errors import HoplineError
from hopline_pipelines.values import ValueType

if TYPE_CHECKING:
    from hopline_pipelines.run import Run


@dataclass(frozen=True, slots=True)
class StepHead:
    """Base of all steps.

    Attributes:
        id: of the file.
        index: its place in an order in which every step comes after those it reads.
        deps: places of the steps that must have succeeded before it begins.
        outputs: what other steps may read of it.
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

    def told(self, run: Run, dep: int, error: HoplineError | None) -> None:
        """A step that this one waits for has ended."""
        if not run.is_waiting(self.index):
            return
        if error is not None:
            run.fail(self.index, error)
            return
        run.pending[self.index] -= 1
        if not run.pending[self.index]:
            run.begin(self)
