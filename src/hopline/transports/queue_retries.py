"""Messages that wait to be retried: they take no place of a message that can be answered now.

    refused ─┬─ its rate accepts too few before its time is up ─► answered with the error
             ├─ few enough wait ────────────────────────────────► waits, and takes no place
             ├─ its graph version is missing ───────────────────► answered with the error
             └─ else ───────────────────────────────────────────► waits, and takes a place

The last case holds the reader back: a server that refuses everything leaves a backlog at the broker.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from hopline.brokers.base import Message
from hopline.config.schema import QueuesConfig
from hopline.errors import GraphBehind, HoplineError, RateLimited
from hopline.retry import Backoff
from hopline.types import ScoreRequest

#: Messages that may wait without a place, as a multiple of `queues.concurrency`; bytes of their payloads.
_WAITING, _WAITING_BYTES = 16, 64 * 2**20
#: Waits of a message double from the first to the longest, in seconds. They are longer where more messages
#: wait than `_AT_EASE`, so that the tries of all take a small part of the loop.
_FIRST_S, _LONGEST_S, _AT_EASE = 0.02, 1.0, 500


class Retries:
    """See the module.

    Args:
        settings: `concurrency`.

    Attributes:
        num_waiting: messages that wait to be retried.
        num_apart: those of them that take no place of `queues.concurrency`.
    """

    def __init__(self, settings: QueuesConfig) -> None:
        self.num_waiting = 0
        self.num_apart = 0
        self._most = _WAITING * settings.concurrency
        self._bytes = 0
        #: model -> messages that wait for its rate
        self._of_rate: Counter[str] = Counter()

    def backoff(self) -> Backoff:
        """The waits of one message."""
        return Backoff(_FIRST_S, _LONGEST_S)

    def wait_s(self, backoff: Backoff) -> float:
        """Seconds until the next try: longer if many wait."""
        return backoff.next() * max(1.0, self.num_waiting / _AT_EASE)

    def is_vain(
        self, message: Message, request: ScoreRequest, error: HoplineError, left_s: float, *, is_first: bool
    ) -> bool:
        """True if a message is answered with its error now.

        Args:
            message, request: what was refused.
            error: why.
            left_s: until the message may not be retried any more.
            is_first: whether the message was not retried yet.
        """
        if isinstance(error, RateLimited):
            return is_first and 0 < error.per_s * left_s <= self._of_rate[request.model]
        return isinstance(error, GraphBehind) and not self._has_room(message)

    @contextlib.contextmanager
    def waiting(self, message: Message, request: ScoreRequest, error: HoplineError) -> Iterator[None]:
        """The message waits meanwhile."""
        is_apart, size = self._has_room(message), len(message.payload)
        waits_for_rate = isinstance(error, RateLimited)
        self.num_waiting += 1
        self.num_apart += is_apart
        self._bytes += size * is_apart
        self._of_rate[request.model] += waits_for_rate
        try:
            yield
        finally:
            self.num_waiting -= 1
            self.num_apart -= is_apart
            self._bytes -= size * is_apart
            self._of_rate[request.model] -= waits_for_rate
            if not self._of_rate[request.model]:
                del self._of_rate[request.model]

    def _has_room(self, message: Message) -> bool:
        return self.num_apart < self._most and self._bytes + len(message.payload) <= _WAITING_BYTES
