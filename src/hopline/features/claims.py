"""Claims: which process of a host fetches a row (single flight among processes).

Each node has one 64-bit word in shared memory: the deadline (ms, upper 48 bits) and the process (its number
+ 1, lower 16 bits); 0 if no process fetches. It changes only by compare-and-swap, so of all processes that
need a row exactly one fetches it. A claim that its process does not end (for example because it died) ends
at its deadline.

This file does not depend on rows. All zero bytes are valid: no claims.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopline.kernels.intrinsics import compare_exchange
from hopline.kernels.jit import njit
from hopline.memory.arena import Arena, array_bytes
from hopline.types import IdArray

_OWNER_BITS = np.int64(16)
_OWNER_MASK = np.int64((1 << 16) - 1)
#: Limit of distinguishable processes.
MAX_OWNERS = (1 << 16) - 1


@njit(nogil=True, cache=True)
def _take(claims, ids, owner, now, deadline, taken):  # type: ignore[no-untyped-def]
    wanted = (deadline << _OWNER_BITS) | owner
    for i in range(ids.shape[0]):
        taken[i] = False
        while True:
            seen = claims[ids[i]]
            if seen & _OWNER_MASK != owner and now < seen >> _OWNER_BITS:
                break
            if compare_exchange(claims, ids[i], seen, wanted):
                taken[i] = True
                break


@njit(nogil=True, cache=True)
def _end(claims, ids, owner):  # type: ignore[no-untyped-def]
    """End the claims of `owner`, or of all processes if it is 0."""
    for i in range(ids.shape[0]):
        seen = claims[ids[i]]
        # If the swap fails, another process has just taken the claim, and will end it.
        if seen != 0 and (owner == 0 or seen & _OWNER_MASK == owner):
            compare_exchange(claims, ids[i], seen, np.int64(0))


@njit(nogil=True, cache=True)
def _others(claims, ids, owner, now, pending):  # type: ignore[no-untyped-def]
    for i in range(ids.shape[0]):
        seen = claims[ids[i]]
        pending[i] = seen & _OWNER_MASK != owner and now < seen >> _OWNER_BITS


class Claims:
    """The claims on one node type's rows. Times: int64 milliseconds, on a clock of all processes."""

    def __init__(self, arena: Arena, num_nodes: int, process: int) -> None:
        self._claims = arena.take((num_nodes,), np.int64)
        self._owner = process + 1

    @staticmethod
    def num_bytes(num_nodes: int) -> int:
        """Return the bytes that they need in the arena."""
        return array_bytes((num_nodes,), np.int64)

    def take(self, ids: IdArray, now_ms: int, deadline_ms: int) -> NDArray[np.bool_]:
        """Claim ids (int64 [n]) until `deadline_ms`; bool [n], false where another process has a claim.

        A process's own claim is renewed, and reported as taken.
        """
        taken = np.empty(ids.shape[0], np.bool_)
        _take(self._claims, ids, self._owner, now_ms, deadline_ms, taken)
        return taken

    def release(self, ids: IdArray) -> None:
        """End this process's claims on ids; claims of other processes stay."""
        _end(self._claims, ids, self._owner)

    def end(self, ids: IdArray) -> None:
        """End all claims on ids."""
        _end(self._claims, ids, 0)

    def pending(self, ids: IdArray, now_ms: int) -> NDArray[np.bool_]:
        """Return bool [n], true where another process has a claim."""

        pending = np.empty(ids.shape[0], np.bool_)
        _others(self._claims, ids, self._owner, now_ms, pending)
        return pending
