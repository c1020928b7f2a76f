"""Call paths: their numbers, and indexes by caller and by callee."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.roster import SlotArray

Ints = NDArray[np.int64]


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

    def at(self, service: int) -> Ints:
        """Return the slots of the paths from or to a service."""
        return np.flatnonzero((self.src == service) | (self.dst == service))

    def restore(self, src: SlotArray, dst: SlotArray) -> None:
        """Set all paths, in the order of their slots."""
        self.src, self.dst = np.array(src, np.int32), np.array(dst, np.int32)
        keys = _keys(self.src, self.dst)
        order = np.argsort(keys)
        self._keys, self._slots = keys[order], order.astype(np.int32)


def _keys(src: SlotArray, dst: SlotArray) -> NDArray[np.int64]:
    return (np.asarray(src, np.int64) << 32) | np.asarray(dst, np.int64)


class Paths:
    """Call paths at some services, in their order; those from a service to itself have no neighbours.

    Args:
        src, dst: slots of callers and callees.

    Attributes:
        src, dst: int64 [e].
    """

    def __init__(self, src: NDArray[np.integer], dst: NDArray[np.integer]) -> None:
        self.src, self.dst = np.asarray(src, np.int64), np.asarray(dst, np.int64)
        is_call = self.src != self.dst
        self._of_caller = _index(self.src[is_call], self.dst[is_call])
        self._of_callee = _index(self.dst[is_call], self.src[is_call])

    def callees(self, service: int) -> list[int]:
        """Return the services that a service calls."""
        return _of(self._of_caller, service)

    def callers(self, service: int) -> list[int]:
        """Return the services that call a service."""
        return _of(self._of_callee, service)


#: Starts of the rows of each service, and the rows: the other ends.
_Index = tuple[Ints, Ints]


def _index(by: Ints, other: Ints) -> _Index:
    """Index paths by one of their ends, in their order."""
    order = np.argsort(by, kind="stable")
    starts = np.zeros(int(by.max(initial=-1)) + 2, np.int64)
    np.cumsum(np.bincount(by, minlength=len(starts) - 1), out=starts[1:])
    return starts, other[order]


def _of(index: _Index, service: int) -> list[int]:
    starts, others = index
    if service >= len(starts) - 1:
        return []
    found: list[int] = others[starts[service] : starts[service + 1]].tolist()
    return found
