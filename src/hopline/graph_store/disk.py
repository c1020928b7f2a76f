"""A graph in a folder that is larger than memory: edges and feature rows are read from the disk by number.

Packed list bounds and ids are held in memory. What is in the page cache is read immediately; other entries
are read on a thread, all those of one hop together, while other requests are answered. The kernel keeps the
pages that were read last, and the state cache keeps the states of nodes that are read often.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from hopline.errors import GraphError, GraphStoreError
from hopline.features.l1_rows import FetchResult
from hopline.graph import Adjacency, Graph, storage
from hopline.graph.codec import PackedBounds, is_compressed
from hopline.graph.narrow import NarrowMatrix
from hopline.graph.schema import quoted
from hopline.graph.store_columns import FetchedEdges, mean_row
from hopline.graph_store.base import GraphStore, checked_ids, in_store
from hopline.memory.file_reads import EntryFile
from hopline.types import AnyArray, FloatArray, IdArray

#: Threads that read; each starts all of its reads before it waits.
_THREADS = 4
#: Packed list bounds are 32-bit numbers.
_MAX_PACKED_EDGES = 2**31 - 1


class DiskStore(GraphStore):
    """Reads the edges and feature rows of a saved graph.

    Args:
        graph: opened from its folder.
        features: read feature rows from the disk too; else they are not touched (a feature store has them).

    Attributes:
        rows: node type -> its feature rows, by the interface of the L1 feature cache.

    Raises: GraphError: the graph is compressed, or only in memory.
    """

    kind = "disk"

    def __init__(self, graph: Graph, *, features: bool = True) -> None:
        super().__init__()
        if graph.path is None:
            raise GraphError("a graph is read from the disk only where it was saved; call save() first")
        if graph.is_compressed:
            raise GraphError(
                f"{graph.path} is compressed, and graph.memory 'disk' needs single edges: build it without "
                "--compress-edges"
            )
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="hopline-disk")
        manifest = storage.read(graph.path)
        self._files: dict[str, dict[str, EntryFile]] = {}
        edges: dict[str, Adjacency] = {}
        for key, part in graph.edges.items():
            columns = {"indices": 0, "weight": 0, "attr": 0 if part.attr is None else part.attr.shape[1]}
            self._files[key] = {
                name: _entries(graph, manifest, f"edges/{quoted(key)}/{name}", width)
                for name, width in columns.items()
                if getattr(part, name) is not None
            }
            reader = _Reader(self._files[key], graph.nodes[part.src].num_nodes, key)
            edges[key] = dataclasses.replace(in_store(part, reader), indptr=_bounds(part))
        self.graph = Graph(graph.schema, graph.nodes, edges, path=graph.path)
        self.graph.__dict__["version"] = graph.version
        self.rows: dict[str, DiskRows] = {}
        for name, nodes in graph.nodes.items() if features else ():
            if nodes.features.shape[1]:
                file = _entries(graph, manifest, f"nodes/{quoted(name)}/features", nodes.features.shape[1])
                self.rows[name] = DiskRows(nodes.features, file, self._threads)

    async def open(self) -> None:
        """See `GraphStore.open`: the files are open already."""

    async def close(self) -> None:
        """Close the files."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for files in self._files.values():
            for file in files.values():
                file.close()
        for rows in self.rows.values():
            rows.close()

    async def fetch(
        self, wanted: Mapping[str, IdArray], columns: Mapping[str, Sequence[str]]
    ) -> dict[str, FetchedEdges]:
        """See `GraphStore.fetch`; each column is read on a separate thread."""
        loop = asyncio.get_running_loop()
        names = [(key, name) for key in wanted for name in columns[key]]
        try:
            values = await asyncio.gather(
                *(
                    loop.run_in_executor(self._threads, self._files[key][name].read, wanted[key])
                    for key, name in names
                )
            )
        except OSError as error:
            raise GraphStoreError(f"{self.graph.path}: edges cannot be read: {error}") from None
        self.num_round_trips += 1
        found: dict[str, dict[str, AnyArray]] = {key: {} for key in wanted}
        for (key, name), read in zip(names, values, strict=True):
            self.num_ranges += read.shape[0]
            self.num_bytes += read.nbytes
            if name == "indices":
                num_sources = self.graph.nodes[self.graph.edges[key].src].num_nodes
                checked_ids(read, num_sources, f"{self.graph.path}: {key}")
            found[key][name] = read
        return {key: FetchedEdges(positions, found[key]) for key, positions in wanted.items()}


