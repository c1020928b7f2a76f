"""The framed wire between processes of one Hopline.

    u32 length, little-endian │ msgpack of one message

Isolated models, the prefetcher and the writer of a live graph each have their own messages and this one
framing. Ends that start apart compare protocol versions in their first message; nothing is negotiated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar

import msgspec

from hopline.errors import BY_CODE, HoplineError, RuntimeFailure
from hopline.types import UNREADABLE

_HEADER_BYTES = 4
#: What the header can say.
LONGEST_BYTES = 2**32 - 1
MessageT = TypeVar("MessageT")
PackedError: TypeAlias = tuple[str, str, dict[str, Any]]


class WireError(Exception):
    """The other end sent what no Hopline of this version sends."""


class Refusal(msgspec.Struct, tag="refusal"):
    """The answer to a first message whose sender is refused, and why; the connection ends."""

    text: str


class Wire:
    """The framing of one kind of connection.

    Args:
        protocol: version of its messages; both ends must have the same.
        max_message_bytes: longer messages are neither sent nor read.
        enc_hook: for values that msgspec does not know.
    """

    def __init__(
        self,
        protocol: int,
        max_message_bytes: int = LONGEST_BYTES,
        enc_hook: Callable[[Any], Any] | None = None,
    ) -> None:
        self.protocol = protocol
        self.max_message_bytes = max_message_bytes
        self._encoder = msgspec.msgpack.Encoder(enc_hook=enc_hook)

    def frame(self, message: Any) -> bytes:
        """A message as it is sent.

        Raises:
            OverflowError: the message is too long.
            TypeError, ValueError, OverflowError, NotImplementedError: something in it cannot be sent.
        """
        data = bytearray(_HEADER_BYTES)
        self._encoder.encode_into(message, data, _HEADER_BYTES)
        length = len(data) - _HEADER_BYTES
        if length > self.max_message_bytes:
            raise OverflowError(f"a message of {length} bytes; at most {self.max_message_bytes} are read")
        data[:_HEADER_BYTES] = length.to_bytes(_HEADER_BYTES, "little")
        return bytes(data)

    async def receive(
        self, reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[MessageT]
    ) -> MessageT:
        """The next message of a stream.

        Raises:
            EOFError: the connection has ended.
            WireError: the message is too long, or is none.
        """
        try:
            length = self._checked(await reader.readexactly(_HEADER_BYTES))
            return decoder.decode(await reader.readexactly(length))
        except UNREADABLE as error:
            raise WireError(str(error)) from None

    def frames(self) -> Frames:
        """For an end that gets bytes as they come instead of reading a stream."""
        return Frames(self._checked)

    def refusal(self, protocol: int, sender: str, receiver: str) -> str:
        """Why a sender with this protocol version is refused; "" where it is not."""
        if protocol == self.protocol:
            return ""
        return f"{sender} speaks version {protocol}, {receiver} {self.protocol}: upgrade both"

    def _checked(self, header: bytes | bytearray | memoryview) -> int:
        length = int.from_bytes(header, "little")
        if length > self.max_message_bytes:
            raise WireError(f"a message of {length} bytes; at most {self.max_message_bytes} are read")
        return length


class Frames:
    """Puts messages together from the pieces that a socket brings; made by `Wire.frames`."""

    def __init__(self, length_of: Callable[[bytes | bytearray | memoryview], int]) -> None:
        self._length_of = length_of
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """The messages that are whole now; each is valid until the next one is asked for.

        Raises: WireError: a message is too long.
        """
        whole: bytes | bytearray = data
        if self._data:
            self._data += data
            head = self._data[:_HEADER_BYTES]
            if len(head) < _HEADER_BYTES or len(self._data) < _HEADER_BYTES + self._length_of(head):
                return
            whole, self._data = self._data, bytearray()
        at, view = 0, memoryview(whole)
        while len(whole) - at >= _HEADER_BYTES:
            begin = at + _HEADER_BYTES
            end = begin + self._length_of(view[at:begin])
            if end > len(whole):
                break
            yield view[begin:end]
            at = end
        if at < len(whole):
            self._data = bytearray(view[at:])


def pack_error(error: HoplineError) -> PackedError:
    """(class name, text, attributes) of an error."""
    return type(error).__name__, str(error), vars(error)


def unpack_error(packed: PackedError) -> HoplineError:
    """The error again: of the same class, with all its attributes."""
    name, text, attributes = packed
    kind = next((each for each in BY_CODE.values() if each.__name__ == name), None)
    if kind is None:
        return RuntimeFailure(f"{name}: {text}")
    error = kind.__new__(kind)
    error.args = (text,)
    carried = {key: tuple(value) if isinstance(value, list) else value for key, value in attributes.items()}
    vars(error).update(carried)
    return error
