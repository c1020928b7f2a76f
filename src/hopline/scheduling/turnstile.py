"""Turns of the queues that share one event loop.

    flooded model  ▇▇▇▇▇▇▇▇│      │▇▇▇▇▇▇▇▇│▇▇▇▇▇▇▇▇│      │▇▇▇
    quiet model            │ ▇▇▇▇ │        │        │ ▇▇▇▇ │
                   a slice                           it came during the slice before

Of the queues that have something to run, the one goes first that has used the least of the loop. A queue
that was idle begins level with the others, so that it cannot save time up (start-time fair queueing,
Goyal, Vin and Cheng, SIGCOMM 1996). While queues share the loop their batches are bounded by a slice, so
that a new request waits for at most one slice of another queue, and a flood delays only itself.
"""

from __future__ import annotations

#: Seconds for which a queue that had its turn counts as present.
_PRESENT_S = 1.0
#: Shares of the loop by lane of the model's own priority.
SHARES = (4.0, 1.0, 0.25)


class Turnstile:
    """See the module. Used from one event loop."""

    __slots__ = ("floor", "last", "last_at", "shared_until", "waiting")

    def __init__(self) -> None:
        self.waiting: set[Turn] = set()
        self.floor = 0.0
        self.last: Turn | None = None
        self.last_at = self.shared_until = float("-inf")

    def enter(self, share: float = 1.0) -> Turn:
        """A place for one queue, with its share of the loop relative to others."""
        return Turn(self, share)


class Turn:
    """One queue's place.

    Attributes:
        used: seconds of the loop, divided by the share.
    """

    __slots__ = ("_gate", "_share", "used")

    def __init__(self, gate: Turnstile, share: float) -> None:
        self._gate = gate
        self._share = share
        self.used = 0.0

    def wait(self) -> None:
        """The queue has something, and will ask for its turn within this round of the loop or the next."""
        gate = self._gate
        if self.used < gate.floor:
            self.used = gate.floor
        gate.waiting.add(self)

    def must_wait(self) -> bool:
        """True if another waiting queue should go first."""
        waiting = self._gate.waiting
        if len(waiting) < 2:
            return False
        used = self.used
        return any(other.used < used for other in waiting)

    def begin(self, now: float) -> bool:
        """Take the turn; returns True if others share the loop, so that a slice must do."""
        gate = self._gate
        gate.waiting.discard(self)
        gate.floor = self.used
        if self is not gate.last:
            if gate.last is not None and now - gate.last_at < _PRESENT_S:
                gate.shared_until = now + _PRESENT_S
            gate.last = self
        gate.last_at = now
        return now < gate.shared_until

    def end(self, used_s: float) -> None:
        """The loop was kept for `used_s` seconds."""
        self.used += used_s / self._share
