"""The conformance suite of HTTP/2 and HPACK: a real listener, and a client that shares no code with it.

Its structure is that of the public project h2spec; the cases were written after the RFCs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import groupby

import pytest

from packages.turnserve.tests import rfc7541_cases
from packages.turnserve.tests.http2_rig import Served
from packages.turnserve.tests.raw_http2 import (
    ACK,
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    Peer,
    frame,
    settings,
    verdicts,
    window_update,
)
from packages.turnserve.tests.rfc9113_cases import FRAMES, KINDS, MALFORMED, STREAMS, Case, call, data, head

CASES = [*FRAMES, *STREAMS, *KINDS, *MALFORMED]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of a listener with the methods of the rig, in a loop and a thread of its own."""
    loop = asyncio.new_event_loop()
    served = Served()
    server = loop.run_until_complete(loop.create_server(served.endpoint, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield server.sockets[0].getsockname()[1]

    async def close() -> None:
        server.close()
        served.endpoint.abort()

    asyncio.run_coroutine_threadsafe(close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def decided(port: int, sent: bytes) -> str:
    with Peer(port) as peer:
        peer.send(sent)
        found = [verdict for verdict, _ in groupby(verdicts(peer.frames()))]
    return ", ".join(found)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.section} {case.what}")
def test_http2(port: int, case: Case) -> None:
    assert decided(port, case.data) == case.verdict


@pytest.mark.parametrize("case", rfc7541_cases.CASES, ids=lambda case: f"{case.section} {case.what}")
def test_hpack(port: int, case: Case) -> None:
    assert decided(port, case.data) == case.verdict


def test_the_suite_is_as_large_as_it_says() -> None:
    names = [(case.section, case.what) for case in [*CASES, *rfc7541_cases.CASES]]
    assert len(set(names)) == len(names) > 180


# 3.4: the preface


def test_3_4_the_server_begins_with_settings(port: int) -> None:
    with Peer(port) as peer:
        first, *_ = peer.frames()
    assert (first.kind, first.flags, first.stream) == (SETTINGS, 0, 0)


@pytest.mark.parametrize(
    "first",
    [
        call(),
        frame(PING, 0, 0, bytes(8)),
        window_update(0, 1),
        frame(SETTINGS, ACK, 0),
        frame(0x7F, 0, 0, b"x"),
    ],
    ids=["HEADERS", "PING", "WINDOW_UPDATE", "a confirmation", "an unknown kind"],
)
def test_3_4_the_client_begins_with_settings(port: int, first: bytes) -> None:
    with Peer(port, greets=False) as peer:
        peer.send(PREFACE + first)
        assert verdicts(peer.frames()) == ["GOAWAY PROTOCOL_ERROR", "closed"]


@pytest.mark.parametrize(
    "preface",
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX", b"INVALID * CONNECTION\r\n\r\nXX\r\n\r\n" + bytes(24)],
)
def test_3_4_another_preface_ends_the_connection(port: int, preface: bytes) -> None:
    with Peer(port, greets=False) as peer:
        peer.send(preface)
        assert verdicts(peer.frames()) == ["closed"]


def test_3_4_a_preface_may_come_byte_by_byte(port: int) -> None:
    with Peer(port, greets=False) as peer:
        for byte in PREFACE + settings() + call():
            peer.send(bytes([byte]))
        assert verdicts(peer.frames())[0] == "HEADERS 1"


# What the server sends


def test_6_5_3_settings_are_confirmed(port: int) -> None:
    with Peer(port) as peer:
        peer.frames()
        peer.send(settings((3, 100)) + settings())
        assert [(each.kind, each.flags) for each in peer.frames()] == 2 * [(SETTINGS, ACK)]


def test_6_7_a_ping_is_answered_with_its_content(port: int) -> None:
    with Peer(port) as peer:
        peer.frames()
        peer.send(frame(PING, 0, 0, b"12345678"))
        (answer,) = peer.frames()
    assert (answer.kind, answer.flags, answer.payload) == (PING, ACK, b"12345678")


def test_6_8_a_goaway_names_the_last_stream(port: int) -> None:
    with Peer(port) as peer:
        peer.send(head(5) + head(7) + frame(PING, 0, 1, bytes(8)))
        (told,) = [each for each in peer.frames() if each.kind == GOAWAY]
    assert told.payload[:4] == (7).to_bytes(4, "big")


def test_6_9_2_no_data_leaves_without_a_window(port: int) -> None:
    with Peer(port, greets=False) as peer:
        peer.send(PREFACE + settings((4, 0)) + call())
        kinds = [each.kind for each in peer.frames()]
        assert HEADERS in kinds
        assert DATA not in kinds
        peer.send(settings((4, 3)))
        assert [each.payload for each in peer.frames() if each.kind == DATA] == [b"\0\0\0"]
        peer.send(window_update(1, 100))
        *_, last_data, trailers = peer.frames()
    assert (last_data.kind, last_data.payload) == (DATA, b"\0\2hi")
    assert (trailers.kind, trailers.flags) == (HEADERS, 5)


def test_6_9_2_a_window_may_be_below_zero(port: int) -> None:
    with Peer(port, greets=False) as peer:
        peer.send(PREFACE + settings((4, 3)) + call())
        peer.frames()
        peer.send(settings((4, 0)) + window_update(1, 3))
        assert not [each for each in peer.frames() if each.kind == DATA]
        peer.send(window_update(1, 4))
        assert [each.payload for each in peer.frames() if each.kind == DATA] == [b"\0\2hi"]


def test_6_9_1_what_was_read_widens_the_windows(port: int) -> None:
    with Peer(port) as peer:
        size = 900_000
        body = b"\0" + size.to_bytes(4, "big") + bytes(size)
        pieces = [body[start : start + 16_384] for start in range(0, len(body), 16_384)]
        peer.send(head() + b"".join(data(content=piece) for piece in pieces))
        updated = {each.stream for each in peer.frames() if each.kind == WINDOW_UPDATE}
    assert updated == {0, 1}
