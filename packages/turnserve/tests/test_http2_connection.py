"""The server's HTTP/2 against the h2 library, and against bytes that no library would send."""

from __future__ import annotations

import struct

import h2.settings
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packages.turnserve.tests.http2_rig import Client, Served, frames_of
from tests.thorough import thorough
from turnserve.http2.frames import ErrorCode, frame, rst_stream, window_update
from turnserve.http2.input import MAX_STREAMS
from turnserve.http2.stream import RECEIVE_WINDOW

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
SettingCodes = h2.settings.SettingCodes
#: POST, http, a path and a content type, as literals that enter no table.
BLOCK = b"\x83\x86\x04\x07/t/Echo\x0f\x10\x10application/grpc"
HELLO = b"\0\0\0\0\2hi"


def test_a_call_is_answered_with_headers_data_and_a_status() -> None:
    answer = Client(Served()).ask("/t/Echo", b"hello")
    assert answer.headers[0][b":status"] == b"200"
    assert answer.headers[0][b"content-type"] == b"application/grpc"
    assert answer.messages == [b"hello"]
    assert answer.status == 0
    assert answer.ended
    assert answer.reset is None


@settings(max_examples=thorough(7, 30), deadline=None)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.integers(1, 64))
def test_bytes_may_come_in_any_pieces(messages: list[bytes], piece: int) -> None:
    client = Client(Served())
    numbers = [client.call("/t/Echo", message) for message in messages]
    stream = client.call("/t/Each", *messages)
    client.exchange(piece=piece)
    assert [client.answers[number].messages for number in numbers] == [[message] for message in messages]
    assert client.answers[stream].messages == messages


def test_many_streams_are_answered_in_any_order() -> None:
    served = Served()
    client = Client(served)
    numbers = [client.call("/t/Later", b"%d" % number) for number in range(100)]
    client.exchange()
    served.waiting.reverse()
    served.release()
    client.exchange()
    assert [client.answers[number].messages for number in numbers] == [[b"%d" % n] for n in range(100)]
    assert client.server.idle


@settings(max_examples=thorough(6, 25), deadline=None)
@given(
    sizes=st.lists(st.integers(0, 60_000), min_size=1, max_size=4),
    window=st.integers(0, 70_000),
    later=st.integers(1, 100_000),
)
def test_an_answer_leaves_as_the_client_takes_it_and_is_whole(
    sizes: list[int], window: int, later: int
) -> None:
    client = Client(Served(), {SettingCodes.INITIAL_WINDOW_SIZE: window})
    bodies = [bytes([65 + place]) * size for place, size in enumerate(sizes)]
    numbers = [client.call("/t/Echo", body) for body in bodies]
    stream = client.call("/t/Each", *bodies)
    client.exchange()  # h2 refuses what is more than the window
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: later})
    client.exchange()
    for number in [*numbers, stream]:
        for _ in range(100):
            if client.answers[number].ended:
                break
            client.h2.increment_flow_control_window(10_000, number)
            client.exchange()
    assert [client.answers[number].messages for number in numbers] == [[body] for body in bodies]
    assert client.answers[stream].messages == bodies
    assert all(client.answers[number].ended for number in [*numbers, stream])


def test_a_window_that_shrinks_below_nothing_is_waited_for() -> None:
    served = Served()
    client = Client(served)
    first = client.call("/t/Later", b"a" * 30_000)
    client.exchange()
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    client.exchange()
    served.release()
    client.exchange()
    assert not client.answers[first].messages
    client.h2.increment_flow_control_window(40_000, first)
    client.exchange()
    assert client.answers[first].messages == [b"a" * 30_000]


