"""The time limit `as_of` of a request as clients write it: a number in the graph's unit, or ISO 8601."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from hopline.errors import BadRequest, quoted

EXAMPLE = "2011-03-13T07:06:40Z"
_ISO = re.compile(
    r"\d{4}-\d{2}-\d{2}([Tt ]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?([Zz]|[+-]\d{2}:?\d{2})?)?", re.ASCII
)
#: From here on, one float may represent several integers.
_EXACT = 2**53


def read_as_of(value: float | str) -> int | datetime:
    """Return the value as an integer or as a datetime with a time zone.

    A date means its first moment; the default time zone is UTC.

    Args:
        value: an integer; a whole float below 2^53; or text in RFC 3339 form, or a date alone.

    Raises: BadRequest.
    """
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise BadRequest(f"as_of is {quoted(value)}, which does not fit in 64 bits")
        return value
    if isinstance(value, float):
        if not value.is_integer() or abs(value) >= _EXACT:
            raise BadRequest(
                f"as_of is {value!r}; expected an integer (or a whole float below 2^53), or text "
                f"such as {EXAMPLE!r}"
            )
        return int(value)
    text = value.strip()
    if re.fullmatch(r"[+-]?\d{1,19}", text, re.ASCII):
        raise BadRequest(
            f"as_of is {quoted(value)}, a number as text; send a number, or a date with dashes"
        )
    found = _ISO.fullmatch(text)
    if found is None:
        raise BadRequest(f"as_of is {value[:60]!r}; expected a number, or ISO 8601 such as {EXAMPLE!r}")
    if found[3] and len(found[3].rstrip("0")) > 7:
        raise BadRequest(
            f"as_of is {quoted(value)}, finer than microseconds; send a number in the graph's unit"
        )
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError as error:
        raise BadRequest(f"as_of is {quoted(value)}: {error}") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
