"""JSON objects that have a name twice, of which any reader would silently take the last one."""

from __future__ import annotations

import codecs
import json
from typing import Any


class _RepeatedError(Exception):
    pass


def _check(items: list[tuple[str, Any]]) -> None:
    seen = set()
    for name, _ in items:
        if name in seen:
            raise _RepeatedError(name)
        seen.add(name)


_decode = json.JSONDecoder(object_pairs_hook=_check, parse_int=str, parse_float=str).decode


def repeated_name(text: bytes) -> str:
    """A name that comes twice in one object, at any depth; "" where none does.

    Args:
        text: JSON that was read before.

    Takes several times as long as reading: ask where counting makes it likely.
    """
    try:
        _decode(text.removeprefix(codecs.BOM_UTF8).decode())
    except _RepeatedError as found:
        return str(found)
    except (ValueError, RecursionError):  # what msgspec reads and this does not, such as very deep nesting
        return ""
    return ""
