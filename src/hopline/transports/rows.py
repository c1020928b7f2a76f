"""Conversion and checks of rows, and of request options in parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

import msgspec

from hopline.errors import BadRequest, RequestTooLarge, quoted
from hopline.graph.cell_text import read_text
from hopline.request_fields import RequestField
from hopline.transports.json_body import named_place, refuse_repeated
from hopline.types import Priority
from turnserve.compression import PIECE_BYTES

EXAMPLE = "2011-03-13T07:06:40Z"
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
    try:
        moment: datetime | None = read_text("timestamp", text)
    except ValueError as error:
        raise BadRequest(f"as_of is {error}; expected a number, or ISO 8601 such as {EXAMPLE!r}") from None
    if moment is None:
        raise BadRequest(f"as_of is {value!r}; expected a number, or ISO 8601 such as {EXAMPLE!r}")
    return moment


#: A value of a column or an attribute.
Scalar: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | float | str | bool | None

#: Triton's numbers: 0 is the default, 1 is the most urgent.
_PRIORITIES: dict[object, Priority] = {each: each for each in get_args(Priority)} | {0: "normal", 1: "high"}

#: Types of JSON parameters, for messages.
_WANTED: dict[Any, str] = {dict: "object of strings, numbers and booleans", tuple: "list"}


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Convert rows with equal columns to columns.

    Raises:
        BadRequest: there are no rows, or one has other columns than the first; with both names.
    """
    if not rows:
        raise BadRequest("rows is empty; send at least one row")
    first = rows[0]
    if len(rows) == 1:
        return {name: [value] for name, value in first.items()}
    names = first.keys()
    for number, row in enumerate(rows):
        if row.keys() != names:
            absent = [name for name in names if name not in row]
            if absent:
                raise BadRequest(
                    f"rows[{number}] has no column {quoted(absent[0])}, which rows[0] has; send null"
                )
            added = next(name for name in row if name not in names)
            raise BadRequest(f"rows[{number}] has column {quoted(added)}, which rows[0] does not have")
    return {name: [row[name] for row in rows] for name in names}


def priority_of(value: object) -> Priority:
    """Return a priority from its name or Triton's number.

    Raises:
        BadRequest: the value is neither.
    """
    if isinstance(value, str) and len(value) < 20 and value.isascii() and value.isdecimal():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value > 1:
        return "low"
    found = None if isinstance(value, bool | float) else _PRIORITIES.get(value)
    if found is None:
        raise BadRequest(
            "parameter priority must be 'high', 'normal' or 'low', or a whole number (0 is the default, 1 "
            f"the most urgent), not {quoted(value)}"
        )
    return found


def time_limit_of(value: object) -> float | None:
    """Return a time limit from a number or text; None if it is not positive, infinite or not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        limit = math.nan if isinstance(value, str) and "_" in value else float(value)
    except (ValueError, OverflowError):  # an integer may be too large for a float
        return None
    return limit if 0 < limit < math.inf else None


def option_of(field: RequestField, value: object) -> Any:
    """Read an option of a request from a parameter, which is a string, a number or a bool.

    Raises: BadRequest: the value is invalid for the field.
    """
    if field.name == "priority":  # Triton has numbers for priorities
        return priority_of(value)
    kind = get_origin(field.sent_as)
    if field.sent_as is bool:  # see `check_parameters`
        return value
    if kind is Annotated:
        inner = get_args(field.sent_as)[0]
        kind = get_origin(inner)
        if inner is str and value == "":
            raise BadRequest(f"parameter {field.sent_name} is empty; leave it out or give it a value")
    if kind is Literal:
        choices = get_args(field.sent_as)
        if value not in choices:
            words = " or ".join(map(repr, choices))
            raise BadRequest(f"parameter {field.sent_name} must be {words}, not {quoted(value)}")
        return value
    if kind is None:
        if not isinstance(value, str):
            raise BadRequest(f"parameter {field.sent_name} must be a string, not {quoted(value)}")
        return value
    wanted = f"parameter {field.sent_name} must be a JSON {_WANTED[kind]}"
    if not isinstance(value, str):
        raise BadRequest(f"{wanted}, in a string, not {quoted(value)}")
    if kind is tuple and len(value) > PIECE_BYTES:
        raise RequestTooLarge(
            f"parameter {field.sent_name} has {len(value)} characters; at most {PIECE_BYTES}"
        )
    try:
        found = msgspec.json.decode(value, type=field.sent_as)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise BadRequest(f"{wanted}: {named_place(str(error), value.encode(errors='replace'))}") from None
    refuse_repeated(value.encode(), len(found) if type(found) is dict else 0)
    return found
