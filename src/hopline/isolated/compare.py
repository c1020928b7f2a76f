"""Copies of requests in a model's own process: answered, held against what went out, and only counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

from hopline.answering.outcome_counts import OutcomeCounts
from hopline.answering.row_keys import row_keys
from hopline.answering.served import Served
from hopline.errors import HoplineError
from hopline.isolated import wire
from hopline.scheduling.work import Work
from hopline.types import ScoreRequest, ScoreResult

#: A copy may take so long.
_PATIENCE_S = 10.0
Outcome = ScoreResult | HoplineError


class Comparison:
    """One `Compare`; tells once all its copies are answered.

    Args:
        served: answers them.
        message: the copies.
        send: to the server.
        took: identity of a request -> seconds of its batch, as the recorder noted them.
    """

    def __init__(
        self,
        served: Served,
        message: wire.Compare,
        send: Callable[[wire.FromModel], object],
        took: dict[int, float],
    ) -> None:
        self._send = send
        self._took = took
        self._tolerance = message.tolerance
        self._num_copies = self._num_left = len(message.copies)
        self._done: list[tuple[ScoreRequest, Outcome, Outcome]] = []
        deadline = asyncio.get_running_loop().time() + _PATIENCE_S
        for copy in message.copies:
            request, wanted = wire.unpack_copy(copy)
            request = msgspec.structs.replace(request, is_copy=True, deadline=deadline, version=None)
            deliver = partial(self._answered, request, wanted)
            try:
                served.accept(Work(request, deliver))
            except HoplineError as error:
                deliver(error)

    def _answered(self, request: ScoreRequest, wanted: Outcome, found: Outcome) -> None:
        self._done.append((request, wanted, found))
        self._num_left -= 1
        if not self._num_left:
            # once the recorder has the last batch too
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        tally = OutcomeCounts()
        for request, wanted, found in self._done:
            tally.count(found, self._took.pop(id(request), 0.0))
            tally.compare(wanted, found, self._tolerance, partial(row_keys, request))
        self._send(wire.Compared(self._num_copies, tally))