def test_large_requests_get_wider_windows() -> None:
    served = Served(max_message_bytes=64 << 20)
    client = Client(served)
    body = bytes(range(256)) * (20 * RECEIVE_WINDOW // 256)  # more than the connection's window, too
    stream = client.call("/t/Later", body, end=False)  # `send` waits for the server's updates
    client.h2.end_stream(stream)
    client.exchange()
    assert served.waiting[0][1] == body


def test_more_data_than_a_window_allows_is_not_taken() -> None:
    served = Served(max_message_bytes=64 << 20)
    client = Client(served)
    client.raw(OPEN + frame(DATA, 0, 1, b"\0\1\0\0\0"))
    stream = served.endpoint.connections  # held: what comes is not taken, so the window stays as it is
    server = next(iter(stream))
    server._input.streams[1].hold()
    for _ in range(RECEIVE_WINDOW // 16_384 + 1):
        client.raw(frame(DATA, 0, 1, bytes(16_384)))
    assert rst_stream(1, ErrorCode.FLOW_CONTROL_ERROR) in client.transport.written


def test_padding_priority_and_heads_in_parts_are_understood() -> None:
    client = Client(Served())
    priority = b"\0\0\0\0\x10"
    padded = b"\3" + priority + BLOCK[:5]
    client.raw(
        frame(HEADERS, 0x8 | 0x20, 1, padded + b"\0" * 3)
        + frame(CONTINUATION, 0, 1, BLOCK[5:9])
        + frame(CONTINUATION, 0x4, 1, BLOCK[9:])
        + frame(PRIORITY, 0, 1, priority)
        + frame(DATA, 0x8 | 0x1, 1, b"\2" + HELLO + b"\0\0")
    )
    assert HELLO in client.transport.written


def test_what_is_not_known_is_passed_over_and_pings_are_answered() -> None:
    client = Client(Served())
    client.raw(frame(0x7F, 0xFF, 3, b"whatever") + frame(PING, 0, 0, b"01234567"))
    assert client.transport.written == frame(PING, 1, 0, b"01234567")
    client.transport.written = b""
    assert client.ask("/t/Echo", b"x").messages == [b"x"]


def test_a_client_without_a_header_table_reads_the_answers() -> None:
    client = Client(Served(), {SettingCodes.HEADER_TABLE_SIZE: 0})
    for text in (b"a", b"b"):
        assert client.ask("/t/Echo", text).messages == [text]
    assert client.ask("/t/None", b"").status == 12


OPEN = frame(HEADERS, 0x4, 1, BLOCK)
BROKEN = {
    "a frame that is too long": (b"\x00\x40\x01\x00\x00\x00\x00\x00\x01", ErrorCode.FRAME_SIZE_ERROR),
    "a head that is interrupted": (
        frame(HEADERS, 0, 1, BLOCK) + frame(PING, 0, 0, bytes(8)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a head without end": (
        frame(HEADERS, 0, 1, b"") + 100 * frame(CONTINUATION, 0, 1, b""),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "a head that is too large": (
        frame(HEADERS, 0, 1, b"") + 5 * frame(CONTINUATION, 0, 1, bytes(16_384)),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "a head that grows when it is read": (
        # one long value enters the table, and is meant again and again
        frame(HEADERS, 0x4, 1, b"\x40\x01a\x7f\xa1\x1e" + b"b" * 4000 + b"\xbe" * 20),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "what is no HPACK": (frame(HEADERS, 0x4, 1, b"\xff\xff\xff\xff\x0f"), ErrorCode.COMPRESSION_ERROR),
    "a stream of ours": (frame(HEADERS, 0x4, 2, BLOCK), ErrorCode.PROTOCOL_ERROR),
    "headers of no stream": (frame(HEADERS, 0x4, 0, BLOCK), ErrorCode.PROTOCOL_ERROR),
    "data of a stream that never was": (frame(DATA, 0, 9, b"x"), ErrorCode.PROTOCOL_ERROR),
    "data of no stream": (frame(DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
    "padding beyond its frame": (OPEN + frame(DATA, 0x8, 1, b"\x09abc"), ErrorCode.PROTOCOL_ERROR),
    "an update by nothing": (window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
    "a window beyond the largest": (window_update(0, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
    "a setting beyond the largest": (
        frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**31)),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "settings of another length": (frame(SETTINGS, 0, 0, b"abc"), ErrorCode.FRAME_SIZE_ERROR),
    "a promise": (frame(PUSH_PROMISE, 0x4, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "a lone continuation": (frame(CONTINUATION, 0x4, 1, b""), ErrorCode.PROTOCOL_ERROR),
    "a short ping": (frame(PING, 0, 0, b"abc"), ErrorCode.FRAME_SIZE_ERROR),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_client_that_breaks_the_rules_gets_the_rule_and_harms_no_other(name: str) -> None:
    data, code = BROKEN[name]
    served = Served()
    neighbour, client = Client(served), Client(served)
    pending = neighbour.call("/t/Later", b"mine")
    neighbour.exchange()
    client.raw(data)
    told, text = client.goaway()
    assert told == code
    assert text
    assert client.transport.at_eof
    client.raw(frame(PING, 0, 0, bytes(8)))  # is not read any more
    served.release()
    neighbour.exchange()
    assert neighbour.answers[pending].messages == [b"mine"]


def test_a_stream_before_settings_is_refused() -> None:
    served = Served()
    client = Client.__new__(Client)
    client.transport = type(Client(served).transport)()
    client.server = served.endpoint()
    client.server.connection_made(client.transport)  # type: ignore[arg-type]
    client.server.data_received(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + OPEN)
    assert client.goaway()[0] == ErrorCode.PROTOCOL_ERROR


def test_a_stream_too_many_is_refused_alone() -> None:
    served = Served()
    client = Client(served)
    client.h2.remote_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 10_000
    client.h2.remote_settings.acknowledge()
    numbers = [client.call("/t/Later", b"x") for _ in range(MAX_STREAMS + 1)]
    client.exchange()
    assert client.answers[numbers[-1]].reset == ErrorCode.REFUSED_STREAM
    served.release()
    client.exchange()
    assert all(client.answers[number].messages == [b"x"] for number in numbers[:-1])


def test_a_client_that_gives_up_withdraws_its_requests() -> None:
    served = Served()
    client = Client(served)
    first, second = client.call("/t/Later", b"a"), client.call("/t/Later", b"b")
    client.exchange()
    client.h2.reset_stream(first)
    client.exchange()
    assert served.num_gone == 1
    served.release()  # an answer that nobody wants harms nobody
    client.exchange()
    assert client.answers[second].messages == [b"b"]
    client.call("/t/Later", b"c")
    client.exchange()
    client.server.connection_lost(None)
    assert served.num_gone == 2


def test_streams_begun_and_given_up_without_end_end_the_connection() -> None:
    client = Client(Served())
    for number in range(1, 2 * 6_000, 2):
        client.raw(frame(HEADERS, 0x4, number, BLOCK) + rst_stream(number, ErrorCode.CANCEL))
        if client.transport.at_eof:
            break
    assert client.goaway()[0] == ErrorCode.ENHANCE_YOUR_CALM
    assert number < 2 * 5_200


def test_resets_of_one_second_do_not_count_in_the_next() -> None:
    served = Served()
    client = Client(served)
    for number in range(1, 2 * 12_000, 2):
        client.raw(frame(HEADERS, 0x4, number, BLOCK) + rst_stream(number, ErrorCode.CANCEL))
        if number % 5_001 == 0:
            served.endpoint.tick(number / 5_001)
    assert not client.transport.at_eof


def test_an_end_in_order_answers_requests_that_came_before_the_client_knew() -> None:
    served = Served()
    client = Client(served)
    before = client.call("/t/Later", b"before")
    client.exchange()
    served.endpoint.begin_close()
    # The client has not read that yet.
    crossing = client.call("/t/Later", b"crossing")
    client.server.data_received(client.h2.data_to_send())
    assert served.endpoint.num_unaware == 1
    for piece in frames_of(client.transport.written):
        if piece[3] == PING:
            client.server.data_received(frame(PING, 1, 0, piece[9:]))
    assert served.endpoint.num_unaware == 0
    client.server.data_received(frame(HEADERS, 0x5, crossing + 2, BLOCK))  # beyond what was promised
    assert not client.transport.at_eof
    served.release()
    assert client.transport.at_eof
    goaways = [piece for piece in frames_of(client.transport.written) if piece[3] == GOAWAY]
    assert [int.from_bytes(piece[9:13], "big") for piece in goaways] == [2**31 - 1, crossing]
    assert [int.from_bytes(piece[13:17], "big") for piece in goaways] == [0, 0]
    assert b"before" in client.transport.written
    assert b"crossing" in client.transport.written
    assert before < crossing


def test_an_idle_connection_ends_once_the_client_was_notified() -> None:
    served = Served()
    client = Client(served)
    served.endpoint.begin_close()
    client.exchange()
    assert [last for last, _ in client.goaways] == [2**31 - 1, 0]
    assert client.transport.at_eof
    served.endpoint.tick(100.0)
    assert client.transport.aborted  # it did not close in all that time


def test_a_client_that_confirms_nothing_is_not_waited_for() -> None:
    served = Served()
    client = Client(served)
    served.endpoint.begin_close()
    served.endpoint.tick(10.0)
    assert served.endpoint.num_unaware == 0
    assert client.transport.at_eof


def test_connections_that_come_while_the_server_stops_get_a_goaway_immediately() -> None:
    served = Served()
    served.endpoint.begin_close()
    client = Client(served)
    assert client.goaways[0][0] == 2**31 - 1


def test_a_connection_that_came_of_age_gets_a_goaway() -> None:
    served = Served(connection_age_s=10.0)
    client = Client(served)
    served.endpoint.tick(8.0)
    client.exchange()
    assert not client.goaways
    served.endpoint.tick(12.0)
    client.exchange()
    assert client.goaways


def test_http_1_gets_an_answer_that_names_the_port() -> None:
    served = Served()
    client = Client(served)
    server = served.endpoint()
    server.connection_made(client.transport)  # type: ignore[arg-type]
    server.data_received(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
    assert client.transport.written.startswith(b"HTTP/1.1 400")
    assert b"serves gRPC" in client.transport.written
    assert client.transport.at_eof


@pytest.mark.parametrize(
    "first",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"\x16",
        b"\0\0\0\4\0\0\0\0\0",  # a frame without the preface
        b"PRI * HTTP/2.0\r\n\r\nSM\r\nX",
        b"PRI\0",
        b"(hello",
        b"GET /\0",
        b"x" * 40,
    ],
)
def test_what_cannot_be_a_preface_or_a_request_is_closed_at_once(first: bytes) -> None:
    for cut in {len(first), 1}:
        served = Served()
        server, transport = served.endpoint(), Client(served).transport
        server.connection_made(transport)  # type: ignore[arg-type]
        server.data_received(first[:cut])
        server.data_received(first[cut:]) if cut < len(first) else None
        assert transport.at_eof
        assert not transport.written


@pytest.mark.parametrize("begin", [b"P", b"PRI * HT", b"G", b"GET", b"GET /y HTT", b"POST /x HTTP/1.1\r"])
def test_what_may_become_a_preface_or_a_request_is_waited_for(begin: bytes) -> None:
    served = Served()
    server, transport = served.endpoint(), Client(served).transport
    server.connection_made(transport)  # type: ignore[arg-type]
    server.data_received(begin)
    assert not transport.at_eof
    assert not transport.written


def test_who_never_greets_is_cut_off() -> None:
    served = Served(read_timeout_s=5.0)
    server, transport = served.endpoint(), Client(served).transport
    server.connection_made(transport)  # type: ignore[arg-type]
    server.data_received(b"PRI * HT")
    served.endpoint.tick(6.0)
    assert transport.aborted


def test_who_has_not_greeted_does_not_hold_up_a_stop() -> None:
    served = Served()
    server, transport = served.endpoint(), Client(served).transport
    server.connection_made(transport)  # type: ignore[arg-type]
    served.endpoint.begin_close()
    assert served.endpoint.num_unaware == 2  # its first call may be on the way
    served.endpoint.tick(1.5)
    assert transport.aborted


def test_a_client_that_does_not_read_is_not_read_either() -> None:
    client = Client(Served())
    client.server.pause_writing()
    assert not client.transport.is_reading
    client.server.resume_writing()
    assert client.transport.is_reading


def test_data_behind_the_end_of_a_stream_resets_it() -> None:
    served = Served()
    client = Client(served)
    number = client.call("/t/Later", b"x")
    client.exchange()
    client.raw(frame(DATA, 0, number, b"more"))
    assert rst_stream(number, ErrorCode.STREAM_CLOSED) in client.transport.written
    assert served.num_gone == 1


def test_answers_wait_while_the_client_reads_nothing() -> None:
    served = Served()
    client = Client(served)
    numbers = [client.call("/t/Later", bytes(10_000)) for _ in range(3)]
    client.exchange()
    client.server.pause_writing()
    served.release()
    assert not client.transport.written
    client.server.resume_writing()
    client.exchange()
    assert [client.answers[number].messages for number in numbers] == 3 * [[bytes(10_000)]]


def test_the_last_answer_of_a_connection_may_take_its_time() -> None:
    served = Served(read_timeout_s=30.0)
    client = Client(served)
    left = 1_000_000
    client.transport.get_write_buffer_size = lambda: left  # type: ignore[method-assign]
    served.endpoint.begin_close()
    client.exchange()
    assert client.transport.at_eof
    for now in range(10, 100, 10):
        left -= 100
        served.endpoint.tick(float(now))
        assert not client.transport.aborted
    served.endpoint.tick(125.0)
    assert client.transport.aborted  # nothing more was taken for too long


def test_the_end_of_a_client_is_noticed_though_reading_had_paused() -> None:
    served = Served()
    client = Client(served)
    client.server.pause_writing()
    served.endpoint.begin_close()
    served.endpoint.tick(6.0)
    assert client.transport.at_eof
    assert client.transport.is_reading


def test_a_client_that_vanished_does_not_stay_for_its_streams() -> None:
    served = Served()
    client = Client(served)
    client.call("/t/Each", b"x", end=False)
    client.exchange()
    served.endpoint.begin_close()
    for now in (6.0, 15.0):
        served.endpoint.tick(now)
        assert not client.transport.aborted
    served.endpoint.tick(21.0)
    assert client.transport.aborted


def test_a_request_on_its_way_is_reported_while_the_server_stops() -> None:
    served = Served()
    client = Client(served)
    client.call("/t/Each", end=False)
    client.exchange()
    assert served.endpoint.num_unheard == 0
    number = client.call("/t/Echo", end=False)
    client.exchange()
    assert served.endpoint.num_unheard == 1
    client.send(number, HELLO)
    client.h2.end_stream(number)
    client.exchange()
    assert served.endpoint.num_unheard == 0
