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


#: What may stand before the colon behind a name.
_BEFORE_COLON = (b'":', b" :", b"\t:", b"\n:", b"\r:")


def may_repeat(text: bytes, num_names: int) -> bool:
    """Whether JSON that was read may have a repeated name, found by counting.

    Yes may be wrong, where strings hold colons.

    Args:
        text: that was read.
        num_names: names that were found in it, each object's for itself.
    """
    return text.count(b":") > num_names and sum(map(text.count, _BEFORE_COLON)) > num_names


def repeated_name(text: bytes) -> str:
    """A name that is repeated in one object, at any depth; "" where none is.

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
