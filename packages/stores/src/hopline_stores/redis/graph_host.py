"""The parts of a stored graph that a host reads whole: ids, list bounds and features.

    <cache>/<version>-<digest>/near.json, nodes/…, edges/…

They are read once for each host, verified by their digests, and mapped by all workers. A folder is complete
or not there; it may be deleted whenever no server uses it.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hopline.errors import ConfigError, GraphStoreError, GraphStoreUnavailable
from hopline.files import draft_of, lock, publish_folder
from hopline.graph import Adjacency, Graph, IdIndex, Nodes, narrow, storage
from hopline.graph.codec import PackedBounds, wrong_bounds
from hopline.graph.digest import digests
from hopline.graph.schema import quoted
from hopline.graph.storage import header, map_array
from hopline.graph.store_columns import StoreColumn, StoreFeatures, StoreIds
from hopline.types import AnyArray, Progress
from hopline_stores.redis.connection import refusal
from hopline_stores.redis.graph_layout import HOST_CHUNK_BYTES, Redis, StoreManifest

_AT_ONCE = 8
_DONE = "complete.json"


async def open_host_parts(redis: Redis, manifest: StoreManifest, cache: Path, progress: Progress) -> Graph:
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
                await _fetch(redis, manifest, folder, progress)
    except OSError as error:
        raise ConfigError(
            f"graph.cache: {cache} cannot be written: {error.strerror or error}; set graph.cache"
        ) from None
    return await asyncio.to_thread(_opened, folder, manifest)


async def _fetch(redis: Redis, manifest: StoreManifest, folder: Path, progress: Progress) -> None:
    draft = draft_of(folder)
    total = max(1, sum(stored.file_bytes for stored in manifest.host.values()))
    done = 0
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
                    replies = await redis.backend.read(keys, HOST_CHUNK_BYTES)
                    if replies.errors:
                        raise refusal(redis.url.kind, next(iter(replies.errors.values())))
                    for at, chunk in enumerate(chunks.tolist()):
                        size = min(HOST_CHUNK_BYTES, num_bytes - chunk * HOST_CHUNK_BYTES)
                        if replies.lengths[at] != size:
                            raise GraphStoreUnavailable(
                                f"{redis.url.kind}: chunk {name}:{chunk} of graph "
                                f"{manifest.graph.version} is missing or cut; run `hopline graph push` "
                                "again"
                            )
                        file.write(replies.rows[at, :size].data)
                        done += size
                    progress("reading", done / total)
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
        has_one_way_edges=known.has_one_way_edges,
        max_degree=known.max_degree,
        stored_time_range=known.time_range,
        signed_weight=schema.signed_weight,
    )
