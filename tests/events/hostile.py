"""Bodies of events of up to 64 KiB that say or become more than they should, and a program that sends them.

`python -m tests.events.hostile FOLDER` prints a line of JSON for each body: what it cost the process that
reads events. It limits its own memory, so that a fault cannot hurt the machine.
"""

import asyncio
import ctypes
import gc
import io
import json
import os
import random
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from hopline.config.schema import Config
from hopline.errors import HoplineError
from hopline.graph.live.changes import Applied, Rejected
from hopline.graph.schema import EdgeTypeSchema, GraphSchema, NodeTypeSchema
from hopline.live.server import WriterServer
from hopline.live.updates import LiveUpdates
from hopline.observe.metrics import Metrics
from tests.live.fake import FakeKeeper

BYTES = 64 * 1024
#: One type of each kind, with vectors as long as those of real graphs.
GRAPH = GraphSchema(
    {
        "page": NodeTypeSchema(256, feature_names=tuple(f"feature_{at}" for at in range(256))),
        "user": NodeTypeSchema(16, id_kind="string"),
    },
    {
        "page__links__page": EdgeTypeSchema(
            "page", "links", "page", attr_dim=32, has_time=True, has_weight=True, time_unit="s"
        ),
        "user__knows__user": EdgeTypeSchema("user", "knows", "user"),
    },
)
PAGE, LINK, KNOW = "page", "page__links__page", "user__knows__user"


# JSON


def _list_of(item: str) -> bytes:
    return f"[{','.join([item] * ((BYTES - 2) // (len(item) + 1)))}]".encode()


