"""Attacks on the decoders of HTTP's bodies: JSON that is small on the wire and large once it is read."""

from __future__ import annotations

import gzip
import struct
from collections import Counter
from collections.abc import Callable

from benchmarks.abuse_phases import http_wire as http
from benchmarks.abuse_phases.case import Attack, Case
from benchmarks.abuse_phases.http_cases import MIB, SCORE
from benchmarks.abuse_phases.target import Target

INFER = "/v2/models/risk/infer"
FRAUD = "/v1/models/fraud/score"
_GZIP = (("content-encoding", "gzip"),)
#: Just below `server.max_body_bytes`.
_UNPACKED_BYTES = 64 * MIB - 64


def repeated(start: bytes, each: bytes, end: bytes, size: int = _UNPACKED_BYTES) -> bytes:
    """A document of about `size` bytes: a list of equal items, without the comma behind the last one."""
    count = (size - len(start) - len(end)) // (len(each) + 1)
    return start + (each + b",") * (count - 1) + each + end


def _one(path: str, make: Callable[[], bytes], *, packed: bool = False) -> Callable[[Target], Attack]:
    """A case of one request; its body is made when the case begins."""

    def prepare(target: Target) -> Attack:
        body = make()
        request = http.request(path, gzip.compress(body), _GZIP) if packed else http.request(path, body)
        return lambda: http.exchange(target.port, [request])

    return prepare


def _nested(shape: str, count: int, depth: int) -> bytes:
    """An OIP request whose data are numbers and a nested list."""
    data = b"1," * count + b"[" * depth + b"1" + b"]" * depth
    start = b'{"inputs":[{"name":"node_ids","datatype":"INT64","shape":%b,"data":[' % shape.encode()
    return start + data + b"]}]}"


def nested_lists(target: Target) -> Attack:
    """Numbers and a list nested 900 deep, 20 to 80 KB."""
    shapes = [(f"[{count + 1}{ones}]", count) for count in (9_000, 36_000) for ones in ("", ",1" * 900)]
    requests = [http.request(INFER, _nested(shape, count, 900)) for shape, count in shapes]
    columns = b'{"columns":{"amount":[%b%b%b],"age":[1]}}' % (b"1," * 30_000, b"[" * 900, b"]" * 900)
    levels = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[41],"data":%b1%b}]}' % (
        (b"[" + b"1," * 40) * 900,
        b"]" * 900,
    )
    requests.append(http.request(INFER, levels))
    requests += [http.request(FRAUD, columns), http.request(SCORE, b'{"nodes":%b}' % (b"[" * 80_000))]
    return lambda: http.each_alone(target.port, requests)


def _shaped(dims: list[int]) -> bytes:
    return b'{"inputs":[{"name":"node_ids","datatype":"INT64","shape":%b,"data":[1]}]}' % (
        str(dims).replace(" ", "").encode()
    )


def large_shapes(target: Target) -> Attack:
    """Shapes of 100,000 dimensions (1 MB), and of 300 large ones, in JSON and before binary data."""
    shapes = ([2_000_000_011] * 100_000, [1] * 400_000, [2**62 - 1] * 300)
    requests = [http.request(INFER, _shaped(dims)) for dims in shapes]
    text = b'{"inputs":[{"name":"node_ids","datatype":"INT64","shape":%b,"parameters":%b}]}' % (
        str([2**62 - 1] * 300).encode(),
        b'{"binary_data_size":8}',
    )
    header = [("inference-header-content-length", str(len(text)))]
    requests.append(http.request(INFER, text + struct.pack("<q", 1), header))
    return lambda: http.each_alone(target.port, requests)


def brackets(target: Target) -> Attack:
    """100,000 nested brackets in all places where JSON is read, as lists and as objects."""
    load, unload = (f"/v2/repository/models/risk/{verb}" for verb in ("load", "unload"))
    paths = [
        load,
        unload,
        "/v2/repository/index",
        "/v1/rollouts",
        "/v1/rollouts/risk/promote",
        SCORE,
        INFER,
    ]
    bodies = [b"[" * 100_000, b'{"parameters":' * 20_000, b'{"parameters":{"graph":%b' % (b"[" * 100_000)]
    requests = [http.request(path, body) for path in paths for body in bodies]
    return lambda: http.each_alone(target.port, requests)


