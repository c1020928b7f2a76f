"""Names in gRPC messages: of models, versions and services."""

from __future__ import annotations

import re
from typing import Any

from hopline.errors import BadRequest

#: Characters of a name; no file system takes many more, and an error's text repeats it.
MAX_NAME_LENGTH = 200
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


def check_name(field: str, name: str) -> None:
    """Refuse what names nothing.

    Args:
        field: of the message.
        name: its value.

    Raises: BadRequest: too long, or with NUL or another control character.
    """
    if len(name) > MAX_NAME_LENGTH:
        raise BadRequest(
            f"{field} has {len(name)} characters; at most {MAX_NAME_LENGTH} are allowed: "
            f"{name[:MAX_NAME_LENGTH]!r}…"
        )
    if not name.isprintable() and _CONTROLS.search(name):  # the first is quick
        raise BadRequest(f"{field} has a control character: {name!r}")


def check_names(request: Any) -> None:
    """Refuse a message with a field of text that names nothing.

    Raises: BadRequest.
    """
    for field, value in request.ListFields():
        if isinstance(value, str):
            check_name(field.name, value)
