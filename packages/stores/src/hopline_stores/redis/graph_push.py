"""Copies a graph into Redis: can be stopped and continued, and is complete only after it was verified.

Chunks are written in order, and a hash in the store counts those of each part that were confirmed. At the
end every chunk is read back and compared with the graph; one that differs, as after the loss of a server,
is written again. Only then the manifest is written, without which no server opens the graph.
"""

from __future__ import annotations

import msgspec
import numpy as np

from hopline.errors import GraphError, GraphStoreError
from hopline.graph import Graph, storage
from hopline.graph.digest import digests
from hopline.graph.means import mean_row
from hopline.graph.storage import StoredArray, header
from hopline.graph_store.base import Pushed
from hopline.types import Progress, silent
from hopline_stores.redis.connection import refusal
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
        self._num_written = self._num_repaired = 0

    async def run(self, make_current: bool) -> Pushed:
        done = 0
        for part in self._parts:
            await self._write_part(part, done)
            done += part.num_bytes
        done = 0
        for part in self._parts:
            await self._verify_part(part, done)
            done += part.num_bytes
        redis, version = self._redis, self._version
        await redis.call("SET", redis.key(version, "manifest"), msgspec.json.encode(self._manifest()))
        await redis.call("SADD", redis.key("versions"), version)
        if make_current:
            await redis.call("SET", redis.key("current"), version)
        num_chunks = sum(part.num_chunks for part in self._parts)
        return Pushed(version, num_chunks, self._num_written, self._num_repaired, self._total)

    def _manifest(self) -> StoreManifest:
        hashes = digests(self._host)
        host = {
            name: StoredArray(
                array.dtype.str,
                array.shape,
                len(header(array.dtype.str, array.shape)) + array.nbytes,
                hashes[name],
            )
            for name, array in self._host.items()
        }
        means = {}
        if not self._features:
            means = {name: mean_row(nodes.features).tolist() for name, nodes in self._graph.nodes.items()}
        return StoreManifest(self._source, host, edge_parts(self._graph), self._features, means)

    async def _write_part(self, part: Part, done: int) -> None:
        key = self._redis.key(self._version, "progress")
        count = await self._redis.call("HGET", key, part.name)
        first = int(count) if isinstance(count, bytes) and count.isdigit() else 0
        step = max(1, _BATCH_BYTES // part.chunk_bytes)
        while first < part.num_chunks:
            last = min(first + step, part.num_chunks)
            content = self._content(part, first, last)
            await self._write(part, np.arange(first, last), content)
            self._num_written += last - first
            await self._redis.call("HSET", key, part.name, last)
            first = last
            self._progress("writing", min(1.0, (done + last * part.chunk_bytes) / self._total))

    async def _verify_part(self, part: Part, done: int) -> None:
        step = max(1, _BATCH_BYTES // part.chunk_bytes)
        for first in range(0, part.num_chunks, step):
            last = min(first + step, part.num_chunks)
            wrong = await self._wrong(part, first, last)
            if wrong:
                for chunk in wrong:
                    await self._write(part, np.array([chunk]), self._content(part, chunk, chunk + 1))
                self._num_written += len(wrong)
                self._num_repaired += len(wrong)
                if await self._wrong(part, first, last):
                    raise GraphStoreError(
                        f"{self._redis.url.kind}: {part.name} of graph {self._version} does not keep what "
                        "is written: check the server's maxmemory and its eviction policy, which must be "
                        "noeviction"
                    )
            self._progress("verifying", min(1.0, (done + last * part.chunk_bytes) / self._total))

    async def _wrong(self, part: Part, first: int, last: int) -> list[int]:
        """Chunks that are missing, or are not those of the graph."""
        chunks = np.arange(first, last)
        keys = self._redis.chunk_keys(self._version, part.name, chunks)
        replies = await self._redis.backend.read(keys, part.chunk_bytes)
        if replies.errors:
            raise refusal(self._redis.url.kind, next(iter(replies.errors.values())))
        content = self._content(part, first, last)
        wrong = []
        for at, chunk in enumerate(chunks.tolist()):
            own = content[at * part.chunk_bytes : (at + 1) * part.chunk_bytes]
            size = int(replies.lengths[at])
            if size != len(own) or not np.array_equal(replies.rows[at, :size], own):
                wrong.append(chunk)
        return wrong

    def _content(self, part: Part, first: int, last: int) -> np.ndarray:
        return part.read(first * part.chunk_bytes, min(last * part.chunk_bytes, part.num_bytes))

    async def _write(self, part: Part, chunks: np.ndarray, content: np.ndarray) -> None:
        """Write chunks of a part; only the last one may be shorter."""
        num_whole = len(content) // part.chunk_bytes
        for some, rows in (
            (
                chunks[:num_whole],
                content[: num_whole * part.chunk_bytes].reshape(num_whole, part.chunk_bytes),
            ),
            (chunks[num_whole:], content[num_whole * part.chunk_bytes :][None]),
        ):
            if not len(some):
                continue
            keys = self._redis.chunk_keys(self._version, part.name, some)
            replies = await self._redis.backend.write(keys, np.ascontiguousarray(rows), None)
            if replies.errors:
                raise refusal(self._redis.url.kind, next(iter(replies.errors.values())))
