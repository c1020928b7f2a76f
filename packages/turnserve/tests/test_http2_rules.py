"""What clients may not do, by the letter of RFC 9113 and RFC 7541, and what it is answered with."""

from __future__ import annotations

import struct

import h2.settings
import hpack
import pytest

from packages.turnserve.tests.http2_rig import Client, Served, frames_of
from turnserve.grpc.status import StatusCode
from turnserve.http2.frames import MAX_WINDOW, ErrorCode, frame, window_update
from turnserve.http2.head import HeadReader

HEADERS, DATA, PRIORITY, RST_STREAM, SETTINGS, PING = 1, 0, 2, 3, 4, 6
LATER = b"\x83\x86\x04\x08/t/Later\x0f\x10\x10application/grpc"
OPEN = frame(HEADERS, 0x4, 1, LATER)


def test_a_block_remembered_with_a_small_table_is_read_again_with_a_larger_one() -> None:
    encoder, oracle, reader = hpack.Encoder(), hpack.Decoder(), HeadReader()
    post, other = [(b":method", b"POST")], [(b"a", b"b")]
    encoder.header_table_size = 0
    blocks = [encoder.encode(post), encoder.encode(other)]
    encoder.header_table_size = 4096
    blocks += [encoder.encode(post), encoder.encode(other), encoder.encode(other)]
    for block in blocks:
        assert reader.read(block) == dict(oracle.decode(block, raw=True))


def test_resets_that_a_client_provokes_count_as_its_own() -> None:
    client = Client(Served())
    for number in range(1, 2 * 12_000, 2):
        provoke = frame(HEADERS, 0x4, number, LATER) + frame(DATA, 0x1, number, b"\0\0\0\0\2hi")
        client.raw(provoke + window_update(number, 0))
        if client.transport.at_eof:
            break
    assert client.goaway()[0] == ErrorCode.ENHANCE_YOUR_CALM


def test_no_head_is_longer_than_a_frame_may_be() -> None:
    served = Served()
    client = Client(served)
    client.call("/t/Later", b"x")
    client.exchange()
    served.waiting[0][0].finish(StatusCode.NOT_FOUND, "中" * 4096)
    assert all(len(each) - 9 <= 16_384 for each in frames_of(client.transport.written))


def test_a_method_that_fails_unexpectedly_fails_its_own_call_alone() -> None:
    served = Served()
    method = served.endpoint._methods[b"/t/Echo"]
    served.endpoint._methods = dict(served.endpoint._methods)
    served.endpoint._methods[b"/t/Bad"] = type(method)("Bad", lambda call, data: data[9])
    client = Client(served)
    client.call("/t/Bad", b"x")
    client.exchange()


BROKEN = {
    "an update of the connection by nothing (6.9)": (window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
    "a first window that overflows a stream's (6.9.2)": (
        OPEN
        + window_update(1, MAX_WINDOW - 65_535)
        + frame(SETTINGS, 0, 0, struct.pack(">HI", h2.settings.SettingCodes.INITIAL_WINDOW_SIZE, 65_536)),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "a stream of an even number behind an odd one (5.1.1)": (
        frame(HEADERS, 0x4, 3, LATER) + frame(HEADERS, 0x4, 2, LATER),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a ping of a stream (6.7)": (frame(PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "a priority of no stream (6.3)": (frame(PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
    "a goaway of a stream (6.8)": (frame(7, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "a goaway that is too short (4.2)": (frame(7, 0, 0, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
    "a head too short for its priority (4.2)": (
        frame(HEADERS, 0x24, 1, b"\0\0"),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_client_that_breaks_the_rules_gets_the_rule(name: str) -> None:
    data, code = BROKEN[name]
    client = Client(Served())
    client.raw(data)
    assert client.goaway()[0] == code


def test_an_update_of_a_stream_by_nothing_is_a_protocol_error() -> None:
    client = Client(Served())
    client.raw(OPEN + window_update(1, 0))
    assert frame(RST_STREAM, 0, 1, b"\0\0\0\1") in client.transport.written  # RFC 9113, 6.9


def test_a_priority_of_another_length_ends_its_stream_alone() -> None:
    client = Client(Served())
    client.raw(OPEN + frame(PRIORITY, 0, 1, bytes(4)))
    assert not client.transport.at_eof  # RFC 9113, 6.3
