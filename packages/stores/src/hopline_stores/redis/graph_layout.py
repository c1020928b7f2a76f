"""Layout of a graph in Redis: keys, chunks and the manifest.

    <prefix>graph:current                     version that servers read, if they name none
    <prefix>graph:versions                    a set of the complete versions
    <prefix>graph:<version>:manifest          JSON of `StoreManifest`; written last, after all was verified
    <prefix>graph:<version>:<part>:<chunk>    bytes of a part

A part is an array in chunks of equal size, so any positions can be read by GETRANGE. Neighbours have as
many bytes as the largest row number needs, little-endian; weights and attributes are float32. *Host* parts
are read whole when a server opens the graph, *edge* parts by position.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from hopline.config.redis_policy import QUESTIONS, check_keeps, policy_in
from hopline.errors import (
    ConfigError,
    FeatureStoreError,
    FeatureStoreUnavailable,
    GraphStoreError,
    GraphStoreUnavailable,
)
from hopline.graph import Graph
from hopline.graph.codec import PackedBounds
from hopline.graph.digest import bytes_of
from hopline.graph.schema import quoted
from hopline.graph.storage import Manifest, StoredArray, arrays_of
from hopline.types import AnyArray, IdArray
from hopline_stores.redis import resp
from hopline_stores.redis.cluster import backend_of, errors_of_opening
from hopline_stores.redis.resp import Bytes, Keys
from hopline_stores.redis.server import Server
from hopline_stores.redis.url import RedisUrl

FORMAT_VERSION = 1
#: Entries of a chunk of edges: 64 KiB of neighbours of 4 bytes.
CHUNK_ENTRIES = 1 << 14
#: Bytes of a chunk of a host part.
HOST_CHUNK_BYTES = 1 << 20
#: Packed list bounds are 32-bit numbers.
_MAX_PACKED_EDGES = 2**31 - 1


class EdgePart(msgspec.Struct, frozen=True):
    """A column of an edge type.

    Attributes:
        dtype: of its values in memory. width: values of an entry.
        entry_bytes: bytes of an entry in the store.
    """

    dtype: str
    width: int
    entry_bytes: int


class StoreManifest(msgspec.Struct, frozen=True):
    """Contents of the store for a graph.

    Attributes:
        graph: of the graph that was pushed, with its version, schema, counts and digests.
        host: part -> array that a host reads whole.
        edges: edge type -> column -> its part.
        has_features: True if host parts include features; else a feature store has them.
        means: node type -> mean feature row, where features are left out.
        chunk_entries: entries of a chunk of an edge part.
    """

    graph: Manifest
    host: dict[str, StoredArray]
    edges: dict[str, dict[str, EdgePart]]
    has_features: bool
    means: dict[str, list[float]] = {}
    chunk_entries: int = CHUNK_ENTRIES
    format: int = FORMAT_VERSION


def edge_part_name(key: str, column: str) -> str:
    """The part of a column of an edge type."""
    return f"edges/{quoted(key)}/{column}"


def edge_parts(graph: Graph) -> dict[str, dict[str, EdgePart]]:
    """The parts of all edge types of a graph."""
    found: dict[str, dict[str, EdgePart]] = {}
    for key, part in graph.edges.items():
        num_sources = graph.nodes[part.src].num_nodes
        id_bytes = max(1, -(-(max(num_sources, 1) - 1).bit_length() // 8))
        columns = {"indices": EdgePart("<i4", 1, id_bytes)}
        if part.weight is not None:
            columns["weight"] = EdgePart("<f4", 1, 4)
        if part.attr is not None:
            width = int(part.attr.shape[1])
            columns["attr"] = EdgePart("<f4", width, 4 * width)
        found[key] = columns
    return found


def host_arrays(graph: Graph, *, features: bool) -> dict[str, AnyArray]:
    """Arrays that every request reads, by the part that holds them."""
    nodes = arrays_of(graph.nodes, {})  # nodes/<type>/ids/…, nodes/<type>/features …
    arrays = {name: a for name, a in nodes.items() if features or name.split("/")[2] == "ids"}
    for key, part in graph.edges.items():
        bounds: Any = part.indptr
        if not isinstance(bounds, PackedBounds) and part.num_edges <= _MAX_PACKED_EDGES:
            bounds = PackedBounds.pack(np.asarray(bounds))
        where = f"edges/{quoted(key)}"
        if isinstance(bounds, PackedBounds):
            arrays |= {f"{where}/indptr_groups": bounds.groups, f"{where}/indptr_longs": bounds.longs}
        else:
            arrays[f"{where}/indptr"] = bounds
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


@dataclass(frozen=True, slots=True)
class Part:
    """A part to be written, or compared.

    Attributes:
        name: of its keys.
        chunk_bytes: of all chunks but the last one. num_bytes: of all of them.
        read: (first byte, last byte + 1), at chunk boundaries -> bytes.
    """

    name: str
    chunk_bytes: int
    num_bytes: int
    read: Callable[[int, int], Bytes]

    @property
    def num_chunks(self) -> int:
        """Chunks, the last of which may be shorter."""
        return -(-self.num_bytes // self.chunk_bytes)


def parts_of(graph: Graph, host: dict[str, AnyArray]) -> Iterator[Part]:
    """All parts of a graph: those of the host, then the edges."""
    for name, array in host.items():
        content = np.frombuffer(bytes_of(array), np.uint8)
        yield Part(name, HOST_CHUNK_BYTES, content.shape[0], lambda a, b, content=content: content[a:b])  # type: ignore[misc]
    for key, columns in edge_parts(graph).items():
        edges = graph.edges[key]
        columns_of: Any = {"indices": edges.indices, "weight": edges.weight, "attr": edges.attr}
        for column, layout in columns.items():
            size = layout.entry_bytes
            yield Part(
                edge_part_name(key, column),
                CHUNK_ENTRIES * size,
                edges.num_edges * size,
                _reader(columns_of[column], layout),
            )


def _reader(values: AnyArray, layout: EdgePart) -> Callable[[int, int], Bytes]:
    size = layout.entry_bytes

    def read(first: int, last: int) -> Bytes:
        part = np.ascontiguousarray(np.asarray(values[first // size : last // size]), layout.dtype)
        raw = part.reshape(part.shape[0], -1).view(np.uint8)
        return np.ascontiguousarray(raw[:, :size]).reshape(-1)

    return read


class Redis:
    """A Redis server or cluster, and the names of keys in it.

    Args:
        url: see `RedisUrl`; `redis+cluster://` for a cluster.
        setting: of the URL, for errors.
    """

    def __init__(self, url: str, setting: str) -> None:
        self.url = RedisUrl.parse(url, setting)
        if self.url.ttl_s is not None:
            raise ConfigError(f"{setting}: ttl_s is for rows of features; edges do not expire; remove it")
        self.backend = backend_of(self.url)

    def key(self, *names: str) -> bytes:
        """ "<prefix>graph:<name>:<name>"."""
        return ":".join((f"{self.url.prefix}graph", *names)).encode()

    def chunk_keys(self, version: str, part: str, chunks: IdArray) -> Keys:
        """Keys of chunks int64 [n] of a part."""
        return resp.keys_of(resp.to_bytes(self.key(version, part) + b":"), chunks)

    async def call(self, verb: str, key: bytes, *words: bytes | str | int) -> object:
        """Send one command for one key."""
        return await self.backend.call_for(key, verb, key, *words)


def joined(parts: list[Keys]) -> Keys:
    """The keys of several parts in one list."""
    if len(parts) == 1:
        return parts[0]
    return resp.keys_from(
        [
            part.prefix.tobytes() + part.blob[begin:end].tobytes()
            for part in parts
            for begin, end in zip(part.begins.tolist(), part.ends.tolist(), strict=True)
        ]
    )


_OPEN_S = 5.0


async def connect(redis: Redis, setting: str) -> None:
    """Connect for the first time.

    Raises: ConfigError: the address or the login is wrong, or a server may evict the edges.
    """
    with errors_of_opening(setting):
        await redis.backend.open(_OPEN_S)
        for server in redis.backend.servers():
            # Keys of a graph have no expiry.
            check_keeps(await _policy(server), server.where, setting, expiring=False)


async def _policy(server: Server) -> str:
    """The memory policy of a server; "" if this client may not ask for it."""
    for words in QUESTIONS:
        try:
            policy = policy_in(await server.call(*words))
        except FeatureStoreUnavailable:
            raise
        except FeatureStoreError:  # an error reply
            continue
        if policy:
            return policy
    return ""


@contextlib.contextmanager
def errors_of_graph() -> Iterator[None]:
    """Errors of the Redis client as those of a graph store."""
    try:
        yield
    except FeatureStoreUnavailable as error:
        raise GraphStoreUnavailable(str(error), error.retry_after_s) from None
    except FeatureStoreError as error:
        raise GraphStoreError(str(error)) from None
