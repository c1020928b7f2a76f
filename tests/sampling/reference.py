"""The keyed sampler in plain NumPy and Python integers: the oracle of `keyed.py`.

Slow on purpose: one node at a time, unlimited integers masked to 64 bits, no buffers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hopline.types import IdArray

if TYPE_CHECKING:
    from hopline.graph import Adjacency

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    """SplitMix64's finaliser on Python integers."""
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & _MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


def sample_positions(
    adjacency: Adjacency, node: int, fanout: int, mode: str, key: int, as_of: int | None = None
) -> IdArray:
    """Positions in `adjacency.indices` that `node` sees; int64 [<= fanout], in the sampler's order."""
    start, end = int(adjacency.indptr[node]), int(adjacency.indptr[node + 1])
    if as_of is not None and adjacency.time is not None:
        end = start + int(np.searchsorted(adjacency.time[start:end], as_of, side="right"))
    n = end - start
    if fanout < 0 or n <= fanout:
        return np.arange(start, end)
    if mode == "recent":
        return np.arange(end - fanout, end)
    node_key = mix((int(node) * _GOLDEN + key) & _MASK)
    if mode == "uniform":
        return start + np.array(_floyd(n, fanout, node_key), np.int64)
    assert adjacency.weight is not None
    assert adjacency.cumweight is not None
    chosen = _successive(adjacency.weight[start:end], adjacency.cumweight[start:end], fanout, node_key)
    return start + np.array(chosen, np.int64)


def _random(node_key: int, draw: int) -> int:
    return mix((node_key + draw * _GOLDEN) & _MASK)


def _floyd(n: int, k: int, node_key: int) -> list[int]:
    chosen: list[int] = []
    for j in range(k):
        last = n - k + j
        t = (_random(node_key, j + 1) >> 32) * (last + 1) >> 32
        chosen.append(last if t in chosen else t)
    return chosen


def _successive(weight: np.ndarray, cumweight: np.ndarray, k: int, node_key: int) -> list[int]:
    chosen: list[int] = []
    total = float(cumweight[-1])
    if not total > 0:
        return chosen
    draw = 0
    while len(chosen) < k and draw < 4 * k + 16:
        draw += 1
        u = (_random(node_key, draw) >> 11) * (1.0 / (1 << 53)) * total
        t = int(np.searchsorted(cumweight, u, side="right"))
        if t < len(weight) and t not in chosen:
            chosen.append(t)
    while len(chosen) < k:
        left_over = [0.0 if e in chosen else float(w) for e, w in enumerate(weight)]
        left = 0.0
        for w in left_over:
            left += w
        if not left > 0:
            break
        draw += 1
        u = (_random(node_key, draw) >> 11) * (1.0 / (1 << 53)) * left
        running, pick = 0.0, -1
        for e, w in enumerate(left_over):
            if w > 0:
                pick = e
                running += w
                if running > u:
                    break
        chosen.append(pick)
    return chosen
