"""A running fetch and its waiting callers. Bookkeeping only: this file does not use stores."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.features.answer import ClientRows, Reason, Rows
from hopline.types import ExternalIds, FloatArray, IdArray

ReasonArray = NDArray[np.uint8]
_NO_IDS: IdArray = np.empty(0, np.int64)


class Flight:
    """The rows of one store call, for all callers of a loop turn.

    Attributes:
        number: number of the flight.
        num_rows: rows so far.
        ids: int64 [num_rows] global ids, once it has started.
        external_ids: the stores' ids of the same rows, once it has started.
        values: float32 [num_rows, dim]; replaced, never written to; None before the first rows.
        reasons: uint8 [num_rows], a `Reason` for each row; None before the first rows, and when all rows
            have arrived. TIMEOUT means "not yet", which is the right reason for a caller that stops
            waiting.
        complete: all rows have arrived.
        oldest: when the origin had the oldest of `values` at the latest, on the client's clock.
        delivered: the flight has ended.
        waiters: callers to wake.
        task: the task that uses the stores.
    """

    __slots__ = (
        "_external_parts",
        "_id_parts",
        "complete",
        "delivered",
        "external_ids",
        "ids",
        "num_rows",
        "number",
        "oldest",
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
        self.oldest = math.inf
        self.delivered = False
        self.waiters: set[Waiter] = set()
        self.task: asyncio.Task[None] | None = None
        self._id_parts: list[IdArray] = []
        self._external_parts: list[ExternalIds] = []

    def add(self, ids: IdArray, external_ids: ExternalIds) -> None:
        """Add rows before the start; arrays must not be shared."""
        self._id_parts.append(ids)
        self._external_parts.append(external_ids)
        self.num_rows += ids.shape[0]

    def close(self) -> None:
        """Start: no more rows are added."""
        parts = self._id_parts
        self.ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self.external_ids = joined(self._external_parts)

    def decide(self, at: IdArray | NDArray[np.bool_] | slice, reasons: ReasonArray | Reason) -> None:
        """Set the reasons of some rows."""
        if self.reasons is None:
            self.reasons = np.full(self.num_rows, Reason.TIMEOUT, np.uint8)
        self.reasons[at] = reasons

    def wakes(self) -> list[Waiter]:
        """Remove and return the waiters whose rows are all decided."""
        if self.delivered:
            ready, self.waiters = list(self.waiters), set()
        else:
            ready = [waiter for waiter in self.waiters if not waiter.awaits(self)]
            self.waiters.difference_update(ready)
        return ready


class Absences:
    """Rows of an ended flight that the store does not have, cached for a short time.

    Attributes:
        number, reasons: those of the flight.
        ids: int64 [m], the cached rows.
        expires: time after which they may be requested again, on the client's clock.
    """

    __slots__ = ("complete", "expires", "ids", "number", "oldest", "reasons", "values")

    def __init__(self, number: int, ids: IdArray, reasons: ReasonArray, expires: float) -> None:
        self.number = number
        self.ids = ids
        self.reasons: ReasonArray | None = reasons
        self.expires = expires
        self.values: FloatArray | None = None
        self.complete = False
        self.oldest = math.inf


class Waiter:
    """One caller, with its rows in one or several flights.

    Args:
        num_rows: number of requested rows.
        future: done when the caller need not wait any longer.
    """

    __slots__ = ("_num_rows", "_open", "_parts", "future")

    def __init__(self, num_rows: int, future: asyncio.Future[None]) -> None:
        self.future = future
        self._num_rows = num_rows
        self._parts: list[tuple[Flight | Absences, IdArray | None, Rows]] = []
        self._open = 0

    def want(self, flight: Flight | Absences, where: IdArray | None, rows: Rows) -> None:
        """Assign rows `rows` of a flight to the requested positions `where` (None: all, in order)."""
        self._parts.append((flight, where, rows))
        if isinstance(flight, Flight) and not flight.delivered and self.awaits(flight):
            flight.waiters.add(self)
            self._open += 1

    @property
    def waits(self) -> bool:
        """True if any of its rows is still being fetched."""
        return self._open > 0

    def awaits(self, flight: Flight) -> bool:
        """Return True if any of its rows of this flight is undecided."""
        reasons = flight.reasons
        if reasons is None:
            return not flight.complete
        return any(
            part is flight and bool((reasons[rows] == Reason.TIMEOUT).any())
            for part, _, rows in self._parts
        )

    def settle(self) -> None:
        """Handle that one of its flights has decided all its rows."""
        self._open -= 1
        if self._open == 0:
            self.wake()

    def wake(self) -> None:
        """Stop waiting: all rows are decided, or the time is over."""
        if not self.future.done():
            self.future.set_result(None)

    def leave(self) -> None:
        """Remove the caller from its flights."""
        for flight, _, _ in self._parts:
            if isinstance(flight, Flight):
                flight.waiters.discard(self)

    def num_remembered(self) -> int:
        """Return the number of its rows that were cached as missing."""
        return sum(
            self._num_rows if where is None else len(where)
            for part, where, _ in self._parts
            if isinstance(part, Absences)
        )

    def answer(self, dim: int) -> ClientRows:
        """Return the rows that have arrived so far."""
        parts, self._parts = self._parts, []
        pieces = [
            (flight.values, where, rows) for flight, where, rows in parts if flight.values is not None
        ]
        oldest = min((flight.oldest for flight, _, _ in parts), default=math.inf)
        if all(flight.complete for flight, _, _ in parts):
            return ClientRows(dim, np.zeros(self._num_rows, np.uint8), True, pieces, oldest)
        reasons = np.full(self._num_rows, Reason.TIMEOUT, np.uint8)
        for flight, where, rows in parts:
            at: Any = slice(None) if where is None else where
            if flight.complete:
                reasons[at] = Reason.FOUND
            elif flight.reasons is not None:  # a copy: more may come later
                reasons[at] = flight.reasons[rows]
        return ClientRows(dim, reasons, not reasons.any(), pieces, oldest)


def joined(parts: Sequence[ExternalIds]) -> ExternalIds:
    """Concatenate the external ids of several callers; an array if all are arrays."""
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
    """Return some of the external ids, in a new list or array.

    Args:
        where: int64 [m] positions.
    """
    if isinstance(external_ids, np.ndarray):
        chosen: IdArray = external_ids[where]
        return chosen
    return [external_ids[position] for position in where.tolist()]
