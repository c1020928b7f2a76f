"""Makes names from outside safe to show."""

from __future__ import annotations


def plain(text: str) -> str:
    """Replace characters that control a terminal or are invalid in XML by a mark."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
