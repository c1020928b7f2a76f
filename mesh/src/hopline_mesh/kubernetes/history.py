"""What has ended, for as long as it matters: of each service the last change and trouble of each kind.

Bounded by the number of services, however often things change.
"""

from __future__ import annotations

import math
from typing import Generic, TypeVar

import msgspec

from hopline_mesh.changes import Change, Trouble

Item = TypeVar("Item", Change, Trouble)


class History(Generic[Item]):
    """Ended changes, or ended troubles.

    Args:
        keep_s: what ended longer ago is dropped.
        merge_s: what begins this soon after the end of another of its kind is one with it: pods that are
            moved one after the other, a container that comes up and falls over again.
        longest_s: what is this long already is not made longer by that.
    """

    def __init__(self, keep_s: float, merge_s: float, longest_s: float = math.inf) -> None:
        self._keep_s = keep_s
        self._merge_s = merge_s
        self._longest_s = longest_s
        self._ended: dict[tuple[str, str], Item] = {}

    def __len__(self) -> int:
        return len(self._ended)

    def items(self) -> list[Item]:
        """All of them."""
        return list(self._ended.values())

    def add(self, item: Item) -> None:
        """Something ended."""
        start_s = self.reopened_s(item.kind, item.service, item.start_s)
        # The order is that of the ends.
        self._ended.pop((item.kind, item.service), None)
        self._ended[item.kind, item.service] = (
            item if start_s is None else msgspec.structs.replace(item, start_s=start_s)
        )

    def reopened_s(self, kind: str, service: str, start_s: float) -> float | None:
        """When the one that a new beginning goes on with began; None if it is a new one."""
        known = self._ended.get((kind, service))
        if known is None or start_s - (known.end_s or 0.0) > self._merge_s:
            return None
        if start_s - known.start_s > self._longest_s:
            return None
        return min(known.start_s, start_s)

    def reopen(self, kind: str, service: str) -> None:
        """What ended goes on, and is listed elsewhere."""
        self._ended.pop((kind, service), None)

    def expire(self, now_s: float) -> bool:
        """Drop what is too old; returns whether there was any.

        After the clock was set back, nothing ended later than now.
        """
        old = [key for key, item in self._ended.items() if (item.end_s or 0.0) < now_s - self._keep_s]
        for key in old:
            del self._ended[key]
        ahead = [item for item in self._ended.values() if (item.end_s or 0.0) > now_s]
        for item in ahead:
            self._ended[item.kind, item.service] = msgspec.structs.replace(
                item, start_s=min(item.start_s, now_s), end_s=now_s
            )
        return bool(old or ahead)
