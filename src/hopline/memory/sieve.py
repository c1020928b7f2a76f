"""SIEVE, the eviction policy of every cache here (Zhang et al., NSDI 2024).

New rows enter at the head of a queue. A hand moves from the tail towards the head. It skips the slots that
were visited since its last pass (and clears their flags), and evicts the first slot that was not visited.
A hit moves nothing: readers only set a flag, and so need no locks.

The module handles slots, not their content. No other code contains the policy: the state cache and the L1
feature cache compile these functions into their kernels (`place`), and the response cache
(`answering/response_cache.py`) calls them from Python.

Another policy may replace SIEVE if it keeps this contract, on which the caches rely:

- Readers of any process only set the flag of a slot. They take no lock, and read neither queue nor links.
- A lost or late flag changes only which row is evicted, never what a reader gets.
- Queue and links belong to one writer and its partition. They need no lock, and links are private memory.
  Another process reads at most the number of used slots, for statistics and when it replaces a dead writer.
- `place` returns a slot of the writer's own partition. It takes constant time on average, and allocates
  nothing.
- All zero flags are valid: a new arena needs no initialisation.

The queue is plain arrays, or lists where no kernel walks it:

- queue: int64 [>= QUEUE_WORDS] = slots in use, head, tail, hand (NONE for none);
- newer, older: int32 [slots], the neighbour of each slot towards the head and towards the tail;
- visited: uint8, the flag of slot s is visited[first + s].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hopline.kernels.jit import njit
from hopline.types import AnyArray, IdArray

#: Places in the queue.
USED, HEAD, TAIL, HAND = 0, 1, 2, 3
QUEUE_WORDS = 4
#: No slot, in the queue and in links.
NONE = -1
#: The queue of slots that are all unused.
EMPTY = (0, NONE, NONE, NONE)


def victim(queue: Any, newer: Any, visited: Any, first: int) -> int:
    """Walk the hand to the slot to evict; every slot is in the queue."""
    s = queue[HAND] if queue[HAND] >= 0 else queue[TAIL]
    while visited[first + s] != 0:
        visited[first + s] = 0
        s = newer[s]
        if s < 0:
            s = queue[TAIL]
    queue[HAND] = s
    return s  # type: ignore[no-any-return]


def unlink(queue: Any, newer: Any, older: Any, s: int) -> None:
    """Remove slot s from the queue; a hand that points at it moves on."""
    if queue[HAND] == s:
        queue[HAND] = newer[s]
    if newer[s] >= 0:
        older[newer[s]] = older[s]
    else:
        queue[HEAD] = older[s]
    if older[s] >= 0:
        newer[older[s]] = newer[s]
    else:
        queue[TAIL] = newer[s]


def enter(queue: Any, newer: Any, older: Any, s: int) -> None:
    """Put slot s, which is not in the queue, at the head."""
    older[s] = queue[HEAD]
    newer[s] = NONE
    if queue[HEAD] >= 0:
        newer[queue[HEAD]] = s
    else:
        queue[TAIL] = s
    queue[HEAD] = s


_victim, _unlink, _enter = (njit(inline="always")(each) for each in (victim, unlink, enter))


@njit(inline="always")
def place(queue, newer, older, visited, first):  # type: ignore[no-untyped-def]
    """Return a slot for a new row, now at the head: an unused slot, or else an evicted one.

    The caller resets the flag of the slot returned. Arrays should be `intrinsics.borrowed`: a write to the
    state cache takes 14 ns a row with them, and 43 ns without.
    """
    if queue[USED] < newer.shape[0]:
        s = queue[USED]
        queue[USED] += 1
    else:
        s = _victim(queue, newer, visited, first)
        _unlink(queue, newer, older, s)
    _enter(queue, newer, older, s)
    return s


def line_up(queue: IdArray, links: IdArray, order: IdArray) -> None:
    """Queue slots that are in use already: order int64 [n] names slots 0 to n - 1, oldest first."""
    newer, older = links
    queue[:QUEUE_WORDS] = EMPTY
    queue[USED] = len(order)
    if len(order):
        queue[HEAD], queue[TAIL] = order[-1], order[0]
        newer[order[:-1]], newer[order[-1]] = order[1:], NONE
        older[order[1:]], older[order[0]] = order[:-1], NONE


def empty_line(num_slots: int) -> tuple[IdArray, AnyArray]:
    """(queue, links) of unused slots."""
    return np.array(EMPTY, np.int64), np.full((2, num_slots), NONE, np.int32)
