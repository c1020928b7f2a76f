"""Maps from ids to row numbers, for stores that keep rows in arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopline.types import AnyArray, ExternalId, ExternalIds, IdArray

_INT64 = np.iinfo(np.int64)


class HashedIds:
    """Ids in a growing dict: 60 ns per lookup, about 100 bytes per id."""

    def __init__(self) -> None:
        self._rows: dict[ExternalId, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, ids: ExternalIds) -> IdArray:
        """Return row numbers, int64 [n]; -1 for an unknown id. An id of a different type is unknown."""
        rows = self._rows
        return np.array([rows.get(id, -1) for id in listed(ids)], np.int64)

    def add(self, ids: ExternalIds) -> IdArray:
        """Return row numbers of ids, int64 [n]; a new id gets the next number."""
        rows = self._rows
        return np.array([rows.setdefault(id, len(rows)) for id in listed(ids)], np.int64)


class SortedIds:
    """Fixed integer ids in two arrays: 16 bytes per id.

    Args:
        ids: int64 [N]; for duplicates the last row is used.
    """

    def __init__(self, ids: IdArray) -> None:
        self._order: IdArray = np.argsort(ids, kind="stable")
        self._sorted: IdArray = ids[self._order]

    def __len__(self) -> int:
        return len(self._sorted)

    def find(self, ids: ExternalIds) -> IdArray:
        """See `HashedIds.find`."""
        wanted, fits = _as_int64(ids)
        if not len(self._sorted):
            return np.full(len(wanted), -1, np.int64)
        # "right" - 1 is the last of equal ids, which the stable sort left in order; before the first id it
        # is -1, which is the largest id and differs from the requested one.
        place = np.searchsorted(self._sorted, wanted, side="right") - 1
        return np.where(fits & (self._sorted[place] == wanted), self._order[place], -1)


class RowNumbers:
    """The ids are the row numbers 0 … N - 1."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows

    def __len__(self) -> int:
        return self._num_rows

    def find(self, ids: ExternalIds) -> IdArray:
        """See `HashedIds.find`."""
        wanted, fits = _as_int64(ids)
        return np.where(fits & (wanted >= 0) & (wanted < self._num_rows), wanted, -1)


#: Finds the row of an id.
IdRows = HashedIds | SortedIds | RowNumbers


def index(ids: AnyArray | Sequence[str]) -> IdRows:
    """Return the smallest index of fixed ids.

    Args:
        ids: an array of integers, or strings; for duplicates the last row is used.
    """
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu":
        return SortedIds(ids.astype(np.int64, copy=False))
    hashed = HashedIds()
    hashed._rows = {str(id): row for row, id in enumerate(ids)}
    return hashed


def listed(ids: ExternalIds) -> Sequence[int] | Sequence[str]:
    """Convert an array of ids to ints or strs; return other ids unchanged."""
    return ids.tolist() if isinstance(ids, np.ndarray) else ids


def _as_int64(ids: ExternalIds) -> tuple[IdArray, AnyArray]:
    """Return ids as int64 [n], and whether each is one, bool [n]; the others are 0."""
    if isinstance(ids, np.ndarray):
        return ids.astype(np.int64, copy=False), np.ones(len(ids), bool)
    fits = [isinstance(id, int | np.integer) and _INT64.min <= id <= _INT64.max for id in ids]
    wanted = [id if fit else 0 for id, fit in zip(ids, fits, strict=True)]
    return np.array(wanted, np.int64), np.array(fits, bool)
