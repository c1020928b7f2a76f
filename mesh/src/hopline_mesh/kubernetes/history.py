"""Ended changes and troubles: for each service the last one of each kind.

Bounded by the number of services, for any number of changes.
"""

from __future__ import annotations

import math
from typing import Generic, TypeVar

import msgspec

from hopline_mesh.changes import Change, KubernetesTrouble

Item = TypeVar("Item", Change, KubernetesTrouble)


class History(Generic[Item]):
    """Ended changes, or ended troubles.

    Args:
        keep_s: items that ended longer ago are dropped.
        merge_s: an item that begins within this time after another of its kind is merged with it: pods that
            are moved one at a time, a container that starts and crashes again.
        longest_s: items of this length are not merged.
    """

    def __init__(self, keep_s: float, merge_s: float, longest_s: float = math.inf) -> None:
        self._keep_s = keep_s
        self._merge_s = merge_s
        self._longest_s = longest_s
        self._ended: dict[tuple[str, str], Item] = {}

    def __len__(self) -> int:
        return len(self._ended)

    def items(self) -> list[Item]:
        """Return all items."""
        return list(self._ended.values())

    def add(self, item: Item) -> None:
        """Add an ended item."""
        start_s = self.reopened_s(item.kind, item.service, item.start_s)
        # Keep the order of the ends.
        self._ended.pop((item.kind, item.service), None)
        self._ended[item.kind, item.service] = (
            item if start_s is None else msgspec.structs.replace(item, start_s=start_s)
        )

    def reopened_s(self, kind: str, service: str, start_s: float) -> float | None:
        """Return the start of the ended item that a new one continues; None if it continues none."""
        known = self._ended.get((kind, service))
        if known is None or start_s - (known.end_s or 0.0) > self._merge_s:
            return None
        if start_s - known.start_s > self._longest_s:
            return None
        return min(known.start_s, start_s)

    def reopen(self, kind: str, service: str) -> None:
        """Remove an ended item that continues; it is listed elsewhere."""
        self._ended.pop((kind, service), None)

    def expire(self, now_s: float) -> None:
        """Drop old items.

        If the clock was set back, ends after now are set to now.
        """
        old = [key for key, item in self._ended.items() if (item.end_s or 0.0) < now_s - self._keep_s]
        for key in old:
            del self._ended[key]
        ahead = [item for item in self._ended.values() if (item.end_s or 0.0) > now_s]
        for item in ahead:
            self._ended[item.kind, item.service] = msgspec.structs.replace(
                item, start_s=min(item.start_s, now_s), end_s=now_s
            )
