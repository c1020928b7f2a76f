"""Edges in Redis, Valkey or a Redis Cluster: GETRANGE of sampled positions, one round trip for each hop.

The layout is in `graph_layout.py`, and `graph_push.py` writes it. A column of E entries is cut into chunks
of equal size. Positions close to each other share one range, since a command costs more than the entries
between them.

The parts that a host reads whole (ids, list bounds, features) are read once for each host, verified by
their digests, and mapped by all workers: <cache>/<version>-<digest>/complete.json, nodes/…, edges/… A
folder is complete or not there; it may be deleted whenever no server uses it.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.errors import ConfigError, GraphStoreError, GraphStoreUnavailable
from hopline.files import draft_of, lock, publish_folder
from hopline.graph import Adjacency, Graph, IdIndex, Nodes, narrow, storage
from hopline.graph.codec import PackedBounds, wrong_bounds
from hopline.graph.digest import digests
from hopline.graph.schema import quoted
from hopline.graph.storage import header, map_array
from hopline.graph.store_columns import FetchedEdges, StoreColumn, StoreFeatures, StoreIds
from hopline.graph_store.base import RemoteGraphStore, checked_ids, empty_columns
from hopline.kernels.jit import njit
from hopline.types import UNREADABLE, AnyArray, IdArray
from hopline_stores.redis.connection import Replies
from hopline_stores.redis.graph_layout import (
    FORMAT_VERSION,
    HOST_CHUNK_BYTES,
    Redis,
    StoreManifest,
    connect,
    edge_part_name,
    errors_of_graph,
    joined,
)
from hopline_stores.redis.graph_push import push
from hopline_stores.redis.resp import Keys

_SETTING = "graph.store"
#: Bytes of unwanted entries that are read rather than sending a further command (some 80 bytes).
_GAP_BYTES = 64
#: Longest range: replies of one request are as wide as its longest one.
MAX_RANGE_BYTES = 1024
#: Chunks of a host's part that are read together.
_AT_ONCE = 8
_DONE = "complete.json"


class _Ranges(NamedTuple):
    """Ranges of a column that hold some positions.

    Attributes:
        chunks: int64 [r], number of each range's chunk.
        firsts, lasts: int64 [r], first and last byte in the chunk.
        range_of: int64 [n], the range of each position. offsets: int64 [n], its first byte there.
    """

    chunks: IdArray
    firsts: IdArray
    lasts: IdArray
    range_of: IdArray
    offsets: IdArray


def ranges_of(positions: IdArray, chunk_entries: int, entry_bytes: int) -> _Ranges:
    """Ranges for ascending int64 [n] positions."""
    n = positions.shape[0]
    chunks, firsts, lasts = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    range_of, offsets = np.empty(n, np.int64), np.empty(n, np.int64)
    count = _fill(positions, chunk_entries, entry_bytes, chunks, firsts, lasts, range_of, offsets)
    return _Ranges(chunks[:count], firsts[:count], lasts[:count], range_of, offsets)


@njit(cache=True, nogil=True)
def _fill(positions, chunk_entries, entry_bytes, chunks, firsts, lasts, range_of, offsets):  # type: ignore[no-untyped-def]
    count = 0
    for i in range(positions.shape[0]):
        chunk = positions[i] // chunk_entries
        first = (positions[i] - chunk * chunk_entries) * entry_bytes
        last = first + entry_bytes - 1
        at = count - 1
        is_near = (
            count > 0
            and chunks[at] == chunk
            and first - lasts[at] - 1 <= _GAP_BYTES
            and last - firsts[at] < MAX_RANGE_BYTES
        )
        if is_near:
            lasts[at] = last
        else:
            at = count
            chunks[at], firsts[at], lasts[at] = chunk, first, last
            count += 1
        range_of[i] = at
        offsets[i] = first - firsts[at]
    return count


def entries(rows: NDArray[np.uint8], ranges: _Ranges, entry_bytes: int, out: AnyArray) -> None:
    """Copy entries to `out`.

    Args:
        rows: uint8 [r, width], the bytes of each range. entry_bytes: of an entry.
        out: [n, …] C-contiguous, of a little-endian dtype. Its entries may have more bytes, which become 0.
    """
    n = out.shape[0]
    if n:
        raw = out.reshape(n, -1).view(np.uint8)
        raw[:, entry_bytes:] = 0
        _take(rows, ranges.range_of, ranges.offsets, entry_bytes, raw)


@njit(cache=True, nogil=True)
def _take(rows, range_of, offsets, entry_bytes, out):  # type: ignore[no-untyped-def]
    for i in range(range_of.shape[0]):
        row, offset = range_of[i], offsets[i]
        for k in range(entry_bytes):
            out[i, k] = rows[row, offset + k]


class RedisGraphStore(RemoteGraphStore):
    """The edges of one version of a graph, in a Redis or a cluster.

    Args:
        url: see `RedisUrl`; `redis+cluster://` for a cluster.
        cache: folder for the parts that a host reads whole.
        version: of the graph; "" for the one that was pushed last.
    """

    kind = "redis"
    push = staticmethod(push)

    def __init__(self, url: str, cache: Path, version: str = "") -> None:
        super().__init__(url, cache, version)
        self._redis = Redis(url, _SETTING)
        self._cache = cache
        self._version = version

    async def open(self) -> None:
        """See `GraphStore.open`; reads the host's parts into the cache folder, unless it has them."""
        with errors_of_graph():
            await connect(self._redis, _SETTING)
            self.manifest = await read_manifest(self._redis, self._version)
            self.graph = await open_host_parts(self._redis, self.manifest, self._cache)

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.backend.close()

    async def fetch(
        self, wanted: Mapping[str, IdArray], columns: Mapping[str, Sequence[str]]
    ) -> dict[str, FetchedEdges]:
        """See `GraphStore.fetch`: one round trip to each server that has some of the edges."""
        plans: list[tuple[str, str, _Ranges]] = []
        keys: list[Keys] = []
        version = self.manifest.graph.version
        for key, positions in wanted.items():
            for column in columns[key]:
                part = self.manifest.edges[key][column]
                ranges = ranges_of(positions, self.manifest.chunk_entries, part.entry_bytes)
                plans.append((key, column, ranges))
                keys.append(self._redis.chunk_keys(version, edge_part_name(key, column), ranges.chunks))
        firsts = np.concatenate([ranges.firsts for _, _, ranges in plans])
        lasts = np.concatenate([ranges.lasts for _, _, ranges in plans])
        sizes = lasts - firsts + 1
        with errors_of_graph():
            replies = await self._redis.backend.read_ranges(
                joined(keys), firsts, lasts, int(sizes.max(initial=0))
            )
            replies.check(self._redis.url.kind)
        self.num_round_trips += 1
        self.num_ranges += sizes.shape[0]
        self.num_bytes += int(sizes.sum())
        if not np.array_equal(replies.lengths, sizes):
            self._report_missing(plans, replies, sizes)
        return self._edges(wanted, plans, replies)

    def _edges(
        self, wanted: Mapping[str, IdArray], plans: list[tuple[str, str, _Ranges]], replies: Replies
    ) -> dict[str, FetchedEdges]:
        found: dict[str, dict[str, AnyArray]] = {}
        at = 0
        for key, column, ranges in plans:
            adjacency = self.graph.edges[key]
            values = empty_columns(adjacency, (column,), wanted[key].shape[0])[column]
            rows = replies.rows[at : at + ranges.chunks.shape[0]]
            at += ranges.chunks.shape[0]
            entries(rows, ranges, self.manifest.edges[key][column].entry_bytes, values)
            if column == "indices":
                num_sources = self.graph.nodes[adjacency.src].num_nodes
                checked_ids(values, num_sources, f"{self._redis.url.kind}: {edge_part_name(key, column)}")
            found.setdefault(key, {})[column] = values
        return {key: FetchedEdges(wanted[key], found[key]) for key in wanted}

    def _report_missing(
        self, plans: list[tuple[str, str, _Ranges]], replies: Replies, sizes: IdArray
    ) -> None:
        row = int(np.flatnonzero(replies.lengths != sizes)[0])
        got, want = int(replies.lengths[row]), int(sizes[row])
        for key, column, ranges in plans:
            if row < ranges.chunks.shape[0]:
                name = f"{edge_part_name(key, column)}:{int(ranges.chunks[row])}"
                raise GraphStoreUnavailable(
                    f"{self._redis.url.kind}: chunk {name} of graph {self.manifest.graph.version} is "
                    f"missing or cut ({max(got, 0)} of {want} bytes): a server has lost it; run `hopline "
                    "graph push` again, which writes what is missing"
                )
            row -= ranges.chunks.shape[0]


