"""Outcomes of events, and messages that the writer has judged already, but whose outcome is unknown.

With each batch the writer stores, besides the positions up to which all is done, the end of that batch in
each partition. Between the two lie the messages of the last batch. After a crash they are delivered again,
and must not be judged again: an event that was rejected could now be accepted, out of order. By their ids,
the writer reports which of them are in the graph; the others were rejected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.brokers.base import Message, Position
from hopline.graph.live.changes import Applied, Changes, EdgeChanges, Rejected
from hopline.types import IdArray

#: Prefix of values that are stored next to positions; no partition begins with it.
OWN = "hopline/"
_KEY = OWN + "judged/"
#: An edge type that no graph has: a new event of this type is always rejected.
_NO_TYPE = "hopline__seen__before"


class Outcome:
    """The outcomes of `num_events` events.

    Attributes:
        applied: bool [num_events], those that changed the graph while this batch was applied. An event that
            was applied here and is a duplicate in a later attempt counts as applied.
        duplicate: bool [num_events].
        rejected: order -> reason.
        sequence: the version that contains them.
    """

    def __init__(self, num_events: int) -> None:
        self.applied: NDArray[np.bool_] = np.zeros(num_events, np.bool_)
        self.duplicate: NDArray[np.bool_] = np.zeros(num_events, np.bool_)
        self.rejected: dict[int, Rejected] = {}
        self.sequence = 0

    def take(self, answer: Applied, orders: IdArray | None = None) -> None:
        """Add an answer of the writer.

        Args:
            orders: int64, the events of the answer, in its order; None means all.
        """
        about = np.arange(len(self.applied)) if orders is None else orders
        rest = np.ones(len(about), np.bool_)
        self.sequence = answer.sequence
        for order in about.tolist():
            self.rejected.pop(order, None)
        for each in answer.rejected:
            order = int(about[each.order])
            rest[each.order] = False
            self.rejected[order] = Rejected(order, each.code, each.reason)
        again = about[list(answer.duplicates)]
        rest[list(answer.duplicates)] = False
        self.duplicate[again] = ~self.applied[again]
        self.applied[about[rest]] = True

    def first(self, code: str) -> Rejected | None:
        """The first event that was rejected with a code; None if there is none."""
        return min(
            (e for e in self.rejected.values() if e.code == code), key=lambda e: e.order, default=None
        )

    def counts(self) -> Mapping[str, int]:
        """Events by outcome."""
        found = Counter(each.code for each in self.rejected.values())
        found["applied"], found["duplicate"] = int(self.applied.sum()), int(self.duplicate.sum())
        return {name: count for name, count in found.items() if count}


def positions_of_sources(positions: Mapping[str, Any]) -> dict[str, Position]:
    """The positions of sources, without own values."""
    return {name: position for name, position in positions.items() if not name.startswith(OWN)}


def end_of(messages: Sequence[Message]) -> dict[str, Any]:
    """The values to store with a batch of messages: its end, and the number of messages."""
    counts = Counter(message.partition for message in messages)
    ends = {message.partition: message.position for message in messages}
    return {_KEY + name: [position, counts[name]] for name, position in ends.items()}


def nothing_since(done: Mapping[str, Position], messages: Sequence[Message] = ()) -> dict[str, Any]:
    """The values to store if nothing after these positions was judged, or all will be judged again.

    Args:
        messages: of partitions that may have no position yet.
    """
    partitions = dict.fromkeys([*done, *(each.partition for each in messages)])
    return {_KEY + name: [done.get(name), 0] for name in partitions}


class Redelivered:
    """Messages of the last batch, which are delivered again.

    Args:
        positions: of the writer.
    """

    def __init__(self, positions: Mapping[str, Any]) -> None:
        self._until: dict[str, tuple[Position, int]] = {}
        for name, value in positions.items():
            if name.startswith(_KEY):
                partition, (position, count) = name.removeprefix(_KEY), value
                if count and positions.get(partition) != position:
                    self._until[partition] = position, count

    def __bool__(self) -> bool:
        return bool(self._until)

    def split(self, messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
        """Split messages into judged ones and others."""
        judged: list[Message] = []
        others: list[Message] = []
        for message in messages:
            until = self._until.get(message.partition)
            if until is None:
                others.append(message)
                continue
            judged.append(message)
            position, count = until
            # the count ends the batch if the broker has lost its last message
            if message.position == position or count <= 1:
                del self._until[message.partition]
            else:
                self._until[message.partition] = position, count - 1
        return judged, others

    def holds(self, messages: Sequence[Message]) -> bool:
        """True if a batch of these messages was judged."""
        ends = {message.partition: message.position for message in messages}
        return all(self._until.get(name, (None, 0))[0] == position for name, position in ends.items())


def probe(changes: Changes) -> Changes:
    """Events with the same ids that change nothing: those that are duplicates were applied."""
    count = changes.num_events
    nothing = np.zeros(count, np.int64)
    edges = EdgeChanges(nothing, nothing, np.zeros(count, np.bool_), np.arange(count, dtype=np.int64))
    return Changes({_NO_TYPE: edges}, {}, count, changes.event_ids)
