"""Names of others as people can be shown them."""

from __future__ import annotations


def plain(text: str) -> str:
    """The text without what a terminal obeys and XML cannot write; a mark stands in its place."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