async def read_manifest(redis: Redis, version: str = "") -> StoreManifest:
    """The manifest of a complete graph.

    Raises: GraphStoreError: there is none, or it is damaged.
    """
    if not version:
        current = await redis.call("GET", redis.key("current"))
        if not isinstance(current, bytes):
            raise GraphStoreError(
                f"{redis.url.kind}: no graph was pushed below the prefix {redis.url.prefix!r}; run "
                "`hopline graph push`"
            )
        version = current.decode("utf-8", "replace")
    content = await redis.call("GET", redis.key(version, "manifest"))
    if not isinstance(content, bytes):
        known: object = await redis.call("SMEMBERS", redis.key("versions"))
        names = sorted(name.decode() for name in known) if isinstance(known, list) else []
        raise GraphStoreError(
            f"{redis.url.kind}: graph {version!r} does not exist, or its push has not ended; complete "
            f"graphs: {', '.join(names) or 'none'}"
        )
    try:
        written = msgspec.json.decode(content, type=_FormatOnly).format
        if written > FORMAT_VERSION:
            raise GraphStoreError(
                f"{redis.url.kind}: graph {version} is of format {written}, newer than {FORMAT_VERSION}, "
                "which this Hopline reads; upgrade hopline"
            )
        return msgspec.json.decode(content, type=StoreManifest)
    except UNREADABLE as error:
        if isinstance(error, GraphStoreError):
            raise
        raise GraphStoreError(
            f"{redis.url.kind}: the manifest of graph {version} is damaged: {error}; push the graph again"
        ) from None


