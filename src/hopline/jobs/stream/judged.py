"""Which messages the writer has judged already, though it is not known what became of them.

With each batch the writer keeps, beside the positions up to which all is done, where that batch ends in
each partition. Between the two lie the messages of the last batch: after a crash they come again, and must
not be judged anew, since an event that was rejected could by now be accepted, out of its turn. Which of
them are in the graph the writer tells by their ids; the others were rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hopline.brokers.base import Message, Position
from hopline.graph.live.changes import Changes, EdgeChanges

#: What is kept beside positions begins with this, which no partition does.
OWN = "hopline/"
_KEY = OWN + "judged/"
#: An edge type that no graph has: an event of it that was not seen before is rejected, whatever it is.
_NO_TYPE = "hopline__seen__before"


def positions_of_sources(positions: Mapping[str, Any]) -> dict[str, Position]:
    """Those that sources know."""
    return {name: position for name, position in positions.items() if not name.startswith(OWN)}


def end_of(messages: Sequence[Message]) -> dict[str, Any]:
    """What to keep with a batch of these messages: where it ends, and how many there are."""
    counts: dict[str, int] = {}
    for message in messages:
        counts[message.partition] = counts.get(message.partition, 0) + 1
    ends = {message.partition: message.position for message in messages}
    return {_KEY + name: [position, counts[name]] for name, position in ends.items()}


def nothing_since(done: Mapping[str, Position], messages: Sequence[Message] = ()) -> dict[str, Any]:
    """What to keep where nothing after these positions was judged, or is to be judged anew.

    Args:
        messages: of partitions that may have no position yet.
    """
    partitions = dict.fromkeys([*done, *(each.partition for each in messages)])
    return {_KEY + name: [done.get(name), 0] for name in partitions}


class Judged:
    """Messages that come again.

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
        """Those that were judged, and the others."""
        judged: list[Message] = []
        others: list[Message] = []
        for message in messages:
            until = self._until.get(message.partition)
            if until is None:
                others.append(message)
                continue
            judged.append(message)
            position, count = until
            # the count ends it where the broker has lost the message that would
            if message.position == position or count <= 1:
                del self._until[message.partition]
            else:
                self._until[message.partition] = position, count - 1
        return judged, others

    def holds(self, messages: Sequence[Message]) -> bool:
        """Whether a batch of these messages was judged."""
        ends = {message.partition: message.position for message in messages}
        return all(self._until.get(name, (None, 0))[0] == position for name, position in ends.items())


def probe(changes: Changes) -> Changes:
    """Events of the same ids that change nothing: which are duplicates says which were applied."""
    count = changes.num_events
    nothing = np.zeros(count, np.int64)
    edges = EdgeChanges(nothing, nothing, np.zeros(count, np.bool_), np.arange(count, dtype=np.int64))
    return Changes({_NO_TYPE: edges}, {}, count, changes.event_ids)
