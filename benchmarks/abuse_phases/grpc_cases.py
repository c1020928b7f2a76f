"""Attacks on gRPC: compressed messages, protobuf that grows, unfinished messages, bursts."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable

from benchmarks.abuse_phases import grpc_wire as grpc
from benchmarks.abuse_phases.case import Attack, Case
from benchmarks.abuse_phases.http_cases import MIB
from benchmarks.abuse_phases.target import Setup, Target

_AUTH = Setup(auth=True)
_GZIP = (("grpc-encoding", "gzip"),)
_UNPACKED_BYTES = 64 * MIB - 64
#: Fields of ModelInferRequest, with a length each.
_MODEL, _PARAMETERS, _INPUTS, _OUTPUTS, _RAW = 0x0A, 0x22, 0x2A, 0x32, 0x3A


def varint(value: int) -> bytes:
    """As protobuf writes integers."""
    parts = bytearray()
    while value >= 128:
        parts.append(value % 128 + 128)
        value //= 128
    return bytes(parts) + bytes([value])


def field(tag: int, value: bytes) -> bytes:
    """A field of bytes."""
    return bytes([tag]) + varint(len(value)) + value


def _packed(unpacked: bytes) -> bytes:
    return grpc.message(gzip.compress(unpacked), compressed=True)


def unfinished_gzip(target: Target) -> Attack:
    """30 unary streams, each a gzip message of 65 KB whose stream never ends, without credentials."""
    payload = _packed(bytes(_UNPACKED_BYTES))
    frames = [grpc.call(2 * at + 1, grpc.INFER, payload, _GZIP, ends=False) for at in range(30)]

    def attack() -> Counter[str]:
        client = grpc.GrpcSocket(target.grpc_port)
        try:
            for each in frames:
                client.send(each)
            client.wait(30, 5.0)
            return client.summary(30)
        finally:
            client.close()

    return attack


def _gzip_message(each: bytes) -> Callable[[Target], Attack]:
    """One message of about 65 KB that repeats a field; no caller sends credentials."""

    def prepare(target: Target) -> Attack:
        unpacked = field(_MODEL, b"risk") + each * ((_UNPACKED_BYTES - 8) // len(each))
        frames = grpc.call(1, grpc.INFER, _packed(unpacked), _GZIP)
        return lambda: grpc.exchange(target.grpc_port, frames)

    return prepare


def large_shapes(target: Target) -> Attack:
    """Shapes of 100,000 large dimensions (0.9 MB), and of 300."""

    def request(num_dims: int) -> bytes:
        dims = varint(2**62 - 1) * num_dims
        tensor = field(0x0A, b"node_ids") + field(0x12, b"INT64") + field(0x1A, dims)
        body = field(_MODEL, b"risk") + field(_INPUTS, tensor) + field(_RAW, bytes(8))
        return grpc.message(body)

    frames = [grpc.call(2 * at + 1, grpc.INFER, request(n)) for at, n in enumerate((100_000, 300))]
    return lambda: grpc.exchange(target.grpc_port, b"".join(frames), 2)


def unfinished_messages(target: Target) -> Attack:
    """20 connections, each closed with four messages of 15 MiB begun: what stays of them."""
    begun = b"\0" + (15 * MIB).to_bytes(4, "big") + bytes(14 * MIB)
    frames = [grpc.call(2 * at + 1, grpc.INFER, begun, ends=False) for at in range(4)]

    def attack() -> Counter[str]:
        for _ in range(20):
            client = grpc.GrpcSocket(target.grpc_port)
            for each in frames:
                client.send(each)
            client.close()
        return Counter(grpc.exchange(target.grpc_port, grpc.call(1, grpc.CHECK, grpc.message(b""))))

    return attack


def checks(target: Target) -> Attack:
    """20,000 `Health/Check` in one write."""
    burst = b"".join(grpc.call(2 * at + 1, grpc.CHECK, grpc.message(b"")) for at in range(20_000))

    def attack() -> Counter[str]:
        return grpc.exchange(target.grpc_port, burst, 20_000, 20.0)

    return attack


def empty_messages(target: Target) -> Attack:
    """1 MB of empty messages in one stream."""
    frames = grpc.call(1, grpc.STREAM_INFER, grpc.message(b"") * 200_000)
    return lambda: grpc.exchange(target.grpc_port, frames)


def long_numbers(target: Target) -> Attack:
    """Integers of 5,000 digits in parameters and metadata."""

    def request(name: bytes) -> bytes:
        value = field(0x0A, name) + field(0x12, field(0x1A, b"9" * 5000))
        tensor = field(0x0A, b"node_ids") + field(0x12, b"INT64") + field(0x1A, varint(1))
        body = field(_MODEL, b"risk") + field(_PARAMETERS, value) + field(_INPUTS, tensor)
        return grpc.message(body + field(_RAW, bytes(8)))

    names = (b"priority", b"timeout", b"timeout_ms", b"as_of", b"key", b"attributes")
    frames = [grpc.call(2 * at + 1, grpc.INFER, request(name)) for at, name in enumerate(names)]
    timeout = [("grpc-timeout", "9" * 5000 + "S")]
    frames.append(grpc.call(2 * len(names) + 1, grpc.INFER, request(b"key"), timeout))
    return lambda: grpc.exchange(target.grpc_port, b"".join(frames), len(frames))


CASES = [
    Case("grpc_unfinished_gzip", unfinished_gzip, frozenset({"silent"}), setup=_AUTH),
    Case("grpc_gzip_parameters", _gzip_message(bytes([_PARAMETERS, 0])), setup=_AUTH),
    Case("grpc_gzip_inputs", _gzip_message(bytes([_INPUTS, 0])), setup=_AUTH),
    Case("grpc_gzip_outputs", _gzip_message(bytes([_OUTPUTS, 0])), setup=_AUTH),
    Case("grpc_large_shapes", large_shapes),
    Case("grpc_unfinished_messages", unfinished_messages, frozenset({"OK"})),
    Case("grpc_checks", checks, frozenset({"OK"})),
    Case("grpc_empty_messages", empty_messages, frozenset({"OK"})),
    Case("grpc_long_numbers", long_numbers, frozenset({"OK"})),
]