def _lines_of(item: str) -> bytes:
    return "\n".join([item] * (BYTES // (len(item) + 1))).encode()


def json_bodies() -> Iterator[tuple[str, bytes]]:
    page = '{"op":"add_node","node_type":"page","node":1'
    link = '{"op":"add_edge","edge_type":"page__links__page","src":1,"dst":2'
    gone = '{"op":"remove_edge","edge_type":"page__links__page","src":1,"dst":2'
    know = '{"op":"add_edge","edge_type":"user__knows__user","src":"a","dst":"b"'
    digits = "9" * 4000
    for name, item in {
        "numbers": "1",
        "lists": "[]",
        "objects": "{}",
        "texts": '""',
        "no features": page + "}",
        "features of no length": page + ',"features":[]}',
        "features of no names": page + ',"features":{}}',
        "features of another name": page + ',"features":{"x":1}}',
        "one feature": page + ',"features":{"feature_1":1}}',
        "features on end": page + f',"features":[{",".join(["1"] * 256)}]}}',
        "no attr": link + "}",
        "removals": gone + "}",
        "removals without a type": '{"op":"remove_edge","src":1,"dst":2}',
        "types of another name": know.replace("user__knows__user", "knows") + "}",
        "edges": know + "}",
        "edges with an id": know + ',"id":"e"}',
        "times in another unit": gone + ',"time":1700000000000}',
        "long ids": f'{{"op":"add_node","node_type":"page","node":{digits}}}',
        "long ids of text": know.replace('"a"', digits) + "}",
        "long times": gone + f',"time":{digits}}}',
        "long moments": know + f',"at":{digits}}}',
        "moments": know + ',"at":"9999-12-31T23:59:59-12:00"}',
        "early moments": know + ',"at":"0001-01-01T00:00:00+23:59"}',
        "seconds": know + ',"at":1700000000.5}',
        "fields that come twice": know + ',"src":"c"}',
        "fields that may come twice": know.replace('"a"', '"\\"src\\""') + "}",
        "unknown fields": know + ',"x":[[[[1]]]]}',
        "escapes": know.replace('"a"', '"' + "\\u0001" * 100 + '"') + "}",
        "surrogates": know.replace('"a"', '"\\ud800"') + "}",
    }.items():
        yield name, _list_of(item)
        yield f"{name}, a line each", _lines_of(item)
    yield "lines that are no JSON", b"x\n" * (BYTES // 2)
    yield "good lines among them", (know.encode() + b"}\nx\n") * (BYTES // (len(know) + 4))
    yield "empty lines", b"\n" * BYTES
    yield "blanks", b" " * BYTES
    yield "zeros", bytes(BYTES)
    yield "carriage returns", b"1\r" * (BYTES // 2)
    yield "UTF-16", "[1]".encode("utf-16") * (BYTES // 8)
    yield "UTF-8 that is none", b'["\xff"' + b',"\xff"' * (BYTES // 4 - 1) + b"]"
    yield "deep lists", b"[" * BYTES
    yield "deep objects", b'{"a":' * (BYTES // 5)
    yield "a deep feature", page.encode() + b',"features":' + b"[" * (BYTES - 200)
    yield "a long number", know.encode() + b',"weight":0.' + b"1" * (BYTES - 200) + b"}"
    yield "a long text", know.encode() + b',"id":"' + b"x" * (BYTES - 200) + b'"}'
    yield (
        "types that differ",
        b"[%b]"
        % b",".join(b'{"op":"add_edge","edge_type":"%d","src":1,"dst":2}' % at for at in range(1200)),
    )


# Arrow


def stream(table: Any, codec: str | None = None, rows: int | None = None, *, deltas: bool = False) -> bytes:
    """The IPC stream of a table."""
    out = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=codec, emit_dictionary_deltas=deltas)
    with pa.ipc.new_stream(out, table.schema, options=options) as writer:
        for batch in [table] if isinstance(table, pa.RecordBatch) else table.to_batches(rows):
            writer.write_batch(batch)
    return out.getvalue()


def _words(word: str | None, count: int) -> Any:
    indices = pa.array([None if word is None else 0] * count, pa.int8())
    return pa.DictionaryArray.from_arrays(indices, pa.array([word or ""]))


def _lists(count: int, dim: int, value: Any = 1.0, kind: Any = None) -> Any:
    values = pa.array(np.full(count * dim, value), kind or pa.float32())
    return pa.FixedSizeListArray.from_arrays(values, dim)


def _nodes(count: int, **columns: Any) -> Any:
    return pa.table(
        {
            "op": _words("add_node", count),
            "node_type": _words(PAGE, count),
            "node": pa.array(np.arange(count), pa.int32()),
            **columns,
        }
    )


def _edges(op: str, kind: str, count: int, **columns: Any) -> Any:
    ends = (
        {end: pa.array(np.arange(count) % 30_000, pa.int16()) for end in ("src", "dst")}
        if kind == LINK
        else {end: _words("ann", count) for end in ("src", "dst")}
    )
    return pa.table({"op": _words(op, count), "edge_type": _words(kind, count), **ends, **columns})


def _nested(depth: int) -> Any:
    kind = pa.int8()
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


def good_streams() -> Iterator[tuple[str, bytes]]:
    """What real producers write, and mutations begin with."""
    know = pa.table(
        {
            "op": ["add_edge", "remove_edge"] * 20,
            "id": [f"e-{at}" for at in range(40)],
            "edge_type": pa.array([KNOW] * 40).dictionary_encode(),
            "src": pa.array([f"u{at % 7}" for at in range(40)]).dictionary_encode(),
            "dst": pa.array([f"u{at % 9}" for at in range(40)]).dictionary_encode(),
            "at": pa.array([1_700_000_000_000] * 40, pa.timestamp("ms", "UTC")),
        }
    )
    links = _edges(
        "add_edge",
        LINK,
        30,
        time=pa.array([1_700_000_000] * 30),
        weight=pa.array([0.5, None, 1.0] * 10, pa.float32()),
        attr=pa.array([[0.5] * 32, None, [1.0]] * 10, pa.large_list(pa.float64())),
    )
    for name, table in (("knows", know), ("links", links), ("pages", _nodes(20, features=_lists(20, 256)))):
        for codec in (None, "zstd", "lz4"):
            yield f"{name} {codec}", stream(table, codec)
            yield f"{name} {codec} in batches", stream(table, codec, 7)


def _all_alike(table_of: Any, codec: str | None) -> bytes:
    """As many rows of a table as fit into the bytes of a body."""
    low, high = 1, 1 << 20
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if len(stream(table_of(middle), codec)) <= BYTES else (low, middle)
    return stream(table_of(low), codec)


def arrow_bodies() -> Iterator[tuple[str, bytes]]:
    many = {
        "nodes without features": _nodes,
        "nodes with null features": lambda n: _nodes(n, features=pa.nulls(n, pa.list_(pa.float32()))),
        "nodes with short features": lambda n: _nodes(n, features=_lists(n, 1)),
        "nodes with narrow features": lambda n: _nodes(n, features=_lists(n, 256, 1, pa.int8())),
        "nodes with features of nulls": lambda n: _nodes(
            n, features=pa.FixedSizeListArray.from_arrays(pa.nulls(n * 256), 256)
        ),
        "nodes with a column a feature": lambda n: _nodes(
            n, **{f"feature_{at}": pa.array(np.zeros(n), pa.int8()) for at in range(256)}
        ),
        "links without attr": lambda n: _edges("add_edge", LINK, n),
        "removed links": lambda n: _edges("remove_edge", LINK, n),
        "removed links with a time": lambda n: _edges(
            "remove_edge", LINK, n, time=pa.array(np.arange(n) + 1_700_000_000_000)
        ),
        "negative weights": lambda n: _edges(
            "add_edge",
            LINK,
            n,
            weight=pa.array(-np.arange(n), pa.int32()),
            attr=_lists(n, 32, 1, pa.int8()),
        ),
        "edges": lambda n: _edges("add_edge", KNOW, n),
        "edges with ids": lambda n: _edges("add_edge", KNOW, n, id=pa.array(np.arange(n))),
        "edges of no type": lambda n: _edges("add_edge", "x", n),
        "edges without ends": lambda n: _edges("add_edge", KNOW, n).drop_columns(["src"]),
        "rows of nothing": lambda n: pa.table({"op": pa.nulls(n)}),
        "rows without an op": lambda n: pa.table({"op": _words(None, n), "src": pa.nulls(n)}),
        "ops of text": lambda n: pa.table({"op": pa.array([str(at) for at in range(n)])}),
    }
    for name, table_of in many.items():
        for codec in (None, "zstd"):
            yield f"{name}, {codec}", _all_alike(table_of, codec)
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 4000, pa.int8()), pa.array(["x" * 30_000]))
    yield "a long id of many rows", stream(_edges("add_edge", KNOW, 4000, id=text))
    word = pa.array(["a" * 20_000_000])
    yield "long texts", stream(pa.table([word] * 12, ["op", "id", "src", "dst", *"abcdefgh"]), "zstd")
    yield "long texts in batches", stream(pa.concat_tables([pa.table({"op": word})] * 12), "zstd")
    yield "long vectors", stream(_nodes(9_000, features=_lists(9_000, 256, 0)), "zstd")
    word = pa.array(["a" * 5_000_000])
    yield "long texts, lz4", stream(pa.table({"op": word, "src": word}), "lz4")
    yield "2e9 nulls", stream(pa.table({"op": pa.nulls(2_000_000_000)}))
    lists = pa.FixedSizeListArray.from_arrays(pa.nulls(2_000_000_000), 1_000_000_000)
    yield "2e9 nulls in lists", stream(_nodes(2, features=lists))
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.nulls(2_000_000_000))
    yield "2e9 nulls behind lists", stream(_nodes(2, features=lists))
    ones = pa.array([1, 1])
    for name, column in {
        "run ends": pa.RunEndEncodedArray.from_arrays(pa.array([2_000_000_000], pa.int32()), ones[:1]),
        "views": pa.array(["a" * 20, "b"], pa.string_view()),
        "bytes": pa.array([b"a", b"b"]),
        "a union": pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [ones]),
        "a struct": pa.StructArray.from_arrays([ones], ["a"]),
        "a map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int8())),
        "decimals": pa.array([1, 2], pa.decimal128(38, 2)),
        "an extension": pa.array([b"0" * 16] * 2, pa.uuid()),
        "truth": pa.array([True, False]),
        "deep lists": pa.array([], _nested(7)),
        "very deep lists": pa.array([], _nested(300)),
    }.items():
        yield f"a column of {name}", stream(pa.table({"op": column}))
    yield "columns", stream(pa.table({f"c{at}": [1] for at in range(600)}))
    yield "one column many times", stream(pa.table([[1]] * 600, ["op"] * 600))
    yield "batches", stream(pa.table({"op": ["add_edge"] * 200, "src": ["a"] * 200}), None, 1)[:BYTES]
    yield "dictionaries", _dictionaries(replace=True)
    yield "dictionaries that grow", _dictionaries(replace=False)
    yield "nothing", b"\xff\xff\xff\xff" + bytes(BYTES)
    yield "junk", b"\xff\xff\xff\xff" + random.Random(1).randbytes(BYTES - 4)


def _dictionaries(*, replace: bool) -> bytes:
    """A stream whose every batch has a dictionary of its own, or a longer one than before."""
    words = [f"word {at}" for at in range(4000)]
    out = io.BytesIO()
    kind = pa.dictionary(pa.int16(), pa.string())
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=not replace)
    with pa.ipc.new_stream(out, pa.schema([("op", kind)]), options=options) as writer:
        for at in range(1000):
            known = [f"{at}"] if replace else words[: 1 + at]
            column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int16()), pa.array(known))
            writer.write_batch(pa.record_batch([column], ["op"]))
            if out.tell() > BYTES - 1000:
                break
    return out.getvalue()


