"""Answers that their callers do not take: never read, read by the byte, or without a window of HTTP/2."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable

from benchmarks.abuse_phases import grpc_wire as grpc
from benchmarks.abuse_phases import http_wire as http
from benchmarks.abuse_phases.case import Attack, Case
from benchmarks.abuse_phases.grpc_cases import field, varint
from benchmarks.abuse_phases.http_cases import SCORE
from benchmarks.abuse_phases.target import Setup, Target

_READ_S = 2.0
#: Requests wait as long as they like, so that there are answers.
_SETUP = Setup(settings=(("server.read_timeout_s", str(_READ_S)), ("batching.max_queue_ms", "600000")))
#: Twice the limit, and 12 s in which callers may read why, requests are answered, and a clock ticks.
_CLOSED_S = 2 * _READ_S + 12.0
#: The state ESTABLISHED in TCP_INFO (Linux).
_ESTABLISHED = 1
_ENDED, _OPEN = "ended", "still open"
_NUM_NODES = 4096
_REFLECT = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
_WINDOW_UPDATE = 8
#: One node again and again: a large answer for little work.
_BODY = b'{"nodes":[%b],"outputs":["embedding","logits","probabilities"]}' % b",".join([b"1"] * _NUM_NODES)


def _connect(port: int) -> socket.socket:
    """A caller with a small buffer, that waits for nothing for long."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect(("127.0.0.1", port))
    made.settimeout(0.5)
    return made


def _is_open(caller: socket.socket) -> bool:
    return caller.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[0] == _ESTABLISHED


def _hold(
    port: int,
    count: int,
    frames: Iterable[bytes],
    drip: Callable[[socket.socket], object] = lambda caller: None,
) -> Counter[str]:
    """Send over some connections, and count which of them the server ends within its limit."""
    parts = list(frames)
    callers = [_connect(port) for _ in range(count)]
    try:
        for caller in callers:
            with contextlib.suppress(OSError):
                for part in parts:
                    caller.sendall(part)
        until = time.monotonic() + _CLOSED_S
        while time.monotonic() < until and any(map(_is_open, callers)):
            for caller in callers:
                with contextlib.suppress(OSError):
                    drip(caller)
            time.sleep(0.1)
        return Counter(_OPEN if _is_open(caller) else _ENDED for caller in callers)
    finally:
        for caller in callers:
            caller.close()


def http_answers(target: Target) -> Attack:
    """20 connections with 16 pipelined requests for 630 KB each, never read."""
    request = http.request(SCORE, _BODY) * 16
    return lambda: _hold(target.port, 20, [request])


def http_by_the_byte(target: Target) -> Attack:
    """The same, but each reads ten bytes a second."""
    request = http.request(SCORE, _BODY) * 16
    return lambda: _hold(target.port, 20, [request], lambda caller: caller.recv(1))


def _infer() -> bytes:
    ids = b"".join(struct.pack("<q", 1) for _ in range(_NUM_NODES))
    shape = field(0x1A, varint(_NUM_NODES))
    tensor = field(0x0A, b"node_ids") + field(0x12, b"INT64") + shape
    output = field(0x0A, b"embedding")
    return grpc.message(field(0x0A, b"risk") + field(0x2A, tensor) + field(0x32, output) + field(0x3A, ids))


def _calls(count: int) -> list[bytes]:
    return [grpc.greeting(0), *(grpc.call(2 * at + 1, grpc.INFER, _infer()) for at in range(count))]


def grpc_answers(target: Target) -> Attack:
    """6 connections without a window, with 40 calls each whose answers have 256 KiB."""
    return lambda: _hold(target.grpc_port, 6, _calls(40))


def grpc_by_the_byte(target: Target) -> Attack:
    """The same, with windows that grow by ten bytes a second."""
    more = b"\0\0\0\1"
    drop = grpc.frame(_WINDOW_UPDATE, 0, 1, more)
    return lambda: _hold(target.grpc_port, 6, _calls(40), lambda caller: caller.sendall(drop))


def grpc_reflection(target: Target) -> Attack:
    """3 connections without a window, with 200 streams of 1,000 questions each about the services."""
    question = grpc.message(field(0x22, b"inference.GRPCInferenceService")) * 1000
    frames = [grpc.greeting(0)]
    frames += [grpc.call(2 * at + 1, _REFLECT, question, ends=False) for at in range(200)]
    return lambda: _hold(target.grpc_port, 3, frames)


_RIGHT = frozenset({_ENDED})
CASES = [
    Case("unread_http", http_answers, required=_RIGHT, setup=_SETUP),
    Case("unread_http_by_the_byte", http_by_the_byte, required=_RIGHT, setup=_SETUP),
    Case("unread_grpc", grpc_answers, required=_RIGHT, setup=_SETUP),
    Case("unread_grpc_by_the_byte", grpc_by_the_byte, required=_RIGHT, setup=_SETUP),
    Case("unread_reflection", grpc_reflection, required=_RIGHT, setup=_SETUP),
]
