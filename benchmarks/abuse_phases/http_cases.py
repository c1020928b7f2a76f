"""Attacks on HTTP/1.1 itself: bodies, chunks, trailers, upgrades, pipelines, bursts."""

from __future__ import annotations

import functools
import itertools
import threading
from collections import Counter
from collections.abc import Iterable

from benchmarks.abuse_phases import http_wire as http
from benchmarks.abuse_phases.case import Attack, Case
from benchmarks.abuse_phases.target import Setup, Target

MIB = 1 << 20
SCORE = "/v1/models/risk/score"
#: Five requests that take 0.1 s each where rows are not kept; a body is below 1,000 bytes.
SLOW = http.request(SCORE, b'{"nodes":[%b]}' % b",".join(b"%d" % node for node in range(150))) * 5
NUM_SLOW = 5
ONE = http.request(SCORE, b'{"nodes":[1]}')
_CHUNKED = (("transfer-encoding", "chunked"),)
_PIECE = b"a" * (1 << 16)
_AUTH = Setup(auth=True)
#: Rows are computed again for each request, so that requests queued behind it wait.
_SLOW = (("state_cache.memory_bytes", "0"),)
_SMALL_BODIES = Setup(settings=(("server.max_body_bytes", "1000"), *_SLOW))
#: Seconds after which an attack is stopped if nothing else stops it.
_LONGEST_S = 10.0


def _behind(behind: Iterable[bytes], target: Target) -> Counter[str]:
    """Slow requests and, on the same connection, others behind them."""
    client = http.HttpSocket(target.port)
    try:
        client.send([SLOW])
        client.send(behind, until=http.for_seconds(_LONGEST_S))
        client.wait(NUM_SLOW)
        return client.summary(NUM_SLOW)
    finally:
        client.close()


def large_behind(target: Target) -> Attack:
    """400 MiB with a length behind a request that is being answered."""
    pieces = [http.head(SCORE, [("content-length", str(400 * MIB))]), *[_PIECE] * 6400]
    return lambda: _behind(pieces, target)


def chunks_behind(target: Target) -> Attack:
    """400 MiB in chunks behind a request that is being answered."""
    pieces = [http.head(SCORE, _CHUNKED), *http.chunked([_PIECE] * 6400)]
    return lambda: _behind(pieces, target)


def _endless(head: bytes, pieces: Iterable[bytes], target: Target) -> Counter[str]:
    client = http.HttpSocket(target.port)
    try:
        client.send([head])
        client.send(pieces, until=http.for_seconds(_LONGEST_S))
        client.wait(1, 2.0)
        return client.summary(1)
    finally:
        client.close()


_ONE_CHUNK = http.head(SCORE, _CHUNKED) + b'd\r\n{"nodes":[1]}\r\n'


def many_trailers(target: Target) -> Attack:
    """Trailers without end: 64 MiB."""
    pieces = [b"x-trailer: value\r\n" * 4000] * 960
    return lambda: _endless(_ONE_CHUNK + b"0\r\n", pieces, target)


def long_trailer(target: Target) -> Attack:
    """One trailer of 64 MiB."""
    return lambda: _endless(_ONE_CHUNK + b"0\r\nx-trailer: ", [_PIECE] * 1024, target)


def long_extension(target: Target) -> Attack:
    """A chunk extension of 64 MiB."""
    return lambda: _endless(http.head(SCORE, _CHUNKED) + b"d;x=", [_PIECE] * 1024, target)


def one_byte_chunks(target: Target) -> Attack:
    """150 MiB on the wire for a body of 25 MiB, as far as they come in the time."""
    pieces = itertools.repeat(b"1\r\n1\r\n" * 10_000, 2600)
    head = http.head(SCORE, _CHUNKED) + b'a\r\n{"nodes":[\r\n'
    return lambda: _endless(head, pieces, target)


