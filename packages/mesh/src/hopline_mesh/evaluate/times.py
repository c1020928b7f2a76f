"""Parses and prints times: Unix seconds, or ISO-8601. Makes names from outside safe to print."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from hopline.config.setting import read_number

#: Valid range, 2000 to 2200; milliseconds or nanoseconds by mistake are far outside.
_FIRST_S, _LAST_S = 946_684_800.0, 7_258_118_400.0


def parse(text: str) -> float | None:
    """Parse `1661140279`, `1661140279.5`, `2022-08-22T03:51:19Z` or `2022-08-22 03:51:19+02:00`.

    Without an offset it is UTC.

    Returns: Unix seconds; None if the text is not a time, or not between 2000 and 2200.
    """
    seconds = read_number(text)
    if seconds is None:
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            return None
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return seconds if math.isfinite(seconds) and _FIRST_S <= seconds <= _LAST_S else None


def unit_hint(text: str) -> str:
    """Return a hint for a number that would be a time in another unit; else ""."""
    number = read_number(text)
    if number is None:
        return ""
    for unit, parts in (("milliseconds", 1000), ("microseconds", 10**6), ("nanoseconds", 10**9)):
        if _FIRST_S <= number / parts <= _LAST_S:
            return f"; this looks like {unit}: divide it by {parts:,}"
    return ""


def clock(seconds: float) -> str:
    """Return a time such as `2022-08-22 03:51:19`, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def plain(text: str) -> str:
    """Replace characters that control a terminal or are invalid in XML by a mark."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
