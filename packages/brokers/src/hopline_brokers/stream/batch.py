"""One batch of messages: decoded, with the origin of each event; its missing nodes; its version.

`Naming` names versions of the graph by the place in the stream: all hosts that follow it use the same
names. The state of the graph must then depend on the messages alone, not on how a host batches them. So the
stream has one partition, nothing of it may be missing, and two messages that have the same event id are
never in one batch: the outcome of the second one may depend on that of the first. Hosts that keep up also
make the same versions: batches end where a span of the messages' own time ends.

With `--on-unknown-node add`, nodes that events name are created before the events are applied. An added
edge creates its missing ends, with features of zero and without values of columns. Adding a node or
setting its features creates or updates it, as needed. Nodes are never deleted, so known nodes are not
looked up again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.brokers.base import Gap, Message, Position
from hopline.events.decode import Decoded, Decoder
from hopline.events.parts import choose
from hopline.events.payloads import originals, together
from hopline.events.rows import Refused
from hopline.graph.live.changes import Changes, NodeChanges, Rejected
from hopline.graph.live.version import MESSAGES, OFFSET, StreamMessage, digest_of
from hopline.graph.schema import GraphSchema
from hopline.types import ExternalId
from hopline_brokers.stream.dead_letters import DeadLetter, StreamStopped

#: Nodes that are remembered as existing; beyond this, all are forgotten.
_MOST_KNOWN = 1_000_000
#: Of nodes that no edge with a time names.
_LATEST = np.iinfo(np.int64).max


class Upserts:
    """Creates nodes that events name before the events are applied.

    Args:
        schema: of the graph.
    """

    def __init__(self, schema: GraphSchema) -> None:
        self._schema = schema
        self._known: set[tuple[str, ExternalId]] = set()

    def missing(self, changes: Changes) -> Changes:
        """Nodes to add first: all named nodes that are not known to exist."""
        rows: dict[str, dict[ExternalId, tuple[NodeChanges, int] | None]] = {}
        first: dict[tuple[str, ExternalId], int] = {}
        for name, part in changes.nodes.items():
            wanted = rows.setdefault(name, {})
            for row, node in enumerate(_plain(part.ids)):
                if (name, node) not in self._known and (part.remove is None or not part.remove[row]):
                    wanted.setdefault(node, (part, row))
        for key, edges in changes.edges.items():
            adds = (~edges.remove).tolist()
            kind = self._schema.edge_types[key]
            times = [_LATEST] * len(adds) if edges.time is None else edges.time.tolist()
            for node_type, ids in ((kind.src, edges.src), (kind.dst, edges.dst)):
                wanted = rows.setdefault(node_type, {})
                for node, yes, time in zip(_plain(ids), adds, times, strict=True):
                    if yes and (node_type, node) not in self._known:
                        wanted.setdefault(node, None)
                        first[node_type, node] = min(time, first.get((node_type, node), _LATEST))
        nodes: dict[str, NodeChanges] = {}
        count = 0
        for name, wanted in rows.items():
            if wanted:
                times = {node: first.get((name, node), _LATEST) for node in wanted}
                nodes[name] = self._added(name, wanted, times, count)
                count += len(wanted)
        return Changes(nodes=nodes, num_events=count)

    def remember(self, added: Changes) -> None:
        """Remember nodes that the writer has."""
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        for name, part in added.nodes.items():
            self._known.update((name, node) for node in _plain(part.ids))

    def forget(self, changes: Changes) -> None:
        """Forget nodes that are removed."""
        for name, part in changes.nodes.items():
            if part.remove is not None:
                gone = zip(_plain(part.ids), part.remove.tolist(), strict=True)
                self._known.difference_update((name, node) for node, yes in gone if yes)

    def _added(
        self,
        name: str,
        wanted: dict[ExternalId, tuple[NodeChanges, int] | None],
        times: Mapping[ExternalId, int],
        first: int,
    ) -> NodeChanges:
        """Additions of nodes; with a history, as of the row's time, or of an earlier edge's."""
        schema, count = self._schema.node_types[name], len(wanted)
        num_texts = sum(column.type == "text" for column in schema.columns)
        features = np.zeros((count, schema.feature_dim), np.float32)
        cells, texts = (
            np.full((count, len(schema.columns)), np.nan),
            np.full((count, num_texts), None, object),
        )
        time = np.array([*times.values()], np.int64)
        for row, given in enumerate(wanted.values()):
            if given is not None:
                part, at = given
                if part.time is not None:
                    if part.time[at] > time[row]:
                        continue
                    time[row] = part.time[at]
                features[row] = part.features[at]
                if part.cells is not None and part.texts is not None:
                    cells[row], texts[row] = part.cells[at], part.texts[at]
        ids = list(wanted)
        external: Any = np.array(ids, np.int64) if isinstance(ids[0], int) else ids
        order = np.arange(first, first + len(ids), dtype=np.int64)
        since = None if schema.history is None else time
        return NodeChanges(external, np.ones(len(ids), np.bool_), features, order, cells, texts, time=since)


def as_sets(changes: Changes) -> Changes:
    """The same events after all nodes were created: adding a node becomes setting its features."""
    nodes = {name: replace(part, add=np.zeros(len(part), np.bool_)) for name, part in changes.nodes.items()}
    return replace(changes, nodes=nodes)


def _plain(ids: Any) -> Sequence[ExternalId]:
    plain: Sequence[ExternalId] = ids.tolist() if isinstance(ids, np.ndarray) else ids
    return plain


#: From the end of a span until its last message has come, ms.
_SLACK_MS = 5.0
#: What to do about a stream that is not complete.
_ADVICE = "start this host from a snapshot of a host that has them (live.snapshots)"


class Naming:
    """Names versions; see the module.

    Args:
        positions: of the writer, when the stream begins.
        is_first: of the source, see `Source.is_first`.
        span_ms: of the messages' time in one batch, while a host keeps up.
    """

    def __init__(
        self, positions: Mapping[str, Any], is_first: Callable[[Position], bool], span_ms: float = 20.0
    ) -> None:
        self._is_first = is_first
        self._span_ms = max(1, round(span_ms))
        self._is_new = OFFSET not in positions
        self._followed = sorted(name for name in positions if not name.startswith("hopline/"))
        self._partition = ""

    def check(self, messages: Sequence[Message]) -> None:
        """Check messages that were just taken. Raises: StreamStopped: they cannot name versions."""
        for message in messages:
            if not self._partition:
                self._partition = message.partition
                if self._is_new and not self._is_first(message.position):
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

    @staticmethod
    def lost(gap: Gap) -> StreamStopped:
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


#: Dead letters of one message: an event in Arrow has a few bytes, and its dead letter a kilobyte.
MOST_LETTERS = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Messages and their events.

    Attributes:
        changes: every event has an id.
        payload, index: int64 [num_events], message and event in it of each.
        refused: events that cannot be changes of the graph.
    """

    messages: Sequence[Message]
    changes: Changes
    payload: NDArray[np.int64]
    index: NDArray[np.int64]
    refused: Sequence[Refused]

    @property
    def positions(self) -> dict[str, Position]:
        """The positions at which to resume once the batch is done."""
        return {message.partition: message.position for message in self.messages}

    def split(self, count: int) -> tuple[Batch, Batch]:
        """The first `count` messages, and the others."""
        return self._part(0, count), self._part(count, len(self.messages))

    def _part(self, first: int, end: int) -> Batch:
        if (first, end) == (0, len(self.messages)):
            return self
        inside = (first <= self.payload) & (self.payload < end)
        refused = [
            msgspec.structs.replace(each, payload=each.payload - first)
            for each in self.refused
            if first <= each.payload < end
        ]
        changes = choose(self.changes, inside) if inside.any() else Changes()
        return Batch(
            self.messages[first:end], changes, self.payload[inside] - first, self.index[inside], refused
        )

    def until_removal(self, count: int) -> int:
        """Number of messages, of the first `count`, up to the first that removes a node, with this one."""
        nodes = self.changes.nodes.values()
        removed = [self.payload[part.order[part.remove]] for part in nodes if part.remove is not None]
        return min([count, *(int(each.min()) + 1 for each in removed if len(each))])

    def first_foreign(self, count: int) -> tuple[int, str] | None:
        """The first of messages 0 to `count` with events of another schema, and the reason."""
        foreign = [each for each in self.refused if each.code == "schema_changed" and each.payload <= count]
        if not foreign:
            return None
        first = min(foreign, key=lambda each: each.payload)
        message = self.messages[first.payload]
        return first.payload, f"{message.partition} at {message.position}: {first.reason}"

    def letters(self, rejected: Iterable[Rejected]) -> list[DeadLetter]:
        """Dead letters of refused and rejected events, in the order of their messages."""
        found = list(self.refused)
        ids = self.changes.event_ids
        for each in rejected:
            payload, index = int(self.payload[each.order]), int(self.index[each.order])
            found.append(Refused(payload, index, each.code, each.reason, ids[each.order]))
        found.sort(key=lambda each: (each.payload, each.index))
        return [
            letter
            for at, group in groupby(found, attrgetter("payload"))
            for letter in self._letters(at, list(group))
        ]

    def _letters(self, at: int, refused: list[Refused]) -> list[DeadLetter]:
        """Dead letters of one message: one for each event, and one for all after `MOST_LETTERS`."""
        message = self.messages[at]
        first, rest = refused[:MOST_LETTERS], refused[MOST_LETTERS:]
        payloads = originals(message.payload, [each.index for each in first])
        letters = [_letter(message, payload, each) for payload, each in zip(payloads, first, strict=True)]
        if rest:
            payload = together(message.payload, [each.index for each in rest])
            reason = f"{len(rest)} further events; the first: {rest[0].reason}"
            letters.append(
                _letter(message, payload, msgspec.structs.replace(rest[0], reason=reason, event_id=""))
            )
        return letters


