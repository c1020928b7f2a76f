"""Reasons why text is not JSON, in plainer words than those of msgspec."""

from __future__ import annotations

import re

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