class _FormatOnly(msgspec.Struct):
    format: int


async def open_host_parts(redis: Redis, manifest: StoreManifest, cache: Path) -> Graph:
    """The graph of a manifest, whose edges are placeholders.

    Raises:
        ConfigError: the cache folder cannot be written.
        GraphStoreError: a part is missing or damaged.
    """
    identity = hashlib.blake2b(msgspec.json.encode(manifest.host), digest_size=6).hexdigest()
    folder = cache / f"{manifest.graph.version}-{identity}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f".{folder.name}.lock").open("w") as file:
            # Workers that start together: one of them reads, the others wait.
            await asyncio.to_thread(lock, file.fileno())
            if not (folder / _DONE).is_file():
                await _fetch(redis, manifest, folder)
    except OSError as error:
        raise ConfigError(
            f"graph.cache: {cache} cannot be written: {error.strerror or error}; set graph.cache"
        ) from None
    return await asyncio.to_thread(_opened, folder, manifest)


async def _fetch(redis: Redis, manifest: StoreManifest, folder: Path) -> None:
    draft = draft_of(folder)
    try:
        for name, stored in manifest.host.items():
            path = draft / f"{name}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            head = header(stored.dtype, stored.shape)
            num_bytes = stored.file_bytes - len(head)
            num_chunks = -(-num_bytes // HOST_CHUNK_BYTES)
            with path.open("wb") as file:
                file.write(head)
                for first in range(0, num_chunks, _AT_ONCE):
                    chunks = np.arange(first, min(first + _AT_ONCE, num_chunks))
                    keys = redis.chunk_keys(manifest.graph.version, name, chunks)
                    replies = (await redis.backend.read(keys, HOST_CHUNK_BYTES)).check(redis.url.kind)
                    for at, chunk in enumerate(chunks.tolist()):
                        size = min(HOST_CHUNK_BYTES, num_bytes - chunk * HOST_CHUNK_BYTES)
                        if replies.lengths[at] != size:
                            raise GraphStoreUnavailable(
                                f"{redis.url.kind}: chunk {name}:{chunk} of graph "
                                f"{manifest.graph.version} is missing or cut; run `hopline graph push` "
                                "again"
                            )
                        file.write(replies.rows[at, :size].data)
        arrays = {name: map_array(draft, name, stored) for name, stored in manifest.host.items()}
        found = await asyncio.to_thread(digests, arrays)
        for name, stored in manifest.host.items():
            if found[name] != stored.blake2b:
                raise GraphStoreError(
                    f"{redis.url.kind}: {name} of graph {manifest.graph.version} is damaged: its hash is "
                    f"{found[name][:12]}…, not {stored.blake2b[:12]}…; push the graph again"
                )
        (draft / _DONE).write_bytes(msgspec.json.encode(manifest))
        publish_folder(draft, folder, durable=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _opened(folder: Path, manifest: StoreManifest) -> Graph:
    arrays = {name: map_array(folder, name, stored) for name, stored in manifest.host.items()}
    graph = manifest.graph
    nodes = {name: _nodes(manifest, name, arrays) for name in graph.graph_schema.node_types}
    edges = {key: _adjacency(folder, manifest, key, arrays) for key in graph.graph_schema.edge_types}
    found = Graph(graph.graph_schema, nodes, edges, path=folder)
    found.__dict__["version"] = graph.version
    return found


def _nodes(manifest: StoreManifest, name: str, arrays: Mapping[str, AnyArray]) -> Nodes:
    graph = manifest.graph
    schema, num_nodes = graph.graph_schema.node_types[name], graph.num_nodes[name]
    below = storage.below(f"nodes/{quoted(name)}/", arrays)
    features: Any
    if manifest.has_features:
        features = narrow.from_arrays(schema.feature_dtype, below)
    else:
        mean = np.array(manifest.means.get(name, []), np.float32)
        features = StoreFeatures((num_nodes, schema.feature_dim), mean)
    ids = IdIndex.from_arrays(schema.id_kind, num_nodes, storage.below("ids/", below))
    if features.shape != (num_nodes, schema.feature_dim) or len(ids) != num_nodes:
        raise GraphStoreError(
            f"graph {graph.version}: features {features.shape} or {len(ids)} ids of {name!r} are not of "
            f"{num_nodes} nodes; push the graph again"
        )
    return Nodes(features, ids)


def _adjacency(
    folder: Path, manifest: StoreManifest, key: str, arrays: Mapping[str, AnyArray]
) -> Adjacency:
    graph = manifest.graph
    schema, known = graph.graph_schema.edge_types[key], graph.edges[key]
    num_dst, num_edges = graph.num_nodes[schema.dst], known.num_edges
    where = f"edges/{quoted(key)}"
    indptr: Any
    wrong = ""
    if f"{where}/indptr" in arrays:
        indptr = arrays[f"{where}/indptr"]
    else:
        groups, longs = arrays[f"{where}/indptr_groups"], arrays[f"{where}/indptr_longs"]
        wrong = wrong_bounds(groups, longs, num_dst)
        indptr = None if wrong else PackedBounds(groups, longs, num_dst + 1)
    if wrong or len(indptr) != num_dst + 1 or indptr[num_dst] != num_edges:
        raise GraphStoreError(
            f"{folder / where} is damaged: {wrong or 'its lists do not end at the last edge'}; delete the "
            "folder"
        )
    weight = StoreColumn((num_edges,), "float32") if schema.has_weight else None
    return Adjacency(
        src=schema.src,
        relation=schema.relation,
        dst=schema.dst,
        indptr=indptr,
        indices=StoreIds(num_edges),  # type: ignore[arg-type]
        time=StoreColumn((num_edges,), "int64") if schema.has_time else None,  # type: ignore[arg-type]
        attr=StoreColumn((num_edges, schema.attr_dim), "float32") if schema.attr_dim else None,  # type: ignore[arg-type]
        weight=weight,  # type: ignore[arg-type]
        cumweight=StoreColumn((num_edges,), "float64") if schema.has_weight else None,  # type: ignore[arg-type]
        has_self_loops=known.has_self_loops,
        has_repeated_edges=known.has_repeated_edges,
        max_degree=known.max_degree,
        stored_time_range=known.time_range,
        signed_weight=schema.signed_weight,
    )
