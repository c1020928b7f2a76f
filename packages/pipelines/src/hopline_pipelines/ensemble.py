"""A step that combines the answers of several others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from hopline.errors import HoplineError
from hopline.types import AnyArray, FloatArray
from hopline_pipelines.fallbacks import without_member
from hopline_pipelines.run import Run, Step, StepHead

Combine = Literal["mean", "weighted", "max", "median", "vote"]


class EnsembleStep(Step):
    """A step that combines the outputs of several models.

    Args:
        head: see `Step`; its only output is the result, named as the members' output.
        members: places of the steps that are combined.
        names: ids of each of those.
        how: to combine.
        weights: of each member, for "weighted".
        require: so many members must answer; the others are labelled. All must where a request refuses a
            degraded answer.
    """

    kind = "ensemble"

    def __init__(
        self,
        head: StepHead,
        members: Sequence[int],
        names: Sequence[str],
        how: Combine,
        weights: Sequence[float],
        require: int,
    ) -> None:
        super().__init__(head)
        self.members = tuple(members)
        self._name_of = dict(zip(members, names, strict=True))
        (self._output,) = head.outputs
        self._how = how
        self._weights = dict(zip(members, weights, strict=True)) if weights else {}
        self._require = require

    def begin(self, run: Run) -> None:
        """Have all members begin."""
        run.pending[self.index] = len(self.members)
        failed: dict[int, HoplineError] = {}
        run.notes[self.index] = failed
        for member in self.members:
            if not run.is_running(self.index):
                return
            run.want(member, self.index)

    def receive(self, run: Run, dep: int, error: HoplineError | None) -> None:
        """A member has ended."""
        if not run.is_running(self.index):
            return
        failed: dict[int, HoplineError] = run.notes[self.index]
        if error is not None:
            failed[dep] = error
            require = len(self.members) if run.request.degraded == "refuse" else self._require
            if len(self.members) - len(failed) < require:
                run.fail(self.index, next(iter(failed.values())))
                return
        run.pending[self.index] -= 1
        if run.pending[self.index]:
            return
        for member in self.members:
            if member in failed:
                run.degrade(self.index, without_member(self._name_of[member]))
        there = [member for member in self.members if member not in failed]
        votes = [run.values.of[member][self._output] for member in there]
        weights = [self._weights[member] for member in there] if self._weights else []
        run.finish(self.index, {self._output: combined(self._how, votes, weights)})


def combined(how: Combine, votes: Sequence[AnyArray], weights: Sequence[float] = ()) -> AnyArray:
    """Combined answer of members.

    Args:
        votes: of each member, [n] or [n, d], all of one shape and type.
        weights: of each, for "weighted"; only their proportions matter.

    Returns:
        The same shape. Floats keep their type; means of integers are float64. Of a tied vote, the label
        that the earliest of the tied members gave.
    """
    if how == "vote":
        return _majority(votes)
    stack = np.stack(list(votes))
    if how == "max":
        return stack.max(axis=0)  # type: ignore[no-any-return]
    if how == "median":
        return np.median(stack, axis=0)  # type: ignore[no-any-return]
    if how == "mean":
        return stack.mean(axis=0)  # type: ignore[no-any-return]
    shares: FloatArray = (np.array(weights) / sum(weights)).astype(
        stack.dtype if stack.dtype.kind == "f" else np.float64
    )
    return np.tensordot(shares, stack, axes=1)


def _majority(votes: Sequence[AnyArray]) -> AnyArray:
    counts = np.zeros((len(votes), *votes[0].shape), np.intp)
    for mine, own in enumerate(votes):
        for other in votes:
            counts[mine] += own == other
    winners = counts.argmax(axis=0)
    found = votes[0].copy()
    for member in range(1, len(votes)):
        mask = winners == member
        found[mask] = votes[member][mask]
    return found
