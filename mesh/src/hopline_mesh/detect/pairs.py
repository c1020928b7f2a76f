"""Numbers of call paths: the slots of pairs of slots."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.roster import SlotArray


class Pairs:
    """Slots of call paths, in the order in which they were first seen.

    Attributes:
        src, dst: int32, slots of the callers and callees; position is the path's slot.
    """

    def __init__(self) -> None:
        self.src: SlotArray = np.zeros(0, np.int32)
        self.dst: SlotArray = np.zeros(0, np.int32)
        #: keys of all paths, ascending, and their slots
        self._keys = np.zeros(0, np.int64)
        self._slots = np.zeros(0, np.int32)

    def __len__(self) -> int:
        return len(self.src)

    def slots(self, src: SlotArray, dst: SlotArray) -> SlotArray:
        """Return slots of these paths, int32 [e]; new ones for new paths."""
        found = self.find(src, dst)
        new = np.flatnonzero(found < 0)
        if len(new):
            _, first = np.unique(_keys(src[new], dst[new]), return_index=True)
            new = new[np.sort(first)]  # in the order of the interval; a repeated path is one path
            self.restore(np.concatenate([self.src, src[new]]), np.concatenate([self.dst, dst[new]]))
            found = self.find(src, dst)
        return found

    def find(self, src: SlotArray, dst: SlotArray) -> SlotArray:
        """Return slots of paths, int32 [e]; -1 for those that were never seen."""
        keys = _keys(src, dst)
        if not len(self._keys):
            return np.full(len(keys), -1, np.int32)
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[place] == keys, self._slots[place], np.int32(-1))

    def restore(self, src: SlotArray, dst: SlotArray) -> None:
        """Set all paths, in the order of their slots."""
        self.src, self.dst = np.array(src, np.int32), np.array(dst, np.int32)
        keys = _keys(self.src, self.dst)
        order = np.argsort(keys)
        self._keys, self._slots = keys[order], order.astype(np.int32)


def _keys(src: SlotArray, dst: SlotArray) -> NDArray[np.int64]:
    return (np.asarray(src, np.int64) << 32) | np.asarray(dst, np.int64)
