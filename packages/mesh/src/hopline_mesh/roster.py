"""The numbers (*slots*) of services.

Names are read once, at the input; everything after that works on slots. A slot is never reused for another
name, so saved state always belongs to the right service.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

SlotArray = NDArray[np.int32]


class Roster:
    """Names of services and their slots, in the order of first appearance.

    A name is `namespace/service` where the namespace is known, else the service's name alone. Not
    thread-safe.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: list[str] = []
        self._slots: dict[str, int] = {}
        for name in names:
            self.slot(name)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._slots

    @property
    def names(self) -> Sequence[str]:
        """All names; the position is the slot."""
        return self._names

    def name(self, slot: int) -> str:
        """Return the name of a slot.

        Raises:
            IndexError: no such slot.
        """
        return self._names[slot]

    def slot(self, name: str) -> int:
        """Return the slot of a name; a new one if the name is new."""
        slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = len(self._names)
            self._names.append(name)
        return slot

    def find(self, name: str) -> int | None:
        """Return the slot of a name, or None if the name is unknown."""
        return self._slots.get(name)


def namespace_of(name: str) -> str:
    """Return the namespace of a service's name, or ""."""
    namespace, slash, _ = name.partition("/")
    return namespace if slash else ""