def trailers_are_no_headers(target: Target) -> Attack:
    """Trailers that would change the request's meaning: a key, an encoding, an id."""
    key = [("x-api-key", target.key)]

    def sent(headers: list[tuple[str, str]], trailer: str) -> http.HttpSocket:
        client = http.HttpSocket(target.port)
        body = b'd\r\n{"nodes":[1]}\r\n0\r\n' + trailer.encode() + b"\r\n\r\n"
        client.send([http.head(SCORE, [*headers, *_CHUNKED]) + body])
        client.wait(1)
        client.close()
        return client

    def attack() -> Counter[str]:
        found: Counter[str] = Counter()
        found["a key"] = sent([], f"x-api-key: {target.key}").statuses != ["401"]
        found["an encoding"] = sent(key, "content-encoding: gzip").statuses != ["200"]
        heads = sent(key, "x-request-id: of-the-trailer").heads
        found["an id"] = any(b"of-the-trailer" in head for head in heads)
        return Counter({f"taken as a header: {name}": 1 for name, taken in found.items() if taken})

    return attack


def upgrade(target: Target) -> Attack:
    """`Upgrade: h2c` with a body of 60 MiB."""
    size = 60 * MIB
    headers = [("connection", "upgrade"), ("upgrade", "h2c"), ("content-length", str(size))]
    pieces = [_PIECE[:4096]] * (size // 4096)
    return lambda: _endless(http.head(SCORE, headers), pieces, target)


def pipelined_bodies(target: Target) -> Attack:
    """16 pipelined requests of 60 MiB each."""
    each = [http.head(SCORE, [("content-length", str(60 * MIB))]), *[_PIECE] * 960]
    return lambda: _behind(itertools.chain.from_iterable([each] * 16), target)


def bodies_at_once(target: Target) -> Attack:
    """50 bodies of 64 MiB at the same time, all but their last byte; then all of them are given up."""
    barrier = threading.Barrier(50)

    def send() -> Counter[str]:
        client = http.HttpSocket(target.port)
        try:
            client.send([http.head(SCORE, [("content-length", str(64 * MIB))])])
            client.send(itertools.chain([_PIECE] * 1023, [_PIECE[:-1]]))
            barrier.wait(_LONGEST_S * 6)
            return client.summary(1)
        finally:
            client.close()

    return lambda: http.at_once([send] * 50)


def bad_paths(target: Target) -> Attack:
    """20,000 requests for paths that do not exist, in one write."""
    burst = b"".join(http.request(f"/no/{number}", method="GET") for number in range(20_000))
    return lambda: http.exchange(target.port, [burst], 20_000)


def ready_unasked(target: Target) -> Attack:
    """Answers of `/readyz` to a caller without credentials: model names are not public."""
    ask = http.request("/readyz", method="GET")

    def attack() -> Counter[str]:
        import urllib.request

        found = http.exchange(target.port, [ask])
        with urllib.request.urlopen(f"http://127.0.0.1:{target.port}/readyz", timeout=10) as answer:
            if b"risk" in answer.read():
                found["names the models"] += 1
        return found

    return attack


@functools.cache
def _long_texts() -> list[tuple[str, bytes]]:
    """Requests with 60 KB to 1 MB of text in a place that an error may repeat."""
    name, text = b"n" * MIB, "t" * 60_000
    infer = "/v2/models/risk/infer"
    tensor = b'{"inputs":[{"name":"%b","datatype":"%b","shape":[1],"data":[%b]}]}'
    return [
        ("a path", http.request("/v1/" + text, method="GET")),
        ("a model", http.request(f"/v1/models/{text}/score", b'{"nodes":[1]}')),
        ("a field", http.request(SCORE, b'{"%b":1}' % name)),
        ("an output", http.request(SCORE, b'{"nodes":[1],"outputs":["%b"]}' % name)),
        ("a version", http.request(SCORE, b'{"nodes":[1],"version":"%b"}' % name)),
        ("an id", http.request(SCORE, b'{"nodes":["%b"]}' % name)),
        ("a time", http.request(SCORE, b'{"nodes":[1],"as_of":"%b"}' % name)),
        ("a wrong value", http.request(SCORE, b'{"nodes":[1],"on_missing":"%b"}' % name)),
        (
            "an edge type",
            http.request(SCORE, b'{"inline":[{"features":[1],"neighbors":{"%b":[]}}]}' % name),
        ),
        ("a column", http.request("/v1/models/fraud/score", b'{"columns":{"%b":[1]}}' % name)),
        (
            "a value",
            http.request("/v1/models/fraud/score", b'{"columns":{"amount":["%b"],"age":[1]}}' % name),
        ),
        ("a tensor", http.request(infer, tensor % (name, b"INT64", b"1"))),
        ("a datatype", http.request(infer, tensor % (b"node_ids", name, b"1"))),
        ("a wrong number", http.request(infer, tensor % (b"node_ids", b"INT64", b'"%b"' % name))),
        ("a parameter", http.request(infer, b'{"inputs":[],"parameters":{"%b":1}}' % name)),
        ("a load", http.request("/v2/repository/models/risk/load", b'{"parameters":{"%b":1}}' % name)),
        ("a rollout", http.request("/v1/rollouts", b'{"model":"%b","version":"1"}' % name)),
    ]


def echoes(target: Target) -> Attack:
    """Error texts that repeat what was sent: answers stay short."""

    def attack() -> Counter[str]:
        found: Counter[str] = Counter()
        for what, each in _long_texts():
            client = http.HttpSocket(target.port)
            client.send([each])
            client.wait(1)
            client.close()
            found += client.summary(1)
            if client.longest_body > 16_384:
                found[f"{client.longest_body >> 10} KiB repeat {what}"] += 1
        return found

    return attack


def long_numbers(target: Target) -> Attack:
    """Integers of 5,000 digits in headers and parameters."""
    digits = "9" * 5000
    infer = "/v2/models/risk/infer"
    body = b'{"inputs":[{"name":"node_ids","datatype":"INT64","shape":[1],"data":[1]}]%b}'
    plain = body % b""
    parameters = [("priority", f'"{digits}"'), ("priority", digits), ("timeout", digits)]
    parameters += [("timeout_ms", f'"{digits}"'), ("as_of", f'"{digits}"')]
    requests = [
        http.request(infer, body % f',"parameters":{{"{name}":{value}}}'.encode())
        for name, value in parameters
    ]
    requests += [
        http.request(infer, plain, [("timeout-ms", digits)]),
        http.request(infer, plain, [("inference-header-content-length", digits)]),
        http.request(infer, plain, [("inference-header-content-length", digits.replace("9", "0"))]),
        http.head(SCORE, [("content-length", digits)]),
        http.request(SCORE, b'{"nodes":[1],"timeout_ms":%b}' % digits.encode()),
        http.request(SCORE, b'{"nodes":[%b]}' % digits.encode()),
        http.request("/v1/models/fraud/score", b'{"rows":[{"amount":%b,"age":1}]}' % digits.encode()),
    ]
    return lambda: http.each_alone(target.port, requests)


CASES = [
    Case("body_behind_length", large_behind, frozenset({"200"}), setup=_SMALL_BODIES),
    Case("body_behind_chunks", chunks_behind, frozenset({"200"}), setup=_SMALL_BODIES),
    Case("trailers", many_trailers),
    Case("long_trailer", long_trailer),
    Case("chunk_extension", long_extension),
    Case("one_byte_chunks", one_byte_chunks, frozenset({http.SILENT})),
    Case("trailers_no_headers", trailers_are_no_headers, setup=_AUTH),
    Case("upgrade_body", upgrade),
    Case("long_numbers", long_numbers, frozenset({"200"})),
    Case("echoes", echoes),
    Case("pipelined_bodies", pipelined_bodies, frozenset({"200"}), setup=Setup(settings=_SLOW)),
    Case("bodies_at_once", bodies_at_once, frozenset({http.SILENT, http.CLOSED})),
    Case("bad_paths", bad_paths),
    Case("readyz_without_credentials", ready_unasked, frozenset({"200"}), setup=_AUTH),
]
