"""Names versions of the graph by the place in the stream: all hosts that follow it use the same names.

The state of the graph must then depend on the messages alone, not on how a host batches them. So the stream
has one partition, nothing of it may be missing, and two messages that have the same event id are never in
one batch: the outcome of the second one may depend on that of the first.

Hosts that keep up also make the same versions: batches end where a span of the messages' own time ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hopline.brokers.base import Gap, Message
from hopline.graph.live.version import MESSAGES, OFFSET, StreamMessage, digest_of
from hopline.jobs.stream.batch import Batch
from hopline.jobs.stream.dead_letters import StreamStopped

#: From the end of a span until its last message has come, ms.
_SLACK_MS = 5.0
#: What to do about a stream that is not complete.
_ADVICE = "start this host from a snapshot of a host that has them (live.snapshots)"


class Naming:
    """See the module.

    Args:
        positions: of the writer, when the stream begins.
        span_ms: of the messages' time in one batch, while a host keeps up.
    """

    def __init__(self, positions: Mapping[str, Any], span_ms: float = 20.0) -> None:
        self._span_ms = max(1, round(span_ms))
        self._is_first = OFFSET not in positions
        self._followed = sorted(name for name in positions if not name.startswith("hopline/"))
        self._partition = ""

    def check(self, messages: Sequence[Message]) -> None:
        """Check messages that were just taken. Raises: StreamStopped: they cannot name versions."""
        for message in messages:
            if not self._partition:
                self._partition = message.partition
                if self._is_first and not _begins(message):
                    raise StreamStopped(
                        f"{message.partition} begins at {message.position}: earlier messages are gone; "
                        f"{_ADVICE}"
                    )
                if self._followed and message.partition not in self._followed:
                    raise StreamStopped(
                        f"the graph has followed {', '.join(self._followed)}, and live.stream is "
                        f"{message.partition}: follow that one, or use an empty live folder "
                        "(and live.snapshots of this stream)"
                    )
            elif message.partition != self._partition:
                raise StreamStopped(
                    f"the stream has the partitions {self._partition} and {message.partition}, which have "
                    "no common order; follow a topic with one partition, or one partition of it "
                    "(kafka://…?partition=0)"
                )

    def complete(self, messages: Sequence[Message], now_ms: float) -> tuple[int, float]:
        """(number of messages that make whole spans, seconds until the others do).

        The last span is whole when a later message has come, or when its time is over.
        """
        if not messages:
            return 0, 0.0
        span = messages[-1].timestamp_ms // self._span_ms
        left_ms = (span + 1) * self._span_ms + _SLACK_MS - now_ms
        if not 0.0 < left_ms <= 2 * self._span_ms + _SLACK_MS:  # over, or of another clock
            return len(messages), 0.0
        count = len(messages)
        while count and messages[count - 1].timestamp_ms // self._span_ms == span:
            count -= 1
        return count, left_ms / 1e3

    def lost(self, gap: Gap) -> StreamStopped:
        """The error of messages that are missing."""
        lost = "some" if gap.lost is None else gap.lost
        return StreamStopped(f"{gap.partition}: {lost} messages are missing ({gap.reason}); {_ADVICE}")

    def repeats(self, batch: Batch) -> int:
        """The first message that has an event id of an earlier message; the number of messages if none."""
        ids = batch.changes.event_ids
        if len(set(ids)) == len(ids):
            return len(batch.messages)
        first: dict[str, int] = {}
        for event_id, at in zip(ids, batch.payload.tolist(), strict=True):
            if first.setdefault(event_id, at) < at:
                return int(at)
        return len(batch.messages)

    def stored(self, batch: Batch) -> dict[str, Any]:
        """Names for the writer of the version after a batch."""
        counts = [0] * len(batch.messages)
        for at in batch.payload.tolist():
            counts[at] += 1
        messages = zip(batch.messages, counts, strict=True)
        return {
            MESSAGES: [
                list(StreamMessage(_place(each.position), digest_of(each.payload), count))
                for each, count in messages
            ]
        }


def _place(position: int | str) -> int | str:
    return position if isinstance(position, int) else position.partition("@")[0]


def _begins(message: Message) -> bool:
    """True if no message was before this one, as far as its position tells."""
    position = message.position
    if isinstance(position, int):
        return position == (2 if message.partition.startswith("nats/") else 1)
    return position.partition("@")[2] in ("", "1")
