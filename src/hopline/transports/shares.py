"""Limits of the objects that a request may build: its share, by the bytes that were sent.

A share is per piece of 64 KiB that was sent (`turnserve/compression.py`). An uncompressed body of one piece
is limited by its size: every decoder needs only a few milliseconds for it. A larger or compressed body is
counted before objects are built from it. A compressed body has the share of the bytes that were sent. No
body has more than the
share of 1 MiB, since building objects holds the interpreter lock and needs up to a hundred bytes for each
byte sent.
"""

from __future__ import annotations

from hopline.errors import RequestTooLarge
from turnserve.budget import Budget
from turnserve.compression import share

#: Values per piece: numbers that are read in place; strings and other numbers.
NUMBERS, STRINGS = 2**20, 2**14
#: Error text if there is no room for a request or an answer.
MEMORY_FULL = f"{Budget.FULL} (server.max_pending_bytes)"
#: Bytes above this add nothing to the share of objects.
_MOST_BYTES = 2**20


def most_objects(amount: int, sent: int, size: int) -> int:
    """Return how many objects a body may contain where a piece may contain `amount`.

    Args:
        sent: bytes as sent.
        size: bytes after decompression; more than `sent` if the body was compressed.
    """
    return share(amount, min(sent, _MOST_BYTES) if sent < size else _MOST_BYTES)


def check_share(name: str, count: int, what: str, most: int, sent: int) -> None:
    """Refuse a count above a sender's share.

    Args:
        most: the share, from `share` or `most_objects`.

    Raises: RequestTooLarge.
    """
    if count > most:
        raise RequestTooLarge(
            f"{name} holds {count} {what}; at most {most} are allowed for {sent} bytes sent: send it in "
            "parts, without compression, and features as binary tensors"
        )
