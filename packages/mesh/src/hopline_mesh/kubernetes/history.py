"""Ended changes and troubles: for each service the last one of each kind.

Bounded by the number of services, for any number of changes.
"""

from __future__ import annotations

import math
from typing import Generic, TypeVar

from msgspec.structs import replace

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

    def items(self) -> list[Item]:
        """Return all items, in the order of their ends."""
        return list(self._ended.values())

    def add(self, item: Item) -> None:
        """Add an ended item."""
        start_s = self.resume(item.kind, item.service, item.start_s)
        self._ended[item.kind, item.service] = replace(item, start_s=start_s)

    def resume(self, kind: str, service: str, start_s: float) -> float:
        """Remove the ended item of this kind, because another begins.

        Returns: the start of the new item; that of the ended one if the new one is merged with it.
        """
        known = self._ended.pop((kind, service), None)
        if known is None or start_s - (known.end_s or 0.0) > self._merge_s:
            return start_s
        return start_s if start_s - known.start_s > self._longest_s else min(known.start_s, start_s)

    def expire(self, now_s: float) -> None:
        """Drop old items.

        If the clock was set back, ends after now are set to now.
        """
        for key, item in list(self._ended.items()):
            end_s = item.end_s or 0.0
            if end_s < now_s - self._keep_s:
                del self._ended[key]
            elif end_s > now_s:
                self._ended[key] = replace(item, start_s=min(item.start_s, now_s), end_s=now_s)
