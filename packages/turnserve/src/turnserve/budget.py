"""A limit of the memory that requests and answers take, for all of a process."""

from __future__ import annotations


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
    FULL = "retry later: the memory for requests and answers that wait is full"

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @classmethod
    def for_bodies(cls, max_body_bytes: int) -> Budget:
        """Return the default budget: room for a body of the largest size, and for smaller ones."""
        return cls(max_body_bytes + cls.ROOM_FOR_OTHERS)

    def has_room(self, num_bytes: int) -> bool:
        """Return True if `take` would reserve this many bytes now."""
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
