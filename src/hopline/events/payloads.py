"""Payloads taken apart: into JSON events, and into what was sent of single events.

Knows no graph. Nothing is built of a payload before it is known how many events it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopline.events import arrow_rows, wire
from hopline.events.rows import Refused
from hopline.types import UNREADABLE

#: Events of one payload that are named as unreadable; a payload with so many is refused whole.
MAX_UNREADABLE = 1_000
#: Bytes and events of JSON that one call of compiled code reads: a thread that reads a large payload holds
#: the interpreter lock for so long, about a millisecond.
_AT_ONCE_BYTES, _SLICE = 256 * 1024, 4_096


def originals(payload: bytes, places: Sequence[int]) -> list[bytes]:
    """Events of a payload as they were sent: its JSON, or an Arrow stream of its row.

    Args:
        places: ascending, as `Refused.index`; all of them -1 for the payload itself.
    """
    if all(at < 0 for at in places):
        return [payload] * len(places)
    if payload.startswith(arrow_rows.MAGIC):
        return arrow_rows.each_row(payload, places)
    texts = wire.split(payload)
    return [payload] * len(places) if isinstance(texts, str) else [texts[at] for at in places]


def together(payload: bytes, places: Sequence[int]) -> bytes:
    """Some events of a payload as one payload; places as for `originals`."""
    if places[0] < 0:
        return payload
    if payload.startswith(arrow_rows.MAGIC):
        return arrow_rows.some_rows(payload, places)
    texts = originals(payload, places)
    # Lines may be no JSON, and the texts of a list may have several lines.
    return b"[%b]" % b",".join(texts) if wire.is_list(payload) else b"\n".join(texts)


@dataclass(slots=True)
class JsonEvents:
    """JSON events, and of each the payload that it came from, and its place there."""

    events: list[Any]
    origin: list[int]
    index: list[int]

    def add(self, events: Sequence[Any], at: int, places: Sequence[int]) -> None:
        """Events of one payload."""
        self.events += events
        self.origin += [at] * len(events)
        self.index += places

    def cut(self, length: int) -> None:
        """Forget all but the first ones."""
        for column in (self.events, self.origin, self.index):
            del column[length:]


def read_json(at: int, payload: bytes, read: JsonEvents, refused: list[Refused]) -> Refused | None:
    """Read the events of a JSON payload; those that cannot be read are refused.

    Returns: the refusal of the payload, of which nothing is read; None as a rule.
    """
    if len(payload) <= _AT_ONCE_BYTES:
        try:
            found = wire.read_any(payload)
        except UNREADABLE:
            pass
        else:
            events = found if type(found) is list else [found]
            read.add(events, at, range(len(events)))
            return None
    try:
        texts = wire.split(payload)
    except wire.TooMany as error:
        return Refused(at, -1, "too_large", str(error))
    if isinstance(texts, str):
        return Refused(at, -1, "malformed", texts)
    bad: list[Refused] = []
    begin = len(read.events)
    # Lines are read one by one: halves of events that stand on two lines are no event.
    groups = _groups(texts) if wire.is_list(payload) else [(0, texts)]
    for first, group in groups:
        all_read = wire.read_list(group) if group is not texts else None
        if all_read is not None:
            read.add(all_read, at, range(first, first + len(all_read)))
            continue
        events, places = [], list[int]()
        for place, text in enumerate(group, first):
            event = wire.read_event(text)
            if not isinstance(event, str):
                events.append(event)
                places.append(place)
                continue
            bad.append(Refused(at, place if len(texts) > 1 else -1, "malformed", event))
            if len(bad) == MAX_UNREADABLE:
                read.cut(begin)
                return Refused(
                    at,
                    -1,
                    "malformed",
                    f"{MAX_UNREADABLE} of {len(texts)} events cannot be read, and the rest was not looked "
                    f"at; the first, at {bad[0].index}: {bad[0].reason}",
                )
        read.add(events, at, places)
    refused += bad
    return None


def _groups(texts: Sequence[bytes]) -> Iterator[tuple[int, Sequence[bytes]]]:
    """Texts that are read by one call, and the place of the first of them."""
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    first = 0
    while first < len(texts):
        before = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, before + _AT_ONCE_BYTES))
        end = min(max(last, first + 1), first + _SLICE, len(texts))
        yield first, texts[first:end]
        first = end
