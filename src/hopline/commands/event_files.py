"""Splits files of events into request bodies: JSON, one event a line or a list, and Arrow streams."""

from __future__ import annotations

import contextlib
import io
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from hopline.errors import BadRequest

#: First bytes of an Arrow IPC stream.
_ARROW = b"\xff\xff\xff\xff"
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Part(NamedTuple):
    """A group of events of a file.

    Attributes:
        body: request body.
        num_events: number of events in it.
        have_ids: whether all events have ids, so that sending them again is safe.
    """

    body: bytes
    num_events: int
    have_ids: bool


@contextlib.contextmanager
def opened(file: str) -> Iterator[BinaryIO]:
    """Open a file, or stdin for "-". Raises: BadRequest: the file cannot be read."""
    if file == "-":
        yield sys.stdin.buffer
        return
    with contextlib.ExitStack() as stack:
        try:
            source = stack.enter_context(Path(file).open("rb"))
        except OSError as error:
            raise BadRequest(f"{file} cannot be read: {error.strerror}") from None
        yield source


def parts(source: BinaryIO, size: int, name: str) -> Iterator[Part]:
    """The events of a file in order, `size` at a time.

    Raises: BadRequest: a broken list or Arrow stream; the server reports broken lines.
    """
    begin = source.read(16)
    source = io.BufferedReader(_Prefixed(begin, source))  # stdin cannot seek back
    if begin.startswith(_ARROW):
        yield from _arrow_parts(source, size, name)
        return
    lines: Iterator[bytes] = iter(source)
    if begin.lstrip()[:1] == b"[":
        try:
            lines = iter([bytes(raw) for raw in msgspec.json.decode(source.read(), type=list[msgspec.Raw])])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadRequest(f"{name} begins like a JSON list but is not one: {error}") from None
        # In a list an event may span several lines; the server reads one event per line.
        lines = (line.replace(b"\n", b" ").replace(b"\r", b" ") for line in lines)
    while chunk := list(itertools.islice(filter(None, map(bytes.strip, lines)), size)):
        yield Part(b"\n".join(chunk), len(chunk), all(map(_has_id, chunk)))


def _arrow_parts(source: BinaryIO, size: int, name: str) -> Iterator[Part]:
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(source) as reader:
            for batch in reader:
                for begin in range(0, batch.num_rows, size):
                    part, out = batch.slice(begin, size), io.BytesIO()
                    with pa.ipc.new_stream(out, part.schema) as stream:
                        stream.write_batch(part)
                    have_ids = "id" in part.schema.names and not part.column("id").null_count
                    yield Part(out.getvalue(), part.num_rows, have_ids)
    except (pa.ArrowException, OSError) as error:
        raise BadRequest(f"{name} is not an Arrow IPC stream: {error}") from None


def _has_id(event: bytes) -> bool:
    try:
        return _fields.decode(event).get("id", b"null") != b"null"
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False


class _Prefixed(io.RawIOBase):
    """A stream that returns bytes already read from it again."""

    def __init__(self, begin: bytes, source: BinaryIO) -> None:
        self._begin, self._source = begin, source

    def readable(self) -> bool:
        return True

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]
        data, self._begin = self._begin[: len(into)], self._begin[len(into) :]
        data = data or self._source.read(len(into))
        into[: len(data)] = data
        return len(data)
