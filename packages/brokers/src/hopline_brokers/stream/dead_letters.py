"""Destinations of events that cannot be applied: complete, with the reason and the origin."""

from __future__ import annotations

import base64
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hopline.brokers.base import Outgoing, Sink
from hopline.errors import BadRequest, BrokerError, BrokerUnavailable, LogFull

logger = logging.getLogger("hopline.stream")

#: Longest reason in a header.
_REASON_CHARACTERS = 1000


class DeadLetter(msgspec.Struct, frozen=True):
    """An event that cannot be applied.

    Attributes:
        payload: the event as it was sent, or the whole message if it cannot be split.
        code, reason: as in `Rejected`.
        partition, position: of its message. index: of the event in it, -1 for all of it.
        event_id: "" if it has none.
        key: of its message.
        timestamp_ms: of its message, 0 if unknown.
    """

    payload: bytes
    code: str
    reason: str
    partition: str
    position: str
    index: int
    event_id: str = ""
    key: str = ""
    timestamp_ms: int = 0

    def headers(self) -> dict[str, str]:
        """All but payload and key, as headers of a message."""
        return {
            "hopline-code": self.code,
            "hopline-reason": self.reason[:_REASON_CHARACTERS],
            "hopline-partition": self.partition,
            "hopline-position": self.position,
            "hopline-index": str(self.index),
            "hopline-event-id": self.event_id,
            "hopline-timestamp-ms": str(self.timestamp_ms),
        }


class DeadLetters:
    """Takes events that cannot be applied."""

    async def open(self) -> None:
        """Prepare for writing; nothing to do by default."""

    async def write(self, letters: Sequence[DeadLetter]) -> None:
        """Store letters; return when they are safe. After a crash, letters may be repeated.

        Raises: BrokerUnavailable, Unavailable: try again. HoplineError: retrying does not help.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Close the destination; nothing to do by default."""


class SinkDeadLetters(DeadLetters):
    """Dead letters in a broker's topic: the unchanged payload, and other fields as headers."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    async def open(self) -> None:
        """Prepare for writing."""
        await self._sink.open()

    async def write(self, letters: Sequence[DeadLetter]) -> None:
        """Send letters. If the broker refuses one, it is sent again without its payload.

        Raises: BrokerUnavailable, BrokerError.
        """
        messages = [Outgoing(each.payload, "", each.key, each.headers()) for each in letters]
        try:
            await self._sink.send(messages)
        except BrokerUnavailable:
            raise
        except BrokerError:
            for message in messages:
                await self._send_one(message)

    async def close(self) -> None:
        """Close the connection to the broker."""
        await self._sink.close()

    async def _send_one(self, message: Outgoing) -> None:
        try:
            await self._sink.send([message])
        except BrokerUnavailable:
            raise
        except BrokerError as error:
            omitted = f"{len(message.payload)} bytes: {error}"[:_REASON_CHARACTERS]
            headers = {**message.headers, "hopline-payload-omitted": omitted}
            await self._sink.send([Outgoing(b"", message.topic, message.key, headers)])


class FileDeadLetters(DeadLetters):
    """Dead letters in a file, one JSON object a line; payloads are text or base64."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1

    async def open(self) -> None:
        """Open for appending. Raises: BadRequest: the file cannot be opened."""
        try:
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise BadRequest(f"dead letters cannot be written to {self._path}: {error.strerror}") from None

    async def write(self, letters: Sequence[DeadLetter]) -> None:
        """Append and sync.

        Raises: LogFull: the disk is full; a partial write is cut off again.
        """
        text = b"".join(_line(each) for each in letters)
        before = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, text)
            if written < len(text):
                raise OSError(28, "no space for all of it")
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, before)
            raise LogFull(f"dead letters cannot be written to {self._path}: {error.strerror}") from None

    async def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Discard(DeadLetters):
    """Discards events: they are counted and logged only."""

    async def write(self, letters: Sequence[DeadLetter]) -> None:
        """Log the first."""
        first = letters[0]
        logger.warning(
            "%d events discarded; the first: %s: %s (%s at %s)",
            len(letters),
            first.code,
            first.reason,
            first.partition,
            first.position,
        )


class Refuse(DeadLetters):
    """No destination is configured: the stream stops at the first dead letter."""

    async def write(self, letters: Sequence[DeadLetter]) -> None:
        """Stop the stream.

        Raises: StreamStopped: always.
        """
        first = letters[0]
        raise StreamStopped(
            f"{len(letters)} events cannot be applied, the first from {first.partition} at "
            f"{first.position}: {first.code}: {first.reason}. Name a destination for such events: "
            "--dead-letters ADDRESS, FILE or discard"
        )


class StreamStopped(BadRequest):
    """The stream stops at an event, as configured; nothing from there on is acknowledged."""


def _line(letter: DeadLetter) -> bytes:
    fields = msgspec.structs.asdict(letter)
    try:
        fields["payload"] = letter.payload.decode()
    except UnicodeDecodeError:
        fields["payload"] = base64.b64encode(letter.payload).decode()
        fields["encoding"] = "base64"
    return json.dumps(fields).encode() + b"\n"
