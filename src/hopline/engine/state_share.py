"""Rows of the state cache that servers share: which a request lacks, and how a row shows that it is whole.

A row is float32 [dim] with one more number: a checksum of its bits, its node and its group. A row that was
damaged, or stored under another name, is not used.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hopline.engine.guard import Guard
from hopline.engine.model import Model
from hopline.engine.plan import make_plan
from hopline.graph.hash_table import _mix
from hopline.kernels.jit import njit
from hopline.types import FloatArray, IdArray

#: (level, node type) of a state cache.
CacheKey = tuple[int, str]
#: Nodes of a measurement.
_MEASURED = 32


@njit(nogil=True, cache=True)
def _checksums(ids, words, seed, out):  # type: ignore[no-untyped-def]
    for i in range(ids.shape[0]):
        found = _mix(seed ^ np.uint64(ids[i]))
        for c in range(words.shape[1]):
            found = _mix(found ^ np.uint64(words[i, c]))
        out[i] = np.uint32(found)


def checksums(ids: IdArray, rows: FloatArray, seed: int) -> NDArray[np.uint32]:
    """uint32 [n] of rows float32 [n, dim] of nodes int64 [n].

    Args:
        seed: of the group of rows, 64 bits.
    """
    out = np.empty(ids.shape[0], np.uint32)
    words = np.ascontiguousarray(rows).view(np.uint32)
    _checksums(np.ascontiguousarray(ids, np.int64), words, np.uint64(seed), out)
    return out


def packed(ids: IdArray, rows: FloatArray, seed: int) -> FloatArray:
    """Rows as they are stored: float32 [n, dim + 1]."""
    found = np.empty((rows.shape[0], rows.shape[1] + 1), np.float32)
    found[:, :-1] = rows
    found.view(np.uint32)[:, -1] = checksums(ids, rows, seed)
    return found


def whole(ids: IdArray, stored: FloatArray, seed: int) -> NDArray[np.bool_]:
    """bool [n]: which stored rows are what `packed` made of these nodes."""
    stored = np.ascontiguousarray(stored)
    rows = np.ascontiguousarray(stored[:, :-1])
    right: NDArray[np.bool_] = stored.view(np.uint32)[:, -1] == checksums(ids, rows, seed)
    return right


def missing_rows(model: Model, wanted: Mapping[str, IdArray]) -> dict[CacheKey, IdArray]:
    """Rows that state caches lack to compute final states: ids by cache, those of upper levels first.

    Args:
        wanted: node type -> distinct ids.
    """
    counts = {key: (cache.num_hits, cache.num_misses) for key, cache in model.state_caches.items()}
    plan = make_plan(model.levels, model.spec.num_layers, wanted, guard=Guard())
    for key, (hits, misses) in counts.items():  # the plan that computes counts them
        cache = model.state_caches[key]
        cache.num_hits, cache.num_misses = hits, misses
    return {
        (need.level.level, need.level.node_type): need.compute.copy()
        for needs in plan.needs
        for need in needs
        if need.level.state_cache is not None and need.compute.shape[0]
    }


def seconds_per_row(model: Model) -> dict[CacheKey, float]:
    """What computing a row costs in each state cache, with all rows below it; measured on a few nodes.

    The measured rows are in the state caches afterwards.
    """
    found = {}
    rng = np.random.default_rng(0)
    for level, node_type in sorted(model.state_caches):
        num_nodes = model.graph.nodes[node_type].num_nodes
        times = []
        for _ in range(3):  # the first one may compile
            ids = np.unique(rng.integers(0, num_nodes, _MEASURED))
            cache = model.state_caches[level, node_type]
            ids = ids[cache.read(ids, np.empty((ids.shape[0], cache.dim), np.float32))]
            if not ids.shape[0]:
                continue
            began = time.perf_counter()
            model.states(level, {node_type: ids})
            times.append((time.perf_counter() - began) / ids.shape[0])
        if times:
            found[level, node_type] = min(times)
    return found
