"""The ids of a live graph's nodes: the original ids, and those that were added later.

Added ids lie in the shared memory, in order of arrival, with a hash table over them. A node exists for a
reader from the version on that added it: ids beyond the node count of the reader's version are unknown. It
exists until the version that removed it. Its row stays, and one that is added again gets another row: the
table has both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest
from hopline.graph import id_values
from hopline.graph.hash_table import _bytes_equal, _bytes_hash, _mix
from hopline.graph.ids import IdIndex, RangeIds, RemainingIds, StringIds
from hopline.graph.live.memory import ColumnMemory, NodeMemory
from hopline.kernels.intrinsics import release_fence
from hopline.kernels.jit import njit
from hopline.types import AnyArray, ExternalIds, IdArray

_ONE = np.uint64(1)


@njit(nogil=True, cache=True)
def _find_ints(values, slots, wanted, found, first, count):  # type: ignore[no-untyped-def]
    """Fill found[i] where it is -1 and wanted[i] was added; nodes from `count` on are unknown."""
    mask = np.uint64(slots.shape[0] - 1)
    for i in range(wanted.shape[0]):
        if found[i] >= 0:
            continue
        at = _mix(np.uint64(wanted[i])) & mask
        while slots[at] > 0:
            row = slots[at] - 1
            if values[row] == wanted[i] and first + row < count:
                found[i] = max(found[i], first + row)
            at = (at + _ONE) & mask


@njit(nogil=True, cache=True)
def _add_ints(values, slots, added, first):  # type: ignore[no-untyped-def]
    mask = np.uint64(slots.shape[0] - 1)
    for i in range(added.shape[0]):
        values[first + i] = added[i]
        at = _mix(np.uint64(added[i])) & mask
        while slots[at] > 0 and slots[at] - 1 != first + i:
            at = (at + _ONE) & mask
        release_fence()
        slots[at] = first + i + 1


@njit(nogil=True, cache=True)
def _find_strings(blob, offsets, slots, wanted, lengths, found, first, count):  # type: ignore[no-untyped-def]
    mask = np.uint64(slots.shape[0] - 1)
    end = 0
    for i in range(lengths.shape[0]):
        begin, end = end, end + lengths[i]
        if found[i] >= 0:
            continue
        at = _bytes_hash(wanted, begin, end) & mask
        while slots[at] > 0:
            row = slots[at] - 1
            if first + row < count and _bytes_equal(
                wanted, begin, end, blob, offsets[row], offsets[row + 1]
            ):
                found[i] = max(found[i], first + row)
            at = (at + _ONE) & mask


@njit(nogil=True, cache=True)
def _add_strings(blob, offsets, slots, added, lengths, first):  # type: ignore[no-untyped-def]
    mask = np.uint64(slots.shape[0] - 1)
    end = 0
    for i in range(lengths.shape[0]):
        begin, end = end, end + lengths[i]
        target = offsets[first + i]
        for k in range(end - begin):
            blob[target + k] = added[begin + k]
        offsets[first + i + 1] = target + end - begin
        at = _bytes_hash(added, begin, end) & mask
        while slots[at] > 0 and slots[at] - 1 != first + i:
            at = (at + _ONE) & mask
        release_fence()
        slots[at] = first + i + 1


@dataclass(frozen=True, slots=True, eq=False)
class _Texts:
    id_slots: NDArray[np.int32]
    id_offsets: IdArray
    id_blob: NDArray[np.uint8]
    id_values: IdArray
    removed_at: IdArray


def texts_of(memory: ColumnMemory) -> LiveIds:
    """The distinct texts in the columns of a type, by their places."""
    none = np.zeros(1, np.int64)
    own = _Texts(memory.text_slots, memory.text_offsets, memory.text_blob, memory.num_texts, none)
    return LiveIds(StringIds.of([], "texts"), own, 0, lambda: int(memory.num_texts[0]), lambda: 0)


class LiveIds(IdIndex):
    """The index of one node type.

    Args:
        base: ids of a snapshot of the same lineage; it may have more nodes than the memory started with.
        memory: of the node type.
        first: nodes that the memory started with.
        count: rows of nodes at the reader's version.
        version: of the reader.
    """

    def __init__(
        self,
        base: IdIndex,
        memory: NodeMemory | _Texts,
        first: int,
        count: Callable[[], int],
        version: Callable[[], int],
    ) -> None:
        self.kind = base.kind
        self._base = base
        self._memory = memory
        self._first = first
        self._count = count
        self._version = version

    def __len__(self) -> int:
        return self._count()

    def lookup(self, external_ids: ExternalIds | AnyArray) -> IdArray:
        """Look ids up among those of the snapshot, then among added ones."""
        found = self._existing(self._base.lookup(external_ids))
        count = self._count()
        if count > self._first and bool((found < 0).any()):
            found = self._existing(self._find_added(external_ids, np.array(found), count))
        if len(self._base) > count:
            found = np.where(found < count, found, -1)
        return found

    def _existing(self, found: IdArray) -> IdArray:
        """Rows, int64 [n]; -1 for those of removed nodes."""
        removed_at = self._memory.removed_at
        if removed_at[-1] == 0:  # none was ever removed
            return found
        at = removed_at[found]
        return np.where((found >= 0) & (at > 0) & (at <= self._version() + 1), -1, found)

    @property
    def removed(self) -> IdArray:  # type: ignore[override]
        """Rows of nodes that were removed until the reader's version."""
        removed_at = self._memory.removed_at
        at = removed_at[: self._count()] if removed_at[-1] else removed_at[:0]
        return np.flatnonzero((at > 0) & (at <= self._version() + 1))

    def external(self, global_ids: IdArray) -> list[str] | IdArray:
        """The caller's ids of rows."""
        ids = np.asarray(global_ids, np.int64)
        added = ids >= self._first
        if not added.any():
            return self._base.external(ids)
        memory, rows = self._memory, ids[added] - self._first
        if self.kind != "string":
            values = np.empty(len(ids), np.int64)
            values[~added] = self._base.external(ids[~added])
            values[added] = memory.id_values[rows]
            return values
        names: list[str] = [""] * len(ids)
        for at, name in zip(np.flatnonzero(~added).tolist(), self._base.external(ids[~added]), strict=True):
            names[at] = str(name)
        for at, row in zip(np.flatnonzero(added).tolist(), rows.tolist(), strict=True):
            begin, end = memory.id_offsets[row], memory.id_offsets[row + 1]
            names[at] = memory.id_blob[begin:end].tobytes().decode("utf-8", "surrogatepass")
        return names

    def frozen(self, count: int) -> IdIndex:
        """An index of the first `count` rows that no longer changes."""
        removed = self.removed
        if count == len(self._base) and len(removed) == len(self._base.removed):
            return self._base
        rows = np.delete(np.arange(count), removed)
        if self.kind == "range" and np.array_equal(self.external(rows), rows):
            known: IdIndex = RangeIds(count)
        else:
            known = self.select(rows, "ids of a live graph")
        return RemainingIds(known, removed) if len(removed) else known

    def arrays(self) -> dict[str, AnyArray]:
        """Of the newest version."""
        return self.frozen(self._count()).arrays()

    def free_bytes(self) -> int:
        """Room for more string ids."""
        if self.kind != "string":
            return 1 << 62
        used = int(self._memory.id_offsets[self._count() - self._first])
        return len(self._memory.id_blob) - used

    def add(self, external_ids: Any, first: int) -> None:
        """Add new ids as nodes first, first + 1, …; the writer has checked that they do not exist."""
        memory, row = self._memory, first - self._first
        if self.kind == "string":
            blob, lengths = id_values.encoded(list(external_ids))
            _add_strings(memory.id_blob, memory.id_offsets, memory.id_slots, blob, lengths, row)
        else:
            values = np.ascontiguousarray(external_ids, np.int64)
            _add_ints(memory.id_values, memory.id_slots, values, row)

    def _find_added(self, external_ids: Any, found: IdArray, count: int) -> IdArray:
        memory = self._memory
        if self.kind == "string":
            kind, values = id_values.typed(external_ids)
            if kind != "string":
                raise BadRequest(id_values.not_strings(values))
            blob, lengths = id_values.encoded(values)
            _find_strings(
                memory.id_blob, memory.id_offsets, memory.id_slots, blob, lengths, found, self._first, count
            )
            return found
        wanted, known = id_values.wanted_ints(external_ids)
        _find_ints(memory.id_values, memory.id_slots, wanted, found, self._first, count)
        return found if known is None else np.where(known, found, -1)
