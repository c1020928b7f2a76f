"""Limits of the memory that requests and answers take, for all of a process, and of a request's share.

A share is per piece of 64 KiB that was sent. An uncompressed body of one piece is limited by its size:
every decoder needs only a few milliseconds for it. A larger or compressed body is counted before objects
are built from it. A compressed body has the share of the bytes that were sent. No body has more than the
share of 1 MiB, since building objects holds the interpreter lock and needs up to a hundred bytes for each
byte sent.
"""

from __future__ import annotations

from hopline.errors import RequestTooLarge

#: Size of a piece. A text up to this size needs no other limit; shares are per piece.
PIECE_BYTES = 64 * 1024
#: Largest decompressed size of a compressed piece, bytes.
TEXT = 4 * 2**20
#: Values per piece: numbers that are read in place; strings and other numbers.
NUMBERS, STRINGS = 2**20, 2**14
#: Bytes above this add nothing to the share of objects.
_MOST_BYTES = 2**20


class Decompressed(bytes):
    """A decompressed body that stores how many bytes of it were sent."""

    sent_bytes: int


def sent_bytes(body: bytes) -> int:
    """Return how many bytes of a body were sent."""
    return body.sent_bytes if isinstance(body, Decompressed) else len(body)


def share(amount: int, sent: int) -> int:
    """Return the share of `sent` bytes where a piece may have `amount`."""
    return amount * max(1, -(-sent // PIECE_BYTES))


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


class Budget:
    """A limit on the bytes of large requests and answers over all connections.

    A request reserves bytes as they arrive, before they are stored. An announced length reserves nothing:
    otherwise a few bytes could block all large requests. A request without room is refused immediately
    (503, RESOURCE_EXHAUSTED). Waiting for room could deadlock: every sender might hold a part and need
    more. An answer reserves its bytes until the client has taken them; without room it becomes a refusal.

    Args:
        limit: bytes.

    Attributes:
        used: bytes reserved now.
    """

    #: Bytes of the default limit in addition to a body of the largest size.
    ROOM_FOR_OTHERS = 32 * 2**20
    #: Error text if there is no room.
    FULL = "the memory for requests and answers that wait is full (server.max_pending_bytes); retry later"

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @classmethod
    def for_bodies(cls, max_body_bytes: int) -> Budget:
        """Return the default budget: room for a body of the largest size, and for smaller ones."""
        return cls(max_body_bytes + cls.ROOM_FOR_OTHERS)

    def has_room(self, num_bytes: int) -> bool:
        """Return whether `take` would reserve this many bytes now."""
        return self.used + num_bytes <= self.limit

    def take(self, num_bytes: int) -> bool:
        """Reserve bytes; if there is no room, return False and reserve nothing."""
        if not self.has_room(num_bytes):
            return False
        self.used += num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        """Release bytes that `take` reserved."""
        self.used -= num_bytes
        assert self.used >= 0
