"""One batch of messages, decoded: events with ids, and where each of them came from."""

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

#: Dead letters of one message: a few bytes of Arrow hold an event, and its dead letter takes a kilobyte.
MOST_LETTERS = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Messages and what is in them.

    Attributes:
        changes: every event has an id.
        payload, index: int64 [num_events], message and event in it of each.
        refused: events that are no changes of the graph.
    """

    messages: Sequence[Message]
    changes: Changes
    payload: NDArray[np.int64]
    index: NDArray[np.int64]
    refused: Sequence[Refused]

    @property
    def positions(self) -> dict[str, Position]:
        """Where to go on once all of it is done."""
        return {message.partition: message.position for message in self.messages}

    def letters(self, rejected: Iterable[Rejected]) -> list[DeadLetter]:
        """Dead letters of what was refused and of what the writer rejected, in order of their messages."""
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
        """Of one message: one for each event, and one for all beyond the first `MOST_LETTERS`."""
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
    """Decode messages; those that have a problem are refused whole.

    An event without an id is given one that names its message and its place there: delivered again, it is
    known.
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
    """The first message that has another schema's events, and what is wrong with it; None for none."""
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
