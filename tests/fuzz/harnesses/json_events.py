"""Events as JSON: refused or read, each event once, and as many as the standard library counts."""

from __future__ import annotations

import json

from hopline.events.decode import Decoded, Decoder
from hopline.events.payloads import originals
from tests.events.events_of_people import SHOP, events_of
from tests.fuzz.fed import check_text

_decoder = Decoder(SHOP)


def check(data: bytes) -> None:
    """Args: data: a payload."""
    decoded = _decoder.decode([data])
    check_refusals(decoded, data)
    events = events_of(decoded.changes)
    try:
        read = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return
    if any(each.index < 0 for each in decoded.refused):
        return
    sent = read if isinstance(read, list) else [read]
    assert len(events) + len(decoded.refused) == len(sent)
    for event, index in zip(events, decoded.index.tolist(), strict=True):
        assert event["op"] == sent[index]["op"]
        for name in ("src", "dst", "node"):
            assert event.get(name) == sent[index].get(name)


def check_refusals(decoded: Decoded, payload: bytes) -> None:
    """What is refused has a short reason, and can be put aside as it came."""
    indexes = [each.index for each in decoded.refused] + decoded.index.tolist()
    assert len(set(indexes)) == len(indexes) == len(decoded.refused) + decoded.changes.num_events
    for each in decoded.refused[:8]:
        check_text(each.reason)
        assert originals(payload, [each.index]) or not payload
