"""Splits payloads into JSON events, and finds the original bytes of single events.

Independent of any graph. Nothing is built from a payload before its events are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopline.events import arrow_rows, wire
from hopline.events.rows import Refused
from hopline.types import UNREADABLE

#: Events of one payload that are named as unreadable; a payload with this many is refused as a whole.
MAX_UNREADABLE = 1_000
#: Bytes and events of JSON that one call of compiled code reads: meanwhile a thread holds the interpreter
#: lock, for about a millisecond.
_AT_ONCE_BYTES, _SLICE = 256 * 1024, 4_096


def originals(payload: bytes, places: Sequence[int]) -> list[bytes]:
    """Events of a payload as they were sent: its JSON, or an Arrow stream of its row.

    Args:
        places: ascending, as `Refused.index`; all -1 for the payload itself.
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
    # Lines may be invalid JSON, and the texts of a list may have several lines.
    return b"[%b]" % b",".join(texts) if wire.is_list(payload) else b"\n".join(texts)


@dataclass(slots=True)
class JsonEvents:
    """JSON events, with the payload and the place of each."""

    events: list[Any]
    origin: list[int]
    index: list[int]

    def add(self, events: Sequence[Any], at: int, places: Sequence[int]) -> None:
        """Add events of one payload."""
        self.events += events
        self.origin += [at] * len(events)
        self.index += places


def read_json(at: int, payload: bytes, read: JsonEvents, refused: list[Refused]) -> Refused | None:
    """Read the events of a JSON payload; those that cannot be read are refused.

    Returns: the refusal of the whole payload; usually None.
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
    # Lines are read one by one: an event that spans two lines is invalid.
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
                for column in (read.events, read.origin, read.index):
                    del column[begin:]
                return Refused(
                    at,
                    -1,
                    "malformed",
                    f"{MAX_UNREADABLE} of {len(texts)} events cannot be read, and the others were not "
                    f"read; the first, at {bad[0].index}: {bad[0].reason}",
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