def _one_mib() -> list[bytes]:
    """Large requests of honest callers."""
    ids, floats = ",".join(map(str, range(149_000))), ",".join(["0.12345"] * 125_000)
    tensor = '{"inputs":[{"name":"node_ids","datatype":"INT64","shape":[149000],"data":[%s]}]}'
    rows = ",".join(['{"amount":12.5,"age":30}'] * 41_000)
    inline = '{"inline":[{"features":[%s],"neighbors":{}}]}'
    neighbors = '{"inline":[{"features":[%s],"neighbors":{"account__pays0__account":[%s]}}]}'
    return [
        http.request(SCORE, f'{{"nodes":[{ids}]}}'.encode()),
        http.request(SCORE, (inline % floats).encode()),
        http.request(SCORE, (neighbors % (",".join(["0.5"] * 16), ids)).encode()),
        http.request(FRAUD, f'{{"rows":[{rows}]}}'.encode()),
        http.request(INFER, (tensor % ids).encode()),
    ]


def ordinary(target: Target) -> Attack:
    """Requests of 1 MiB as honest callers send them, one at a time: refused or answered."""
    requests = _one_mib()

    def attack() -> Counter[str]:
        return http.each_alone(target.port, requests)

    return attack


def inline_nodes(target: Target) -> Attack:
    """4,096 nodes that are not in the graph: with ten neighbours each in JSON, and as tensors, in turn."""
    features = ",".join(["0.123456"] * 16)
    node = '{"features":[%s],"neighbors":{"account__pays0__account":[%s]}}'
    nodes = [node % (features, ",".join(map(str, range(at, at + 10)))) for at in range(4096)]
    text = b'{"inputs":[{"name":"features","datatype":"FP32","shape":[4096,16],"parameters":%b}]}' % (
        b'{"binary_data_size":262144}'
    )
    length = [("inference-header-content-length", str(len(text)))]
    requests = [
        http.request(SCORE, f'{{"inline":[{",".join(nodes)}]}}'.encode()),
        http.request(INFER, text + struct.pack("<f", 0.5) * 4096 * 16, length),
    ]
    return lambda: http.each_alone(target.port, requests * 4)


def many_columns(target: Target) -> Attack:
    """Columns of 1 MiB: numbers of one digit, floats, texts of one letter, one long or many short ones."""
    values = (b"1", b"0.5", b'"a"', b"true", b"null")
    bodies = [repeated(b'{"columns":{"amount":[', each, b'],"age":[1]}}', MIB) for each in values]
    bodies.append(b'{"columns":{%b}}' % b",".join(b'"c%d":[1]' % at for at in range(85_000)))
    bodies += [
        b'{"rows":[{"amount":1,"age":1}],"attributes":{%b}}'
        % b",".join(b'"c%d":1' % at for at in range(90_000)),
        b'{"rows":[{%b}]}' % b",".join(b'"c%d":1' % at for at in range(90_000)),
    ]
    return lambda: http.each_alone(target.port, [http.request(FRAUD, body) for body in bodies])


def many_tensors(target: Target) -> Attack:
    """1 MiB of inputs, outputs and parameters of the Open Inference Protocol."""
    tensor = b'{"name":"a","datatype":"INT64","shape":[1],"data":[1]}'
    inputs = repeated(b'{"inputs":[', tensor, b"]}", MIB)
    named = b'{"inputs":[%b]}' % b",".join(
        tensor.replace(b'"a"', b'"a%d"' % at) for at in range(MIB // len(tensor) - 2000)
    )
    outputs = repeated(b'{"inputs":[%b],"outputs":[' % tensor, b'{"name":"a"}', b"]}", MIB)
    parameters = b'{"inputs":[%b],"parameters":{%b}}' % (
        tensor,
        b",".join(b'"p%d":1' % at for at in range(90_000)),
    )
    requests = [http.request(INFER, body) for body in (inputs, named, outputs, parameters)]
    return lambda: http.each_alone(target.port, requests)


CASES = [
    Case("many_columns", many_columns, frozenset({"200"})),
    Case("many_tensors", many_tensors, frozenset({"200"})),
    Case(
        "gzip_inline", _one(SCORE, lambda: repeated(b'{"inline":[', b'{"features":[]}', b"]}"), packed=True)
    ),
    Case("gzip_rows", _one(FRAUD, lambda: repeated(b'{"rows":[', b"{}", b"]}"), packed=True)),
    Case("gzip_nodes", _one(SCORE, lambda: repeated(b'{"nodes":[', b"1", b"]}"), packed=True)),
    Case("gzip_tensor", _one(INFER, lambda: repeated(b'{"inputs":[', b"{}", b"]}"), packed=True)),
    Case("nested_lists", nested_lists),
    Case("large_shapes", large_shapes),
    Case("brackets", brackets),
    Case("inline_nodes", inline_nodes, required=frozenset({"200"})),
    Case("ordinary_1mib", ordinary, frozenset({"200"})),
]
