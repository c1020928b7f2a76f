"""Requests that a model answered lately, tried on a version before it serves.

A version with another schema loads and answers its own synthetic requests. Only the requests that callers
send now show that it refuses them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from hopline.answering.outcome_counts import OutcomeCounts
from hopline.answering.served import Ran, Recorder, Version
from hopline.errors import Conflict, HoplineError
from hopline.scheduling.work import Work
from hopline.types import ScoreRequest, ScoreResult

#: Requests of a model, their rows and their inline nodes at most: they stay in memory.
_MAX_REQUESTS, _MAX_ROWS, _MAX_INLINE = 100, 16, 2
#: Of five looks, one takes requests: a recorder costs each batch two microseconds.
_TAKEN_OF = 5
#: Requests of all models below which every look takes some.
_FEW = 50
#: Requests under way, and seconds that each may take.
_TOGETHER, _PATIENCE_S = 8, 5.0
#: Share that a version may refuse: nodes that its snapshot does not have any more.
_MAX_REFUSED = 0.05


class RecentRequests:
    """A recorder of small requests that were answered."""

    def __init__(self, recorders: list[Recorder], clock: Callable[[], float] = time.monotonic) -> None:
        self._recorders = recorders
        self._clock = clock
        self._taken: dict[str, deque[tuple[ScoreRequest, ScoreResult]]] = {}
        self._looks = self._num_taken = 0

    def look(self) -> None:
        """Take requests until the next look, or leave some out; called many times a second."""
        self._looks += 1
        takes = self._num_taken < _FEW or self._looks % _TAKEN_OF == 0
        is_in = self in self._recorders
        if takes and not is_in:
            self._recorders.append(self)
        elif is_in and not takes:
            self._recorders.remove(self)

    def record(self, ran: Ran) -> None:
        """As `Recorder.record`."""
        taken = self._taken.setdefault(ran.served.name, deque(maxlen=_MAX_REQUESTS))
        for request, outcome in zip(ran.requests, ran.outcomes, strict=True):
            if isinstance(outcome, ScoreResult) and not request.is_copy and _is_small(request, outcome):
                self._num_taken += 1
                taken.append((request, _own(outcome)))
                return  # one of a batch

    async def check(self, model: str, version: str, candidate: Version) -> None:
        """Try the requests that a version of a model answered lately on a candidate.

        Raises: Conflict: it would refuse them, or answer in another form.
        """
        tried = [each for each in self._taken.get(model, ()) if each[1].version == version]
        tally = OutcomeCounts()
        places = asyncio.Semaphore(_TOGETHER)

        async def answer(request: ScoreRequest, wanted: ScoreResult) -> None:
            async with places:
                found = await _outcome(candidate, request, self._clock() + _PATIENCE_S)
            tally.compare(wanted, found, math.inf, lambda count: ())

        await asyncio.gather(*(answer(*each) for each in tried))
        if tally.refused > _MAX_REFUSED * tally.compared:
            raise Conflict(
                f"{model}/{candidate.version} would refuse {tally.refused} of the {tally.compared} "
                f"requests that {version} answered last ({tally.refused / tally.compared:.0%}): "
                f"{tally.last_refusal}. "
                f"{version} still serves. Mend the version or its callers; to load it nevertheless: "
                f"hopline models load {model} --version {candidate.version} --force"
            )


async def _outcome(candidate: Version, request: ScoreRequest, deadline: float) -> Any:
    """A candidate's answer to a copy of a request, or its error."""
    copy = msgspec.structs.replace(
        request,
        version=None,
        priority="low",
        key="",
        traceparent="",
        min_version="",
        is_copy=True,
        deadline=deadline,
    )
    outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    try:
        candidate.accept(Work(copy, outcome.set_result))
    except HoplineError as error:
        return error
    return await outcome


def _is_small(request: ScoreRequest, outcome: ScoreResult) -> bool:
    described = len(request.inline) + len(request.context) + len(request.edits)
    if "completion_tokens" in outcome.outputs or described > _MAX_INLINE:
        return False  # a text costs seconds
    return all(len(values) <= _MAX_ROWS for values in outcome.outputs.values())


def _own(outcome: ScoreResult) -> ScoreResult:
    """The answer on new arrays: the original's may be views that keep a whole batch in memory."""
    outputs = {name: np.array(values) for name, values in outcome.outputs.items()}
    return msgspec.structs.replace(outcome, outputs=outputs)
