"""What a request may cost the others: so much for each piece of 64 KiB that its sender sent.

A body of one piece that is not compressed is bounded by its size: every decoder takes a few milliseconds
for it, whatever it says. A larger body, or a compressed one, is counted before anything is built of it. A
compressed body has the share of the bytes that were sent; no body has more than the share of 1 MiB, since
building holds the interpreter's lock, and makes up to a hundred bytes of one that was sent.
"""

from __future__ import annotations

from hopline.errors import RequestTooLarge

#: A text of up to so many bytes is bounded by its size; a sender's share is so much for each piece of them.
PIECE_BYTES = 64 * 1024
#: Bytes that a compressed piece may become.
TEXT = 4 * 2**20
#: Values that a piece may hold: numbers that are read in place, strings and numbers that are not.
NUMBERS, STRINGS = 2**20, 2**14
#: The most bytes that bring a share of what objects are made of.
_MOST_BYTES = 2**20


class Decompressed(bytes):
    """A body, and how many bytes of it were sent."""

    sent_bytes: int


def sent_bytes(body: bytes) -> int:
    """How many bytes of a body came over the wire."""
    return body.sent_bytes if isinstance(body, Decompressed) else len(body)


def share(amount: int, sent: int) -> int:
    """What `sent` bytes may bring where a piece may bring `amount`."""
    return amount * max(1, -(-sent // PIECE_BYTES))


def most_objects(amount: int, sent: int, size: int) -> int:
    """How many objects a body may bring where a piece may bring `amount`.

    Args:
        sent: bytes as they came.
        size: bytes as they are read; more than `sent` where the body was compressed.
    """
    return share(amount, min(sent, _MOST_BYTES) if sent < size else _MOST_BYTES)


def check_share(name: str, count: int, what: str, most: int, sent: int) -> None:
    """Refuse more than a sender's share.

    Args:
        most: the share, by `share` or `most_objects`.

    Raises: RequestTooLarge.
    """
    if count > most:
        raise RequestTooLarge(
            f"{name} holds {count} {what}; at most {most} are read where {sent} bytes were sent: send it "
            "in parts, without compression, and features as binary tensors"
        )