EXTREMES = (0, 1, -1, 127, 255, 2**15, 2**31 - 1, -(2**31), 2**32 - 1, 2**40, 2**62, 2**63 - 1, -(2**63))


def mutated(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Real streams with other numbers in them: bytes, and words of 4 and 8 bytes."""
    chance = random.Random(seed)
    streams = list(good_streams())
    for at in range(count):
        name, body = chance.choice(streams)
        data = bytearray(body)
        for _ in range(chance.choice((1, 1, 2, 5))):
            # Metadata lies at the beginning, and is what most faults hide in.
            place = chance.randrange(len(data) if chance.random() < 0.5 else min(len(data), 1500))
            width = chance.choice((1, 2, 4, 8))
            place -= place % width
            value = chance.choice(EXTREMES) if chance.random() < 0.7 else chance.getrandbits(62)
            data[place : place + width] = (value % 2**64).to_bytes(8, "little")[:width]
        if chance.random() < 0.1:
            del data[chance.randrange(len(data)) :]
        yield f"mutation {at} of {name}", bytes(data)


# What they cost


_libc = ctypes.CDLL(None)


class Rejecting(FakeKeeper):
    """Takes nothing, and says why of each: the longest answers."""

    def _apply(self, changes: Any) -> Applied:
        reason = "source 12345 of 'page__links__page' is no node of type 'page'; add the node first"
        return Applied(1, 0, (), [Rejected(at, "unknown_node", reason) for at in range(changes.num_events)])


async def write(path: Path) -> None:
    """The writer's process."""
    server = WriterServer(Rejecting(), "abc", GRAPH, snapshot_bytes=0, snapshot_s=0.0, clock=time.monotonic)
    await server.listen(path)
    await asyncio.Event().wait()


def _memory(name: str) -> int:
    """A line of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


async def cost(updates: LiveUpdates, body: bytes) -> dict[str, Any]:
    """Send a body: time of the event loop and of the process, and the growth of memory at its peak."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    _libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, loop_s, all_s = _memory("VmRSS"), time.thread_time(), time.process_time()
    try:
        answer = await updates.apply(body)
        said = f"{answer['applied']} applied, {answer.get('num_refused', len(answer['refused']))} refused"
        said += f": {answer['refused'][0]['reason']}" if answer["refused"] else ""
    except HoplineError as error:
        said = f"{error.code}: {error}"
    return {
        "bytes": len(body),
        "loop_ms": 1e3 * (time.thread_time() - loop_s),
        "all_ms": 1e3 * (time.process_time() - all_s),
        "growth": _memory("VmHWM") - before,
        "said": said[:200],
    }


class _Graph(SimpleNamespace):
    """What `LiveUpdates` reads of a live graph."""

    version = "abc+0"

    def __enter__(self) -> "_Graph":
        return self

    def __exit__(self, *error: object) -> None:
        pass


async def send(path: Path, seed: int, count: int) -> None:
    """Send all bodies."""
    memory = SimpleNamespace(version=0, plan=SimpleNamespace(lineage="abc"))
    graph: Any = _Graph(schema=GRAPH, memory=memory, close=lambda: None)
    updates = LiveUpdates(graph, path, 1, Metrics(), Config())
    updates.start()
    for _, body in (*good_streams(), *list(json_bodies())[:3]):
        await cost(updates, body)  # imports, and what compiles when it is first used
    gc.collect()
    gc.freeze()  # the collection before each body looks at what bodies left, and not at every module
    for bodies in (json_bodies(), arrow_bodies(), mutated(seed, count)):
        for name, body in bodies:
            best = await cost(updates, body)
            for _ in range(4):
                if best["loop_ms"] <= 10 and best["growth"] <= 16 * 2**20:
                    break
                again = await cost(updates, body)
                best = {
                    **best,
                    **{key: min(best[key], again[key]) for key in ("loop_ms", "all_ms", "growth")},
                }
            print(json.dumps({"name": name, **best}), flush=True)
    await updates.close()


def main(folder: str, seed: str = "1", count: str = "300") -> None:
    resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    path = Path(folder) / "writer"
    child = os.fork()
    if child == 0:
        asyncio.run(write(path))
    try:
        asyncio.run(send(path, int(seed), int(count)))
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
