"""Edges in Redis, Valkey or a Redis Cluster: GETRANGE of sampled positions, one round trip for each hop.

The layout is in `layout.py`, and `push.py` writes it. A column of E entries is cut into chunks of equal
size. Positions close to each other share one range, since a command costs more than the entries between
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.errors import GraphStoreError, GraphStoreUnavailable
from hopline.graph.store_columns import FetchedEdges
from hopline.graph_store.base import RemoteGraphStore, checked_ids, empty_columns
from hopline.kernels.jit import njit
from hopline.types import UNREADABLE, AnyArray, IdArray, Progress, silent
from hopline_stores.redis import resp
from hopline_stores.redis.connection import Replies, refusal
from hopline_stores.redis.graph_host import open_host_parts
from hopline_stores.redis.graph_layout import (
    FORMAT_VERSION,
    EdgePart,
    Redis,
    StoreManifest,
    connect,
    edge_part_name,
    errors_of_graph,
    joined,
)
from hopline_stores.redis.graph_push import push
from hopline_stores.redis.resp import Keys

#: Bytes of unwanted entries that are read rather than sending a further command (some 80 bytes).
_GAP_BYTES = 64
#: Longest range: replies of one request are as wide as its longest one.
MAX_RANGE_BYTES = 1024


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
        setting: of the URL, for errors.
        progress: of reading the host's parts.
    """

    kind = "redis"
    push = staticmethod(push)

    def __init__(
        self,
        url: str,
        cache: Path,
        version: str = "",
        setting: str = "graph.store",
        progress: Progress = silent,
    ) -> None:
        super().__init__(url, cache, version)
        self._redis = Redis(url, setting)
        self._cache = cache
        self._version = version
        self._setting = setting
        self._progress = progress
        self._prefixes: dict[tuple[str, str], resp.Bytes] = {}

    async def open(self) -> None:
        """See `GraphStore.open`; reads the host's parts into the cache folder, unless it has them."""
        with errors_of_graph():
            await connect(self._redis, self._setting)
            self.manifest = await read_manifest(self._redis, self._version)
            self.graph = await open_host_parts(self._redis, self.manifest, self._cache, self._progress)
        version = self.manifest.graph.version
        for key, columns in self.manifest.edges.items():
            for column in columns:
                prefix = self._redis.key(version, edge_part_name(key, column)) + b":"
                self._prefixes[key, column] = resp.to_bytes(prefix)

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.backend.close()

    async def fetch(
        self, wanted: Mapping[str, IdArray], columns: Mapping[str, Sequence[str]]
    ) -> dict[str, FetchedEdges]:
        """See `GraphStore.fetch`: one round trip to each server that has some of the edges."""
        plans: list[tuple[str, str, _Ranges]] = []
        keys: list[Keys] = []
        for key, positions in wanted.items():
            for column in columns[key]:
                part = self.manifest.edges[key][column]
                ranges = ranges_of(positions, self.manifest.chunk_entries, part.entry_bytes)
                plans.append((key, column, ranges))
                keys.append(resp.keys_of(self._prefixes[key, column], ranges.chunks))
        firsts = np.concatenate([ranges.firsts for _, _, ranges in plans])
        lasts = np.concatenate([ranges.lasts for _, _, ranges in plans])
        sizes = lasts - firsts + 1
        with errors_of_graph():
            replies = await self._redis.backend.read_ranges(
                joined(keys), firsts, lasts, int(sizes.max(initial=0))
            )
            if replies.errors:
                raise refusal(self._redis.url.kind, next(iter(replies.errors.values())))
        self.num_round_trips += 1
        self.num_ranges += sizes.shape[0]
        self.num_bytes += int(sizes.sum())
        if not np.array_equal(replies.lengths, sizes):
            self._report_missing(plans, replies, sizes)
        return self._edges(wanted, columns, plans, replies)

    def _edges(
        self,
        wanted: Mapping[str, IdArray],
        columns: Mapping[str, Sequence[str]],
        plans: list[tuple[str, str, _Ranges]],
        replies: Replies,
    ) -> dict[str, FetchedEdges]:
        found: dict[str, dict[str, AnyArray]] = {}
        at = 0
        for key, column, ranges in plans:
            adjacency = self.graph.edges[key]
            values = empty_columns(adjacency, (column,), wanted[key].shape[0])[column]
            rows = replies.rows[at : at + ranges.chunks.shape[0]]
            at += ranges.chunks.shape[0]
            entries(rows, ranges, self._part(key, column).entry_bytes, values)
            if column == "indices":
                num_sources = self.graph.nodes[adjacency.src].num_nodes
                checked_ids(values, num_sources, f"{self._redis.url.kind}: {edge_part_name(key, column)}")
            found.setdefault(key, {})[column] = values
        return {key: FetchedEdges(wanted[key], found[key]) for key in wanted}

    def _part(self, key: str, column: str) -> EdgePart:
        return self.manifest.edges[key][column]

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
