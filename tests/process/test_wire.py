"""Messages arrive whole however the bytes are cut, and what is no message is refused in bounded memory."""

import asyncio
import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.process.wire import Wire, WireError

DECODER = msgspec.msgpack.Decoder()


def cut(data, places):
    """Consecutive pieces of data."""
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


async def received(wire, pieces, count):
    reader = asyncio.StreamReader()
    for piece in pieces:
        reader.feed_data(piece)
    reader.feed_eof()
    return [await wire.receive(reader, DECODER) for _ in range(count)]


@given(st.lists(st.text(max_size=60), max_size=8), st.lists(st.integers(0, 400), max_size=20))
def test_frames_are_whole_however_the_stream_is_cut(sent, places):
    wire = Wire(1)
    frames, found = wire.frames(), []
    for piece in cut(b"".join(map(wire.frame, sent)), places):
        found += [DECODER.decode(view) for view in frames.feed(piece)]
    assert found == sent


@given(st.lists(st.text(max_size=60), max_size=8), st.lists(st.integers(0, 400), max_size=20))
def test_a_stream_reads_the_same_messages(sent, places):
    wire = Wire(1)
    pieces = cut(b"".join(map(wire.frame, sent)), places)
    assert asyncio.run(received(wire, pieces, len(sent))) == sent


def test_the_header_is_the_length_in_little_endian():
    assert Wire(1).frame("ab") == b"\x03\0\0\0" + msgspec.msgpack.encode("ab")


@pytest.mark.parametrize("end", range(1, 8))
async def test_a_connection_that_ends_within_a_message_is_its_end(end):
    wire = Wire(1)
    with pytest.raises(EOFError):
        await received(wire, [wire.frame("four")[:end]], 1)


async def test_a_message_that_is_too_long_is_refused_before_it_is_read():
    wire = Wire(1, max_message_bytes=100)
    header = (101).to_bytes(4, "little")
    with pytest.raises(WireError, match="a message of 101 bytes; at most 100 are read"):
        await received(wire, [header], 1)
    for first, rest in ((b"", header), (header[:2], header[2:])):
        frames = wire.frames()
        assert list(frames.feed(first)) == []
        with pytest.raises(WireError, match="at most 100 are read"):
            list(frames.feed(rest))


def test_a_message_that_would_not_be_read_is_not_sent():
    wire = Wire(1, max_message_bytes=100)
    assert len(wire.frame("x" * 98)) == 104
    with pytest.raises(OverflowError, match="a message of 101 bytes; at most 100 are read"):
        wire.frame("x" * 99)


async def test_bytes_that_are_no_message_are_an_error_of_the_wire():
    with pytest.raises(WireError):
        await received(Wire(1), [b"\x02\0\0\0\xc1\xc1"], 1)


def test_another_version_is_refused_with_advice():
    wire = Wire(2)
    assert wire.refusal(2, "it", "the writer") == ""
    assert wire.refusal(3, "it", "the writer") == "it speaks version 3, the writer 2: upgrade both"
