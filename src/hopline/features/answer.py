"""The result of a fetch through the client: rows, and a reason for each missing row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hopline.types import FloatArray, IdArray

#: Rows of a flight or an array: a slice for one caller's rows in order, or their positions.
Rows: TypeAlias = "slice | IdArray"
#: (float32 [m, dim], positions in the answer or None for all of them, rows of the array).
Piece: TypeAlias = "tuple[FloatArray, IdArray | None, Rows]"


class Reason(IntEnum):
    """Why a row is missing; FOUND if it is not.

    MISSING and INVALID are the store's answer about the row. With the other reasons the store did not
    answer, and whether it has the row is unknown.
    """

    FOUND = 0
    MISSING = 1
    INVALID = 2
    TIMEOUT = 3
    BREAKER_OPEN = 4
    UNAVAILABLE = 5
    SCHEMA = 6

    @property
    def label(self) -> str:
        """ "missing", "breaker_open" …, as in metrics and logs."""
        return self.name.lower()


class ClientRows:
    """The answer to one caller.

    Args:
        dim: numbers per row.
        reasons, complete, oldest: see the attributes.
        pieces: arrays with rows, the positions here (None: all) and the rows in the array.

    Attributes:
        reasons: uint8 [n], a `Reason` for each row.
        complete: True if all rows are present.
        oldest: when the origin had these values at the latest, for the oldest of them; inf for no rows.
    """

    __slots__ = ("_dim", "_pieces", "_values", "complete", "oldest", "reasons")

    def __init__(
        self,
        dim: int,
        reasons: NDArray[np.uint8],
        complete: bool,
        pieces: Sequence[Piece] = (),
        oldest: float = math.inf,
    ) -> None:
        self.reasons = reasons
        self.complete = complete
        self.oldest = oldest
        self._dim = dim
        self._pieces = pieces
        self._values: FloatArray | None = None

    @property
    def values(self) -> FloatArray:
        """float32 [n, dim], C-contiguous, in request order; zeros for missing rows.

        It may be shared with other callers: do not write to it. Rows of a shared flight are copied only
        here, since callers that get rows by `on_rows` seldom need them.
        """
        if self._values is None:
            self._values = self._gather()
            self._pieces = ()
        return self._values

    @property
    def found(self) -> NDArray[np.bool_]:
        """bool [n]: whether row i is present."""
        return np.equal(self.reasons, Reason.FOUND)

    @property
    def answered(self) -> NDArray[np.bool_]:
        """bool [n]: whether the store has answered about row i."""
        return np.less_equal(self.reasons, Reason.INVALID)

    @property
    def why(self) -> dict[str, int]:
        """Missing rows by reason: {"timeout": 3}; empty if there are none."""
        if self.complete:
            return {}
        counts = np.bincount(self.reasons, minlength=len(Reason))
        return {reason.label: int(counts[reason]) for reason in Reason if reason and counts[reason]}

    @staticmethod
    def nothing(num_rows: int, dim: int, reason: Reason) -> ClientRows:
        """Return an answer without rows, for one reason."""
        return ClientRows(dim, np.full(num_rows, reason, np.uint8), num_rows == 0)

    def _gather(self) -> FloatArray:
        pieces = self._pieces
        if len(pieces) == 1 and pieces[0][1] is None:
            whole: FloatArray = pieces[0][0][pieces[0][2]]
            return whole
        values = np.zeros((self.reasons.shape[0], self._dim), np.float32)
        for piece, where, rows in pieces:
            values[slice(None) if where is None else where] = piece[rows]
        return values
