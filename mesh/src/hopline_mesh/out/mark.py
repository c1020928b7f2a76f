"""What people say of an incident: seen, muted, or not an incident."""

from __future__ import annotations

from typing import Literal

import msgspec

from hopline.errors import BadRequest

#: `acknowledged`: someone looks after it. `muted`: its alert ends; the page still shows it.
#: `not_an_incident`: as muted, and the next training learns from its time as normal.
MarkKind = Literal["acknowledged", "muted", "not_an_incident"]


class Mark(msgspec.Struct, frozen=True):
    """A mark on an incident.

    Attributes:
        kind: see `MarkKind`.
        by: who set it, for people; "" if unknown.
        at_s: when, Unix seconds.
    """

    kind: MarkKind
    by: str = ""
    at_s: float = 0.0


class MarkRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: a mark, or null to remove it."""

    mark: MarkKind | None
    by: str = ""


_LONGEST_BY = 100


def read_mark(body: bytes) -> MarkRequest:
    """Parse the body of a request.

    Raises:
        BadRequest: the body is invalid.
    """
    try:
        found = msgspec.json.decode(body, type=MarkRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(
            f'the body must be such as {{"mark": "acknowledged", "by": "ada"}}: {error}'
        ) from None
    if len(found.by) > _LONGEST_BY:
        raise BadRequest(f"by: longer than {_LONGEST_BY} characters")
    return found
