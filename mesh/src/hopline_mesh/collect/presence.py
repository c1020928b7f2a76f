"""Decides whether a missing id is gone or was only not measured. Knows arrays and times, not services."""

from __future__ import annotations

import numpy as np

from hopline_mesh.collect.places import IdArray

_NONE = np.empty(0, np.int64)


class Presence:
    """The present ids, updated from each interval.

    An id that is in no response is gone. If a query failed, or an implausible number is missing together,
    it stays for a while.

    Args:
        keep_missing_s: how long a missing id stays.
        lost_share: the implausible number, as a share of all.
        least: minimum of the implausible number.
    """

    def __init__(self, keep_missing_s: float, lost_share: float, least: int = 3) -> None:
        self._keep_missing_s = keep_missing_s
        self._lost_share = lost_share
        self._least = least
        self._ids: IdArray = _NONE
        self._seen_s = np.empty(0, np.float64)

    @property
    def ids(self) -> IdArray:
        """The ids of the last interval, ascending."""
        return self._ids

    def settle(self, time_s: float, seen: IdArray, *, whole: bool) -> tuple[IdArray, IdArray]:
        """Judge one interval.

        Args:
            time_s: later than the previous one.
            seen: ascending, without duplicates.
            whole: whether all queries succeeded completely.

        Returns: the present ids, ascending; and those of them that were not seen.
        """
        lost = np.setdiff1d(self._ids, seen, assume_unique=True)
        last_s = self._seen_s[np.searchsorted(self._ids, lost)]
        if whole and not (
            len(lost) >= self._least and len(lost) >= self._lost_share * max(1, len(self._ids))
        ):
            lost, last_s = _NONE, last_s[:0]
        kept = time_s - last_s <= self._keep_missing_s
        lost, last_s = lost[kept], last_s[kept]
        ids = np.concatenate([seen, lost])
        order = np.argsort(ids, kind="stable")
        self._ids = ids[order]
        self._seen_s = np.concatenate([np.full(len(seen), time_s), last_s])[order]
        return self._ids, lost

    def keep_only(self, ids: IdArray) -> None:
        """Forget all other ids."""
        kept = np.isin(self._ids, ids, assume_unique=True)
        self._ids, self._seen_s = self._ids[kept], self._seen_s[kept]
