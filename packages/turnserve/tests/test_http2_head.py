"""Header blocks: what is remembered of them is what the library would read, whatever came before."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thorough import thorough
from turnserve.http2.frames import ErrorCode
from turnserve.http2.head import HeadError, HeadReader, block_of

NAMES = st.sampled_from([b":path", b":method", b"te", b"grpc-timeout", b"x-api-key", b"traceparent", b"a"])
VALUES = st.sampled_from([b"", b"POST", b"/a/B", b"trailers", b"5S", b"x" * 90])
HEADER = st.tuples(NAMES, VALUES, st.booleans())
#: Headers, or a new size of the table, which the next block begins with.
STEPS = st.lists(st.one_of(st.lists(HEADER, max_size=6), st.sampled_from([0, 60, 200, 4096])), max_size=30)


@settings(max_examples=thorough(50, 200), deadline=None)
@given(STEPS)
def test_what_is_remembered_is_what_would_be_read(steps: list[object]) -> None:
    encoder, oracle, reader = hpack.Encoder(), hpack.Decoder(), HeadReader()
    for step in steps:
        if isinstance(step, int):
            if encoder.header_table_size != step:  # the encoder would forget to say so
                encoder.header_table_size = step
            continue
        assert isinstance(step, list)
        kinds = {True: hpack.NeverIndexedHeaderTuple, False: hpack.HeaderTuple}
        block = encoder.encode([kinds[secret](name, value) for name, value, secret in step])
        lists: dict[bytes, list[bytes]] = {}
        for name, value in oracle.decode(block, raw=True):
            lists.setdefault(name, []).append(value)
        assert reader.read(block) == {name: b", ".join(values) for name, values in lists.items()}


def test_blocks_that_change_nothing_are_read_once() -> None:
    encoder, reader = hpack.Encoder(), HeadReader()
    headers = [(b":path", b"/a/B"), (b"grpc-timeout", b"5S")]
    reader.read(encoder.encode(headers))  # enters the table
    block = encoder.encode(headers)
    assert reader.read(block) is reader.read(block)
    reader.read(encoder.encode([(b"new", b"entry")]))
    # The same bytes mean something else now.
    assert reader.read(block) == {b"grpc-timeout": b"5S", b"new": b"entry"}


def test_a_table_is_not_resized_without_end() -> None:
    with pytest.raises(HeadError, match="too often"):
        HeadReader().read(b"\x20\x3f\xe1\x1f" * 20 + b"\x83")


def test_a_resized_table_makes_blocks_mean_more() -> None:
    reader = HeadReader()
    entering = b"\x40\x81\x1f\x81\x8f"  # a: b, into the table
    for block in (b"\x20\x83", entering, b"\x3f\xe1\x1f\x83", entering):  # sizes 0, then 4096
        reader.read(block)
    assert reader.read(b"\xbe") == {b"a": b"b"}


def test_a_header_that_comes_twice_is_a_list() -> None:
    """As over HTTP/1.1: of two keys, none is the one that counts."""
    block = block_of([(b"x-api-key", b"a"), (b"b", b"c"), (b"x-api-key", b"d")])
    assert HeadReader().read(block) == {b"x-api-key": b"a, d", b"b": b"c"}


def test_what_is_remembered_is_bounded() -> None:
    reader = HeadReader()
    for number in range(1_000):
        reader.read(block_of([(b"traceparent", b"%d" % number)]))
    assert len(reader._known) <= 64
    reader.read(block_of([(b"long", bytes(2_000))]))
    assert all(len(block) < 1_100 for block in reader._known)


def test_our_blocks_need_no_table() -> None:
    headers = [(b":status", b"200"), (b"grpc-status", b"0"), (b"grpc-message", b"a b")]
    decoder = hpack.Decoder()
    decoder.header_table_size = 0
    for _ in range(2):
        assert list(decoder.decode(block_of(headers), raw=True)) == headers
    assert not decoder.header_table.dynamic_entries


@pytest.mark.parametrize("block", [b"\xbe", b"\x40\x05ab", b"\x3f\xe1\xff\x03\x82"])
def test_a_block_that_is_none_says_so(block: bytes) -> None:
    with pytest.raises(HeadError) as caught:
        HeadReader().read(block)
    assert caught.value.code == ErrorCode.COMPRESSION_ERROR
