"""Requests of up to 64 KiB that are made to cost others as much as they can."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable
from typing import NamedTuple

SENT_BYTES = 64 * 1024
#: What a compressed body is made of, before it is compressed.
_TEXT_BYTES = 3 * 2**20

SCORE, INFER = b"/v1/models/sage/score", b"/v2/models/sage/infer"
LOAD, INDEX = b"/v2/repository/models/sage/load", b"/v2/repository/index"
ROLLOUTS, DECIDE = b"/v1/rollouts", b"/v1/rollouts/sage/promote"


class Hostile(NamedTuple):
    """A body, and how it is compressed: "", "gzip" or "deflate"."""

    target: bytes
    body: bytes
    encoding: str = ""
    json_length: bytes = b""


#: Places in a body at which something may be repeated: target, what is before it and what is behind it.
PLACES: list[tuple[bytes, bytes, bytes]] = [
    *[
        (SCORE, head, tail)
        for head, tail in [
            (b'{"nodes":[', b"]}"),
            (b'{"inline":[', b"]}"),
            (b'{"rows":[', b"]}"),
            (b'{"rows":[{"a":1},', b"]}"),
            (b'{"rows":[{', b"}]}"),
            (b'{"pairs":[', b"]}"),
            (b'{"outputs":[', b"]}"),
            (b'{"columns":{"a":[', b"]}}"),
            (b'{"columns":{', b"}}"),
            (b'{"attributes":{', b"}}"),
            (b'{"inline":[{"features":[', b"]}]}"),
            (b'{"inline":[{"features":[1],"neighbors":[', b"]}]}"),
            (b'{"inline":[{"features":[1],"neighbors":{', b"}}]}"),
            (b'{"inline":[{"features":[1],"edge_attr":[', b"]}]}"),
            (b'{"inline":[{"features":[1],"edge_weight":{"a":[', b"]}}]}"),
            (b'{"unknown":[', b"]}"),
            (b'{"nodes":[1],', b"}"),
            (b'{"nodes":[1],"as_of":', b"}"),
            (b'{"nodes":[1],"timeout_ms":', b"}"),
            (b'{"nodes":[1],"priority":', b"}"),
            (b'{"nodes":[1],"version":"', b'"}'),
            (b'{"nodes":[1],"on_missing":"', b'"}'),
            (b'{"', b'":1}'),
            (b"[", b"]"),
            (b"", b""),
        ]
    ],
    *[
        (INFER, head, tail)
        for head, tail in [
            (b'{"inputs":[', b"]}"),
            (b'{"inputs":[],"outputs":[', b"]}"),
            (b'{"inputs":[],"parameters":{', b"}}"),
            (b'{"inputs":[{"name":"node_ids","datatype":"INT64","shape":[', b'],"data":[1]}]}'),
            (b'{"inputs":[{"name":"node_ids","datatype":"INT64","shape":[1],"data":[', b"]}]}"),
            (b'{"inputs":[{"name":"a","datatype":"BYTES","shape":[9],"data":[', b"]}]}"),
            (b'{"inputs":[{"name":"features","datatype":"FP32","shape":[2,2],"data":[', b"]}]}"),
            (
                b'{"inputs":[{"name":"features","datatype":"FP32","shape":[%b],"data":['
                % (b"1," * 31 + b"1"),
                b"]}]}",
            ),
            (b'{"inputs":[{"name":"a","datatype":"INT64","shape":[1],"parameters":{', b"}}]}"),
            (b'{"inputs":[{"name":"', b'","datatype":"INT64","shape":[1],"data":[1]}]}'),
            (b'{"inputs":[{"name":"a","datatype":"', b'","shape":[1],"data":[1]}]}'),
            (b'{"inputs":[],"parameters":{"priority":', b"}}"),
            (b'{"inputs":[],"parameters":{"timeout":', b"}}"),
        ]
    ],
    (LOAD, b'{"parameters":{', b"}}"),
    (LOAD, b'{"parameters":{"groups":[', b"]}}"),
    (LOAD, b'{"parameters":{"version":', b"}}"),
    (INDEX, b"[", b"]"),
    (INDEX, b'{"ready":', b"}"),
    (ROLLOUTS, b'{"model":"sage","version":"2","groups":[', b"]}"),
    (DECIDE, b'{"reason":"', b'"}'),
]

#: What is repeated; %d is another number each time.
UNITS: list[bytes] = [
    *[b"0", b"7", b"999999", b"9223372036854775807", b"0.1", b"-12.345678901234567e-5", b"1e400"],
    *[
        b"9" * 30,
        b"9" * 300,
        b"9" * 4000,
        b"9" * 6000,
        b"0." + b"123456789" * 9,
        b"1e-" + b"0" * 200 + b"1",
    ],
    *[
        b'""',
        b'"a"',
        b'"\\u0041\\n"',
        b'"\\ud83d\\ude00"',
        '"é😀"'.encode(),
        b'"' + b"x" * 900 + b'"',
        b'"\\"',
    ],
    *[b"null", b"true", b"[]", b"[1,2]", b"[[]]", b'["a",1]', b"[[[[1]]]]", b"{}", b'{"a":1}', b'{"a":{}}'],
    *[
        b'{"a":1,"a":2}',
        b'{"a":1,"b":":","c":"\\":"}',
        b'{"%d":1}',
        b'{"features":[]}',
        b'{"features":[0]}',
    ],
    b'{"features":[1],"neighbors":[1],"id":%d,"edge_weight":[1]}',
    b'{"features":[],"neighbors":{"a":[]},"edge_attr":{"a":[[]]}}',
    b'{"name":"%d","datatype":"INT64","shape":[1],"data":[1]}',
    b'{"name":"%d","datatype":"BYTES","shape":[0],"data":[]}',
    b'{"name":"a","datatype":"FP32","shape":[1,1,1],"data":[[[1]]],"parameters":{"triton_a":1}}',
    *[b'"%d":1', b'"triton_%d":1', b'"%d":[]', b'"a":1', b'"a":[1]', b'"a":{"b":1}', b'"\\u0061%d":":"'],
    *[
        b"x",
        b"\\u0041",
        "é".encode(),
        b"\\",
        b" ",
        b"\n",
        b"[",
        b'{"a":',
        b'[{"a":',
        b"\0",
        b"`",
        b" - at `$",
    ],
    *[b'"a', b"-", b"[" * 900 + b"]" * 900, b"1,[" * 300 + b"]" * 300],
]


def text_of(place: tuple[bytes, bytes, bytes], unit: bytes, size: int, *, closed: bool) -> bytes:
    """A body of about `size` bytes."""
    _, head, tail = place
    comma = b"," if unit[-1:] in b'}]"0123456789le' else b""
    count = max(1, (size - len(head) - len(tail)) // (len(unit) + len(comma) + 4 * unit.count(b"%d")))
    if b"%d" in unit:
        middle = comma.join(unit.replace(b"%d", b"%d" % number) for number in range(count))
    else:
        middle = comma.join([unit]) + (comma + unit) * (count - 1)
    return head + middle + (tail if closed else b"")


def http(place: tuple[bytes, bytes, bytes], unit: bytes, encoding: str, *, closed: bool) -> Hostile:
    """A request over HTTP of up to 64 KiB."""
    size = _TEXT_BYTES if encoding else SENT_BYTES
    return _sent(place[0], text_of(place, unit, size, closed=closed), encoding)


def binary(datatype: str, item: bytes, shape: list[int], encoding: str) -> Hostile:
    """The same with a binary tensor, in which an item is repeated; 0 in its shape is as many as fit."""
    size = (_TEXT_BYTES if encoding else SENT_BYTES - 200) // len(item)
    while True:
        blob = item * size
        dims = [each or max(1, size // max(1, *shape)) for each in shape]
        tensor = {"name": "features", "datatype": datatype, "shape": dims}
        tensor["parameters"] = {"binary_data_size": len(blob)}
        text = json.dumps({"inputs": [tensor]}).encode()
        sent = packed(text + blob, encoding) if encoding else text + blob
        if len(sent) <= SENT_BYTES:
            return Hostile(INFER, sent, encoding, b"%d" % len(text))
        size //= 2


def _sent(target: bytes, body: bytes, encoding: str) -> Hostile:
    if not encoding:
        return Hostile(target, body[:SENT_BYTES])
    sent = packed(body, encoding)
    while len(sent) > SENT_BYTES:
        body = body[: len(body) // 2]
        sent = packed(body, encoding)
    return Hostile(target, sent, encoding)


def packed(body: bytes, encoding: str) -> bytes:
    """A compressed body."""
    return gzip.compress(body, 6, mtime=0) if encoding == "gzip" else zlib.compress(body, 6)


# Protobuf


def varint(value: int) -> bytes:
    """A number."""
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number: int, content: bytes) -> bytes:
    """A field of bytes, a string or a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def tensor(name: bytes, datatype: bytes, shape: list[int], rest: bytes = b"") -> bytes:
    """An InferInputTensor in its request."""
    dims = b"".join(map(varint, shape))
    return field(5, field(1, name) + field(2, datatype) + field(3, dims) + rest)


