"""HTTP/2 and gRPC: a connection that is fed frames, whole and in pieces."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from urllib.parse import unquote

from hpack import Decoder

from tests.fuzz.fed import GRPC_APP, Transport, assert_no_failure, check_text, pieces, runner
from tests.transports.grpc_rig import endpoint_of
from turnserve.http2.frames import (
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    ErrorCode,
    frame,
)

#: Failures of the server; what is compressed against the call's head is INTERNAL by gRPC's own rule.
_UNKNOWN, _INTERNAL = b"2", b"13"


def check(data: bytes) -> None:
    """Args: data: a seed, whether the connection begins as it should, and frames."""
    if len(data) < 3:
        return
    seed, sent = data[0], data[2:]
    if data[1] % 4:
        sent = PREFACE + frame(SETTINGS, 0, 0) + sent
    whole, split = (runner.run(_feed(parts)) for parts in ([sent], pieces(sent, seed)))
    assert_no_failure()
    check_statuses(whole)
    found, again = _by_stream(whole), _by_stream(split)
    if any(kind == GOAWAY and any(payload[4:8]) for kind, _, payload in found.get(0, ())):
        found, again = {0: found[0]}, {0: again[0]}  # what came in the same read is given up with it
    # A stream that breaks the rules in the same read is given up; in pieces, the answer may come first.
    for number in [n for n, frames in found.items() if n and frames[-1][0] == RST_STREAM]:
        del found[number], again[number]
    assert found == again, "pieces are read otherwise"


def check_statuses(written: bytes) -> None:
    """No call, and no connection, ended as a failure of the server."""
    decoder = Decoder()
    for kind, flags, _, payload in _frames(written):
        if kind == HEADERS:
            head = dict(decoder.decode(payload, raw=True))
            if flags & END_STREAM and head.get(b"grpc-status") in (_UNKNOWN, _INTERNAL):
                text = unquote(head.get(b"grpc-message", b"").decode())
                assert text.startswith("a message is compressed"), text
        elif kind == GOAWAY:
            check_text(payload[8:])
            assert int.from_bytes(payload[4:8], "big") != ErrorCode.INTERNAL_ERROR, payload


async def _feed(parts: list[bytes]) -> bytes:
    endpoint = endpoint_of(GRPC_APP, max_message_bytes=1 << 16)
    connection, transport = endpoint(), Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    for part in parts:
        connection.data_received(part)
        for _ in range(4):  # calls that were begun, and the lane of those who were refused
            await asyncio.sleep(0)
    for _ in range(8):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    await asyncio.sleep(0)
    assert endpoint.budget.used == 0
    return bytes(transport.written)


def _frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """(kind, flags, stream, payload) of whole frames; HTTP/1's answer to what is no HTTP/2 is none."""
    found = []
    while data and not data.startswith(b"HTTP/1"):
        size = 9 + int.from_bytes(data[:3], "big")
        found.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9:size]))
        data = data[size:]
    return found


def _by_stream(data: bytes) -> dict[int, list[tuple[int, int, bytes]]]:
    """What each stream got, in order; data as one, since windows may cut it otherwise."""
    found: dict[int, list[tuple[int, int, bytes]]] = defaultdict(list)
    for kind, flags, number, payload in _frames(data):
        last = found[number][-1] if found[number] else None
        if last is not None and kind == last[0] == DATA:
            found[number][-1] = (DATA, last[1] | flags, last[2] + payload)
        else:
            found[number].append((kind, flags, payload))
    return found
