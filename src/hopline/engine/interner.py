"""Numbers distinct ids: how a batch computes every row once, however many neighbours share it."""

from __future__ import annotations

import numpy as np

from hopline.engine.kernels import intern
from hopline.sampling.keyed import KEPT_ROWS, roomy
from hopline.types import IdArray

_NO_IDS = np.empty(0, np.int64)


class Interner:
    """A reusable hash of int64 ids. Small batches use a small part of it, which stays in cache."""

    __slots__ = ("_count", "_distinct", "_fresh", "_keys", "_rows", "_shift", "_used", "_values")

    def __init__(self) -> None:
        self._keys = np.empty(256, np.int64)
        self._values = np.empty(256, np.int32)
        self._distinct = np.empty(128, np.int64)
        self._rows = np.empty(128, np.int64)
        self._shift = 64
        self._count = 0
        self._used = 0
        self._fresh = False

    def start(self, bound: int) -> None:
        """Forget all ids and expect at most `bound` ids (with repetitions) in all."""
        bits = max(6, (2 * bound).bit_length())
        if 1 << bits > self._keys.shape[0]:
            self._keys = np.empty(1 << bits, np.int64)
            self._values = np.empty(1 << bits, np.int32)
        if bound > self._rows.shape[0]:
            self._distinct = np.empty(roomy(bound), np.int64)
            self._rows = np.empty(roomy(bound), np.int64)
        self._shift = 64 - bits
        self._count = self._used = 0
        self._fresh = True

    def add(self, ids: IdArray, more: IdArray = _NO_IDS) -> IdArray:
        """Number `ids` and then `more` (int64 [n] in all).

        Returns: rows int64 [n], distinct[rows] are the ids; valid until `start`.
        """
        rows = self._rows[self._used : self._used + ids.shape[0] + more.shape[0]]
        self._count = intern(
            ids, more, self._fresh, self._shift, self._keys, self._values, self._distinct, self._count, rows
        )
        self._fresh = False
        self._used += rows.shape[0]
        return rows

    def shrink(self) -> None:
        """Release memory that only the largest batches need; forgets all numbers."""
        if self._keys.shape[0] > 2 * KEPT_ROWS or self._rows.shape[0] > KEPT_ROWS:
            self.__init__()  # type: ignore[misc]

    @property
    def distinct(self) -> IdArray:
        """int64 [m], the distinct ids in order of first occurrence; valid until `start`."""
        return self._distinct[: self._count]
