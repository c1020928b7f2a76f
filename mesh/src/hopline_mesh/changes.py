"""What is known of a mesh besides its metrics: changes that were meant, and trouble that was not.

Both come from Kubernetes, or from a folder of snapshots. Knows no source.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

#: `scale`: pods are added or removed; `rollout`: a new version replaces pods; `drain`: pods move or end as
#: planned; `added` and `removed`: the service itself is new, or goes for good.
ChangeKind = Literal["scale", "rollout", "drain", "added", "removed"]

#: What looks like change, but is none that anyone wanted.
TroubleKind = Literal["stuck_rollout", "oom_kill", "crash_loop"]


class Change(msgspec.Struct, frozen=True):
    """A planned change of one service.

    Attributes:
        kind: what changes.
        service: name as in the roster.
        start_s: when it began, Unix seconds.
        end_s: when it ended; None while it goes on.
        detail: for people, such as "3 to 7 pods".
        before, after: of `scale`, pods that there were to be, and are to be; None where that is not known.
    """

    kind: ChangeKind
    service: str
    start_s: float
    end_s: float | None = None
    detail: str = ""
    before: int | None = None
    after: int | None = None


class Trouble(msgspec.Struct, frozen=True):
    """Something that Kubernetes itself reports to be wrong with a service.

    Attributes:
        kind: what is wrong.
        service: name as in the roster.
        start_s: since when, Unix seconds.
        end_s: until when; None while it goes on.
        detail: for people, such as "container app restarted 6 times".
    """

    kind: TroubleKind
    service: str
    start_s: float
    end_s: float | None = None
    detail: str = ""


class Context(msgspec.Struct, frozen=True):
    """All that is known at one moment, newest last. What ended is kept for a while."""

    changes: tuple[Change, ...] = ()
    troubles: tuple[Trouble, ...] = ()

    def moved(self, by_s: float) -> Context:
        """The same, so many seconds later."""
        return Context(
            tuple(_moved(each, by_s) for each in self.changes),
            tuple(_moved(each, by_s) for each in self.troubles),
        )


_Item = TypeVar("_Item", Change, Trouble)


def _moved(item: _Item, by_s: float) -> _Item:
    end_s = None if item.end_s is None else item.end_s + by_s
    return msgspec.structs.replace(item, start_s=item.start_s + by_s, end_s=end_s)