def _letter(message: Message, payload: bytes, refused: Refused) -> DeadLetter:
    return DeadLetter(
        payload,
        refused.code,
        refused.reason,
        message.partition,
        str(message.position),
        refused.index,
        refused.event_id,
        message.key,
        message.timestamp_ms,
    )


def read_batch(messages: Sequence[Message], decoder: Decoder) -> Batch:
    """Decode messages; messages with a problem are refused as a whole.

    An event without an id gets one that names its message and its place there. If it is delivered again, it
    is recognised.
    """
    sound = [at for at, message in enumerate(messages) if not message.problem]
    decoded = decoder.decode(
        [messages[at].payload for at in sound], [messages[at].timestamp_ms for at in sound]
    )
    if len(sound) < len(messages):
        decoded = _renumbered(decoded, messages, sound)
    changes = decoded.changes
    ids = changes.event_ids
    if changes.num_events and (not ids or "" in ids):
        given = ids or [""] * changes.num_events
        named = zip(given, decoded.payload.tolist(), decoded.index.tolist(), strict=True)
        starts = [f"{message.partition}@{message.position}#" for message in messages]
        changes = replace(changes, event_ids=[each or f"{starts[at]}{k}" for each, at, k in named])
    return Batch(messages, changes, decoded.payload, decoded.index, decoded.refused)


def _renumbered(decoded: Decoded, messages: Sequence[Message], sound: list[int]) -> Decoded:
    places = np.array(sound, np.int64)
    refused = [msgspec.structs.replace(each, payload=sound[each.payload]) for each in decoded.refused]
    refused += [
        Refused(at, -1, "malformed", message.problem)
        for at, message in enumerate(messages)
        if message.problem
    ]
    payload = places[decoded.payload] if len(sound) else decoded.payload
    return Decoded(decoded.changes, payload, decoded.index, refused)
