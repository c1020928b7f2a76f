"""Which service has which number (*slot*).

Names are read once, where they arrive; all that follows works on slots. A slot is never given to another
name, so that kept state stays that of its service.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

SlotArray = NDArray[np.int32]


class Roster:
    """Names of services and their slots, in the order in which they were first seen.

    A name is `namespace/service` where the namespace is known, else the service's name alone. Not for use
    by several threads at once.
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
        """All names; position is slot."""
        return self._names

    def name(self, slot: int) -> str:
        """The name of a slot.

        Raises:
            IndexError: no such slot.
        """
        return self._names[slot]

    def slot(self, name: str) -> int:
        """The slot of a name, a new one where it was not seen before."""
        slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = len(self._names)
            self._names.append(name)
        return slot

    def find(self, name: str) -> int | None:
        """The slot of a name, or None where it was never seen."""
        return self._slots.get(name)


def namespace_of(name: str) -> str:
    """The namespace of a service's name, "" where it has none."""
    namespace, slash, _ = name.partition("/")
    return namespace if slash else ""
