"""Which call path has which number. Paths are found by sorted keys; only those are looked up that are
others than in the interval before."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopline.jit import njit
from hopline.mesh.model.graph import same
from hopline.mesh.roster import SlotArray
from hopline.mesh.snapshot import Snapshot


class Pairs:
    """Slots of call paths, in the order in which they were first seen.

    Attributes:
        src, dst: int32, slots of the callers and callees; position is the path's slot.
    """

    def __init__(self) -> None:
        self.src: SlotArray = np.zeros(0, np.int32)
        self.dst: SlotArray = np.zeros(0, np.int32)
        self._keys: NDArray[np.int64] = np.zeros(0, np.int64)
        self._slots: SlotArray = np.zeros(0, np.int32)
        self._last: tuple[SlotArray, SlotArray, SlotArray] | None = None

    def __len__(self) -> int:
        return len(self.src)

    def slots(self, src: SlotArray, dst: SlotArray) -> SlotArray:
        """int32 [e], slots of these paths, new ones where they were not seen before."""
        changed: NDArray[np.int64] | slice = slice(None)
        if self._last is not None and len(self._last[2]) == len(src):
            last_src, last_dst, last = self._last
            if same(last_src, last_dst, src, dst):
                return last
            changed = np.flatnonzero((last_src != src) | (last_dst != dst))
            found = last.copy()
        else:
            found = np.empty(len(src), np.int32)
        keys = (src[changed].astype(np.int64) << 32) | dst[changed]
        unknown = keys[~self._known(keys)]
        # Slots in the order of the snapshot: rows and series of a path then lie alike, and near each other.
        new = unknown[np.sort(np.unique(unknown, return_index=True)[1])]
        if len(new):
            self._add((new >> 32).astype(np.int32), (new & 0xFFFFFFFF).astype(np.int32))
        found[changed] = self._slots[np.searchsorted(self._keys, keys)]
        self._last = (src.copy(), dst.copy(), found)
        return found

    def _known(self, keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        if not len(self._keys):
            return np.zeros(len(keys), bool)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.asarray(self._keys[at] == keys)

    def _add(self, src: SlotArray, dst: SlotArray) -> None:
        keys = (src.astype(np.int64) << 32) | dst
        order = np.argsort(keys, kind="stable")
        at = np.searchsorted(self._keys, keys[order])
        self._keys = np.insert(self._keys, at, keys[order])
        self._slots = np.insert(self._slots, at, (len(self) + order).astype(np.int32))
        self.src, self.dst = np.concatenate([self.src, src]), np.concatenate([self.dst, dst])

    def restore(self, src: SlotArray, dst: SlotArray) -> None:
        """Take up paths in the order of their slots."""
        self.__init__()  # type: ignore[misc]
        self._add(np.asarray(src, np.int32), np.asarray(dst, np.int32))


class Lineup:
    """Who is there in an interval: the same arrays as in the one before while they are the same.

    What depends on them is made anew where the array is another one; numbers are compared here, once.

    Attributes:
        nodes: int32 [n], slots of the services.
        paths: int32 [e], slots of the call paths.
    """

    def __init__(self, pairs: Pairs) -> None:
        self.nodes: SlotArray = np.zeros(0, np.int32)
        self.paths: SlotArray = np.zeros(0, np.int32)
        self._pairs = pairs
        self._ends = self.paths, self.paths

    def take(self, snapshot: Snapshot) -> None:
        """Go on to the next interval."""
        nodes, src, dst = snapshot.nodes, snapshot.edge_src, snapshot.edge_dst
        are_nodes, are_paths = as_before(self.nodes, nodes, *self._ends, src, dst)
        if not are_nodes:
            self.nodes = nodes.astype(np.int32)
        if not are_paths:
            self.paths = self._pairs.slots(src, dst)
            self._ends = src.astype(np.int32), dst.astype(np.int32)


@njit(nogil=True, cache=True)
def as_before(
    nodes: SlotArray, new_nodes: SlotArray, src: SlotArray, dst: SlotArray, new_src: SlotArray,
    new_dst: SlotArray,
) -> tuple[bool, bool]:  # fmt: skip
    """Whether services, and whether call paths, are those of before."""
    are_nodes = len(nodes) == len(new_nodes) and same(nodes, nodes, new_nodes, new_nodes)
    return are_nodes, len(src) == len(new_src) and same(src, dst, new_src, new_dst)