class _Reader:
    """The edges of one type that are in the page cache."""

    def __init__(self, files: Mapping[str, EntryFile], num_sources: int, key: str) -> None:
        self._files = files
        self._num_sources = num_sources
        self._key = key

    def read(self, positions: IdArray, out: Mapping[str, AnyArray]) -> IdArray:
        """See `EdgeReader.read`."""
        lost: IdArray | None = None
        for name, column in out.items():
            values, missing = self._files[name].read_now(positions)
            if name == "indices":
                values[missing] = 0
                checked_ids(values, self._num_sources, self._key)
            column[:] = values
            lost = missing if lost is None or not lost.shape[0] else np.union1d(lost, missing)
        assert lost is not None
        return lost


class DiskRows:
    """Feature rows of one node type on a disk; a `RowSource` for the engine, like `L1Rows`.

    Args:
        features: mapped; only its dtype, scale and mean are read. file: its rows. threads: that read.
    """

    ttl_s = math.inf

    def __init__(self, features: Any, file: EntryFile, threads: ThreadPoolExecutor) -> None:
        self._features = features
        self._file = file
        self._threads = threads
        self._mean: FloatArray | None = None

    @property
    def row_bytes(self) -> int:
        """As `L1Rows.row_bytes`, of decoded rows."""
        return 4 * int(self._features.shape[1])

    def read(self, ids: IdArray, out: FloatArray, *, stale: bool = False) -> tuple[IdArray, float]:
        """See `RowSource.read`; rows on a disk are never stale."""
        codes, lost = self._file.read_now(ids)
        out[:] = self._decoded(codes)
        return lost, math.inf

    def age_s(self, stamp: float) -> float:
        """As `RowSource.age_s`: rows of a snapshot do not age."""
        return 0.0

    def mean(self) -> FloatArray:
        """See `RowSource.mean`."""
        if self._mean is None:
            self._mean = mean_row(self._features)
        return self._mean

    async def fetch(self, ids: IdArray, timeout_s: float, *, alone: bool = False) -> FetchResult:
        """As `L1Rows.fetch`: rows of int64 [n] ascending ids; none where the disk takes too long."""
        loop = asyncio.get_running_loop()
        none = np.empty((0, self._features.shape[1]), np.float32)
        try:
            async with asyncio.timeout(timeout_s):
                codes = await loop.run_in_executor(self._threads, self._file.read, ids)
        except TimeoutError:
            return FetchResult(ids[:0], none, {"timeout": ids.shape[0]})
        except OSError:
            return FetchResult(ids[:0], none, {"unavailable": ids.shape[0]})
        return FetchResult(ids, self._decoded(codes), {})

    def _decoded(self, codes: AnyArray) -> FloatArray:
        features = self._features
        if isinstance(features, NarrowMatrix):
            return np.asarray(NarrowMatrix(codes, features.scale, features.offset))
        return codes.astype(np.float32, copy=False)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _entries(graph: Graph, manifest: storage.Manifest, name: str, width: int) -> EntryFile:
    stored = manifest.arrays[name]
    assert graph.path is not None
    num_bytes = int(np.prod(stored.shape)) * np.dtype(stored.dtype).itemsize
    return EntryFile(graph.path / f"{name}.npy", stored.file_bytes - num_bytes, stored.dtype, width)


def _bounds(part: Adjacency) -> Any:
    """Begin of each list, in memory."""
    assert not is_compressed(part)
    if part.num_edges <= _MAX_PACKED_EDGES:
        return PackedBounds.pack(np.asarray(part.indptr))
    copied: IdArray = np.array(part.indptr)
    copied.flags.writeable = False
    return copied
