"""Decides whether a missing id is gone or was only not measured. Knows arrays and times, not services."""

from __future__ import annotations

import numpy as np

from hopline_mesh.collect.places import IdArray

#: Services that are missing together are implausible from this share of all on, and at least this number.
LOST_SHARE, LEAST_LOST = 0.3, 3


class Presence:
    """The present ids, updated from each interval.

    An id that is in no response is gone. If a query failed, or an implausible number is missing together,
    it stays for a while.

    Args:
        keep_missing_s: how long a missing id stays.

    Attributes:
        ids: int64 [n], those of the last interval, ascending.
    """

    def __init__(self, keep_missing_s: float) -> None:
        self._keep_missing_s = keep_missing_s
        self.ids: IdArray = np.empty(0, np.int64)
        self._seen_s = np.empty(0, np.float64)

    def settle(self, time_s: float, seen: IdArray, *, whole: bool) -> tuple[IdArray, IdArray]:
        """Judge one interval.

        Args:
            time_s: later than the previous one.
            seen: ascending, without duplicates.
            whole: whether all queries succeeded completely.

        Returns: the present ids, ascending; and those of them that were not seen.
        """
        lost = np.setdiff1d(self.ids, seen, assume_unique=True)
        last_s = self._seen_s[np.searchsorted(self.ids, lost)]
        plausible = len(lost) < max(LEAST_LOST, LOST_SHARE * len(self.ids))
        kept = time_s - last_s <= (-np.inf if whole and plausible else self._keep_missing_s)
        lost, last_s = lost[kept], last_s[kept]
        ids = np.concatenate([seen, lost])
        order = np.argsort(ids, kind="stable")
        self.ids = ids[order]
        self._seen_s = np.concatenate([np.full(len(seen), time_s), last_s])[order]
        return self.ids, lost

    def keep_only(self, ids: IdArray) -> None:
        """Forget all other ids."""
        kept = np.isin(self.ids, ids, assume_unique=True)
        self.ids, self._seen_s = self.ids[kept], self._seen_s[kept]
