"""Splits a large mesh into parts: a namespace is always in one part.

Parts do not change while services appear and disappear, so that what was learned of a part stays valid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hopline_mesh.errors import StateDamaged
from hopline_mesh.model.partition import group_sizes
from hopline_mesh.roster import SlotArray, namespace_of
from hopline_mesh.snapshot import Snapshot

#: Number of parts of the smallest mesh that is split; more than the threads, because parts differ in size.
_PARTS = 4


class Cut:
    """The part of each namespace.

    Args:
        above: number of services up to which a mesh stays whole.

    Attributes:
        version: increases with each new split.
        num_parts: 0 before the first split.
    """

    def __init__(self, above: int) -> None:
        self.above = above
        self.version = 0
        self.num_parts = 0
        self._largest = 0
        self._most = max(1, above // _PARTS)
        self._part_of: dict[str, int] = {}
        self._of_slot: SlotArray = np.zeros(0, np.int32)

    def parts(self, snapshot: Snapshot) -> SlotArray | None:
        """Return the part of each service, int32 [n]; None for a mesh that stays whole.

        A mesh of one namespace cannot be split.
        """
        if len(snapshot.nodes) <= self.above:
            return None
        names = snapshot.roster.names
        if len(self._of_slot) < len(names):
            self._assign(names, snapshot.nodes)
        return self._of_slot[snapshot.nodes] if self.num_parts > 1 else None

    def _assign(self, names: Sequence[str], nodes: SlotArray) -> None:
        if not self.num_parts:
            self._begin(names, nodes)
        new = names[len(self._of_slot) :]
        sizes = np.bincount(self._of_slot, minlength=self.num_parts)
        parts = []
        for name in new:
            namespace = namespace_of(name)
            if namespace not in self._part_of:
                self._part_of[namespace] = int(sizes.argmin())
            parts.append(self._part_of[namespace])
            sizes[parts[-1]] += 1
        self._of_slot = np.concatenate([self._of_slot, np.array(parts, np.int32)])
        # A part has twice its planned size: split again, and learn its baseline again.
        sizes = np.bincount(self._of_slot[nodes])
        if len(self._part_of) > self.num_parts and sizes.max() > 2 * max(self._most, self._largest):
            self._begin(names, nodes)
            self._of_slot = np.array([self._part_of[namespace_of(name)] for name in names], np.int32)

    def _begin(self, names: Sequence[str], nodes: SlotArray) -> None:
        """Split by the present services; other namespaces are assigned later."""
        spaces: dict[str, int] = {}
        groups = np.array([spaces.setdefault(namespace_of(names[slot]), len(spaces)) for slot in nodes])
        parts = group_sizes(groups.astype(np.int32), self._most)
        self.num_parts = int(parts.max()) + 1
        first = np.unique(groups, return_index=True)[1]
        self._part_of = dict(zip(spaces, parts[first].tolist(), strict=True))
        self._largest = int(np.bincount(parts).max())
        self.version += 1

    def export(self) -> dict[str, Any]:
        """Return the state, JSON-compatible."""
        return {
            "above": self.above,
            "version": self.version,
            "num_parts": self.num_parts,
            "largest": self._largest,
            "namespaces": list(self._part_of),
            "parts": list(self._part_of.values()),
        }

    def restore(self, kept: Mapping[str, object]) -> bool:
        """Restore the state of `export`, if the size of parts is the same.

        Returns: whether it was restored.

        Raises:
            StateDamaged: the state has another form.
        """
        match kept:
            case {"above": int(above)} if above != self.above:
                return False
            case {
                "above": int(),
                "version": int(version),
                "num_parts": int(count),
                "largest": int(largest),
                "namespaces": [*names],
                "parts": [*numbers],
            } if len(names) == len(numbers) and all(
                isinstance(part, int) and 0 <= part < count for part in numbers
            ):
                parts = [int(number) for number in numbers if isinstance(number, int)]
                self.version, self.num_parts, self._largest = version, count, largest
                self._part_of = dict(zip(map(str, names), parts, strict=True))
                return True
            case _:
                raise StateDamaged("the parts of the mesh are damaged")
