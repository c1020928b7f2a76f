"""SIEVE, the eviction order of a bounded set of slots (Zhang et al., NSDI 2024).

New rows enter at the head; a hand walks from the tail, spares the slots that were visited since it last
passed (and forgets that they were) and takes the first one that was not. Nothing moves on a hit, so readers
only set a flag: that is what lets them go without locks.

Knows slots, nothing of what is in them. `engine/table.py` has the same walk written out: there a row costs
40 ns to keep, and 84 with a call of `place`; rows that came over a network do not notice.

The list is two arrays, so that kernels can walk it:

- queue: int64 [>= 4] = slots in use, head, tail, hand (-1 for none);
- links: int32 [2, slots], of each slot the one towards the head and the one towards the tail.
"""

from __future__ import annotations

import numpy as np

from hopline.kernels.jit import njit
from hopline.types import IdArray

USED, HEAD, TAIL, HAND = 0, 1, 2, 3


@njit(nogil=True, cache=True)
def place(queue, links, visited, first):  # type: ignore[no-untyped-def]
    """The slot for a new row, a free one or else an evicted one, now at the head.

    visited: uint8, the flag of slot s at [first + s]; that of the slot returned is 0 or free to reset.
    """
    newer, older = links[0], links[1]
    if queue[USED] < links.shape[1]:
        s = queue[USED]
        queue[USED] += 1
    else:
        s = queue[HAND] if queue[HAND] >= 0 else queue[TAIL]
        while visited[first + s] != 0:
            visited[first + s] = 0
            s = newer[s]
            if s < 0:
                s = queue[TAIL]
        queue[HAND] = newer[s]
        if newer[s] >= 0:
            older[newer[s]] = older[s]
        else:
            queue[HEAD] = older[s]
        if older[s] >= 0:
            newer[older[s]] = newer[s]
        else:
            queue[TAIL] = newer[s]
    older[s] = queue[HEAD]
    newer[s] = -1
    if queue[HEAD] >= 0:
        newer[queue[HEAD]] = s
    else:
        queue[TAIL] = s
    queue[HEAD] = s
    return s


def line_up(queue: IdArray, links: IdArray, order: IdArray) -> None:
    """Put slots that are in use already in line: order int64 [n] names slots 0 to n - 1, oldest first."""
    newer, older = links
    queue[:4] = len(order), -1, -1, -1
    if len(order):
        queue[HEAD], queue[TAIL] = order[-1], order[0]
        newer[order[:-1]], newer[order[-1]] = order[1:], -1
        older[order[1:]], older[order[0]] = order[:-1], -1


def empty_line(num_slots: int) -> tuple[IdArray, IdArray]:
    """(queue, links) of slots that nothing uses."""
    return np.array([0, -1, -1, -1], np.int64), np.full((2, num_slots), -1, np.int32)
