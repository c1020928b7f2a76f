"""Detection of repeated names in JSON objects. JSON readers would silently use the last value."""

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


#: What can precede the colon after a name.
_BEFORE_COLON = (b'":', b" :", b"\t:", b"\n:", b"\r:")


def may_repeat(text: bytes, num_names: int) -> bool:
    """Return True if decoded JSON may repeat a name in an object, by counting colons.

    True may be wrong if strings contain colons.

    Args:
        text: the JSON text.
        num_names: number of names that were decoded, summed over all objects.
    """
    return text.count(b":") > num_names and sum(map(text.count, _BEFORE_COLON)) > num_names


def repeated_name(text: bytes) -> str:
    """Return a name that is repeated in one object, at any depth; "" if there is none.

    Args:
        text: JSON that was decoded before.

    Needs several times as long as decoding: call it only if `may_repeat` is true.
    """
    try:
        _decode(text.removeprefix(codecs.BOM_UTF8).decode())
    except _RepeatedError as found:
        return str(found)
    except (ValueError, RecursionError):  # msgspec reads it, json does not, for example very deep nesting
        return ""
    return ""
