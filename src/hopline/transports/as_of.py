"""The time cut of a request, as clients write it: a number of the graph's unit, or ISO 8601."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from hopline.errors import BadRequest, quoted

EXAMPLE = "2011-03-13T07:06:40Z"
_ISO = re.compile(
    r"\d{4}-\d{2}-\d{2}([Tt ]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?([Zz]|[+-]\d{2}:?\d{2})?)?", re.ASCII
)
#: Floats at or beyond it may represent several integers.
_EXACT = 2**53


def read_as_of(value: float | str) -> int | datetime:
    """The cut: an integer, or a moment that knows its time zone. A date is its first moment; UTC is meant
    where no zone is named.

    Args:
        value: an integer; a float that is one, below 2^53; or text, as RFC 3339 has it, or a date alone.

    Raises: BadRequest.
    """
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise BadRequest(f"as_of is {quoted(value)}, beyond 64 bits")
        return value
    if isinstance(value, float):
        if not value.is_integer() or abs(value) >= _EXACT:
            raise BadRequest(
                f"as_of is {value!r}; an integer is needed (a float only if whole and below 2^53), or text "
                f"such as {EXAMPLE!r}"
            )
        return int(value)
    text = value.strip()
    if re.fullmatch(r"[+-]?\d{1,19}", text, re.ASCII):
        raise BadRequest(
            f"as_of is {quoted(value)}, a number as text; send it as a number, or a date with dashes"
        )
    found = _ISO.fullmatch(text)
    if found is None:
        raise BadRequest(f"as_of is {value[:60]!r}; a number, or ISO 8601 such as {EXAMPLE!r}, is needed")
    if found[3] and len(found[3].rstrip("0")) > 7:
        raise BadRequest(
            f"as_of is {quoted(value)}, finer than microseconds; send a number in the graph's unit"
        )
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError as error:
        raise BadRequest(f"as_of is {quoted(value)}: {error}") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
