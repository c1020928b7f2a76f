"""Header blocks of HTTP/2: read by `HeadReader`, which remembers, and by the library, which does not."""

from __future__ import annotations

from hpack import Decoder, HPACKError

from tests.fuzz.fed import check_text
from turnserve.http2.head import MAX_HEAD_BYTES, HeadError, HeadReader


def check(data: bytes) -> None:
    """Args: data: blocks, each behind its length in one byte."""
    reader, plain = HeadReader(), Decoder(MAX_HEAD_BYTES)
    at = 0
    while at < len(data):
        block = data[at + 1 : at + 1 + data[at]]
        at += 1 + data[at]
        try:
            head = reader.read(block)
        except HeadError as error:
            check_text(str(error))
            return  # after which the connection ends
        try:
            fields = plain.decode(block, raw=True)
        except HPACKError as error:
            raise AssertionError(f"a block was read that is none: {error}") from None
        expected: dict[bytes, list[bytes]] = {}
        for name, value in fields:
            expected.setdefault(name, []).append(value)
        # a field that comes twice is a list (RFC 9110, 5.3)
        joined = {name: b", ".join(values) for name, values in expected.items()}
        assert head == joined, "a block that was known meant something else"
