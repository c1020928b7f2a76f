"""Checks of names in gRPC messages: models, versions and services."""

from __future__ import annotations

import re
from typing import Any

from hopline.errors import BadRequest

#: Characters of a name; file systems allow few more, and error texts quote it.
MAX_NAME_LENGTH = 200
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


def check_name(field: str, name: str) -> None:
    """Refuse an invalid name.

    Args:
        field: field of the message.
        name: the value.

    Raises: BadRequest: too long, or with NUL or another control character.
    """
    if len(name) > MAX_NAME_LENGTH:
        raise BadRequest(
            f"{field} has {len(name)} characters; at most {MAX_NAME_LENGTH} are allowed: "
            f"{name[:MAX_NAME_LENGTH]!r}…"
        )
    if not name.isprintable() and _CONTROLS.search(name):  # isprintable is fast
        raise BadRequest(f"{field} has a control character: {name!r}")


def check_names(request: Any) -> None:
    """Refuse a message with an invalid name in a text field.

    Raises: BadRequest.
    """
    for field, value in request.ListFields():
        if isinstance(value, str):
            check_name(field.name, value)
