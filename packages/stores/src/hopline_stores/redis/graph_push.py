"""Copies a graph into Redis: can be stopped and continued, and is complete only after it was verified.

Chunks that the store lacks are written. At the end every chunk is read back and compared with the graph;
one that differs, as after the loss of a server, is written again. Only then the manifest is written,
without which no server opens the graph.
"""

from __future__ import annotations

import msgspec
import numpy as np

from hopline.errors import GraphError, GraphStoreError
from hopline.graph import Graph, storage
from hopline.graph.digest import digests
from hopline.graph.storage import StoredArray, header
from hopline.graph.store_columns import mean_row
from hopline.graph_store.base import Pushed
from hopline.types import IdArray, Progress, silent
from hopline_stores.redis.graph_layout import (
    Part,
    Redis,
    StoreManifest,
    connect,
    edge_parts,
    errors_of_graph,
    host_arrays,
    parts_of,
)
from hopline_stores.redis.resp import Bytes, Keys

#: Bytes that are sent before their confirmation is awaited.
_BATCH_BYTES = 4 << 20


async def push(
    graph: Graph,
    url: str,
    *,
    features: bool = True,
    make_current: bool = True,
    progress: Progress = silent,
) -> Pushed:
    """See `RemoteGraphStore.push`; `url` as in `RedisUrl`."""
    if graph.path is None:
        raise GraphError("only a saved graph can be pushed; call save() first")
    redis = Redis(url, "URL")
    try:
        with errors_of_graph():
            await connect(redis, "URL")
            return await _Push(redis, graph, features, progress).run(make_current)
    finally:
        await redis.backend.close()


class _Push:
    def __init__(self, redis: Redis, graph: Graph, features: bool, progress: Progress) -> None:
        assert graph.path is not None
        self._redis, self._graph, self._progress = redis, graph, progress
        self._version = graph.version
        self._features = features
        self._source = storage.read(graph.path)
        self._host = host_arrays(graph, features=features)
        self._parts = [part for part in parts_of(graph, self._host) if part.num_bytes]
        self._total = max(1, sum(part.num_bytes for part in self._parts))

    async def run(self, make_current: bool) -> Pushed:
        redis, version = self._redis, self._version
        was_complete = await redis.call("GET", redis.key(version, "manifest")) is not None
        num_written = await self._pass("writing")
        num_lost = await self._pass("verifying")
        if num_lost and await self._pass("verifying"):
            raise GraphStoreError(
                f"{redis.url.kind}: the store of graph {version} does not keep what is written: check the "
                "servers' maxmemory and their eviction policy, which must be noeviction"
            )
        await redis.call("SET", redis.key(version, "manifest"), msgspec.json.encode(self._manifest()))
        await redis.call("SADD", redis.key("versions"), version)
        if make_current:
            await redis.call("SET", redis.key("current"), version)
        num_chunks = sum(part.num_chunks for part in self._parts)
        num_repaired = num_lost + (num_written if was_complete else 0)
        return Pushed(version, num_chunks, num_written + num_lost, num_repaired, self._total)

    def _manifest(self) -> StoreManifest:
        hashes = digests(self._host)
        host = {}
        for name, array in self._host.items():
            num_bytes = len(header(array.dtype.str, array.shape)) + array.nbytes
            host[name] = StoredArray(array.dtype.str, array.shape, num_bytes, hashes[name])
        means = {}
        if not self._features:
            means = {name: mean_row(nodes.features).tolist() for name, nodes in self._graph.nodes.items()}
        return StoreManifest(self._source, host, edge_parts(self._graph), self._features, means)

    async def _pass(self, label: str) -> int:
        """Write the chunks that are missing or differ; return their number."""
        done = num_written = 0
        for part in self._parts:
            step = max(1, _BATCH_BYTES // part.chunk_bytes)
            for first in range(0, part.num_chunks, step):
                num_written += await self._settle(
                    part, np.arange(first, min(first + step, part.num_chunks))
                )
                at = min(part.num_bytes, (first + step) * part.chunk_bytes)
                self._progress(label, (done + at) / self._total)
            done += part.num_bytes
        return num_written

    async def _settle(self, part: Part, chunks: IdArray) -> int:
        """Compare successive chunks with the store's, and write those that differ; return their number."""
        size = part.chunk_bytes
        content = part.read(int(chunks[0]) * size, min((int(chunks[-1]) + 1) * size, part.num_bytes))
        keys = self._redis.chunk_keys(self._version, part.name, chunks)
        replies = (await self._redis.backend.read(keys, size)).check(self._redis.url.kind)
        own = [content[at : at + size] for at in range(0, len(content), size)]
        wrong = [
            at
            for at, each in enumerate(own)
            if replies.lengths[at] != len(each) or not np.array_equal(replies.rows[at, : len(each)], each)
        ]
        for length in {len(own[at]) for at in wrong}:  # the last chunk may be shorter
            some = [at for at in wrong if len(own[at]) == length]
            await self._write(keys.pick(np.array(some)), np.stack([own[at] for at in some]))
        return len(wrong)

    async def _write(self, keys: Keys, rows: Bytes) -> None:
        (await self._redis.backend.write(keys, rows, None)).check(self._redis.url.kind)
