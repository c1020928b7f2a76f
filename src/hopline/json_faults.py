"""Faults of JSON: reasons of a decoder, in plain words, and repeated names, which it does not see."""

from __future__ import annotations

import codecs
import json
import re
from typing import Any

_BYTE = re.compile(r"\(byte (\d+)\)$")
#: The first half of a surrogate pair, which another letter follows than the escape of the second half.
_LONE = re.compile(rb"(?<!\\)\\u[dD][89abAB][0-9a-fA-F]{2}(?:[^\\]|\\[^u])")
#: msgspec takes a body for truncated if fewer bytes than a second half follow.
_END = 16


def syntax(error: BaseException, body: bytes) -> str:
    """The text of a decoder's error, with the cause if JSON lacks what was written.

    Args:
        error: of msgspec. body: the text that it decoded.
    """
    text = str(error)
    place = _BYTE.search(text)
    if place and body[int(place[1]) :].startswith((b"NaN", b"Infinity")):
        return f"{text}: JSON has no NaN and no Infinity; send finite numbers"
    if "surrogate" in text or ("truncated" in text and _LONE.search(body[-_END:])):
        return "a string has a lone surrogate (half of a pair such as \\ud83d\\ude00), which is not text"
    return text


def _check(items: list[tuple[str, Any]]) -> None:
    seen = set()
    for name, _ in items:
        if name in seen:
            raise KeyError(name)
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
    except KeyError as found:
        return str(found.args[0])
    except (ValueError, RecursionError):  # msgspec reads it, json does not, for example very deep nesting
        return ""
    return ""
