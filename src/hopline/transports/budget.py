"""Memory that requests may hold while they arrive: one bound for all connections of a process."""

from __future__ import annotations


class Budget:
    """Bytes of large requests that are not answered yet, over all connections.

    A request reserves what arrives of it before the bytes are stored; an announced length reserves nothing,
    or a few bytes could block all large requests. A request that finds no room is refused immediately (503,
    RESOURCE_EXHAUSTED): waiting for room could not end, since every sender might hold a part and need the
    rest.

    Args:
        limit: bytes.

    Attributes:
        used: bytes that are reserved now.
    """

    #: Largest bodies that the default has room for.
    NUM_BODIES = 4
    #: To the caller who finds no room.
    FULL = (
        "requests that are not answered yet fill the memory for them (server.max_pending_bytes); ask again "
        "later"
    )

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @classmethod
    def for_bodies(cls, max_body_bytes: int) -> Budget:
        """The default where the largest body has so many bytes."""
        return cls(cls.NUM_BODIES * max_body_bytes)

    def has_room(self, num_bytes: int) -> bool:
        """Whether `take` would reserve so many bytes now."""
        return self.used + num_bytes <= self.limit

    def take(self, num_bytes: int) -> bool:
        """Reserve bytes; False where there is no room, and nothing is reserved."""
        if not self.has_room(num_bytes):
            return False
        self.used += num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        """Release bytes that `take` reserved."""
        self.used -= num_bytes
        assert self.used >= 0
