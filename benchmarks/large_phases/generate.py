"""Writes a graph larger than memory in Hopline's own format, a million nodes at a time.

In-degrees are heavy-tailed. Sources are skewed too (the most popular hundredth of the nodes has a fifth of
the edges) and spread over all ids. Memory is bounded by a chunk, and by what the page cache takes.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from hopline.graph import EdgeTypeSchema, GraphSchema, NodeTypeSchema
from hopline.graph.digest import digests, version_of
from hopline.graph.schema import EDGE_TYPE, NODE_TYPE, edge_key
from hopline.graph.storage import MANIFEST, Manifest, StoredArray, StoredEdges, header, map_array
from hopline.kernels.jit import njit

FEATURE_DIM = 32
_CHUNK_NODES = 1 << 20
_KEY = edge_key(*EDGE_TYPE)


def generate(folder: Path, num_nodes: int, num_edges: int, seed: int = 1) -> None:
    """Write a graph, unless the folder has it already.

    Args:
        folder: of the graph; written completely or not at all.
    """
    if (folder / MANIFEST).is_file():
        return
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    names = {
        f"nodes/{NODE_TYPE}/features": ("<f2", (num_nodes, FEATURE_DIM)),
        f"edges/{_KEY}/indptr": ("<i8", (num_nodes + 1,)),
        f"edges/{_KEY}/indices": ("<i4", (num_edges,)),
    }
    files: dict[str, IO[bytes]] = {}
    for name, (dtype, shape) in names.items():
        path = draft / f"{name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        files[name] = path.open("wb")
        files[name].write(header(dtype, shape))
    features, bounds, indices = (files[name] for name in names)
    bounds.write(np.zeros(1, np.int64).tobytes())
    done_edges, max_degree, self_loops = 0, 0, False
    for first in range(0, num_nodes, _CHUNK_NODES):
        last = min(first + _CHUNK_NODES, num_nodes)
        rng = np.random.default_rng((seed, first))
        wanted = num_edges * last // num_nodes - done_edges
        degrees = _degrees(rng, last - first, wanted)
        ends = done_edges + np.cumsum(degrees)
        bounds.write(ends.tobytes())
        sources = np.empty(wanted, np.int32)
        self_loops |= bool(_fill(sources, degrees, first, num_nodes, int(rng.integers(2**63))))
        indices.write(sources.data)
        features.write(_rows(rng, last - first).data)
        done_edges, max_degree = done_edges + wanted, max(max_degree, int(degrees.max()))
        _bar("generating", last / num_nodes)
    stored = {}
    for name, (dtype, shape) in names.items():
        stored[name] = StoredArray(dtype, shape, files[name].tell(), "")
        files[name].close()
    arrays = {name: map_array(draft, name, array) for name, array in stored.items()}
    hashes = digests(arrays, _bar)
    schema = GraphSchema(
        {NODE_TYPE: NodeTypeSchema(FEATURE_DIM, "float16")}, {_KEY: EdgeTypeSchema(*EDGE_TYPE)}
    )
    manifest = Manifest(
        version=version_of(schema, hashes),
        graph_schema=schema,
        num_nodes={NODE_TYPE: num_nodes},
        edges={_KEY: StoredEdges(num_edges, max_degree, self_loops)},
        arrays={
            name: msgspec.structs.replace(array, blake2b=hashes[name]) for name, array in stored.items()
        },
        format=1,
    )
    (draft / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    draft.rename(folder)


def _degrees(rng: np.random.Generator, count: int, total: int) -> Any:
    """Heavy-tailed in-degrees int64 [count] whose sum is `total`."""
    weights = np.minimum(rng.pareto(1.5, count) + 0.3, 20_000)
    degrees = np.floor(weights * (total / weights.sum())).astype(np.int64)
    degrees[: total - int(degrees.sum())] += 1
    return degrees


def _rows(rng: np.random.Generator, count: int) -> Any:
    """float16 [count, FEATURE_DIM], about -1.7 to 1.7: as even a spread as 16 random bits give."""
    raw = rng.integers(0, 2**16, (count, FEATURE_DIM), np.uint16)
    return ((raw.astype(np.float32) - 32768) * np.float32(1.7 / 32768)).astype(np.float16)


@njit(cache=True, nogil=True)
def _fill(sources, degrees, first, num_nodes, seed):  # type: ignore[no-untyped-def]
    """Draw each list and sort it; returns whether some node is its own neighbour."""
    state = np.uint64(seed)
    at = 0
    found = False
    for node in range(degrees.shape[0]):
        begin = at
        for _ in range(degrees[node]):
            # SplitMix64
            state += np.uint64(0x9E3779B97F4A7C15)
            z = state
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
            u = np.float64(z >> np.uint64(11)) / 9007199254740992.0
            rank = np.int64(u * u * u * num_nodes)
            # Popular nodes are spread over all ids: 1,000,003 is a prime above every remainder used.
            source = (rank * 1_000_003 + 12_345) % num_nodes
            sources[at] = source
            found |= source == first + node
            at += 1
        sources[begin:at].sort()
    return found


_began = [time.monotonic(), 0.0]


def _bar(stage: str, done: float) -> None:
    """A progress bar on stderr, at most five times a second."""
    now = time.monotonic()
    if done < 1 and now - _began[1] < 0.2:
        return
    _began[1] = now
    filled = int(40 * done)
    end = "\n" if done >= 1 else ""
    bar = f"[{'#' * filled}{'.' * (40 - filled)}]"
    took = f"{100 * done:5.1f} %  {now - _began[0]:6.0f} s"
    print(f"\r  {stage:<12}{bar} {took}", end=end, file=sys.stderr, flush=True)
