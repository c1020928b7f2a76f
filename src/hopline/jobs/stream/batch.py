"""One batch of messages, decoded: events with ids, and the origin of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from hopline.brokers.base import Message, Position
from hopline.events.decode import Decoded, Decoder
from hopline.events.payloads import originals, together
from hopline.events.rows import Refused
from hopline.graph.live.changes import Changes, Rejected
from hopline.jobs.stream.dead_letters import DeadLetter

#: Dead letters of one message: an event in Arrow has a few bytes, and its dead letter a kilobyte.
MOST_LETTERS = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Messages and their events.

    Attributes:
        changes: every event has an id.
        payload, index: int64 [num_events], message and event in it of each.
        refused: events that cannot be changes of the graph.
    """

    messages: Sequence[Message]
    changes: Changes
    payload: NDArray[np.int64]
    index: NDArray[np.int64]
    refused: Sequence[Refused]

    @property
    def positions(self) -> dict[str, Position]:
        """The positions at which to resume once the batch is done."""
        return {message.partition: message.position for message in self.messages}

    def letters(self, rejected: Iterable[Rejected]) -> list[DeadLetter]:
        """Dead letters of refused and rejected events, in the order of their messages."""
        found = list(self.refused)
        ids = self.changes.event_ids
        for each in rejected:
            payload, index = int(self.payload[each.order]), int(self.index[each.order])
            found.append(Refused(payload, index, each.code, each.reason, ids[each.order]))
        found.sort(key=lambda each: (each.payload, each.index))
        return [
            letter for at, group in groupby(found, _payload_of) for letter in self._letters(at, list(group))
        ]

    def _letters(self, at: int, refused: list[Refused]) -> list[DeadLetter]:
        """Dead letters of one message: one for each event, and one for all after `MOST_LETTERS`."""
        message = self.messages[at]
        first, rest = refused[:MOST_LETTERS], refused[MOST_LETTERS:]
        payloads = originals(message.payload, [each.index for each in first])
        letters = [_letter(message, payload, each) for payload, each in zip(payloads, first, strict=True)]
        if rest:
            payload = together(message.payload, [each.index for each in rest])
            reason = f"{len(rest)} further events; the first: {rest[0].reason}"
            letters.append(_letter(message, payload, replace(rest[0], reason=reason, event_id="")))
        return letters


def _payload_of(refused: Refused) -> int:
    return refused.payload


def _letter(message: Message, payload: bytes, refused: Refused) -> DeadLetter:
    return DeadLetter(
        payload,
        refused.code,
        refused.reason,
        message.partition,
        str(message.position),
        refused.index,
        refused.event_id,
        message.key,
        message.timestamp_ms,
    )


def read_batch(messages: Sequence[Message], decoder: Decoder) -> Batch:
    """Decode messages; messages with a problem are refused as a whole.

    An event without an id gets one that names its message and its place there. If it is delivered again, it
    is recognised.
    """
    sound = [at for at, message in enumerate(messages) if not message.problem]
    decoded = decoder.decode(
        [messages[at].payload for at in sound], [messages[at].timestamp_ms for at in sound]
    )
    if len(sound) < len(messages):
        decoded = _renumbered(decoded, messages, sound)
    changes = decoded.changes
    ids = changes.event_ids
    if changes.num_events and (not ids or "" in ids):
        given = ids or [""] * changes.num_events
        named = zip(given, decoded.payload.tolist(), decoded.index.tolist(), strict=True)
        starts = [f"{message.partition}@{message.position}#" for message in messages]
        changes = replace(changes, event_ids=[each or f"{starts[at]}{k}" for each, at, k in named])
    return Batch(messages, changes, decoded.payload, decoded.index, decoded.refused)


def up_to_foreign(messages: Sequence[Message], refused: Sequence[Refused]) -> tuple[int, str] | None:
    """The first message with events of another schema, and the reason; None if there is none."""
    foreign = [each for each in refused if each.code == "schema_changed"]
    if not foreign:
        return None
    first = min(foreign, key=lambda each: each.payload)
    message = messages[first.payload]
    return first.payload, f"{message.partition} at {message.position}: {first.reason}"


def _renumbered(decoded: Decoded, messages: Sequence[Message], sound: list[int]) -> Decoded:
    places = np.array(sound, np.int64)
    refused = [replace(each, payload=sound[each.payload]) for each in decoded.refused]
    refused += [
        Refused(at, -1, "malformed", message.problem)
        for at, message in enumerate(messages)
        if message.problem
    ]
    payload = places[decoded.payload] if len(sound) else decoded.payload
    return Decoded(decoded.changes, payload, decoded.index, refused)
