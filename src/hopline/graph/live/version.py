"""Names of versions of a live graph: what they look like, and which of two is later.

    9c1f0b7e52d4a386                               the original graph
    9c1f0b7e52d4a386+7                             7 changes that this host counted itself
    9c1f0b7e52d4a386+7.5f3a9c01b2d4                the stream up to message 7, the same on all hosts
    9c1f0b7e52d4a386+1700000000000-0.5f3a9c01b2d4  the same, of a Redis stream

The last part is a digest of all messages until then and of the outcome of each of their events. Hosts that
read another stream, began elsewhere in it, or judged an event otherwise, have other digests. So equal names
mean equal graphs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hopline.errors import BadRequest, quoted

#: Among the positions that are stored with a batch: the offset that the batch ends at, as text.
OFFSET = "hopline/offset"
#: The same, on the way to the writer: the messages of the batch, as lists of `StreamMessage`.
MESSAGES = "hopline/messages"
#: `StreamOffset.major` where no stream names the version, and where an offset is one number.
UNNAMED, PLAIN = -1, -2
#: Outcomes of events, for the digest.
APPLIED, DUPLICATE, REJECTED = 0, 1, 2
_DIGEST_BYTES = 6
_OFFSET = r"(?P<offset>\d{1,18}(?:-\d{1,18})?)(?:\.(?P<digest>[0-9a-f]{12}))?"
_VERSION = re.compile(rf"(?P<lineage>[0-9a-f]{{16}})(?:\+{_OFFSET})?", re.ASCII)
_STORED = re.compile(_OFFSET, re.ASCII)


class StreamOffset(NamedTuple):
    """A place in a stream; three integers that shared memory can hold.

    Attributes:
        major: `UNNAMED`, `PLAIN`, or the first number of an offset of two.
        minor: the other number.
        digest: of the messages until then; -1 if unknown.
    """

    major: int = UNNAMED
    minor: int = 0
    digest: int = -1

    @property
    def is_named(self) -> bool:
        """True if it is a place in a stream at all."""
        return self.major != UNNAMED

    def reaches(self, wanted: StreamOffset) -> bool | None:
        """True if it is not before another one; None if the two are not of one stream."""
        if (self.major == PLAIN) != (wanted.major == PLAIN) or not self.is_named:
            return None
        if self[:2] == wanted[:2] and -1 not in (self.digest, wanted.digest):
            return True if self.digest == wanted.digest else None
        return self[:2] >= wanted[:2]

    @property
    def order(self) -> tuple[bool, int, int]:
        """Sorts the places of one stream; that of the original graph is the first."""
        return self.is_named, self.major, self.minor

    def __str__(self) -> str:
        number = str(self.minor) if self.major == PLAIN else f"{self.major}-{self.minor}"
        return number if self.digest < 0 else f"{number}.{self.digest:0{2 * _DIGEST_BYTES}x}"


class StreamMessage(NamedTuple):
    """A message of a batch, as the writer sees it.

    Attributes:
        position: of the broker, after the message.
        digest: of its payload.
        num_events: of its events that are in the batch, in a row.
    """

    position: int | str
    digest: int
    num_events: int


#: No stream names the version.
NO_OFFSET = StreamOffset()


class GraphVersion(NamedTuple):
    """A parsed name.

    Attributes:
        lineage: snapshot id of the original graph.
        offset: what follows "+"; without a digest it may also be a host's own count.
    """

    lineage: str
    offset: StreamOffset = NO_OFFSET


def offset_at(position: int | str, digest: int = -1) -> StreamOffset:
    """The offset of a broker's position: a number, or "<ms>-<n>" and what may follow "@".

    Raises: BadRequest: it has another form.
    """
    text = str(position).partition("@")[0]
    found = _STORED.fullmatch(text)
    if found is None or found["digest"]:
        raise BadRequest(f"position {quoted(position)} is neither a number nor two with a dash")
    return _offset(text)._replace(digest=digest)


def read_offset(text: str) -> StreamOffset:
    """The inverse of `str`. Raises: BadRequest."""
    found = _STORED.fullmatch(text)
    if found is None:
        raise BadRequest(f"offset {quoted(text)} is malformed")
    return _offset(found["offset"], found["digest"])


def offset_in(positions: Mapping[str, Any]) -> StreamOffset:
    """The place in the stream among stored positions."""
    named = positions.get(OFFSET)
    return NO_OFFSET if named is None else read_offset(named)


def read_version(text: str, what: str) -> GraphVersion:
    """Parse a name.

    Args:
        what: the field that has it, for errors.
    Raises: BadRequest.
    """
    found = _VERSION.fullmatch(text)
    if found is None:
        raise BadRequest(
            f"{what} is {quoted(text)}; expected a graph_version of an answer, such as 9c1f0b7e52d4a386+7"
        )
    if found["offset"] is None:
        return GraphVersion(found["lineage"])
    return GraphVersion(found["lineage"], _offset(found["offset"], found["digest"]))


def lineage_of(text: str) -> str:
    """The part of a name that says which graph it was at first."""
    return text.partition("+")[0]


def version_name(lineage: str, sequence: int, offset: StreamOffset = NO_OFFSET) -> str:
    """The name of a version: by the stream's offset if it has one, else by the host's count."""
    if offset.major != UNNAMED:
        return f"{lineage}+{offset}"
    return f"{lineage}+{sequence}" if sequence else lineage


def digest_of(payload: bytes) -> int:
    """The digest of the payload of one message."""
    return int.from_bytes(hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest(), "little")


def advanced(lineage: str, offset: StreamOffset, messages: Sequence[Any], outcomes: bytes) -> StreamOffset:
    """The offset after messages.

    Args:
        lineage: of the graph.
        offset: before them; `NO_OFFSET` if they are the first ones.
        messages: `StreamMessage`s, or lists of the same values.
        outcomes: one byte for each event of all messages, in order: `APPLIED`, `DUPLICATE` or `REJECTED`.
    Raises: BadRequest: they are not after the offset, or do not have as many events.
    """
    digest = digest_of(lineage.encode()) if offset.digest < 0 else offset.digest
    at = 0
    for each in messages:
        message = StreamMessage(*each)
        place = offset_at(message.position)
        if offset.is_named and (not place.reaches(offset) or place[:2] == offset[:2]):
            raise BadRequest(f"the graph has message {place} already: it is at {offset}")
        until = at + message.num_events
        parts = f"{digest:x} {place} {message.digest:x} ".encode() + outcomes[at:until]
        offset = place._replace(digest=digest_of(parts))
        digest, at = offset.digest, until
    if at != len(outcomes):
        raise BadRequest(f"the messages of a batch have {at} events; it has {len(outcomes)}")
    return offset


def _offset(text: str, digest: str | None = None) -> StreamOffset:
    major, dash, minor = text.partition("-")
    known = -1 if digest is None else int(digest, 16)
    return StreamOffset(int(major), int(minor), known) if dash else StreamOffset(PLAIN, int(major), known)
