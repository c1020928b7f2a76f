"""A step of a loaded pipeline: what it waits for, and how it is notified."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hopline.errors import HoplineError
from hopline.rollout.pipeline.values import ValueType

if TYPE_CHECKING:
    from hopline.rollout.pipeline.run import Run


class Step:
    """One step of a loaded pipeline.

    Args:
        id: of the file.
        index: its place in an order in which every step comes after those it reads.
        deps: places of the steps that must have ended well before it begins.
        outputs: what others may read of it.

    A step holds nothing of a run: many runs use it at the same time.
    """

    kind = ""

    def __init__(
        self, id: str, index: int, deps: tuple[int, ...], outputs: Mapping[str, ValueType]
    ) -> None:
        self.id = id
        self.index = index
        self.deps = deps
        self.outputs = dict(outputs)

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