def _contents(number: int, content: bytes) -> Callable[[int, random.Random], bytes]:
    def made(size: int, rng: random.Random) -> bytes:
        count = size // len(content)
        datatype = b"BOOL INT32 INT64 UINT8 UINT64 FP32 FP64 BYTES".split()[number - 1]
        name = rng.choice([b"node_ids", b"neighbors", b"features", b"a"])
        values = content * count if number == 8 else field(number, content * count)
        return tensor(name, datatype, [rng.choice([count, count * len(content), 1])], field(5, values))

    return made


def _many(unit: Callable[[int], bytes]) -> Callable[[int, random.Random], bytes]:
    def made(size: int, rng: random.Random) -> bytes:
        count = max(1, size // len(unit(1000)))
        if unit(0) == unit(1):
            return unit(0) * count
        different = min(count, 20_000)
        return b"".join(map(unit, range(different))) * (count // different)

    return made


def _raw(datatype: bytes, item: bytes) -> Callable[[int, random.Random], bytes]:
    def made(size: int, rng: random.Random) -> bytes:
        count = size // len(item)
        shape = rng.choice([[count], [count, 1], [1, count], [count // 2, 2]])
        name = rng.choice([b"node_ids", b"neighbors", b"features", b"a"])
        return tensor(name, datatype, shape) + field(7, item * count)

    return made


#: Messages of a size.
MESSAGES: dict[str, Callable[[int, random.Random], bytes]] = {
    "empty inputs": _many(lambda i: b"\x2a\x00"),
    "empty outputs": _many(lambda i: b"\x32\x00"),
    "empty parameters": _many(lambda i: b"\x22\x00"),
    "empty raw contents": _many(lambda i: b"\x3a\x00"),
    "inputs": _many(lambda i: tensor(b"%d" % i, b"INT8", [0])),
    "inputs with raw contents": _many(lambda i: tensor(b"%d" % i, b"INT8", [0]) + b"\x3a\x00"),
    "inputs of strings": _many(lambda i: tensor(b"%d" % i, b"BYTES", [1], field(5, field(8, b"a")))),
    "outputs": _many(lambda i: field(6, field(1, b"%d" % i))),
    "parameters": _many(lambda i: field(4, field(1, b"triton_%d" % i) + field(2, b"\x08\x01"))),
    "unknown fields": _many(lambda i: b"\x78\x01"),
    "unknown messages": _many(lambda i: field(15, b"")),
    "groups": _many(lambda i: b"\x7b\x7c"),
    "open groups": _many(lambda i: b"\x7b"),
    "input parameters": lambda size, rng: tensor(
        b"a", b"INT8", [0], b"".join(field(4, field(1, b"triton_%d" % i)) for i in range(size // 20))
    ),
    "shape": lambda size, rng: tensor(b"a", b"INT8", [rng.choice([1, 127])] * size),
    "long model name": lambda size, rng: field(1, b"x" * size),
    "long name": lambda size, rng: tensor(b"x" * size, b"INT64", [1]),
    "long datatype": lambda size, rng: tensor(b"a", b"y" * size, [1]),
    "priority": lambda size, rng: field(4, field(1, b"priority") + field(2, field(3, b"9" * size))),
    "timeout": lambda size, rng: field(4, field(1, b"timeout") + field(2, field(3, b"9" * size))),
    "attributes": lambda size, rng: field(
        4, field(1, b"attributes") + field(2, field(3, rng.choice([b"[" * size, b'{"a":' * (size // 5)])))
    ),
    "bool contents": _contents(1, b"\x01"),
    "int contents": _contents(2, b"\x01"),
    "int64 contents": _contents(3, b"\x01"),
    "large int64 contents": _contents(3, b"\xff" * 9 + b"\x01"),
    "uint contents": _contents(4, b"\xff\x01"),
    "uint64 contents": _contents(5, b"\x01"),
    "fp32 contents": _contents(6, b"\0\0\x80\x3f"),
    "fp64 contents": _contents(7, b"\0\0\0\0\0\0\xf0\x3f"),
    "empty strings": _contents(8, b"\x42\x00"),
    "strings": _contents(8, b"\x42\x01a"),
    "raw empty strings": _raw(b"BYTES", b"\0\0\0\0"),
    "raw strings": _raw(b"BYTES", b"\x01\0\0\0a"),
    "raw bytes": _raw(b"INT8", b"\x01"),
    "raw halves": _raw(b"FP16", b"\0\x3c"),
    "raw floats": _raw(b"FP32", b"\0\0\x80\x3f"),
    "raw numbers": _raw(b"UINT64", b"\x01" + b"\0" * 7),
    "rows of nothing": lambda size, rng: tensor(b"features", b"FP32", [2**47, 0]) + field(7, b""),
}


def grpc(kind: str, encoding: str, seed: int) -> Hostile:
    """A ModelInferRequest of up to 64 KiB."""
    made, size = MESSAGES[kind], _TEXT_BYTES if encoding else SENT_BYTES - 64
    while True:
        message = field(1, b"sage") + made(size, random.Random(seed))
        sent = packed(message, encoding) if encoding else message
        if len(sent) <= SENT_BYTES:
            return Hostile(b"ModelInfer", sent, encoding)
        size //= 2
