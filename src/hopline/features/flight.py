"""A running fetch and its waiting callers. Bookkeeping only: it calls no store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.features.answer import ClientRows, Reason, Rows
from hopline.types import ExternalIds, FloatArray, IdArray

ReasonArray = NDArray[np.uint8]
_NO_IDS: IdArray = np.empty(0, np.int64)


class Flight:
    """The rows that one store call is to bring, for all callers of a loop turn.

    Attributes:
        number: its own.
        num_rows: so far.
        ids: int64 [num_rows] global ids, once it has departed.
        external_ids: the same rows as stores know them, once it has departed.
        values: float32 [num_rows, dim]; replaced, never written to; None while nothing has come.
        reasons: uint8 [num_rows], a `Reason` each; None while nothing has come, and when every row has.
            TIMEOUT means "not yet", which is right for a caller that stops waiting now.
        complete: every row has come.
        landed: nothing more will come.
        waiters: who is to be woken.
        task: that asks the stores.
    """

    __slots__ = (
        "_external_parts",
        "_id_parts",
        "complete",
        "external_ids",
        "ids",
        "landed",
        "num_rows",
        "number",
        "reasons",
        "task",
        "values",
        "waiters",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.num_rows = 0
        self.ids: IdArray = _NO_IDS
        self.external_ids: ExternalIds = ()
        self.values: FloatArray | None = None
        self.reasons: ReasonArray | None = None
        self.complete = False
        self.landed = False
        self.waiters: set[Waiter] = set()
        self.task: asyncio.Task[None] | None = None
        self._id_parts: list[IdArray] = []
        self._external_parts: list[ExternalIds] = []

    def add(self, ids: IdArray, external_ids: ExternalIds) -> None:
        """Take in rows, before departure; arrays must be the flight's own."""
        self._id_parts.append(ids)
        self._external_parts.append(external_ids)
        self.num_rows += ids.shape[0]

    def close(self) -> None:
        """Departure: no more rows."""
        parts = self._id_parts
        self.ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self.external_ids = joined(self._external_parts)

    def decide(self, at: IdArray | NDArray[np.bool_] | slice, reasons: ReasonArray | Reason) -> None:
        """Something is known of some rows."""
        if self.reasons is None:
            self.reasons = np.full(self.num_rows, Reason.TIMEOUT, np.uint8)
        self.reasons[at] = reasons

    def wakes(self) -> list[Waiter]:
        """Waiters whose rows have all been decided; they are not waiters any more."""
        if self.landed:
            ready, self.waiters = list(self.waiters), set()
        else:
            ready = [waiter for waiter in self.waiters if not waiter.awaits(self)]
            self.waiters.difference_update(ready)
        return ready


class Absences:
    """What is left of a landed flight: rows that the store does not have, for a short time.

    Attributes:
        number, reasons: as the flight's.
        ids: int64 [m], the rows that are remembered.
        expires: when they may be asked for again, on the client's clock.
    """

    __slots__ = ("complete", "expires", "ids", "number", "reasons", "values")

    def __init__(self, number: int, ids: IdArray, reasons: ReasonArray, expires: float) -> None:
        self.number = number
        self.ids = ids
        self.reasons: ReasonArray | None = reasons
        self.expires = expires
        self.values: FloatArray | None = None
        self.complete = False


class Waiter:
    """One caller: which rows of which flights it wants.

    Args:
        num_rows: that it asked for.
        future: done when it need not wait any more.
    """

    __slots__ = ("_num_rows", "_open", "_parts", "future")

    def __init__(self, num_rows: int, future: asyncio.Future[None]) -> None:
        self.future = future
        self._num_rows = num_rows
        self._parts: list[tuple[Flight | Absences, IdArray | None, Rows]] = []
        self._open = 0

    def want(self, flight: Flight | Absences, where: IdArray | None, rows: Rows) -> None:
        """Rows `rows` of a flight are what it asked for at positions `where` (None: all, in order)."""
        self._parts.append((flight, where, rows))
        if isinstance(flight, Flight) and not flight.landed and self.awaits(flight):
            flight.waiters.add(self)
            self._open += 1

    @property
    def waits(self) -> bool:
        """Whether anything that it wants is still under way."""
        return self._open > 0

    def awaits(self, flight: Flight) -> bool:
        """Whether any of its rows of this flight is undecided."""
        reasons = flight.reasons
        if reasons is None:
            return not flight.complete
        return any(
            part is flight and bool((reasons[rows] == Reason.TIMEOUT).any())
            for part, _, rows in self._parts
        )

    def settle(self) -> None:
        """One of its flights has delivered all of its rows."""
        self._open -= 1
        if self._open == 0:
            self.wake()

    def wake(self) -> None:
        """It need not wait any more, or must not."""
        if not self.future.done():
            self.future.set_result(None)

    def leave(self) -> None:
        """It is gone."""
        for flight, _, _ in self._parts:
            if isinstance(flight, Flight):
                flight.waiters.discard(self)

    def num_remembered(self) -> int:
        """Its rows that were known to be absent without asking."""
        return sum(
            self._num_rows if where is None else len(where)
            for part, where, _ in self._parts
            if isinstance(part, Absences)
        )

    def answer(self, dim: int) -> ClientRows:
        """What has come by now."""
        parts, self._parts = self._parts, []
        pieces = [
            (flight.values, where, rows) for flight, where, rows in parts if flight.values is not None
        ]
        if all(flight.complete for flight, _, _ in parts):
            return ClientRows(dim, np.zeros(self._num_rows, np.uint8), True, pieces)
        reasons = np.full(self._num_rows, Reason.TIMEOUT, np.uint8)
        for flight, where, rows in parts:
            at: Any = slice(None) if where is None else where
            if flight.complete:
                reasons[at] = Reason.FOUND
            elif flight.reasons is not None:  # a copy: more may come later
                reasons[at] = flight.reasons[rows]
        return ClientRows(dim, reasons, not reasons.any(), pieces)


def joined(parts: Sequence[ExternalIds]) -> ExternalIds:
    """External ids of several callers, concatenated; an array if all are arrays."""
    if len(parts) == 1:
        return parts[0]
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if len(arrays) == len(parts):
        return np.concatenate(arrays)
    whole: list[Any] = []
    for part in parts:
        whole += part.tolist() if isinstance(part, np.ndarray) else part
    return whole


def picked(external_ids: ExternalIds, where: NDArray[Any]) -> ExternalIds:
    """Some of the external ids, in a new list or array.

    Args:
        where: int64 [m] positions.
    """
    if isinstance(external_ids, np.ndarray):
        chosen: IdArray = external_ids[where]
        return chosen
    return [external_ids[position] for position in where.tolist()]
